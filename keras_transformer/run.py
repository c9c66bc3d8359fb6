"""The run directory: what training writes and everything else reads.

    RUN/
      run.json          its `Manifest`: format, versions, languages, architecture, model sizes,
                      settings, checkpoints, hashes
      tokenizer.model   of both languages: a SentencePiece model, word-pieces, or the file of an
                        optional room's tokenizer
      checkpoints/      weights by step, the average, and the two newest training states
      metrics.jsonl     one line per validation: step and metrics
      corpus/           token ids of the training data; may be deleted after training
      tensorboard/      event files
      report/           what `keras-transformer plot` draws
      evaluation/       sources, references, hypotheses and scores of evaluated splits

`run.json` holds the SHA-256 of every file that the model is made from, and is written after them,
so that a run can be read at any moment.
"""

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, get_args

import pydantic

from keras_transformer.checkpoints import (
    RESTORE,
    RESUME_ADVICE,
    Checkpoint,
    CheckpointFolder,
    State,
)
from keras_transformer.config import CheckpointName, ModelConfig
from keras_transformer.errors import InputError
from keras_transformer.files import check_file, named_failure, read_failure, write_atomically
from keras_transformer.manifest import Manifest
from keras_transformer.registry import allocate_model

if TYPE_CHECKING:
    from keras_transformer.model.encoder_decoder import EncoderDecoder
    from keras_transformer.tokenizers import Tokenizer

logger = logging.getLogger(__name__)


