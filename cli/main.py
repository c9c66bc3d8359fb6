"""The command `keras-transformer`."""

import os
import sys
import traceback
from importlib import import_module
from typing import Annotated

import typer
from typer import Option

from keras_transformer._version import __version__
from keras_transformer.cli.console import say, show_log
from keras_transformer.cli.options import with_fields
from keras_transformer.errors import InputError, TrainingStoppedError, one_line

SIGNALED = 128  # the exit status after a signal is its number more

app = typer.Typer(
    name="keras-transformer",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # brackets in a help text are brackets
    help=(
        'Train, evaluate, export and use the Transformer of "Attention Is All You Need".\n\n'
        "`train --data DATA --run-dir RUN` trains a model and writes a run directory. "
        "`evaluate RUN`, `translate RUN`, `plot RUN` and `export RUN MODELS/NAME` read it. "
        "`serve MODELS/NAME` serves the export."
    ),
)
# Modules of this folder, each with a function NAME_command for the command NAME.
COMMANDS = (
    *("prepare", "train", "import_", "ensemble", "average", "evaluate", "translate", "export"),
    *("convert", "check", "plot", "runs", "serve", "gateway", "translate_corpus", "demo"),
)
for module_name in COMMANDS:
    module, name = import_module(f"keras_transformer.cli.{module_name}"), module_name.rstrip("_")
    command = with_fields(getattr(module, f"{name}_command"))
    app.command(name.replace("_", "-"), **getattr(module, "TYPER", {}))(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    show_log()


def main() -> None:
    """Runs the command line.

    The exit status is 1 after bad input, 2 after a wrong option, 128 plus the number of the signal
    if a signal stopped the training (143 for SIGTERM), and 75 if the training lost another worker.
    """
    try:
        app()
    except Exception as error:
        if isinstance(error, TrainingStoppedError) and error.status > SIGNALED:
            say(str(error))  # what was done is saved, as was asked
        elif isinstance(error, InputError | TrainingStoppedError):
            say(f"error: {error}")
        elif isinstance(error, OSError):  # such as a full disk
            say(f"error: {error.filename or 'input or output'}: {error.strerror or error}")
        else:
            traceback.print_exc()
            say(f"error: unexpected {type(error).__name__}: {one_line(error)}")
        status = getattr(error, "status", 1)
        if "TF_CONFIG" in os.environ or "SLURM_PROCID" in os.environ:
            # Among several workers, the clean-up may wait for a lost one.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        sys.exit(status)
