"""What a training came to, by the files of its run directory."""

from datetime import timedelta
from typing import Any

from keras_transformer.cli.progress import describe
from keras_transformer.model import Transformer
from keras_transformer.run import Checkpoint, Run
from keras_transformer.trainers.batches import BatchPlan
from keras_transformer.trainers.prepared import TokenizedPairs, corpus_folder, is_whole

DECISIVE = ("val_token_loss", "val_bleu")  # which checkpoint is the best


def summarize(run: Run) -> dict[str, Any]:
    """Gathers a run's figures as plain values; what a run no longer holds is None.

    Args:
        run: with at least one checkpoint.

    Returns:
        `run_dir`, `status` and `parameters`; `step`, the updates made, and `steps`, the most that
        there may be; `seconds` that they took, in all calls; `validations`, their number; `seen`,
        what the updates were made from; and the checkpoints `best`, `last` and `averaged`.

    Raises:
        InputError: if it holds no checkpoint, or its corpus is damaged.
    """
    last = run.checkpoint("last")
    checkpoints = {"best": run.best, "last": last, "averaged": run.averaged}
    seconds = [state.metrics["seconds"] for state in run.states if state.step == last.step]
    return {
        "run_dir": str(run.path),
        "status": run.status,
        "step": last.step,
        "steps": run.settings["steps"],
        "seconds": seconds[-1] if seconds else None,
        "validations": len(run.metrics()),
        "parameters": Transformer(run.config).count_params(),
        "seen": _seen(run, last.step),
        **{name: found and _plain(run, found) for name, found in checkpoints.items()},
    }


def summary_table(summary: dict[str, Any]) -> dict[str, str]:
    """Returns the lines that a person reads, by name."""
    step, seconds, seen = summary["step"], summary["seconds"], summary["seen"]
    rows = {"updates": f"{step:,} of {summary['steps']:,}, {summary['validations']:,} validations"}
    if seconds is not None:
        speed = step / seconds
        rate = f"{speed:,.1f} updates a second" if speed > 1 else f"{1 / speed:,.1f} s an update"
        rows["time"] = f"{timedelta(seconds=round(seconds))} of training, {rate}"
    if seen is not None:
        rows["seen"] = (
            f"{seen['pairs']:,} pairs, {seen['source_tokens']:,} and {seen['target_tokens']:,} "
            f"tokens: {seen['epochs']:.1f} times the corpus"
        )
    rows["parameters"] = f"{summary['parameters']:,}"
    is_best = summary["best"]["step"] == step
    for name in ("best",) if is_best else ("best", "last"):
        found = summary[name]
        names = [name for name in DECISIVE if name in found["metrics"]] or ["token_loss"]
        measured = describe({name: found["metrics"][name] for name in names})
        rows[name] = f"after {found['step']:,} updates, {measured}: {found['file']}"
    if averaged := summary["averaged"]:
        steps = ", ".join(f"{each:,}" for each in averaged["metrics"]["of_steps"])
        rows["averaged"] = f"of those after {steps} updates: {averaged['file']}"
    return rows


def still_improves(summary: dict[str, Any]) -> bool:
    """Whether the steps ended a training whose last validation was its best."""
    best = summary["best"]
    return (
        summary["validations"] > 1
        and summary["step"] == summary["steps"] == best["step"]
        and any(name.startswith("val_") for name in best["metrics"])
    )


def _plain(run: Run, checkpoint: Checkpoint) -> dict[str, Any]:
    file = str(run.path / checkpoint.file)
    return {"step": checkpoint.step, "file": file, "metrics": checkpoint.metrics}


def _seen(run: Run, steps: int) -> dict[str, Any] | None:
    """Counts pairs and tokens, end symbols included, of a number of updates."""
    settings = run.settings
    folder = corpus_folder(run)
    if not is_whole(folder):
        return None
    lengths = TokenizedPairs(folder, "train").lengths
    plan = BatchPlan(lengths, settings["tokens_per_batch"], settings["seed"])
    epochs, rest = divmod(steps, plan.batches_per_epoch)
    pairs = epochs * len(lengths)
    tokens = epochs * lengths.sum(axis=0, dtype=int)
    for step in range(steps - rest, steps):
        _, rows = plan.batch(step)
        pairs += len(rows)
        tokens += lengths[rows].sum(axis=0, dtype=int)
    return {
        "pairs": pairs,
        "source_tokens": int(tokens[0]),
        "target_tokens": int(tokens[1]),
        "epochs": pairs / len(lengths),
    }
