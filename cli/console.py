"""What the commands share: output, progress bars, and quiet libraries.

Results go to standard output; progress, logs and errors go to standard error. With `--json`
standard output holds one JSON object, or one on each line, and nothing else.
"""

import ctypes
import json
import logging
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from keras_transformer.errors import InputError

# glibc's malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8

FIRST_LINE, LINES_APART = 10.0, 60.0  # seconds of work where there is no terminal

stderr = Console(stderr=True, highlight=False, emoji=False)


def say(message: str) -> None:
    """Prints a line on standard error."""
    stderr.print(message, markup=False, soft_wrap=True)


def say_next(*commands: Sequence[object]) -> None:
    """Suggests the commands, as words, that may follow."""
    lines = (shlex.join(["keras-transformer", *map(str, words)]) for words in commands)
    say(f"Next: {', or '.join(lines)}")


def evaluation_of(run: object, data: Any) -> list[object]:
    """Returns the command that evaluates a run, as words for `say_next`; `data` is its setting."""
    # A prepared corpus holds no text to evaluate, and an imported run has no data.
    from keras_transformer.trainers.data.corpora import is_prepared

    has_text = data and not is_prepared(data)
    return ["evaluate", run, *([] if has_text else ["--data", "DATA"])]


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


_KERAS = "keras.src.optimizers"  # the module that TensorFlow imports


def load_tensorflow(searches: bool = False) -> None:
    """Imports TensorFlow, which takes seconds, without its start-up messages and without Keras.

    TensorFlow also imports Keras to register optimizers, which is prevented here: a command that
    needs Keras imports it. One that `searches` computes many texts side by side, and gives each
    operation one thread. It raises `InputError` if Keras is to have another backend.
    """
    if searches:
        os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
    # What this variable names goes before the backend of Keras's configuration file.
    backend = os.environ["KERAS_BACKEND"] = os.environ.get("KERAS_BACKEND") or "tensorflow"
    if backend != "tensorflow":
        raise InputError(
            "This command needs Keras's TensorFlow backend: unset KERAS_BACKEND. "
            f"Received: KERAS_BACKEND={backend}"
        )
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    if "tensorflow" in sys.modules:
        return
    sys.modules[_KERAS] = None  # type: ignore[assignment]  # cannot be imported
    try:
        with _quiet_library():
            import tensorflow  # noqa: F401
    finally:
        del sys.modules[_KERAS]


def keep_freed_memory() -> None:
    """Lets glibc keep the memory that an operation frees for the next operation.

    By default, glibc returns large results to the system, which clears their pages again at the
    next update (docs/log.md). Arenas other than the main one always return theirs, so later threads
    get none: call this before the first operation, which starts TensorFlow's threads. It changes
    the whole process, so `train` leaves it to the command line.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, TypeError, OSError):  # another C library
        return
    mallopt(_M_ARENA_MAX, 1)
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def load_session() -> None:
    """Imports `export.session`: TensorFlow's library, and not its Python, which takes seconds."""
    with _quiet_library():
        import keras_transformer.export.session  # noqa: F401


@contextmanager
def _quiet_library() -> Iterator[None]:
    """Hides what TensorFlow's library prints when it is loaded, before its log level applies."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # By itself, TensorFlow uses oneDNN only on processors with AVX-512 for neural networks.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    sys.stderr.flush()
    saved = os.dup(2)
    try:
        with open(os.devnull, "w") as null:
            os.dup2(null.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


class ProgressBar(Progress):
    """The progress of long work, if it is `shown`: a bar on a terminal, elsewhere a line a minute.

    The work calls it as its `progress` function. `total` is the amount of work, if it is known.
    """

    def __init__(self, label: str, total: int | None = None, shown: bool = True) -> None:
        is_terminal = sys.stderr.isatty()
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=stderr,
            # With FORCE_COLOR, as on build servers, Rich takes any stream for a terminal.
            disable=not (shown and is_terminal),
            transient=True,
            redirect_stdout=False,  # standard output may be a file
            refresh_per_second=5,
            speed_estimate_period=600,
        )
        self._bar = self.add_task(label, total=total, note="")
        self._says_lines = shown and not is_terminal
        self._unit = ""
        self._next_line: float | None = None

    def __call__(
        self, done: int, total: int | None = None, *, details: str = "", **shown: Any
    ) -> None:
        """Adds the work done since the last call.

        `shown` may be a `note` or a `description`; `details` are for a line, which has more room.
        """
        self.update(self._bar, advance=done, total=total, **shown)
        if not (done and self._says_lines):
            return
        now = self.get_time()
        if self._next_line is None:  # the first work may have compiled what the rest uses
            self._next_line = now + FIRST_LINE
        elif now >= self._next_line:
            self._next_line = now + LINES_APART
            say(self._line(details))

    def stage(self, label: str, total: int, done: int, unit: str = "") -> None:
        """Starts the next stage of the work, which is counted in a unit."""
        self.reset(self._bar, description=label, total=total, completed=done, note="")
        self._unit, self._next_line = unit, None

    def _line(self, details: str) -> str:
        (task,) = self.tasks
        count = f"{task.completed:,.0f}" + (f" of {task.total:,.0f}" if task.total else "")
        parts = [" ".join(filter(None, (count, self._unit))), details]
        if task.time_remaining:
            parts.append(f"{timedelta(seconds=round(task.time_remaining))} left")
        return f"{task.description}: {', '.join(filter(None, parts))}"
