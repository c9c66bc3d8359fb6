"""The summary of a run, from the files of its directory."""

from datetime import timedelta
from typing import Any

from keras_transformer.checkpoints import Checkpoint
from keras_transformer.cli.progress import batch_plan, describe
from keras_transformer.run import Run


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
        **{name: saved and _figures(run, saved) for name, saved in checkpoints.items()},
        "chosen": {"checkpoint": chosen, "reason": reason},
    }


def _figures(run: Run, saved: Checkpoint) -> dict[str, Any]:
    return {"step": saved.step, "file": str(run.path / saved.file), "metrics": saved.metrics}


def summary_table(summary: dict[str, Any]) -> dict[str, str]:
    """Returns the lines of the table, by name."""
    step, seconds, seen = summary["step"], summary["seconds"], summary["seen"]
    rows = {"updates": f"{step:,} of {summary['steps']:,}, {summary['validations']:,} validations"}
    if seconds is not None:
        time = timedelta(seconds=round(seconds))
        rows["time"] = f"{time} of training, {step / seconds:.3g} updates per second"
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
