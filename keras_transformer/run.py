"""The run directory: what training writes and everything else reads.

    RUN/
      run.json          format, versions, languages, model sizes, settings, checkpoints, hashes
      tokenizer.model   SentencePiece model of both languages
      checkpoints/      weights by step; run.json names the best and the last
      metrics.jsonl     a line an evaluation: step and metrics
      corpus/           token ids of the training data; may be deleted after training
      tensorboard/      event files
      evaluation/       sources, references, hypotheses and scores of evaluated splits

`run.json` holds the SHA-256 of every file that the model is made from. Checkpoints are written
under a temporary name and renamed, then `run.json` likewise, so that a run is whole at any moment.
Reading one runs no code: there are JSON, HDF5 weights and a SentencePiece model, and no pickle.
"""

import dataclasses
import hashlib
import json
import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from keras_transformer._version import __version__
from keras_transformer.config import TransformerConfig
from keras_transformer.errors import InputError
from keras_transformer.model import Transformer
from keras_transformer.tokenizer import Tokenizer

FORMAT = "keras-transformer run"
FORMAT_VERSION = 1


class Checkpoint(NamedTuple):
    """Weights as they were after a number of updates.

    Attributes:
        file: path relative to the run directory.
        sha256: of the file.
        step: updates so far.
        metrics: validation metrics at this step.
    """

    file: str
    sha256: str
    step: int
    metrics: dict[str, float]


