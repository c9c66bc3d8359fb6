"""The configurations of an ensemble's members."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Annotated, Any, NoReturn, Self

from pydantic import Field

from keras_transformer.config import ModelConfig
from keras_transformer.errors import InputError
from keras_transformer.records import checked_dataclass
from keras_transformer.registry import config_type


@checked_dataclass
class EnsembleConfig(ModelConfig):
    """The configurations of the members, which may be of different sizes and architectures.

    Raises:
        InputError: if there are fewer than two members, or their vocabularies differ in size.
    """

    architecture = "ensemble"
    presets = MappingProxyType({})

    # The attributes of a member's configuration, and its `architecture`.
    members: Annotated[list[dict[str, Any]], Field(min_length=2)]

    def __post_init__(self) -> None:
        sizes = [(config.vocab_size, config.num_target_ids) for config in self.configs]
        if len(set(sizes)) > 1:
            raise InputError(
                "The vocabularies of the `members` must have the same sizes, of source and target. "
                f"Received: {sizes}"
            )

    @classmethod
    def of(cls, configs: Sequence[ModelConfig]) -> Self:
        """Returns the configuration of an ensemble of models with these configurations."""
        return cls(
            members=[
                {"architecture": config.architecture, **config.to_dict()} for config in configs
            ]
        )

    @classmethod
    def from_preset(cls, /, preset: str, *, vocab_size: int = 0, **overrides: Any) -> NoReturn:
        """Raises an `InputError`, because an ensemble is made of trained runs."""
        raise InputError(
            "An ensemble cannot be trained: `keras-transformer ensemble` makes it of trained runs"
        )

    @property
    def configs(self) -> list[ModelConfig]:
        members = map(dict, self.members)
        return [config_type(member.pop("architecture"))(**member) for member in members]

    @property
    def vocab_size(self) -> int:  # type: ignore[override]
        return self.configs[0].vocab_size

    @property
    def target_vocab_size(self) -> int | None:  # type: ignore[override]
        return self.configs[0].target_vocab_size

    @property
    def max_positions(self) -> int | None:  # type: ignore[override]
        known = [
            member.max_positions for member in self.configs if member.max_positions is not None
        ]
        return min(known, default=None)
