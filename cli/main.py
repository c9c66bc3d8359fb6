"""The command `keras-transformer`."""

import io
import os
import sys
import traceback
from typing import Annotated, NoReturn

import typer

from keras_transformer._version import __version__
from keras_transformer.cli import (
    average,
    demo,
    evaluate,
    export,
    plot,
    prepare,
    serve,
    train,
    translate,
    translate_corpus,
)
from keras_transformer.cli.console import say, show_log
from keras_transformer.errors import InputError, TrainingStoppedError

app = typer.Typer(
    name="keras-transformer",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # brackets in a help text are brackets
    help=(
        'Train, evaluate, export and use the Transformer of "Attention Is All You Need".\n\n'
        "A run directory holds all that training leaves; every other command reads it:\n\n"
        "train --data DATA --run-dir RUN, then evaluate RUN, translate RUN, "
        "export RUN MODELS/NAME, serve MODELS/NAME."
    ),
)
app.command("prepare")(prepare.prepare_command)
app.command("train")(train.train_command)
app.command("average")(average.average_command)
app.command("evaluate")(evaluate.evaluate_command)
app.command("translate")(translate.translate_command)
app.command("export")(export.export_command)
app.command("check")(export.check_command)
app.command("plot")(plot.plot_command)
app.command("serve")(serve.serve_command)
app.command("translate-corpus", context_settings=translate_corpus.CONTEXT_SETTINGS)(
    translate_corpus.translate_corpus_command
)
app.command("demo")(demo.demo_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    show_log()


def main() -> None:
    """Runs the command line.

    Bad input ends in one sentence and exit status 1, a training stopped by a signal in 128 and the
    signal's number (143 for SIGTERM), and one that lost another worker in 75.
    """
    try:
        if sys.stdout is None or sys.stderr is None:
            raise InputError("Standard output and standard error must be open")
        if isinstance(sys.stdout, io.TextIOWrapper):  # as standard input, whatever the locale
            sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
        app()
    except InputError as error:
        say(f"error: {error}")
        _end(1)
    except TrainingStoppedError as error:
        say(f"error: {error}")
        _end(error.status)
    except OSError as error:  # a full disk, a directory without permission
        say(f"error: {error.filename or 'input or output'}: {error.strerror or error}")
        _end(1)
    except Exception:
        traceback.print_exc()
        _end(1)


def _end(status: int) -> NoReturn:
    """Exits; without goodbyes if there are other machines, for those may be gone or wait for us."""
    if "TF_CONFIG" in os.environ or "SLURM_PROCID" in os.environ:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)
