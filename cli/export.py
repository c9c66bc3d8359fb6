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
    beam_size: Annotated[
        int | None, typer.Option(help="Beams; 1 is greedy search. [default: the run's, or 4]")
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(help="Strength of the length penalty. [default: the run's, or 0.6]"),
    ] = None,
    max_source_length: Annotated[
        int, typer.Option(help="Longer sources are cut to this many tokens, and marked.")
    ] = 512,
    checkpoint: Annotated[
        Literal["averaged", "best", "last"] | None,
        typer.Option(help="Which weights. [default: averaged if there are any, else best]"),
    ] = None,
) -> None:
    """Write a SavedModel that takes strings and returns strings."""
    load_tensorflow()
    from keras_transformer.export.saved_model import export_saved_model
    from keras_transformer.translator import Translator

    started = time.monotonic()
    translator = Translator.load(run, checkpoint)
    options = translator.decoding_options(beam_size, alpha, max_source_length)
    path = export_saved_model(translator, folder, version, options)
    say(f"Export: SavedModel in {time.monotonic() - started:.1f} s: {path}")
    say(f"Next: keras-transformer translate {path} TEXT")
