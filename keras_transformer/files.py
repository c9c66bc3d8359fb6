"""Files: whole or not there, by one call at a time, and what fails is one sentence."""

import fcntl
import hashlib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from keras_transformer.errors import InputError

_logger = logging.getLogger(__name__)


@contextmanager
def named_failure(path: Path, temporary: Path | None = None, advice: str = "") -> Iterator[None]:
    """Turns the failure to write a file into one sentence.

    Args:
        path: what is written.
        temporary: what is written first and renamed then; it is deleted.
        advice: what to do next; a sentence without its full stop.

    Raises:
        InputError: if it cannot be written.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:  # HDF5 may find the disk full when it closes a file
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"Cannot write {path}: {reason}{advice and '. '}{advice}") from error


def write_whole(path: Path, content: bytes, advice: str = "") -> None:
    """Writes a file under another name, `path` with `.tmp` behind it, and renames it then.

    Args:
        path: the file.
        content: all of it.
        advice: as for `named_failure`.

    Raises:
        InputError: if it cannot be written.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    with named_failure(path, temporary, advice), temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        os.replace(temporary, path)


def file_sha256(path: Path) -> str:
    """Returns a hash of what a file holds, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256(content: bytes) -> str:
    """Returns a hash of bytes, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keeps others from writing to a run directory, or to a prepared corpus.

    Raises:
        InputError: if another call is at it.
    """
    folder = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"Another call is writing {path}: wait for its end, or stop it"
            ) from error
        except OSError as error:  # of network file systems, not all can lock a directory
            _logger.debug("%s cannot be locked: %s", path, error)
        yield
    finally:
        os.close(folder)
