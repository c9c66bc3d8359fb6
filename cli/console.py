"""What the commands share: output, progress bars, and quiet libraries.

Results go to standard output; progress, logs and errors go to standard error. With `--json`
standard output holds one JSON object, or one on each line, and nothing else.
"""

import json
import logging
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

stderr = Console(stderr=True, highlight=False, emoji=False)


def say(message: str) -> None:
    """Prints a line on standard error."""
    stderr.print(message, markup=False, soft_wrap=True)


def say_next(*commands: Sequence[object]) -> None:
    """Suggests the commands, as words, that may follow."""
    lines = (shlex.join(["keras-transformer", *map(str, words)]) for words in commands)
    say(f"Next: {', or '.join(lines)}")


def print_json(values: Mapping[str, Any]) -> None:
    """Prints a JSON object on a line of standard output."""
    typer.echo(json.dumps(values, ensure_ascii=False))


@contextmanager
def cleaned_up() -> Iterator[None]:
    """Lets SIGTERM end a command as Ctrl-C does, so that it removes unfinished files."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _SayHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(self.format(record))


def show_log() -> None:
    """Sends the package's log to standard error."""
    logger = logging.getLogger("keras_transformer")
    if not logger.handlers:
        logger.addHandler(_SayHandler())
    logger.setLevel(logging.INFO)


def load_tensorflow() -> None:
    """Imports TensorFlow, which takes seconds, without its start-up messages.

    TensorFlow prints them before its log level applies, so the file descriptor is redirected.
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


class Bar:
    """A bar of a Rich display, which long work calls as its `progress` function."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def __call__(self, done: int, total: int | None = None, **shown: str) -> None:
        """Adds the work done since the last call; `shown` may be a `note` or a `description`."""
        self._progress.update(self._task, advance=done, total=total, **shown)  # type: ignore[arg-type]

    def stage(self, label: str, total: int, done: int) -> None:
        """Starts the next stage of the work."""
        self._progress.reset(self._task, description=label, total=total, completed=done, note="")


@contextmanager
def progress_bar(label: str, total: int | None = None, shown: bool = True) -> Iterator[Bar]:
    """Shows a progress bar, if it is `shown` and standard error is a terminal.

    `total` is the amount of work; None if it is not known.
    """
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=stderr,
        # Rich takes any stream for a terminal where FORCE_COLOR is set, as on many build servers.
        disable=not (shown and sys.stderr.isatty()),
        transient=True,
        redirect_stdout=False,  # standard output may be a file
        refresh_per_second=5,
        speed_estimate_period=600,
    ) as progress:
        yield Bar(progress, progress.add_task(label, total=total, note=""))
