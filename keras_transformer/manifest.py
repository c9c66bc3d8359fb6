"""What `run.json` says of a run, and which of its checkpoints commands use."""

import dataclasses
import json
import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, Self

import pydantic

from keras_transformer._version import __version__
from keras_transformer.checkpoints import RESUME_ADVICE, Checkpoint, quality
from keras_transformer.config import CheckpointName, ModelConfig
from keras_transformer.errors import InputError, one_line
from keras_transformer.files import write_atomically
from keras_transformer.registry import config_type

FORMAT = {"format": "keras-transformer run", "format_version": 4}
TIE = 1.0  # point of BLEU, chrF or F1


def _versions() -> dict[str, str]:
    packages = ("tensorflow", "tensorflow-text", "keras", "sentencepiece", "numpy")
    return {
        "python": platform.python_version(),
        "keras_transformer": __version__,
        **{name: metadata.version(name) for name in packages},
    }


@pydantic.dataclasses.dataclass(
    kw_only=True, config=pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=True)
)
class Manifest:
    """The content of `run.json`."""

    config: ModelConfig  # sizes of the model
    source: str  # language
    target: str  # language
    settings: dict[str, Any]  # how it was trained, as plain values
    tokenizer_sha256: str  # fingerprint of the tokenizer
    corpus_sha256: str | None = None  # fingerprint of the training pairs; None if unknown
    status: Literal["training", "complete"] = "training"  # "complete" after `Run.finish`
    checkpoints: list[Checkpoint] = dataclasses.field(default_factory=list)  # newest, oldest first
    best: Checkpoint | None = None  # by validation score, or loss; None before the first
    averaged: Checkpoint | None = None  # mean of checkpoints
    states: list[Checkpoint] = dataclasses.field(default_factory=list)  # the two newest
    # UTC time in ISO 8601
    created: str = dataclasses.field(default_factory=lambda: datetime.now(UTC).isoformat())
    versions: dict[str, str] = dataclasses.field(default_factory=_versions)  # of what wrote it

    @classmethod
    def read(cls, file: Path, **others: Any) -> Self:
        """Reads `run.json`; `others` are fields of a subclass."""
        try:
            values = json.loads(file.read_bytes())
            written = {name: values.pop(name) for name in FORMAT}
            if written == FORMAT:
                config = config_type(values.pop("architecture"))(**values.pop("config"))
                return cls(config=config, **values, **others)
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            raise InputError(
                f"{file} is damaged, or not the manifest of a run ({one_line(error)}): "
                "restore it from a copy"
            ) from error
        raise InputError(f"{file} must have {FORMAT}. Received: {written}")

    def write(self, file: Path) -> None:
        """Writes `run.json`."""
        values = dataclasses.asdict(self)
        values = {field.name: values[field.name] for field in dataclasses.fields(Manifest)}
        content = {**FORMAT, "architecture": self.config.architecture, **values}
        write_atomically(file, json.dumps(content, indent=2).encode(), RESUME_ADVICE)

    @property
    def last(self) -> Checkpoint | None:
        """The newest checkpoint; None before the first."""
        return self.checkpoints[-1] if self.checkpoints else None

    def choice(self) -> tuple[CheckpointName, str]:
        """Chooses the checkpoint that commands use by default, and gives the reason, a phrase.

        It is the average or the best one, whichever validates better. Of two scores that differ by
        a point or less, the better loss decides: the best of many checkpoints has its score in part
        by chance. An average that was not validated is chosen. "last" is for a lost best one.
        """
        metric = self.settings.get("metric")
        unknown = quality({}, metric)
        best = quality(self.best.metrics, metric) if self.best else None
        if self.averaged is None:
            if best is None:
                return "last", "the newest"
            return "best", "the newest, not validated" if best == unknown else "the best validation"
        average = quality(self.averaged.metrics, metric)
        if average == unknown:
            return "averaged", "the average, which was not validated"
        if best is None or average >= best:
            return "averaged", "the average validates at least as well as the best checkpoint"
        if average[0] >= best[0] - TIE and average[1] >= best[1]:
            return "averaged", "the average has about the best score, and no higher loss"
        return "best", "the best checkpoint validates better than the average"
