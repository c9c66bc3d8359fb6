"""The progress of a training: a bar or a line a minute, each validation, and a summary."""

import math
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import keras

from keras_transformer.cli.console import ProgressBar, say
from keras_transformer.run import Run
from keras_transformer.trainers.data.batches import BatchPlan, plan_of
from keras_transformer.trainers.data.prepared import StoredPairs, complete_corpus, corpus_folder
from keras_transformer.trainers.settings import TrainSettings
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
    """Continues the bar of the preparation: a run of at most `steps` updates and `max_hours`."""

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
        self.tokens = 0.0  # of the target, of an update on average
        self.mark = (0, 0.0)  # updates and time after the first update of an epoch

    def on_train_begin(self, logs: Any = None) -> None:
        if self.started is None:  # `fit` may be called twice
            self.started = time.monotonic()
            run = Run.load(self.run_dir)
            if run.states:
                self.first = run.states[-1].step
                self.seconds -= run.states[-1].metrics["seconds"]
            if plan := batch_plan(run):
                self.tokens = plan.mean_tokens[1]
        self.bar.stage("Training", self.steps, self.first + self.done, "updates")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Measures the speed of each epoch: between two of them, a validation takes time."""
        self.mark = (0, 0.0)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.done += 1
        now = time.monotonic()
        note = details = f"loss {(logs or {}).get('token_loss', math.nan):.2f}"
        if not self.mark[0]:  # the first update may compile the step
            self.mark = (self.done, now)
        elif self.tokens and now > self.mark[1]:
            speed = self.tokens * (self.done - self.mark[0]) / (now - self.mark[1])
            details = f"{note}, {speed:,.0f} target tokens a second"
        self.bar(1, self._expected_steps(), note=note, details=details)

    def on_test_begin(self, logs: Any = None) -> None:
        self.bar(0, description="Validating")

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Prints the metrics of the validation, which `SaveRun` has completed and saved."""
        self.bar(0, description="Training")
        seconds = timedelta(seconds=round(time.monotonic() - (self.started or 0.0)))
        say(f"After {self.first + self.done:,} updates, {seconds}{describe(logs or {})}")

    def _expected_steps(self) -> int:
        per_update = (time.monotonic() - (self.started or 0.0)) / self.done
        return int(min(self.steps, self.first + self.seconds / max(per_update, 1e-9)))


def batch_plan(run: Run) -> BatchPlan | None:
    """Returns the batches that a run is trained on; None if its corpus is gone."""
    corpus = complete_corpus(corpus_folder(run))
    if corpus is None:
        return None
    return plan_of(StoredPairs(corpus, "train", check_files=False), TrainSettings.of_run(run))


def describe(metrics: dict[str, Any]) -> str:
    """Describes the metrics of a validation, each after a comma; means with those of each pair."""
    described = ""
    for name, text in METRICS.items():
        if name in metrics:
            pairs = (key.removeprefix(f"{name}_") for key in metrics if key.startswith(f"{name}_"))
            listed = ", ".join(f"{pair} {metrics[f'{name}_{pair}']:.1f}" for pair in pairs)
            described += f", {text.format(metrics[name])}" + (f" ({listed})" if listed else "")
    return described


def summarize(run: Run) -> dict[str, Any]:
    """Returns the figures of a run that has a checkpoint, for `--json`; None for lost ones."""
    last = run.checkpoint("last")
    chosen, reason = run.choice()
    checkpoints = {"best": run.best, "last": last, "averaged": run.averaged}
    return {
        "run_dir": str(run.path),
        "status": run.status,
        "step": last.step,
        "steps": run.settings["steps"],
        "seconds": run.states[-1].metrics["seconds"] if run.states else None,
        "validations": len(run.metrics()),
        "parameters": run.folder.count_parameters(last),
        "seen": _seen(run, last.step),
        **{
            name: saved
            and {"step": saved.step, "file": str(run.path / saved.file), "metrics": saved.metrics}
            for name, saved in checkpoints.items()
        },
        "chosen": {"checkpoint": chosen, "reason": reason},
    }


def summary_table(summary: dict[str, Any]) -> dict[str, str]:
    """Returns the lines of the table, by name."""
    step, seconds, seen = summary["step"], summary["seconds"], summary["seen"]
    rows = {"updates": f"{step:,} of {summary['steps']:,}, {summary['validations']:,} validations"}
    if seconds is not None:
        duration = timedelta(seconds=round(seconds))
        rows["time"] = f"{duration} of training, {step / seconds:.3g} updates per second"
    if seen is not None:
        rows["seen"] = (
            f"{seen['pairs']:,} pairs, {seen['source_tokens']:,} and {seen['target_tokens']:,} "
            f"tokens: {seen['epochs']:.1f} times the corpus"
        )
    rows["parameters"] = f"{summary['parameters']:,}"
    for name in ("best", "last", "averaged"):
        if saved := summary[name]:
            metrics = saved["metrics"]
            steps = ", ".join(f"{step:,}" for step in metrics.get("of_steps", [saved["step"]]))
            rows[name] = f"after {steps} updates{describe(metrics)}: {saved['file']}"
    chosen = summary["chosen"]
    rows["chosen"] = f"{chosen['checkpoint']}: {chosen['reason']}"
    return rows


def still_improves(summary: dict[str, Any]) -> bool:
    """Returns whether the last validation was the best, so that more steps may help."""
    best = summary["best"]
    return (
        summary["validations"] > 1
        and summary["step"] == summary["steps"] == best["step"]
        and any(name.startswith("val_") for name in best["metrics"])
    )


def _seen(run: Run, steps: int) -> dict[str, Any] | None:
    """Counts the pairs and tokens of a number of updates, end symbols included."""
    plan = batch_plan(run)
    if plan is None:
        return None
    lengths = plan.lengths[plan.first_epoch]  # others have about as many tokens
    epochs, rest = divmod(steps, plan.batches_per_epoch)
    pairs = epochs * len(lengths)
    tokens = epochs * lengths.sum(axis=0, dtype=int)
    for step in range(steps - rest, steps):
        _, rows = plan.batch(step)
        pairs += len(rows)
        tokens += plan.lengths[rows].sum(axis=0, dtype=int)
    return {
        "pairs": pairs,
        "source_tokens": int(tokens[0]),
        "target_tokens": int(tokens[1]),
        "epochs": pairs / len(plan.lengths),
    }
