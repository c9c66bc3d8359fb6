"""What the commands share: where output goes, progress bars, and quiet libraries.

Results go to standard output; progress, logs and errors to standard error. With `--json` standard
output holds one JSON object, or one a line, and nothing else.
"""

import json
import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Goes on in silence: Rich would end the program, and send its results nowhere."""
        self.quiet = True
        with open(os.devnull, "w") as null:
            os.dup2(null.fileno(), sys.stderr.fileno())


stderr = _Console(stderr=True, highlight=False, emoji=False)
# Text of others must not tell a terminal what to do.
_CONTROLS = {
    code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"
}

Json = Annotated[bool, typer.Option("--json", help="Print the result as a JSON object.")]

MAX_WAIT = 1e9  # seconds or milliseconds; what clocks can wait for is no more than nine times that


def waitable(value: float | None) -> float | None:
    """Refuses a time that no clock can wait for, such as inf or nan."""
    if value is not None and not value <= MAX_WAIT:
        raise typer.BadParameter(f"{value} is more than {MAX_WAIT:,.0f}, or no number")
    return value


def say(message: str) -> None:
    """Prints a line of progress; control characters in it are shown, and not obeyed."""
    stderr.print(message.translate(_CONTROLS), markup=False, soft_wrap=True)


def say_table(rows: Mapping[str, str]) -> None:
    """Prints names and what there is to say of them, in two columns."""
    width = max(map(len, rows), default=0)
    for name, text in rows.items():
        say(f"  {name:{width}}  {text}")


def print_json(values: Mapping[str, Any]) -> None:
    """Prints an object for a machine, on a line of standard output."""
    typer.echo(json.dumps(values, ensure_ascii=False))


@contextmanager
def cleaned_up() -> Iterator[None]:
    """Lets SIGTERM end a command as Ctrl-C does, which leaves nothing half-written."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _SayHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            say(self.format(record))
        except Exception:  # nobody reads any more: no reason for the work to end
            self.handleError(record)


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


def is_terminal() -> bool:
    """Whether standard error is a terminal that can move its cursor.

    Rich takes anything for one where FORCE_COLOR is set, as it is on many build servers.
    """
    return sys.stderr.isatty() and stderr.is_terminal and not stderr.is_dumb_terminal


class Bar:
    """A bar of progress, which takes the place of the functions that long work calls.

    Args:
        progress: where it is drawn.
        label: what takes its time.
        total: how much there is to do; None if it is not known.
    """

    def __init__(self, progress: Progress, label: str, total: int | None) -> None:
        self._progress = progress
        self._task = progress.add_task(label, total=total, note="")

    def __call__(self, done: int, total: int | None = None, note: str = "") -> None:
        """Adds what has been done since the last call."""
        self._progress.update(self._task, advance=done, total=total, note=note)

    def stage(self, label: str, total: int | None = None, done: int = 0) -> None:
        """Puts something else in its place.

        Args:
            label: what takes its time.
            total: how much there is to do; None if it is not known.
            done: how much of it is done already.
        """
        self._progress.remove_task(self._task)
        self._task = self._progress.add_task(label, total=total, completed=done, note="")

    def label(self, label: str) -> None:
        """Says for a while what else takes its time."""
        self._progress.update(self._task, description=label)


class _Count(ProgressColumn):
    def render(self, task: Task) -> Text:
        done = f"{task.completed:,.0f}" if task.completed or task.total else ""
        return Text(done if task.total is None else f"{done}/{task.total:,.0f}")


class _Time(ProgressColumn):
    """What is left, and where nobody knows, what has passed."""

    def render(self, task: Task) -> Text:
        left = task.time_remaining
        seconds = timedelta(seconds=int(task.elapsed or 0) if left is None else int(left))
        return Text(f"{seconds}" if left is None else f"{seconds} left")


@contextmanager
def progress_bar(label: str, total: int | None = None, shown: bool = True) -> Iterator[Bar]:
    """Shows a bar while the terminal is one, and nothing elsewhere.

    Args:
        label: what takes its time.
        total: how much there is to do; None if it is not known.
        shown: False for no bar at all.
    """
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        _Count(),
        TextColumn("{task.fields[note]}", markup=False),
        _Time(),
    )
    with Progress(
        *columns,
        console=stderr,
        disable=not (shown and is_terminal()),
        transient=True,
        redirect_stdout=False,  # which may be a file, or a pipe
        refresh_per_second=5,
        speed_estimate_period=600,
    ) as progress:
        yield Bar(progress, label, total)
