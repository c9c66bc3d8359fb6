"""Atomic writing, locks, and the lines of text files, with errors of one sentence."""

import fcntl
import hashlib
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from keras_transformer.errors import InputError

_logger = logging.getLogger(__name__)


@contextmanager
def named_failure(path: Path, temporary: Path | None = None, advice: str = "") -> Iterator[None]:
    """Turns the failure to write a file into an `InputError`.

    Args:
        path: the file.
        temporary: the file that is written first and then renamed; it is deleted on failure.
        advice: what to do next; a sentence without its full stop.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:  # HDF5 raises RuntimeError on a full disk
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"Cannot write {path}: {reason}{advice and '. '}{advice}") from error


def write_atomically(path: Path, content: bytes, advice: str = "") -> None:
    """Writes a file under a temporary name, and renames it; `advice` is as in `named_failure`."""
    temporary = path.with_name(f"{path.name}.tmp")
    with named_failure(path, temporary, advice), temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        os.replace(temporary, path)


def decode_lines(lines: Iterable[bytes], name: object) -> Iterator[str]:
    """Decodes the lines of a UTF-8 file, without line ends and byte order mark.

    Args:
        lines: for example a file that is open in binary mode, so that only a line feed ends a line.
        name: name of the file, for the error.

    Raises:
        InputError: if a line is not valid UTF-8.
    """
    for number, line in enumerate(lines, start=1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{name}, line {number}: not valid UTF-8") from error
        yield text.rstrip("\r\n")


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256(content: bytes) -> str:
    """Returns the SHA-256 of bytes, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Locks a directory; `InputError` if another call holds its lock."""
    folder = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"Another call is writing {path}: wait for its end, or stop it"
            ) from error
        except OSError as error:  # some network file systems have no locks
            _logger.debug("%s cannot be locked: %s", path, error)
        yield
    finally:
        os.close(folder)
