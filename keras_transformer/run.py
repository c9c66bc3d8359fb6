"""The run directory: what training writes and everything else reads.

    RUN/
      run.json          format, versions, languages, architecture, model sizes, settings,
                      checkpoints, hashes
      tokenizer.model   of both languages: a SentencePiece model, word-pieces, or the file of an
                        optional room's tokenizer
      checkpoints/      weights by step, the average, and the two newest training states
      metrics.jsonl     one line per validation: step and metrics
      corpus/           token ids of the training data; may be deleted after training
      tensorboard/      event files
      report/           what `keras-transformer plot` draws
      evaluation/       sources, references, hypotheses and scores of evaluated splits

`run.json` holds the SHA-256 of every file that the model is made from. Checkpoints, states and
`run.json` are written under a temporary name and renamed, `run.json` last, so that a run can be
read at any moment. Reading a run executes no code: it is JSON, HDF5, NumPy arrays and a tokenizer,
and no pickle.
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
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import numpy as np
import pydantic

from keras_transformer._version import __version__
from keras_transformer.checkpoints import RESUME_ADVICE, Checkpoint, MetricsFile, State, quality
from keras_transformer.config import CheckpointName, ModelConfig
from keras_transformer.errors import InputError, one_line
from keras_transformer.files import (
    atomic_file,
    check_file,
    file_sha256,
    named_failure,
    write_atomically,
)
from keras_transformer.registry import build_model, config_type

if TYPE_CHECKING:
    from keras_transformer.model.encoder_decoder import EncoderDecoder
    from keras_transformer.tokenizers import Tokenizer

logger = logging.getLogger(__name__)

FORMAT = "keras-transformer run"
FORMAT_VERSION = 4
RESTORE = "restore it from a copy, or, if the run is being trained, load the run again"
TIE = 1.0  # point of BLEU, chrF or F1
# The names of the files that a run writes to `checkpoints/`; users' files there are kept.
WRITTEN = re.compile(
    r"(tmp-)?((step-\d{8,}|averaged-\d{8,}-\d{8,}-\d+)\.weights\.h5|state-\d{8,}\.npz)"
)


@pydantic.dataclasses.dataclass(
    config=pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=True)
)
class Run:
    """A run directory; use `Run.create` to write one and `Run.load` to read one.

    All methods raise an `InputError` if a file is missing or damaged, or cannot be written.

    Attributes:
        path: the directory.
        config: sizes of the model.
        source: source language.
        target: target language.
        settings: how it was trained, as plain values.
        tokenizer_sha256: fingerprint of the tokenizer.
        corpus_sha256: fingerprint of the training pairs; None if it is not known.
        status: "training" until `finish`, then "complete".
        checkpoints: the newest checkpoints, oldest first.
        best: checkpoint with the best validation score, or loss; None before the first.
        averaged: mean of checkpoints; None if there is none.
        states: the two newest training states, older one first.
        created: UTC time in ISO 8601.
        versions: of Python and the packages that wrote it.
    """

    path: Path
    config: ModelConfig
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
    corpus_sha256: str | None = None
    versions: dict[str, str] = dataclasses.field(default_factory=lambda: _versions())

    @classmethod
    def create(
        cls,
        path: str | Path,
        config: ModelConfig,
        tokenizer: "Tokenizer",
        source: str,
        target: str,
        settings: Mapping[str, Any],
        corpus_sha256: str | None = None,
    ) -> Self:
        """Starts a run.

        Args:
            path: a directory without a run.
            config: sizes of the model.
            tokenizer: of both languages.
            source: source language.
            target: target language.
            settings: how it is trained, as plain values.
            corpus_sha256: fingerprint of the training pairs.
        """
        run = cls(Path(path), config, source, target, dict(settings), tokenizer.fingerprint)
        if (run.path / "run.json").exists():
            raise InputError(f"{path} holds a run already: choose another directory")
        (run.path / "checkpoints").mkdir(parents=True, exist_ok=True)
        run.corpus_sha256 = corpus_sha256
        run.save_tokenizer(tokenizer)
        run._write_manifest()
        return run

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Opens a run directory."""
        path = Path(path)
        file = path / "run.json"
        if not path.exists():
            raise InputError(f"There is no run directory {path}")
        if not file.is_file():
            inside = [
                each.parent for name in ("*", "*/*") for each in path.glob(f"{name}/run.json")
            ]
            hint = f", but there is {' and '.join(map(str, sorted(inside)[:5]))}" if inside else ""
            raise InputError(f"{path} is not a run directory: it holds no file run.json{hint}")
        try:
            manifest = json.loads(file.read_bytes())
            found = manifest.pop("format"), manifest.pop("format_version")
            if found == (FORMAT, 3):
                _upgrade(manifest)
                found = FORMAT, FORMAT_VERSION
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            raise InputError(
                f"{file} is damaged, or not the manifest of a run: restore it from a copy"
            ) from error
        if found != (FORMAT, FORMAT_VERSION):
            raise InputError(
                f"{file} must be a {FORMAT} of version {FORMAT_VERSION}. "
                f"Received: {found[0]}, version {found[1]}"
            )
        try:
            config = config_type(manifest.pop("architecture")).from_dict(manifest.pop("config"))
            return cls(path=path, config=config, **manifest)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"{file} is damaged ({one_line(error)}): restore it from a copy"
            ) from error

    def tokenizer(self) -> "Tokenizer":
        """Reads the tokenizer."""
        from keras_transformer.tokenizers import Tokenizer  # imports TensorFlow

        check_file(self.path / "tokenizer.model", self.tokenizer_sha256, RESTORE)
        return Tokenizer.load(self.path / "tokenizer.model", (self.source, self.target))

    def save_tokenizer(self, tokenizer: "Tokenizer") -> None:
        """Writes the tokenizer."""
        path = self.path / "tokenizer.model"
        with named_failure(path, advice=RESUME_ADVICE):
            tokenizer.save(path)

    @property
    def last(self) -> Checkpoint | None:
        """The newest checkpoint; None before the first."""
        return self.checkpoints[-1] if self.checkpoints else None

    def model(self, checkpoint: CheckpointName | None = None) -> "EncoderDecoder":
        """Builds the model with the weights of a checkpoint.

        Args:
            checkpoint: which one; None for the one of `choice`.
        """
        model = build_model(self.config)
        self.load_weights(model, self.checkpoint(checkpoint))
        return model

    def checkpoint(self, name: CheckpointName | None = None) -> Checkpoint:
        """Finds a checkpoint.

        Args:
            name: "averaged", "best" or "last"; None for the one of `choice`.
        """
        if self.last is None:
            raise InputError(
                f"{self.path} holds no checkpoint yet: the first validation writes one. "
                "`train --resume` continues a training that was stopped"
            )
        if name not in (None, *get_args(CheckpointName)):
            raise InputError(f"There are averaged, best and last checkpoints. Received: {name!r}")
        if name is None:
            name, _ = self.choice()
        chosen: Checkpoint | None = getattr(self, name)
        if chosen is None:
            maker = "`keras-transformer average`" if name == "averaged" else "the next validation"
            raise InputError(f"{self.path} holds no {name} checkpoint: {maker} makes one")
        return chosen

    def choice(self) -> tuple[CheckpointName, str]:
        """Chooses the checkpoint that commands use by default: the average, or the best one.

        Returns:
            The name of the one that validates better, and the reason, a phrase. Of two scores that
            differ by a point or less, the better loss decides: the best of many checkpoints has its
            score in part by chance. An average that was not validated is chosen, and without an
            average the best, which is the newest one where nothing is validated; "last" if the best
            one is lost.
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

    def num_parameters(self, checkpoint: Checkpoint) -> int:
        """Counts the parameters of a checkpoint, without reading them."""
        import h5py  # takes time, and settings are read without it

        sizes = []

        def add(name: str, item: h5py.Group | h5py.Dataset) -> None:
            if isinstance(item, h5py.Dataset) and item.dtype.kind == "f":  # no random state
                sizes.append(item.size)

        file = self.path / checkpoint.file
        try:
            with h5py.File(file) as weights:
                weights.visititems(add)
        except OSError as error:
            raise InputError(f"{file} is missing or damaged") from error
        return sum(sizes)

    def load_weights(self, model: "EncoderDecoder", checkpoint: Checkpoint) -> None:
        """Reads a checkpoint's weights into a model.

        Args:
            model: the model.
            checkpoint: a checkpoint of this run.
        """
        file = self.path / checkpoint.file
        check_file(file, checkpoint.sha256, RESTORE)
        try:
            with warnings.catch_warnings():
                # Keras warns of layers that keep their initial values.
                warnings.simplefilter("error", UserWarning)
                model.load_weights(file)
        except (OSError, ValueError, KeyError, UserWarning) as error:
            raise InputError(f"{file} does not hold the weights of this model") from error

    def save_checkpoint(
        self,
        model: "EncoderDecoder",
        step: int,
        metrics: Mapping[str, Any],
        is_best: bool,
        keep: int = 1,
        state: State | None = None,
    ) -> None:
        """Writes weights as the last checkpoint, and as the best one if `is_best`.

        Args:
            model: the model.
            step: updates so far.
            metrics: validation metrics at this step.
            is_best: whether no earlier checkpoint is better.
            keep: number of newest checkpoints to keep; the best is kept as well.
            state: the training state at this step.
        """
        saved = self._write_weights(model, f"step-{step:08d}", step, metrics)
        if state is not None:
            self._write_state(state, step)
        self.checkpoints = [*self.checkpoints, saved][-keep:]
        if is_best:
            self.best = saved
        self._write_manifest()

    def save_state(self, state: State, step: int) -> None:
        """Writes the state that `load_state` returns, and keeps the one before it.

        Args:
            state: the training state.
            step: updates so far.
        """
        self._write_state(state, step)
        self._write_manifest()

    def _write_state(self, state: State, step: int) -> None:
        saved = self._write(
            f"state-{step:08d}.npz",
            step,
            {"seconds": state.seconds},
            lambda path: np.savez(path, **state.arrays),  # type: ignore[arg-type]
        )
        self.states = [*(old for old in self.states if old.step != step), saved][-2:]

    def save_average(
        self, model: "EncoderDecoder", of: list[Checkpoint], metrics: Mapping[str, float]
    ) -> Checkpoint:
        """Writes the mean of checkpoints as the averaged one, and deletes an earlier average.

        Args:
            model: the model, which holds the mean.
            of: the averaged checkpoints, oldest first.
            metrics: validation metrics of the mean; none if it was not validated.
        """
        steps = [checkpoint.step for checkpoint in of]
        name = f"averaged-{steps[0]:08d}-{steps[-1]:08d}-{len(steps)}"
        saved = self._write_weights(model, name, steps[-1], {"of_steps": steps, **metrics})
        newest = self.load(self.path)  # training may have written since this run was loaded
        newest.averaged = self.averaged = saved
        newest._write_manifest()
        return saved

    def load_state(self) -> tuple[State, int]:
        """Reads the newest undamaged training state, and forgets the checkpoints after it.

        Returns:
            The state and its step.
        """
        if not self.states:
            raise InputError(f"{self.path} holds no training state to resume from")
        newest = self.states[-1]
        try:
            check_file(self.path / newest.file, newest.sha256, RESTORE)
        except InputError as error:
            if len(self.states) == 1:
                raise InputError(
                    f"{error}, and there is no other state: the checkpoints of {self.path} can "
                    "be used, but only a new run can be trained further"
                ) from error
            logger.warning("%s. Training resumes from an earlier state", error)
            self.states.pop()
            return self.load_state()
        with np.load(self.path / newest.file) as arrays:
            state = State(dict(arrays), newest.metrics["seconds"])
        self.checkpoints = [kept for kept in self.checkpoints if kept.step <= newest.step]
        if self.best is not None and self.best.step > newest.step:
            self.best = None  # the resumed training writes it again
        return state, newest.step

    def _write_weights(
        self, model: "EncoderDecoder", name: str, step: int, metrics: Mapping[str, Any]
    ) -> Checkpoint:
        size = 4 * model.count_params() + 2**20

        def write(path: Path) -> None:
            # HDF5 crashes on a full disk; this raises an error before it begins.
            with path.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, size)
            model.save_weights(path)

        return self._write(f"{name}.weights.h5", step, metrics, write)

    def _write(
        self, name: str, step: int, metrics: Mapping[str, Any], write: Callable[[Path], None]
    ) -> Checkpoint:
        """Writes a file of `checkpoints/`, before the manifest names it."""
        path = self.path / "checkpoints" / name
        with atomic_file(path, RESUME_ADVICE) as temporary:
            write(temporary)
        return Checkpoint(f"checkpoints/{name}", file_sha256(path), step, dict(metrics))

    def _delete_unnamed(self) -> None:
        named = {kept.file for kept in self.checkpoints}
        named |= {kept.file for kept in (self.best, self.averaged, *self.states) if kept}
        for path in (self.path / "checkpoints").iterdir():
            if f"checkpoints/{path.name}" not in named and WRITTEN.fullmatch(path.name):
                path.unlink(missing_ok=True)

    @property
    def validations(self) -> MetricsFile:
        """The metrics of all validations, `metrics.jsonl`."""
        return MetricsFile(self.path / "metrics.jsonl")

    def restore_metrics(self) -> None:
        """Writes `metrics.jsonl` from the metrics of the checkpoints."""
        kept = {each.step: each.metrics for each in (self.best, *self.checkpoints) if each}
        self.validations.write([{"step": step, **kept[step]} for step in sorted(kept)])

    def metrics(self) -> list[dict[str, float]]:
        """Reads `metrics.jsonl`, oldest first."""
        return self.validations.read()

    def reopen(self) -> None:
        """Marks the run as being trained; an average of earlier checkpoints is deleted."""
        self.status = "training"
        self.averaged = None
        self._write_manifest()

    def finish(self) -> None:
        """Marks the run as complete."""
        self.status = "complete"
        self._write_manifest()

    def _write_manifest(self) -> None:
        values = dataclasses.asdict(self)
        del values["path"]
        manifest = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "architecture": self.config.architecture,
            **values,
        }
        write_atomically(
            self.path / "run.json", json.dumps(manifest, indent=2).encode(), RESUME_ADVICE
        )
        self._delete_unnamed()


def _upgrade(manifest: dict[str, Any]) -> None:
    """Makes a manifest of version 3 one of version 4.

    Version 3 had `next_word` as settings of the architecture "transformer".
    """
    manifest["settings"].pop("next_word_input", None)
    if manifest["config"].get("word_id_ends") is not None:
        manifest["architecture"] = manifest["settings"]["architecture"] = "next_word"


def _versions() -> dict[str, str]:
    packages = ("tensorflow", "tensorflow-text", "keras", "sentencepiece", "numpy")
    return {
        "python": platform.python_version(),
        "keras_transformer": __version__,
        **{name: metadata.version(name) for name in packages},
    }
