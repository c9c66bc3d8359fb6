"""The exceptions of the package."""

from collections.abc import Iterator
from contextlib import contextmanager


class InputError(ValueError):
    """An argument, a file or a run directory is wrong.

    The message is one sentence that names the input, what was expected and what was received. The
    command line prints it and exits with status 1.
    """


class NotFiniteError(InputError):
    """The scores of a model are not finite: its training has diverged."""


def one_line(text: object, max_length: int = 500) -> str:
    """Returns the text on one line, cut to `max_length` characters."""
    return " ".join(str(text).split())[:max_length]


def require(is_met: bool, rule: str, **received: object) -> None:
    """Raises an `InputError` of the rule and of the received values, unless the rule is met."""
    if not is_met:
        values = ", ".join(f"{name}={value!r}" for name, value in received.items())
        raise InputError(f"{rule}. Received: {values}")


@contextmanager
def as_input_error(message: str, *kinds: type[BaseException]) -> Iterator[None]:
    """Turns errors of these kinds, or any, into an `InputError`: the message, and what they say."""
    caught: tuple[type[BaseException], ...] = kinds or (Exception,)
    try:
        yield
    except caught as error:
        has_text = isinstance(error, Exception) and str(error)  # unlike SystemExit(1)
        reason = error if has_text else repr(error)
        raise InputError(f"{message}: {one_line(reason)}") from error


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Turns the error of a missing library into one that names the extra of the package."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise InputError(
            f"{error.name} is not installed: pip install 'keras3-transformer[{extra}]'"
        ) from error


class TrainingStoppedError(RuntimeError):
    """Training has stopped early. The run directory is valid, and training can resume.

    Args:
        message: one sentence.
        status: exit status of the command line.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status