@pydantic.dataclasses.dataclass(kw_only=True)
class Run(Manifest):
    """A run directory; use `Run.create` to write one and `Run.load` to read one.

    Its attributes are those of `Manifest`. All methods raise an `InputError` if a file is missing
    or damaged, or cannot be written.
    """

    path: Path  # the directory

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
        """Starts a run in `path`, a directory without a run.

        The other arguments are those of `Manifest`, with the `tokenizer` of both languages.
        """
        run = cls(
            path=Path(path),
            config=config,
            source=source,
            target=target,
            settings=dict(settings),
            tokenizer_sha256=tokenizer.fingerprint,
            corpus_sha256=corpus_sha256,
        )
        if (run.path / "run.json").exists():
            raise InputError(f"{path} holds a run already: choose another directory")
        (run.path / "checkpoints").mkdir(parents=True, exist_ok=True)
        run.save_tokenizer(tokenizer)
        run.save()
        return run

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Opens a run directory."""
        path = Path(path)
        if not path.exists():
            raise InputError(f"There is no run directory {path}")
        if not (path / "run.json").is_file():
            others = " and ".join(map(str, runs_inside(path)[:5]))
            hint = f", but there is {others}" if others else ""
            raise InputError(f"{path} is not a run directory: it holds no file run.json{hint}")
        return cls.read(path / "run.json", path=path)

    def save(self) -> None:
        """Writes `run.json`, and deletes the checkpoints that it does not name."""
        self.write(self.path / "run.json")
        others = (saved for saved in (self.best, self.averaged) if saved)
        self.folder.delete_others([*self.checkpoints, *self.states, *others])

    def finish(self) -> None:
        """Marks the run as complete."""
        self.status = "complete"
        self.save()

    def tokenizer(self) -> "Tokenizer":
        """Reads the tokenizer."""
        from keras_transformer.tokenizers import Tokenizer  # imports TensorFlow

        check_file(self.path / "tokenizer.model", self.tokenizer_sha256, RESTORE)
        tokenizer = Tokenizer.load(self.path / "tokenizer.model")
        return tokenizer.of_languages((self.source, self.target))

    def save_tokenizer(self, tokenizer: "Tokenizer") -> None:
        """Writes the tokenizer."""
        path = self.path / "tokenizer.model"
        with named_failure(path, advice=RESUME_ADVICE):
            tokenizer.save(path)

    def model(self, checkpoint: CheckpointName | None = None) -> "EncoderDecoder":
        """Builds the model with the weights of a checkpoint, as `checkpoint` names it."""
        model = allocate_model(self.config)
        self.load_weights(model, self.checkpoint(checkpoint))
        return model

    def checkpoint(self, name: CheckpointName | None = None) -> Checkpoint:
        """Returns a checkpoint: "averaged", "best" or "last"; None for the one of `choice`."""
        name = name or self.choice()[0]
        if name not in get_args(CheckpointName):
            raise InputError(f"There are averaged, best and last checkpoints. Received: {name!r}")
        chosen: Checkpoint | None = getattr(self, name)
        if chosen is None:
            command = "average" if name == "averaged" else "train --resume"
            raise InputError(f"{self.path} holds no {name} checkpoint: `{command}` makes one")
        return chosen

    def load_weights(self, model: "EncoderDecoder", checkpoint: Checkpoint) -> None:
        """Reads a checkpoint's weights into a model."""
        self.folder.read_weights(model, checkpoint)

    def save_checkpoint(
        self,
        model: "EncoderDecoder",
        step: int,
        metrics: Mapping[str, Any],
        is_best: bool,
        keep: int = 1,
        state: State | None = None,
    ) -> None:
        """Writes the weights of a `model`, and its `metrics` after `step` updates.

        Args:
            is_best: whether this is the best checkpoint, which is kept, too.
            keep: number of newest checkpoints to keep.
            state: the training state at this step.
        """
        if metrics and step:  # an ensemble has no validations
            file = self.path / "metrics.jsonl"  # before the manifest names the checkpoint
            with named_failure(file, RESUME_ADVICE), file.open("a", encoding="utf-8") as opened:
                opened.write(json.dumps({"step": step, **metrics}) + "\n")
                opened.flush()
                os.fsync(opened.fileno())
        saved = self.folder.write_weights(model, f"step-{step:08d}", step, metrics)
        self.checkpoints = [*self.checkpoints, saved][-keep:]
        if is_best:
            self.best = saved
        if state is not None:
            self.save_state(state, step)
        else:
            self.save()

    def save_average(
        self, model: "EncoderDecoder", averaged: list[Checkpoint], metrics: Mapping[str, float]
    ) -> Checkpoint:
        """Writes a `model`, the mean of `averaged` checkpoints; an earlier average is deleted.

        Its `metrics` are empty if it was not validated.
        """
        steps = [checkpoint.step for checkpoint in averaged]
        name = f"averaged-{steps[0]:08d}-{steps[-1]:08d}-{len(steps)}"
        values = {"of_steps": steps, **metrics}
        self.averaged = self.folder.write_weights(model, name, steps[-1], values)
        self.save()
        return self.averaged

    def save_state(self, state: State, step: int) -> None:
        """Writes the state that `load_state` returns, and keeps the one before it."""
        saved = self.folder.write_state(state, step)
        self.states = [*(old for old in self.states if old.step != step), saved][-2:]
        self.save()

    def load_state(self) -> tuple[State, int]:
        """Reads the newest undamaged training state and its step.

        The run forgets the checkpoints after it, which the resumed training writes again.
        """
        if not self.states:
            raise InputError(f"{self.path} holds no training state to resume from")
        try:
            state = self.folder.read_state(self.states[-1])
        except InputError as error:
            if len(self.states) == 1:
                raise InputError(
                    f"{error}, and there is no other state: the checkpoints of {self.path} can "
                    "be used, but only a new run can be trained further"
                ) from error
            logger.warning("%s. Training resumes from an earlier state", error)
            self.states.pop()
            return self.load_state()
        step = self.states[-1].step
        self.checkpoints = [saved for saved in self.checkpoints if saved.step <= step]
        if self.best is not None and self.best.step > step:
            self.best = None
        return state, step

    def rewind(self, step: int) -> None:
        """Starts to train again from a step: later metrics, and an average, are deleted."""
        file = self.path / "metrics.jsonl"
        if self.checkpoints and not file.exists():
            logger.warning("%s is missing: only the metrics of the checkpoints are left", file)
        self.status, self.averaged = "training", None
        self.save()
        lines = [json.dumps(line) + "\n" for line in self.metrics() if line["step"] <= step]
        write_atomically(file, "".join(lines).encode(), RESUME_ADVICE)

    @property
    def folder(self) -> CheckpointFolder:
        """The files of checkpoints and states."""
        return CheckpointFolder(self.path)

    def metrics(self) -> list[dict[str, float]]:
        """Reads the metrics of all validations, or of the checkpoints if their file is lost."""
        file = self.path / "metrics.jsonl"
        if not file.exists():
            metrics = {
                saved.step: saved.metrics for saved in (self.best, *self.checkpoints) if saved
            }
            return [{"step": step, **metrics[step]} for step in sorted(metrics)]
        with read_failure(file):
            text = file.read_text("utf-8", errors="replace")
        lines = []
        # A killed training may leave half a line at the end.
        for number, line in enumerate(text.split("\n")[:-1], start=1):
            try:
                lines.append(dict(json.loads(line)))
            except (ValueError, TypeError) as error:
                raise InputError(
                    f"Line {number} of {file} is damaged: delete the line, or the file; without "
                    "the file, `train --resume` keeps the metrics of the checkpoints"
                ) from error
        return lines


def runs_inside(folder: Path) -> list[Path]:
    """Returns the run directories up to two levels below a folder."""
    return sorted(
        file.parent for depth in ("*", "*/*") for file in folder.glob(f"{depth}/run.json")
    )
