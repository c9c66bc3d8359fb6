"""`keras-transformer train`."""

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from keras_transformer.cli.console import keras_progress, load_tensorflow, progress_bar, say

if TYPE_CHECKING:
    from keras_transformer.trainers.recipes import TrainSettings

DATA_HELP = (
    "bundled; tfds:NAME[/CONFIG]; a folder of files LANGUAGE.SPLIT.txt, one sentence a line "
    "(en.train.txt, de.train.txt, en.val.txt, ...); or a folder that prepare wrote. "
    "[default: the recipe's]"
)
RECIPE_HELP = (
    "Settings: a TOML file, or one of wmt14-ende-base, wmt14-ende-big, wmt14-enfr-base, "
    "wmt14-enfr-big, multi30k-ende-tiny, demo. The other options override it."
)
SET_HELP = "A setting, such as warmup_steps=400 or model.dropout_rate=0.2; may be repeated."

Data = Annotated[str | None, typer.Option(help=DATA_HELP)]
Recipe = Annotated[str | None, typer.Option(metavar="NAME|FILE", help=RECIPE_HELP)]
Changes = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=SET_HELP)]
Source = Annotated[str | None, typer.Option(help="Source language. [default: en]")]
Target = Annotated[str | None, typer.Option(help="Target language. [default: de]")]


def train_command(
    run_dir: Annotated[Path, typer.Option(help="New directory for all that training leaves.")],
    data: Data = None,
    recipe: Recipe = None,
    changes: Changes = None,
    source: Source = None,
    target: Target = None,
    preset: Annotated[
        str | None, typer.Option(help="Size of the model: tiny, base or big. [default: tiny]")
    ] = None,
    vocab_size: Annotated[
        int | None,
        typer.Option(
            help="Subwords of both languages. [default: 8000, or what the corpus supports]"
        ),
    ] = None,
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
    from keras_transformer.trainers.preparation import is_prepared
    from keras_transformer.trainers.training import train

    started = time.monotonic()
    with progress_bar("Preparing") as progress, keras_progress() as verbose:
        run = train(settings, run_dir, verbose, resume=resume, progress=progress)
    step = run.last.step if run.last else 0
    say(f"Training: {step:,} updates in {time.monotonic() - started:.1f} s: {run.path}")
    # A prepared corpus holds no text to evaluate on.
    text = "DATA" if is_prepared(settings.data) else shlex.quote(settings.data)
    say(f"Next: keras-transformer evaluate {shlex.quote(str(run.path))} --data {text} --split test")


def make_settings(
    recipe: str | None, changes: list[str] | None, **options: str | int | None
) -> "TrainSettings":
    """A recipe, changed by options, then by `--set`."""
    from keras_transformer.trainers.recipes import TrainSettings, change_recipe, load_recipe

    given = {name: value for name, value in options.items() if value is not None}
    values = {**(load_recipe(recipe) if recipe else {}), **given}
    return TrainSettings.from_dict(change_recipe(values, changes or []))
