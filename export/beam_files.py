"""Files where Apache Beam finds them: on this machine, or at `gs://`, `s3://` and others."""

import glob
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from apache_beam.io.filesystem import BeamIOError
from apache_beam.io.filesystems import FileSystems

from keras_transformer import files
from keras_transformer.errors import InputError, one_line


def absolute(path: str) -> str:
    """Makes a path what workers understand, which may run in another folder.

    Raises:
        InputError: if it is not UTF-8, or on a file system whose package is missing.
    """
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"A path must be UTF-8. Received: {path!a}") from error
    if not FileSystems.get_scheme(path):
        return os.path.abspath(path)
    try:
        FileSystems.get_filesystem(path)
    except ValueError as error:  # gs:// or s3:// without the package for it
        raise InputError(f"{path}: {one_line(error)}") from error
    return path


def exists(path: str) -> bool:
    """Whether there is a file or a folder of that very name.

    Raises:
        InputError: if its file system does not tell.
    """
    try:
        return bool(FileSystems.exists(path))
    except Exception as error:  # of the network, a login, ...
        raise InputError(f"Cannot look for {path}: {one_line(error)}") from error


def match(pattern: str) -> list[str]:
    """Returns the paths of all files that a pattern fits, in order.

    Raises:
        InputError: if its file system does not tell.
    """
    try:
        (result,) = FileSystems.match([pattern])
    except BeamIOError as error:
        reasons = (error.exception_details or {}).values()
        reason = one_line(next(iter(reasons), error))
        raise InputError(f"Cannot look for {pattern}: {reason}") from error
    return sorted(metadata.path for metadata in result.metadata_list)


def below(folder: str, *names: str) -> list[str]:
    """Returns the files in a folder that names or patterns fit, in order."""
    if FileSystems.get_scheme(folder):
        return match(FileSystems.join(folder, *names))
    # Beam's patterns have no escapes, so that a folder [x] would be one.
    pattern = os.path.join(glob.escape(folder), *names)
    return sorted(filter(os.path.isfile, glob.glob(pattern, include_hidden=True)))


def entries(folder: str) -> set[str]:
    """Returns what is in a folder, folders included where a file system has such."""
    if FileSystems.get_scheme(folder):
        return set(below(folder, "*"))
    return {entry.path for entry in os.scandir(folder)} if os.path.isdir(folder) else set()


def read(path: str) -> bytes:
    """Returns what a file holds.

    Raises:
        OSError: if it is missing, or cannot be read.
    """
    try:
        with closing(FileSystems.open(path)) as file:
            return bytes(b"".join(iter(lambda: file.read(1 << 24), b"")))
    except OSError:
        raise
    except Exception as error:  # Google's NotFound is no OSError
        raise OSError(one_line(error)) from error


def write(path: str, content: bytes, temporary: str) -> None:
    """Writes a file under a temporary name and renames it, so that it is never seen in part.

    Raises:
        InputError: if it cannot be written.
    """
    remote = FileSystems.get_scheme(path)
    try:
        with closing(FileSystems.create(temporary)) as file:
            file.write(content)
            if not remote:
                file.flush()
                os.fsync(file.fileno())
        if remote and FileSystems.exists(path):  # some file systems do not rename onto a file
            FileSystems.delete([path])
        FileSystems.rename([temporary], [path])
    except (OSError, BeamIOError) as error:
        reason = getattr(error, "strerror", None) or one_line(error)
        raise InputError(f"Cannot write {path}: {reason}") from error


@contextmanager
def locked(folder: str) -> Iterator[None]:
    """Makes a folder and keeps other calls out of it, where a file system knows such a thing.

    Raises:
        InputError: if another call is at it, or it cannot be made.
    """
    if FileSystems.get_scheme(folder):
        yield
        return
    with files.named_failure(Path(folder)):
        os.makedirs(folder, exist_ok=True)
    with files.locked(Path(folder)):
        yield


def delete(path: str) -> None:
    """Deletes a file."""
    if FileSystems.get_scheme(path):
        FileSystems.delete([path])
    else:
        os.remove(path)  # Beam's takes the path for a pattern
