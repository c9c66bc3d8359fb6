"""`keras-transformer train`."""

import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from keras_transformer.cli import completion
from keras_transformer.cli.console import (
    Json,
    load_tensorflow,
    print_json,
    progress_bar,
    say,
    say_table,
)
from keras_transformer.errors import InputError

if TYPE_CHECKING:
    from keras_transformer.run import Run
    from keras_transformer.trainers.recipes import TrainSettings

TEXT_HELP = (
    "bundled; tfds:NAME[/CONFIG]; or a folder of files LANGUAGE.SPLIT.txt, one sentence a line "
    "(en.train.txt, de.train.txt, en.val.txt, ...)"
)
RECIPE_HELP = (
    "Settings: one of wmt14-ende-base, wmt14-ende-big, wmt14-enfr-base, wmt14-enfr-big, "
    "multi30k-ende-tiny, multi30k-ende-cased, demo; a TOML file; or a run directory, for its "
    "settings. The other options override it."
)
SET_HELP = "A setting, such as warmup_steps=400 or model.dropout_rate=0.2; may be repeated."

Data = Annotated[str | None, typer.Option(help=f"{TEXT_HELP}. [default: the recipe's]")]
PreparedData = Annotated[
    str | None,
    typer.Option(help=f"{TEXT_HELP}; or what prepare wrote. [default: the recipe's]"),
]
Recipe = Annotated[
    str | None,
    typer.Option(metavar="NAME|FILE|RUN", help=RECIPE_HELP, autocompletion=completion.recipes),
]
Changes = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=SET_HELP)]
Source = Annotated[str | None, typer.Option(help="Source language. [default: en]")]
Target = Annotated[str | None, typer.Option(help="Target language. [default: de]")]
VocabSize = Annotated[
    int | None,
    typer.Option(help="Subwords of both languages. [default: 8000, or what the corpus supports]"),
]


def train_command(
    run_dir: Annotated[Path, typer.Option(help="New directory for all that training leaves.")],
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
            autocompletion=completion.presets,
        ),
    ] = None,
    vocab_size: VocabSize = None,
    steps: Annotated[int | None, typer.Option(help="Updates. [default: 10000]")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of weights, dropout and batches. [default: 1]")
    ] = None,
    strategy: Annotated[
        Literal["one", "mirrored", "multiworker"] | None,
        typer.Option(
            help="One device, mirrored over all GPUs of this machine, or those of all machines "
            "that TF_CONFIG or SLURM names. [default: mirrored with several GPUs, else one]"
        ),
    ] = None,
    accumulate: Annotated[
        int | None,
        typer.Option(help="Parts to add up for each update, to save memory. [default: 1]"),
    ] = None,
    precision: Annotated[
        Literal["float32", "mixed_bfloat16", "mixed_float16"] | None,
        typer.Option(help="Of the computation; weights are float32. [default: float32]"),
    ] = None,
    jit: Annotated[
        bool | None, typer.Option("--jit", help="Compile the training step by XLA.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted run, if there is one.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train a model on parallel text, and write its run directory."""
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
        strategy=strategy,
        accumulate=accumulate,
        precision=precision,
        jit=jit,
    )
    load_tensorflow()
    from keras_transformer.cli.summary import still_improves, summarize, summary_table
    from keras_transformer.trainers.corpora import load_corpus
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
    # A prepared corpus holds no text to evaluate on.
    data = "DATA"
    splits: Sequence[str] = ["test"]
    if not is_prepared(settings.data):
        data = settings.data
        with suppress(InputError):  # training is done, whatever became of the text meanwhile
            splits = load_corpus(data, settings.source, settings.target).splits
    words = [str(run.path), "--data", data, "--split", _to_evaluate(splits)]
    say(f"Next: keras-transformer evaluate {shlex.join(words)}")
    if as_json:
        print_json(summary)


def train_with_progress(settings: "TrainSettings", run_dir: Path, resume: bool) -> "Run":
    """Trains, and shows how far it is.

    Args:
        settings: what to train and how.
        run_dir: as `train` takes it.
        resume: likewise.
    """
    from keras_transformer.cli.progress import TrainingProgress
    from keras_transformer.trainers.training import train

    # What Keras and others may print is no result.
    with progress_bar("Preparing") as bar, redirect_stdout(sys.stderr):
        shown = TrainingProgress(bar, run_dir, settings.steps)
        return train(settings, run_dir, 0, resume=resume, progress=bar, callbacks=[shown])


def make_settings(
    recipe: str | None, changes: list[str] | None, **options: str | int | None
) -> "TrainSettings":
    """A recipe, changed by options, then by `--set`."""
    from keras_transformer.trainers.recipes import TrainSettings, change_recipe, load_recipe

    given = {name: value for name, value in options.items() if value is not None}
    values = {**(load_recipe(recipe) if recipe else {}), **given}
    return TrainSettings.from_dict(change_recipe(values, changes or []))


def _to_evaluate(splits: Sequence[str]) -> str:
    """The split that a user would evaluate first: the test set, else what was not trained on."""
    return min(splits, key=lambda split: (not split.startswith("test"), split == "train"))
