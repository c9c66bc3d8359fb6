"""`keras-transformer train`."""

import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from keras_transformer.cli.console import keras_progress, load_tensorflow, say


def train_command(
    data: Annotated[
        str,
        typer.Option(
            help="bundled; tfds:NAME[/CONFIG]; or a folder of files LANGUAGE.SPLIT.txt, "
            "one sentence a line (en.train.txt, de.train.txt, en.val.txt, ...)."
        ),
    ],
    run_dir: Annotated[Path, typer.Option(help="New directory for all that training leaves.")],
    source: Annotated[str, typer.Option(help="Source language.")] = "en",
    target: Annotated[str, typer.Option(help="Target language.")] = "de",
    preset: Annotated[str, typer.Option(help="Size of the model: tiny, base or big.")] = "tiny",
    steps: Annotated[int, typer.Option(help="Updates.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Of weights, dropout and batches.")] = 1,
    vocab_size: Annotated[
        int | None,
        typer.Option(
            help="Subwords of both languages. [default: 8000, or what the corpus supports]"
        ),
    ] = None,
    tokens_per_batch: Annotated[
        int, typer.Option(help="Most tokens of each side of a batch, padding included.")
    ] = 4096,
    max_length: Annotated[
        int, typer.Option(help="Pairs with a side of more tokens are dropped.")
    ] = 256,
    warmup_steps: Annotated[int, typer.Option(help="Step of the highest learning rate.")] = 4000,
    peak_rate: Annotated[
        float | None, typer.Option(help="Highest learning rate. [default: the paper's]")
    ] = None,
    label_smoothing: Annotated[float, typer.Option(help="Of the labels, 0 to 1.")] = 0.1,
    dropout_rate: Annotated[
        float | None, typer.Option(help="0 to 1. [default: the preset's]")
    ] = None,
    steps_per_validation: Annotated[
        int | None, typer.Option(help="Updates between validations. [default: an epoch, or 1000]")
    ] = None,
    strategy: Annotated[
        Literal["one", "mirrored"],
        typer.Option(help="One device, or mirrored over all GPUs of this machine."),
    ] = "one",
    precision: Annotated[
        Literal["float32", "mixed_bfloat16", "mixed_float16"],
        typer.Option(help="Of the computation; weights are float32."),
    ] = "float32",
    jit: Annotated[bool, typer.Option("--jit", help="Compile the training step by XLA.")] = False,
) -> None:
    """Train a model on parallel text, and write its run directory."""
    load_tensorflow()
    from keras_transformer.trainers import training

    started = time.monotonic()
    settings = training.TrainSettings(
        data=data,
        source=source,
        target=target,
        preset=preset,
        vocab_size=vocab_size,
        steps=steps,
        seed=seed,
        tokens_per_batch=tokens_per_batch,
        max_length=max_length,
        warmup_steps=warmup_steps,
        peak_rate=peak_rate,
        label_smoothing=label_smoothing,
        model_overrides={} if dropout_rate is None else {"dropout_rate": dropout_rate},
        steps_per_validation=steps_per_validation,
        strategy=strategy,
        precision=precision,
        jit=jit,
    )
    with keras_progress() as verbose:
        run = training.train(settings, run_dir, verbose)
    say(f"Training: {steps:,} updates in {time.monotonic() - started:.1f} s: {run.path}")
    say(f"Next: keras-transformer evaluate {run.path} --data {data} --split test")