@dataclasses.dataclass
class Run:
    """A run directory; use `Run.create` to write one and `Run.load` to read one.

    Attributes:
        path: the directory.
        config: sizes of the model.
        source: source language.
        target: target language.
        settings: how it was trained, plain values.
        tokenizer_sha256: fingerprint of the tokenizer.
        status: "training" until `finish`, then "complete".
        best: checkpoint with the lowest validation loss; None before the first.
        last: newest checkpoint.
        created: UTC time in ISO 8601.
        versions: of Python and the packages that wrote it.
    """

    path: Path
    config: TransformerConfig
    source: str
    target: str
    settings: dict[str, Any]
    tokenizer_sha256: str
    status: Literal["training", "complete"] = "training"
    best: Checkpoint | None = None
    last: Checkpoint | None = None
    created: str = dataclasses.field(default_factory=lambda: datetime.now(UTC).isoformat())
    versions: dict[str, str] = dataclasses.field(default_factory=lambda: _versions())

    @classmethod
    def create(
        cls,
        path: str | Path,
        config: TransformerConfig,
        tokenizer: Tokenizer,
        source: str,
        target: str,
        settings: Mapping[str, Any],
    ) -> Self:
        """Starts a run in a directory that `claim` made.

        Args:
            path: the directory.
            config: sizes of the model.
            tokenizer: of both languages.
            source: source language.
            target: target language.
            settings: how it is trained, plain values for the record.
        """
        run = cls(Path(path), config, source, target, dict(settings), tokenizer.fingerprint)
        tokenizer.save(run.path / "tokenizer.model")
        (run.path / "checkpoints").mkdir()
        run._write_manifest()
        return run

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Opens a run directory.

        Raises:
            InputError: if it is missing, damaged, or something else.
        """
        path = Path(path)
        manifest_path = path / "run.json"
        if not path.exists():
            raise InputError(f"There is no run directory {path}")
        if not manifest_path.is_file():
            raise InputError(f"{path} is not a run directory: it holds no file run.json")
        try:
            manifest = json.loads(manifest_path.read_bytes())
            found = manifest.pop("format"), manifest.pop("format_version")
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            raise InputError(f"{manifest_path} is not the manifest of a run") from error
        if found != (FORMAT, FORMAT_VERSION):
            raise InputError(
                f"{manifest_path} must be of the format {(FORMAT, FORMAT_VERSION)}. "
                f"Received: {found}"
            )
        try:
            manifest["config"] = TransformerConfig.from_dict(manifest["config"])
            for name in ("best", "last"):
                manifest[name] = Checkpoint(**manifest[name]) if manifest[name] else None
            return cls(path=path, **manifest)
        except (TypeError, KeyError, ValueError) as error:
            raise InputError(f"{manifest_path} is damaged: {error}") from error

    def tokenizer(self) -> Tokenizer:
        """Reads the tokenizer.

        Raises:
            InputError: if it is missing or damaged.
        """
        _check_file(self.path / "tokenizer.model", self.tokenizer_sha256)
        return Tokenizer.load(self.path / "tokenizer.model")

    def model(self, checkpoint: Literal["best", "last"] = "best") -> Transformer:
        """Builds the model with the weights of a checkpoint.

        Raises:
            InputError: if there is no checkpoint yet, or it is missing or damaged.
        """
        chosen = self.best if checkpoint == "best" else self.last
        if chosen is None:
            raise InputError(
                f"{self.path} holds no checkpoint yet: its training has not got to one"
            )
        file = self.path / chosen.file
        _check_file(file, chosen.sha256)
        model = Transformer(self.config)
        try:
            model.load_weights(file)
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"{file} does not hold the weights of this model") from error
        return model

    def save_checkpoint(
        self, model: Transformer, step: int, metrics: Mapping[str, float], is_best: bool
    ) -> None:
        """Writes weights as the last checkpoint, and as the best one if they are.

        Args:
            model: the model.
            step: updates so far.
            metrics: validation metrics at this step.
            is_best: whether no earlier checkpoint is better.
        """
        file = f"checkpoints/step-{step:08d}.weights.h5"
        temporary = self.path / f"{file.removesuffix('.weights.h5')}.tmp.weights.h5"
        model.save_weights(temporary)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())  # the manifest must not outlive what it names
        digest = _sha256(temporary)
        os.replace(temporary, self.path / file)
        self.last = Checkpoint(file, digest, step, dict(metrics))
        if is_best:
            self.best = self.last
        self._write_manifest()
        kept = {checkpoint.file for checkpoint in (self.best, self.last) if checkpoint}
        for old in (self.path / "checkpoints").glob("step-*.weights.h5"):
            if f"checkpoints/{old.name}" not in kept:
                old.unlink()

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Appends a line to `metrics.jsonl`."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **metrics}) + "\n")

    def metrics(self) -> list[dict[str, float]]:
        """Reads `metrics.jsonl`, oldest first.

        Raises:
            InputError: if it is missing or damaged.
        """
        path = self.path / "metrics.jsonl"
        try:
            return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        except (OSError, ValueError) as error:
            raise InputError(f"Cannot read {path}: {error}") from error

    def finish(self) -> None:
        """Marks the run as complete."""
        self.status = "complete"
        self._write_manifest()

    def _write_manifest(self) -> None:
        values = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "path"
        }
        values["config"] = self.config.to_dict()
        for name in ("best", "last"):
            values[name] = values[name] and values[name]._asdict()
        manifest = {"format": FORMAT, "format_version": FORMAT_VERSION, **values}
        temporary = self.path / "run.json.tmp"
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(manifest, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path / "run.json")


def claim(path: str | Path) -> Path:
    """Creates a new directory for a run, or takes an empty one.

    Raises:
        InputError: if it exists and holds anything: runs are never overwritten.
    """
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise InputError(
                f"{path} exists and is not empty: choose another run directory, or delete it"
            )
    except OSError as error:
        raise InputError(f"Cannot create the directory {path}: {error.strerror}") from error
    return path


def _check_file(path: Path, sha256: str) -> None:
    """Raises `InputError` unless the file is there and whole."""
    if not path.is_file():
        raise InputError(f"{path} is missing: the run directory is not complete")
    if _sha256(path) != sha256:
        raise InputError(f"{path} is damaged: its SHA-256 is not the one in run.json")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _versions() -> dict[str, str]:
    packages = ("tensorflow", "tensorflow-text", "keras", "sentencepiece", "numpy")
    return {
        "python": platform.python_version(),
        "keras_transformer": __version__,
        **{name: metadata.version(name) for name in packages},
    }
