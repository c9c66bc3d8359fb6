"""The command `keras-transformer`."""

import os
import sys
import traceback
from collections.abc import Callable
from typing import Annotated

import typer
from typer import Option

from keras_transformer._version import __version__
from keras_transformer.cli import (
    average,
    check,
    convert,
    demo,
    ensemble,
    evaluate,
    export,
    gateway,
    import_model,
    plot,
    prepare,
    runs,
    serve,
    train,
    translate,
    translate_corpus,
)
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
COMMANDS: dict[str, Callable[..., None]] = {
    "prepare": prepare.prepare_command,
    "train": train.train_command,
    "import": import_model.import_command,
    "ensemble": ensemble.ensemble_command,
    "average": average.average_command,
    "evaluate": evaluate.evaluate_command,
    "translate": translate.translate_command,
    "export": export.export_command,
    "convert": convert.convert_command,
    "check": check.check_command,
    "plot": plot.plot_command,
    "runs": runs.runs_command,
    "serve": serve.serve_command,
    "gateway": gateway.gateway_command,
    "translate-corpus": translate_corpus.translate_corpus_command,
    "demo": demo.demo_command,
}
for name, command in COMMANDS.items():
    app.command(
        name,
        cls=translate.TextsCommand if name == "translate" else None,
        context_settings=translate_corpus.CONTEXT_SETTINGS if name == "translate-corpus" else None,
    )(with_fields(command))


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
