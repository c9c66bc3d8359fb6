"""`keras-transformer train`."""

import shlex
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keras_transformer.cli.console import (
    Json,
    load_tensorflow,
    print_json,
    progress_bar,
    say,
    say_table,
)
from keras_transformer.config import PRESETS, TABLE_3
from keras_transformer.trainers import recipes
from keras_transformer.trainers.recipes import TrainSettings

if TYPE_CHECKING:
    from keras_transformer.run import Run

TEXT_HELP = (
    "The corpus: bundled, tfds:NAME[/CONFIG], or a folder of files LANGUAGE.SPLIT.txt with one "
    "sentence a line (en.train.txt, de.train.txt, en.val.txt, ...)"
)
RECIPE_HELP = (
    "Settings to start from, which the other options change: a TOML file, a run directory, or one "
    f"of {', '.join(recipes.recipe_names())}."
)
SET_HELP = "A setting, such as warmup_steps=400 or model.dropout_rate=0.2. May be repeated."

Data = Annotated[str | None, typer.Option(help=f"{TEXT_HELP}. [default: the recipe's]")]
PreparedData = Annotated[
    str | None,
    typer.Option(help=f"{TEXT_HELP}, or one that prepare wrote. [default: the recipe's]"),
]
Recipe = Annotated[
    str | None,
    typer.Option(metavar="NAME|FILE|RUN", help=RECIPE_HELP, autocompletion=recipes.recipe_names),
]
Changes = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=SET_HELP)]
Source = Annotated[str | None, typer.Option(help="Source language. [default: en]")]
Target = Annotated[str | None, typer.Option(help="Target language. [default: de]")]
VocabSize = Annotated[
    int | None,
    typer.Option(help="Maximum number of subwords, for both languages together. [default: 8000]"),
]


def train_command(
    run_dir: Annotated[Path, typer.Option(help="New run directory, or one to --resume.")],
    data: PreparedData = None,
    recipe: Recipe = None,
    changes: Changes = None,
    source: Source = None,
    target: Target = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Size of the model: tiny, base, big, or a row of the paper's Table 3, such as "
            "A-16-heads. [default: tiny]",
            autocompletion=lambda: list({**PRESETS, **TABLE_3}),
        ),
    ] = None,
    vocab_size: VocabSize = None,
    steps: Annotated[int | None, typer.Option(help="Number of updates. [default: 10000]")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of weights, dropout and batches. [default: 1]")
    ] = None,
    metric: Annotated[
        recipes.Metric | None,
        typer.Option(
            help="Validation score that chooses the best checkpoint. [default: bleu if it is "
            "computed, else loss]"
        ),
    ] = None,
    strategy: Annotated[
        recipes.StrategyName | None,
        typer.Option(
            help="one: a single device; mirrored: all GPUs of this machine; multiworker: all "
            "machines that TF_CONFIG or SLURM names. [default: mirrored with several GPUs, "
            "else one]"
        ),
    ] = None,
    accumulate: Annotated[
        int | None,
        typer.Option(help="Number of micro-batches in an update; more save memory. [default: 1]"),
    ] = None,
    precision: Annotated[
        recipes.Precision | None,
        typer.Option(help="Type of the computation; weights stay float32. [default: float32]"),
    ] = None,
    jit: Annotated[
        bool | None, typer.Option("--jit", help="Compile the training step with XLA.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run, if there is one.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train a model on parallel text.

    Training writes a run directory, which most other commands read.
    """
    settings = make_settings(
        recipe,
        changes,
        data=data,
        source=source,
        target=target,
        preset=preset,
        vocab_size=vocab_size,
        steps=steps,
        seed=seed,
        metric=metric,
        strategy=strategy,
        accumulate=accumulate,
        precision=precision,
        jit=jit,
    )
    load_tensorflow()
    from keras_transformer.cli.summary import still_improves, summarize, summary_table
    from keras_transformer.trainers.prepared import is_prepared

    started = time.monotonic()
    run = train_with_progress(settings, run_dir, resume)
    step = run.last.step if run.last else 0
    seconds = time.monotonic() - started
    say(f"Training: {step:,} updates; this call took {seconds:.1f} s: {run.path}")
    summary = summarize(run)
    say_table(summary_table(summary))
    if still_improves(summary) and not settings.cooldown:
        say("The last validation was the best: --resume with more --steps may go further")
    # A prepared corpus holds no text to evaluate.
    options = " --data DATA" if is_prepared(settings.data) else ""
    say(f"Next: keras-transformer evaluate {shlex.quote(str(run.path))}{options}")
    if as_json:
        print_json(summary)


def train_with_progress(settings: TrainSettings, run_dir: Path, resume: bool) -> "Run":
    """Trains with a progress bar; the arguments are those of `train`."""
    from keras_transformer.cli.progress import TrainingDisplay
    from keras_transformer.trainers.training import train

    # Keras prints to standard output, which is for results.
    with progress_bar("Preparing") as bar, redirect_stdout(sys.stderr):
        shown = TrainingDisplay(bar, run_dir, settings.steps)
        return train(settings, run_dir, 0, resume=resume, progress=bar, callbacks=[shown])


def make_settings(
    recipe: str | None, changes: list[str] | None, **options: str | int | None
) -> TrainSettings:
    """Makes settings from a recipe, changed by options, then by `--set`."""
    given = {name: value for name, value in options.items() if value is not None}
    values = {**(recipes.load_recipe(recipe) if recipe else {}), **given}
    return TrainSettings.from_dict(recipes.change_recipe(values, changes or []))
