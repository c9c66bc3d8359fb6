"""How a training is shown: a bar on a terminal, and everywhere a line for each validation."""

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import keras

from keras_transformer.cli.console import Bar, say
from keras_transformer.run import Run

# Metrics of a validation -> how they are shown.
METRICS = {
    "token_loss": "training loss {:.3f}",
    "val_token_loss": "validation loss {:.3f}",
    "val_perplexity": "perplexity {:.1f}",
    "val_accuracy": "accuracy {:.3f}",
    "val_bleu": "BLEU {:.1f}",
}


class TrainingProgress(keras.callbacks.Callback):
    """Shows how far a training is, by what the run directory says.

    Args:
        bar: of the preparation; becomes the training's.
        run_dir: the run.
        steps: most updates.
    """

    def __init__(self, bar: Bar, run_dir: Path, steps: int) -> None:
        super().__init__()
        self.bar = bar
        self.run_dir = run_dir
        self.steps = steps
        self.started: float | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Begins where an earlier call ended."""
        self.started = self.started or time.monotonic()  # `fit` may be called twice
        states = Run.load(self.run_dir).states
        self.bar.stage("Training", self.steps, states[-1].step if states else 0)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts an update."""
        self.bar(1, note=f"loss {(logs or {}).get('loss', float('nan')):.2f}")

    def on_test_begin(self, logs: Any = None) -> None:
        """Says why no update is made for a while."""
        self.bar.label("Validating")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Prints the validation, which has just been saved."""
        self.bar.label("Training")
        *_, line = Run.load(self.run_dir).metrics()
        seconds = timedelta(seconds=round(time.monotonic() - (self.started or 0.0)))
        say(f"After {line['step']:,} updates, {seconds}: {describe(line)}")


def describe(metrics: dict[str, Any]) -> str:
    """Says what a validation has measured."""
    known = ((text, metrics.get(name)) for name, text in METRICS.items())
    return ", ".join(text.format(value) for text, value in known if value is not None)
