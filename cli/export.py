"""`keras-transformer export`."""

import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from keras_transformer.cli.console import load_tensorflow, say


def export_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    folder: Annotated[
        Path, typer.Argument(metavar="MODELS/NAME", help="The model's folder for TF Serving.")
    ],
    version: Annotated[int, typer.Option(help="Number of the version.")] = 1,
    beam_size: Annotated[int, typer.Option(help="Beams; 1 is greedy search.")] = 4,
    alpha: Annotated[float, typer.Option(help="Strength of the length penalty.")] = 0.6,
    max_source_length: Annotated[
        int, typer.Option(help="Longer sources are cut to this many tokens, and marked.")
    ] = 512,
    checkpoint: Annotated[
        Literal["best", "last"],
        typer.Option(help="The best is that of the lowest validation loss."),
    ] = "best",
) -> None:
    """Write a SavedModel that takes strings and returns strings."""
    load_tensorflow()
    from keras_transformer.export.saved_model import export_saved_model
    from keras_transformer.translator import DecodingOptions, Translator

    started = time.monotonic()
    options = DecodingOptions(beam_size=beam_size, alpha=alpha, max_source_length=max_source_length)
    path = export_saved_model(Translator.load(run, checkpoint), folder, version, options)
    say(f"Export: SavedModel in {time.monotonic() - started:.1f} s: {path}")
    say(f"Next: keras-transformer translate {path} TEXT")
