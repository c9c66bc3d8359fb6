"""`keras-transformer ensemble`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from keras_transformer.cli.console import cleaned_up, evaluation_of, load_tensorflow, say, say_next
from keras_transformer.cli.options import Checkpoint


def ensemble_command(
    runs: Annotated[list[Path], Argument(metavar="RUN", help="Trained runs with one tokenizer.")],
    run_dir: Annotated[Path, Option(metavar="RUN", help="New run directory.")],
    checkpoint: Checkpoint = None,
) -> None:
    """Write several trained runs as one, which averages their probabilities.

    All commands that read a run then work with it. The options of the search are the first run's.
    """
    load_tensorflow()
    from keras_transformer.trainers.ensemble.combining import combine

    with cleaned_up():
        combined = combine(runs, run_dir, checkpoint)
    chosen = combined.checkpoint()
    count = combined.folder.count_parameters(chosen)
    say(f"Ensemble: {len(runs)} models, {count:,} parameters in all: {run_dir}")
    for file in chosen.metrics["of_files"]:
        say(f"  {file}")
    data = combined.settings.get("data")
    say_next(evaluation_of(run_dir, data), ["export", run_dir, "MODELS/NAME"])
