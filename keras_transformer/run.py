"""The run directory: what training writes and everything else reads.

    RUN/
      run.json          format, versions, languages, model sizes, settings, checkpoints, hashes
      tokenizer.model   SentencePiece model, or word-pieces, of both languages
      checkpoints/      weights by step, the averaged ones, and the two newest training states
      metrics.jsonl     a line a validation: step and metrics
      corpus/           token ids of the training data; may be deleted after training
      tensorboard/      event files
      report/           what `keras-transformer plot` draws
      evaluation/       sources, references, hypotheses and scores of evaluated splits

`run.json` holds the SHA-256 of every file that the model is made from. Checkpoints are written
under a temporary name and renamed, then `run.json` likewise, so that a run is whole at any moment.
Reading one runs no code: there are JSON, HDF5 and NumPy arrays and a tokenizer, and no pickle.
"""

import dataclasses
import json
import logging
import os
import platform
import re
import warnings
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from keras_transformer._version import __version__
from keras_transformer.config import TransformerConfig
from keras_transformer.errors import InputError
from keras_transformer.files import file_sha256, named_failure, write_whole
from keras_transformer.model import Transformer
from keras_transformer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

FORMAT = "keras-transformer run"
FORMAT_VERSION = 3
# Of a file that cannot be written.
SAVED = "All that was saved before is whole, and training with --resume goes on from it"
# Names in `checkpoints/` that a run gives.
WRITTEN = re.compile(
    r"(tmp-)?((step-\d{8,}|averaged-\d{8,}-\d{8,}-\d+)\.weights\.h5|state-\d{8,}\.npz)"
)

CheckpointName = Literal["averaged", "best", "last"]


class Checkpoint(NamedTuple):
    """Weights, or other state, as they were after a number of updates.

    Attributes:
        file: path relative to the run directory.
        sha256: of the file.
        step: updates so far.
        metrics: validation metrics at this step.
    """

    file: str
    sha256: str
    step: int
    metrics: dict[str, Any]


