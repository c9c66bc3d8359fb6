"""`keras-transformer average`."""

from typing import Annotated

from typer import Option

from keras_transformer.cli.console import ProgressBar, evaluation_of, load_tensorflow, say, say_next
from keras_transformer.cli.options import RunDirectory
from keras_transformer.run import Run


def average_command(
    run: RunDirectory,
    last: Annotated[
        int | None, Option(help="Number of checkpoints to average. [default: the recipe's, or all]")
    ] = None,
) -> None:
    """Average the weights of the newest checkpoints.

    It validates the average. The other commands then use the average, unless the best
    checkpoint validates clearly better. Resuming the training deletes the average.
    """
    load_tensorflow()
    from keras_transformer.cli.progress import describe
    from keras_transformer.trainers.fitting.averaging import average_checkpoints

    opened = Run.load(run)
    if last is None:
        num_kept = max(len(opened.checkpoints), 1)
        last = min(opened.settings.get("average_last") or num_kept, num_kept)
    with ProgressBar("Averaging"):
        averaged = average_checkpoints(opened, last)
    steps = ", ".join(f"{step:,}" for step in averaged.metrics["of_steps"])
    metrics = describe(averaged.metrics)
    say(f"Averaged: the checkpoints after {steps} updates{metrics}: {run / averaged.file}")
    say("Other commands use the checkpoint {}: {}".format(*opened.choice()))
    say_next(evaluation_of(run, opened.settings.get("data")))
