"""What a run keeps of its training: checkpoints, states, and the metrics of validations."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pydantic

from keras_transformer.errors import InputError
from keras_transformer.files import named_failure, write_atomically

RESUME_ADVICE = "What was saved before is complete, and training with --resume continues from it"
PER_TOKEN = ("val_loss", "val_token_loss", "val_perplexity", "val_accuracy")


@pydantic.dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A saved file: the weights, or the training state, after a number of updates.

    Attributes:
        file: path relative to the run directory.
        sha256: the hash of the file.
        step: number of updates so far.
        metrics: validation metrics at this step. An average also has `of_steps`, the averaged
            steps. A state has `seconds`, the training time so far, instead.
    """

    file: str
    sha256: str
    step: int
    metrics: dict[str, Any]


class State(NamedTuple):
    """The variables that the next update depends on, by name, and the training time so far."""

    arrays: dict[str, np.ndarray]
    seconds: float


class MetricsFile(NamedTuple):
    """A file of JSON lines, one for each validation: its `step` and its metrics."""

    path: Path

    def read(self) -> list[dict[str, float]]:
        """Returns the lines, oldest first; `InputError` if one is damaged."""
        lines: list[dict[str, float]] = []
        try:
            # A killed training may leave half a line at the end.
            for line in self.path.read_text("utf-8").split("\n")[:-1]:
                lines.append(dict(json.loads(line)))
        except OSError as error:
            raise InputError(f"Cannot read {self.path}: {error.strerror}") from error
        except (ValueError, TypeError) as error:
            raise InputError(
                f"Line {len(lines) + 1} of {self.path} is damaged: delete the line, or the file; "
                "without the file, `train --resume` keeps the metrics of the checkpoints"
            ) from error
        return lines

    def write(self, lines: list[dict[str, float]]) -> None:
        """Replaces all lines."""
        content = "".join(json.dumps(line) + "\n" for line in lines)
        write_atomically(self.path, content.encode(), RESUME_ADVICE)

    def append(self, step: int, metrics: Mapping[str, float]) -> None:
        """Adds the metrics of a validation after `step` updates."""
        with (
            named_failure(self.path, advice=RESUME_ADVICE),
            self.path.open("a", encoding="utf-8") as file,
        ):
            file.write(json.dumps({"step": step, **metrics}) + "\n")
            file.flush()
            os.fsync(file.fileno())  # before the manifest names the checkpoint of this step

    def drop_after(self, step: int) -> None:
        """Drops the lines after a step, if there are any; resuming writes them again."""
        if self.path.exists():
            self.write([line for line in self.read() if line["step"] <= step])


def quality(metrics: Mapping[str, Any], metric: str | None = None) -> tuple[float, float]:
    """Returns the score of a validation, and minus its loss, which decides between equal scores.

    The score is 0 if `metric` is "loss". If `metric` is None, it is the first one that is not a
    mean over tokens: the usual score of the task.
    """
    of_results = (name for name in metrics if name.startswith("val_") and name not in PER_TOKEN)
    name = f"val_{metric}" if metric else next(of_results, "")
    score = 0.0 if metric == "loss" else metrics.get(name, -math.inf)
    return round(score, 2), -metrics.get("val_token_loss", math.inf)