class State(NamedTuple):
    """What resuming needs.

    Attributes:
        arrays: all that the next update depends on.
        seconds: that the updates so far took.
        in_epoch: whether it was taken between two validations.
    """

    arrays: dict[str, np.ndarray]
    seconds: float
    in_epoch: bool = True


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
        checkpoints: those kept of each validation, oldest first.
        best: checkpoint with the best validation BLEU, or loss; None before the first.
        averaged: mean of checkpoints; None if there is none.
        states: what resuming needs beside the settings, the two newest, older one first; their
            metrics are the `seconds` trained so far, and whether it was `in_epoch`.
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
    checkpoints: list[Checkpoint] = dataclasses.field(default_factory=list)
    best: Checkpoint | None = None
    averaged: Checkpoint | None = None
    states: list[Checkpoint] = dataclasses.field(default_factory=list)
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
        with named_failure(run.path / "tokenizer.model", advice=SAVED):
            tokenizer.save(run.path / "tokenizer.model")
        (run.path / "checkpoints").mkdir(exist_ok=True)  # a killed call may have made it
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
            for name in ("best", "averaged"):
                manifest[name] = Checkpoint(**manifest[name]) if manifest[name] else None
            for name in ("checkpoints", "states"):
                manifest[name] = [Checkpoint(**kept) for kept in manifest[name]]
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

    @property
    def last(self) -> Checkpoint | None:
        """The newest checkpoint; None before the first."""
        return self.checkpoints[-1] if self.checkpoints else None

    def model(self, checkpoint: CheckpointName | None = None) -> Transformer:
        """Builds the model with the weights of a checkpoint.

        Args:
            checkpoint: which one; None for the first that there is of averaged, best and last.

        Raises:
            InputError: if there is no such checkpoint yet, or it is missing or damaged.
        """
        model = Transformer(self.config)
        self.load_weights(model, self.checkpoint(checkpoint))
        return model

    def checkpoint(self, name: CheckpointName | None = None) -> Checkpoint:
        """Finds a checkpoint.

        Args:
            name: "averaged", "best" or "last"; None for the first of these that there is.

        Raises:
            InputError: if there is no such checkpoint.
        """
        if self.last is None:
            raise InputError(
                f"{self.path} holds no checkpoint yet: its training has not got to one"
            )
        named = {
            None: self.averaged or self.best or self.last,
            "averaged": self.averaged,
            "best": self.best,
            "last": self.last,
        }
        if name not in named:
            raise InputError(f"There are averaged, best and last checkpoints. Received: {name!r}")
        chosen = named[name]
        if chosen is None:
            raise InputError(
                f"{self.path} holds no averaged checkpoint: `keras-transformer average` makes one"
                if name == "averaged"
                else f"{self.path} holds no best checkpoint: the next validation makes one"
            )
        return chosen

    def load_weights(self, model: Transformer, checkpoint: Checkpoint) -> None:
        """Reads a checkpoint's weights into a model.

        Args:
            model: takes them.
            checkpoint: one of the run's.

        Raises:
            InputError: if the file is missing, damaged, or another model's.
        """
        file = self.path / checkpoint.file
        _check_file(file, checkpoint.sha256)
        try:
            with warnings.catch_warnings():
                # Of layers that would keep their initial values.
                warnings.simplefilter("error", UserWarning)
                model.load_weights(file)
        except (OSError, ValueError, KeyError, UserWarning) as error:
            raise InputError(f"{file} does not hold the weights of this model") from error

    def save_checkpoint(
        self,
        model: Transformer,
        step: int,
        metrics: Mapping[str, float],
        is_best: bool,
        keep: int = 1,
        state: State | None = None,
    ) -> None:
        """Writes weights as the last checkpoint, and as the best one if they are.

        Args:
            model: the model.
            step: updates so far.
            metrics: validation metrics at this step.
            is_best: whether no earlier checkpoint is better.
            keep: newest checkpoints to keep; the best is kept beside them.
            state: what `save_state` is to save with it, at once or not at all.

        Raises:
            InputError: if a file cannot be written, for a full disk say.
        """
        saved = self._write_weights(model, f"step-{step:08d}", step, metrics)
        if state is not None:
            self._write_state(state, step)
        self.checkpoints = [*self.checkpoints, saved][-keep:]
        if is_best:
            self.best = saved
        self._write_manifest()
        self._delete_unnamed()

    def save_state(self, state: State, step: int) -> None:
        """Writes what `load_state` is to return, and keeps the one before it.

        Args:
            state: what resuming needs.
            step: updates so far.

        Raises:
            InputError: if the file cannot be written.
        """
        self._write_state(state, step)
        self._write_manifest()
        self._delete_unnamed()

    def _write_state(self, state: State, step: int) -> None:
        def write(path: Path) -> None:
            with path.open("wb") as file:
                np.savez(file, **dict(state.arrays))  # type: ignore[arg-type]

        facts = {"seconds": state.seconds, "in_epoch": state.in_epoch}
        saved = self._write(f"state-{step:08d}.npz", step, facts, write)
        self.states = [*(old for old in self.states if old.step != step), saved][-2:]

    def save_average(self, model: Transformer, of: list[Checkpoint]) -> Checkpoint:
        """Writes the mean of checkpoints as the averaged one, in the place of an earlier one.

        Args:
            model: the model, with the mean of their weights.
            of: the checkpoints, oldest first.
        """
        steps = [checkpoint.step for checkpoint in of]
        name = f"averaged-{steps[0]:08d}-{steps[-1]:08d}-{len(steps)}"
        saved = self._write_weights(model, name, steps[-1], {"of_steps": steps})
        newest = self.load(self.path)  # a training may have written since
        newest.averaged = self.averaged = saved
        newest._write_manifest()
        newest._delete_unnamed()
        return saved

    def load_state(self) -> tuple[State, int]:
        """Reads the newest training state that is whole, and forgets all that came after it.

        Returns:
            What `save_state` was given.

        Raises:
            InputError: if none is whole.
        """
        while self.states:
            newest = self.states[-1]
            try:
                _check_file(self.path / newest.file, newest.sha256)
                # A run that is older than `in_epoch` tells by its checkpoints.
                is_validated = newest.step in {kept.step for kept in self.checkpoints}
                in_epoch = newest.metrics.get("in_epoch", not is_validated)
                with np.load(self.path / newest.file) as arrays:
                    state = State(dict(arrays), newest.metrics["seconds"], in_epoch)
                break
            except InputError as error:
                self.states.pop()
                if not self.states:
                    raise
                before = self.states[-1].step
                logger.warning("%s. Going back to the state after %d updates", error, before)
        else:
            raise InputError(f"{self.path} holds no training state to resume from")
        self.checkpoints = [kept for kept in self.checkpoints if kept.step <= newest.step]
        if self.best is not None and self.best.step > newest.step:
            self.best = None  # it will be made again
        return state, newest.step

    def _write_weights(
        self, model: Transformer, name: str, step: int, metrics: Mapping[str, Any]
    ) -> Checkpoint:
        size = 4 * model.count_params() + 2**20

        def write(path: Path) -> None:
            # HDF5 crashes on a full disk instead of saying so: this says so before it begins.
            with path.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, size)
            model.save_weights(path)

        return self._write(f"{name}.weights.h5", step, metrics, write)

    def _write(
        self, name: str, step: int, metrics: Mapping[str, Any], write: Callable[[Path], None]
    ) -> Checkpoint:
        """Writes a file of `checkpoints/` under a temporary name, then renames it."""
        path = self.path / "checkpoints" / name
        temporary = path.with_name(f"tmp-{name}")
        with named_failure(path, temporary, SAVED):
            write(temporary)
            with temporary.open("rb") as written:
                os.fsync(written.fileno())  # the manifest must not outlive what it names
            digest = file_sha256(temporary)
            os.replace(temporary, path)
        return Checkpoint(f"checkpoints/{name}", digest, step, dict(metrics))

    def _delete_unnamed(self) -> None:
        named = {kept.file for kept in self.checkpoints}
        named |= {kept.file for kept in (self.best, self.averaged, *self.states) if kept}
        for path in (self.path / "checkpoints").iterdir():
            # What somebody else has put there is none of ours.
            if f"checkpoints/{path.name}" not in named and WRITTEN.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Appends a line to `metrics.jsonl`.

        Args:
            step: updates so far.
            metrics: of a validation.
        """
        path = self.path / "metrics.jsonl"
        with named_failure(path, advice=SAVED), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **metrics}) + "\n")
            file.flush()
            os.fsync(file.fileno())  # the manifest, which comes next, counts it

    def cut_metrics(self, step: int) -> None:
        """Drops the lines of `metrics.jsonl` after a step, which resuming will write again."""
        if not (self.path / "metrics.jsonl").exists():
            return  # it was killed before its first validation
        lines = [json.dumps(line) + "\n" for line in self.metrics() if line["step"] <= step]
        write_whole(self.path / "metrics.jsonl", "".join(lines).encode(), SAVED)

    def metrics(self) -> list[dict[str, float]]:
        """Reads `metrics.jsonl`, oldest first.

        Raises:
            InputError: if it is missing or damaged.
        """
        path = self.path / "metrics.jsonl"
        try:
            *whole, torn = path.read_text(encoding="utf-8").split("\n")
            del torn  # a killed training may have left half a line
            return [json.loads(line) for line in whole]
        except (OSError, ValueError) as error:
            raise InputError(f"Cannot read {path}: {error}") from error

    def start_again(self) -> None:
        """Marks the run as being trained; an average of earlier checkpoints is one no longer."""
        self.status = "training"
        self.averaged = None
        self._write_manifest()
        self._delete_unnamed()  # what a killed call left

    def finish(self) -> None:
        """Marks the run as complete."""
        self.status = "complete"
        self._write_manifest()
        self._delete_unnamed()  # an average that was taken back

    def _write_manifest(self) -> None:
        values = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "path"
        }
        values["config"] = self.config.to_dict()
        for name in ("best", "averaged"):
            values[name] = values[name] and values[name]._asdict()
        for name in ("checkpoints", "states"):
            values[name] = [kept._asdict() for kept in values[name]]
        manifest = {"format": FORMAT, "format_version": FORMAT_VERSION, **values}
        write_whole(self.path / "run.json", json.dumps(manifest, indent=2).encode(), SAVED)


def claim(path: str | Path) -> Path:
    """Creates a new directory for a run, or takes an empty one.

    Raises:
        InputError: if it exists and holds anything: runs are never overwritten.
    """
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            ways = "choose another run directory"
            if (path / "run.json").is_file() or (path / "corpus").is_dir():
                ways = "go on with it by --resume, or " + ways
            raise InputError(f"{path} exists and is not empty: {ways}")
    except OSError as error:
        raise InputError(f"Cannot create the directory {path}: {error.strerror}") from error
    return path


def _check_file(path: Path, sha256: str) -> None:
    """Raises `InputError` unless the file is there and whole."""
    if not path.is_file():
        raise InputError(
            f"{path} is missing: the run directory is not complete, "
            "or a training has replaced the file since"
        )
    try:
        digest = file_sha256(path)
    except OSError as error:  # a bad sector
        raise InputError(f"{path} is damaged: {error.strerror}") from error
    if digest != sha256:
        raise InputError(f"{path} is damaged: its SHA-256 is not the one in run.json")


def _versions() -> dict[str, str]:
    packages = ("tensorflow", "tensorflow-text", "keras", "sentencepiece", "numpy")
    return {
        "python": platform.python_version(),
        "keras_transformer": __version__,
        **{name: metadata.version(name) for name in packages},
    }
