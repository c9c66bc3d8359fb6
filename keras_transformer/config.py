"""The model's sizes, one frozen, validated record; the presets; the ids with a meaning."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, Self

from keras_transformer.errors import InputError

PAD_ID, UNK_ID, BOS_ID, EOS_ID = 0, 1, 2, 3

PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        # Wu et al., ACL 2021: the size that suits 29,000 pairs of Multi30k.
        "tiny": {
            "d_model": 128,
            "d_ff": 256,
            "num_heads": 4,
            "num_encoder_layers": 4,
            "num_decoder_layers": 4,
        },
        # Table 3, row "base".
        "base": {},
        # Table 3, row "big".
        "big": {"d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout_rate": 0.3},
    }
)


# Table 3 of the paper: each row as its changes to base. The two rows (D) of other label smoothing
# change no model, but the recipe: label_smoothing = 0.0 and 0.2.
TABLE_3: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "base": {},
        "A-1-head": {"num_heads": 1},  # d_k = d_v = 512
        "A-4-heads": {"num_heads": 4},  # 128
        "A-16-heads": {"num_heads": 16},  # 32
        "A-32-heads": {"num_heads": 32},  # 16
        "B-d_k-16": {"d_k": 16},
        "B-d_k-32": {"d_k": 32},
        "C-2-layers": {"num_encoder_layers": 2, "num_decoder_layers": 2},
        "C-4-layers": {"num_encoder_layers": 4, "num_decoder_layers": 4},
        "C-8-layers": {"num_encoder_layers": 8, "num_decoder_layers": 8},
        "C-d_model-256": {"d_model": 256},  # d_k = d_v = 32
        "C-d_model-1024": {"d_model": 1024},  # d_k = d_v = 128
        "C-d_ff-1024": {"d_ff": 1024},
        "C-d_ff-4096": {"d_ff": 4096},
        "D-dropout-0.0": {"dropout_rate": 0.0},
        "D-dropout-0.2": {"dropout_rate": 0.2},
        "E-learned-positions": {"position_encoding": "learned"},
        "big": PRESETS["big"],
    }
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Sizes and rates of a `Transformer`; the defaults are Table 3's "base".

    Attributes:
        vocab_size: number of token ids, V.
        d_model: width of every sub-layer output, D.
        d_ff: inner width of the feed-forward network, F.
        num_heads: attention heads, N.
        num_encoder_layers: encoder layers.
        num_decoder_layers: decoder layers.
        d_k: size of a head's queries and keys; None for `d_model / num_heads`.
        d_v: size of a head's values; None for `d_model / num_heads`.
        dropout_rate: dropout on sub-layer outputs and on embedding sums (section 5.4).
        attention_dropout_rate: dropout on attention weights; the paper has none.
        feed_forward_dropout_rate: dropout inside the feed-forward network; the paper has none.
        share_embeddings: one matrix for source, target and output (section 3.4); False for three.
        position_encoding: "sinusoidal" (section 3.5) or "learned" (Table 3, row E).
        max_length: longest sequence in tokens; only learned positions need it.

    Raises:
        InputError: if a value is of the wrong type or out of range.

    Example:
        >>> from keras_transformer import TransformerConfig
        >>> config = TransformerConfig.from_preset("big", vocab_size=37_000, dropout_rate=0.1)
        >>> config.d_model, config.num_heads, config.dropout_rate
        (1024, 16, 0.1)
    """

    vocab_size: int
    d_model: int = 512
    d_ff: int = 2048
    num_heads: int = 8
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    d_k: int | None = None
    d_v: int | None = None
    dropout_rate: float = 0.1
    attention_dropout_rate: float = 0.0
    feed_forward_dropout_rate: float = 0.0
    share_embeddings: bool = True
    position_encoding: Literal["sinusoidal", "learned"] = "sinusoidal"
    max_length: int = 1024

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_rate"):
                if isinstance(value, bool) or not isinstance(value, int | float):
                    raise InputError(_expected(field.name, "a number", value))
                if not 0 <= value < 1:
                    raise InputError(_expected(field.name, "at least 0 and below 1", value))
            elif field.type in (int, int | None):
                if value is None and field.type == int | None:
                    continue
                if isinstance(value, bool) or not isinstance(value, int):
                    raise InputError(_expected(field.name, "an integer", value))
                if not 1 <= value < 2**20:
                    raise InputError(_expected(field.name, "at least 1 and below 2**20", value))
        if None in (self.d_k, self.d_v) and self.d_model % self.num_heads:
            raise InputError(
                "`d_model` must be a multiple of `num_heads`, or `d_k` and `d_v` be given. "
                f"Received: d_model={self.d_model}, num_heads={self.num_heads}"
            )
        if self.position_encoding not in ("sinusoidal", "learned"):
            raise InputError(
                _expected("position_encoding", "'sinusoidal' or 'learned'", self.position_encoding)
            )
        if not isinstance(self.share_embeddings, bool):
            raise InputError(_expected("share_embeddings", "True or False", self.share_embeddings))

    @classmethod
    def from_preset(cls, /, preset: str, *, vocab_size: int, **overrides: Any) -> Self:
        """Returns the sizes of a preset, changed by `overrides`.

        Args:
            preset: "tiny", "base", "big", or a row of `TABLE_3`.
            vocab_size: number of token ids.
            **overrides: other attributes of this class.

        Raises:
            InputError: if there is no such preset or attribute.
        """
        presets = {**PRESETS, **TABLE_3}
        if preset not in presets:
            raise InputError(_expected("preset", f"one of {', '.join(presets)}", preset))
        return cls.from_dict({**presets[preset], **overrides, "vocab_size": vocab_size})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Inverse of `to_dict`.

        Raises:
            InputError: if a key is unknown or `vocab_size` is missing.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        if unknown := sorted(set(values) - set(known)):
            raise InputError(
                f"Unknown model setting {', '.join(unknown)}. There are: {', '.join(known)}"
            )
        if "vocab_size" not in values:
            raise InputError("The model setting `vocab_size` is missing")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Returns the attributes as a dictionary that JSON can hold."""
        return dataclasses.asdict(self)


def _expected(name: str, expected: str, value: Any) -> str:
    return f"`{name}` must be {expected}. Received: {name}={value!r}"
