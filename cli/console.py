"""What the commands share: where output goes, progress bars, and quiet libraries.

Results go to standard output; progress, logs and errors to standard error.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

stderr = Console(stderr=True, highlight=False)


def say(message: str) -> None:
    """Prints a line of progress."""
    stderr.print(message, markup=False, soft_wrap=True)


class _SayHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(record.getMessage())


def show_log() -> None:
    """Sends the package's log to standard error."""
    logger = logging.getLogger("keras_transformer")
    if not logger.handlers:
        logger.addHandler(_SayHandler())
    logger.setLevel(logging.INFO)


def load_tensorflow() -> None:
    """Imports TensorFlow, which takes seconds, without the notes that it prints on the way.

    They are written before its log level applies, hence the redirected file descriptor. Errors of
    the import are exceptions and still seen.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    sys.stderr.flush()
    saved = os.dup(2)
    try:
        with open(os.devnull, "w") as null:
            os.dup2(null.fileno(), 2)
        import tensorflow  # noqa: F401
    finally:
        os.dup2(saved, 2)
        os.close(saved)


@contextmanager
def keras_progress() -> Iterator[int]:
    """Sends Keras's output to standard error; yields what `fit` takes as `verbose`."""
    with redirect_stdout(sys.stderr):
        yield 1 if stderr.is_terminal else 2


@contextmanager
def progress_bar(label: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """Shows a bar on a terminal and nothing elsewhere; yields a function that advances it."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=stderr, disable=not stderr.is_terminal, transient=True
    ) as progress:
        task = progress.add_task(label, total=total)

        def advance(done: int, total: int | None = None) -> None:
            progress.update(task, advance=done, total=total)

        yield advance
