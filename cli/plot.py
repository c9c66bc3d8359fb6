"""`keras-transformer plot`."""

import warnings
from pathlib import Path
from typing import Annotated

from typer import Option

from keras_transformer.cli.console import ProgressBar, load_tensorflow, say
from keras_transformer.cli.options import Checkpoint, RunDirectory
from keras_transformer.errors import needs_extra
from keras_transformer.run import Run


def plot_command(
    run: RunDirectory,
    output: Annotated[
        Path | None, Option(metavar="DIR", help="Folder for the report. [default: RUN/report]")
    ] = None,
    text: Annotated[
        str | None,
        Option(
            help="Sentence whose attention is drawn. [default: one that was evaluated, or one of "
            "the validation text]"
        ),
    ] = None,
    checkpoint: Checkpoint = None,
) -> None:
    """Draw a report of a run, as a page and PNG files.

    It shows curves, scores, examples, attention, the lengths of the corpus, and all settings.
    """
    load_tensorflow()
    with needs_extra("plots"):
        import matplotlib  # noqa: F401

        from keras_transformer.cli.report import write_report

    # The pictures show a box for a character that no installed font has.
    warnings.filterwarnings("ignore", "Glyph .* missing from font")
    with ProgressBar("Drawing"):
        path = write_report(Run.load(run), output or run / "report", text, checkpoint)
    say(f"Report: {path}")
