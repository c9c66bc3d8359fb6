"""Writing files: what fails is one sentence, and one call at a time is in a folder."""

import fcntl
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
