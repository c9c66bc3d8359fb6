"""The progress of a run: a bar on a terminal, and a line for each validation."""

import math
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import keras

from keras_transformer.cli.console import ProgressBar, say
from keras_transformer.run import Run
from keras_transformer.trainers.tasks import metric_labels

# How the metrics of a validation are shown.
METRICS = {
    "token_loss": "training loss {:.3f}",
    "val_token_loss": "validation loss {:.3f}",
    "val_perplexity": "perplexity {:.1f}",
    "val_accuracy": "accuracy {:.3f}",
    **{f"val_{name}": f"{label} {{:.1f}}" for name, label in metric_labels().items()},
}


class TrainingDisplay(keras.callbacks.Callback):
    """Shows the progress of a run of at most `steps` updates and `max_hours`.

    The bar of the preparation becomes that of the training.
    """

    def __init__(
        self, bar: ProgressBar, run_dir: Path, steps: int, max_hours: float | None = None
    ) -> None:
        super().__init__()
        self.bar = bar
        self.run_dir = run_dir
        self.steps = steps
        self.seconds = math.inf if max_hours is None else 3600 * max_hours
        self.started: float | None = None
        self.first = self.done = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Starts the bar at the step that was saved."""
        self.started = self.started or time.monotonic()  # `fit` may be called twice
        states = Run.load(self.run_dir).states
        if not self.done and states:
            self.first = states[-1].step
            self.seconds -= states[-1].metrics["seconds"]
        self.bar.stage("Training", self.steps, self.first + self.done)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts an update."""
        self.done += 1
        self.bar(1, self.expected(), note=f"loss {(logs or {}).get('loss', float('nan')):.2f}")

    def expected(self) -> int:
        """Returns how many updates `steps` and `max_hours` allow at the speed so far."""
        per_update = (time.monotonic() - (self.started or 0.0)) / self.done
        return int(min(self.steps, self.first + self.seconds / max(per_update, 1e-9)))

    def on_test_begin(self, logs: Any = None) -> None:
        """Labels the bar during a validation."""
        self.bar(0, description="Validating")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Prints the validation that has just been saved."""
        self.bar(0, description="Training")
        *_, line = Run.load(self.run_dir).metrics()
        seconds = timedelta(seconds=round(time.monotonic() - (self.started or 0.0)))
        say(f"After {line['step']:,} updates, {seconds}{describe(line)}")


def describe(metrics: dict[str, Any]) -> str:
    """Describes the metrics of a validation, each after a comma."""
    shown = (text.format(metrics[name]) for name, text in METRICS.items() if name in metrics)
    return "".join(f", {each}" for each in shown)
