"""Reading, atomic writing, locks, and the lines of text files, with errors of one sentence."""

import codecs
import fcntl
import gzip
import hashlib
import itertools
import logging
import os
import re
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from keras_transformer.errors import InputError, one_line

# Files that are text and no lines of it; other files that are no text have zero bytes.
NOT_LINES = (
    # subtitles, catalogues and tables
    *(".arb", ".ass", ".csv", ".dfxp", ".itt", ".lrc", ".mo", ".mqxliff", ".mxliff", ".plist"),
    *(".po", ".pot", ".resx", ".sbv", ".scc", ".sdlxliff", ".smi", ".srt", ".ssa", ".stl"),
    *(".strings", ".stringsdict", ".sub", ".tmx", ".tsv", ".ttml", ".vtt", ".xlf", ".xliff"),
    *(".7z", ".bz2", ".doc", ".docx", ".epub", ".htm", ".html", ".json", ".jsonl", ".odp"),
    *(".ods", ".odt", ".pdf", ".pptx", ".properties", ".rar", ".rtf", ".svg", ".tar"),
    *(".tgz", ".ts", ".xhtml", ".xls", ".xlsx", ".xml", ".xz", ".yaml", ".yml", ".zip", ".zst"),
)

_logger = logging.getLogger(__name__)


@contextmanager
def named_failure(path: Path, advice: str = "") -> Iterator[None]:
    """Turns the failure to write a file into an `InputError`; the advice lacks its full stop."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # HDF5 raises RuntimeError on a full disk
        reason = getattr(error, "strerror", None) or error
        if isinstance(error, FileExistsError):  # of mkdir
            reason = "it is a file, not a folder"
        raise InputError(f"Cannot write {path}: {reason}{advice and '. '}{advice}") from error


@contextmanager
def read_failure(name: object) -> Iterator[None]:
    """Turns the failure to read a file, also a damaged `.gz`, into an `InputError`."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or one_line(error)
        raise InputError(f"Cannot read {name}: {reason}") from error


def kind_of(path: str | Path) -> str:
    """Returns the ending of a file's name in lower case, without `.gz`: ".po" of "A.PO.gz"."""
    return Path(Path(path).name.lower().removesuffix(".gz")).suffix


def open_binary(path: Path) -> BinaryIO:
    """Opens a file to read its bytes; it decompresses `.gz`."""
    is_compressed = path.suffix.lower() == ".gz"
    return cast("BinaryIO", gzip.open(path)) if is_compressed else path.open("rb")


@contextmanager
def atomic_file(path: Path, advice: str = "") -> Iterator[Path]:
    """Yields a temporary path to write, and renames it; the advice is as in `named_failure`."""
    temporary = path.with_name(f"tmp-{path.name}")
    try:
        with named_failure(path, advice):
            yield temporary
            with temporary.open("rb") as written:
                os.fsync(written.fileno())
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yields a new folder to write, and renames it; an error leaves nothing behind."""
    with named_failure(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".writing-", dir=path.parent) as temporary:
        written = Path(temporary) / path.name
        written.mkdir()
        yield written
        written.rename(path)


def require_new(path: Path, what: str = "run directory") -> None:
    """Raises `InputError` if a path exists."""
    if path.exists():
        raise InputError(f"{path} exists already: choose another {what}")


def write_atomically(path: Path, content: bytes, advice: str = "") -> None:
    """Writes a file by way of `atomic_file`."""
    with atomic_file(path, advice) as temporary:
        temporary.write_bytes(content)


def words_of(text: str) -> list[str]:
    """Splits a text at spaces and line breaks, but not at no-break and full-width spaces."""
    return re.findall(r"[^ \t-\r\x1c-\x1f\x85\u2028\u2029]+", text)


def decode_lines(lines: Iterable[bytes], name: object) -> Iterator[str]:
    """Decodes lines that end in line feeds: UTF-8, or UTF-16 if a byte order mark says so.

    They lose their ends and the mark. In UTF-8 without a line feed, carriage returns end lines.
    Errors call them `name`.
    """
    lines = iter(lines)
    first = next(lines, b"")
    lines = itertools.chain([first] if first else [], lines)
    if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        yield from _decode_utf16(lines, name)
        return
    if b"\r" in first and not first.endswith(b"\n"):
        lines = iter(first.removesuffix(b"\r").split(b"\r"))
    for number, line in enumerate(lines, start=1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{name}, line {number}: not valid UTF-8") from error
        yield text.rstrip("\r\n")


def _decode_utf16(lines: Iterable[bytes], name: object) -> Iterator[str]:
    # A line feed's byte may be half of another character.
    number, rest = 1, ""
    try:
        for text in codecs.iterdecode(lines, "utf-16"):
            *texts, rest = (rest + text).split("\n")
            number += len(texts)
            yield from (line.rstrip("\r") for line in texts)
    except UnicodeDecodeError as error:
        raise InputError(f"{name}, line {number}: not valid UTF-16") from error
    if rest:
        yield rest.rstrip("\r")


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_file(path: Path, sha256: str, advice: str) -> None:
    """Raises an `InputError` unless a file has this hash; the advice is as in `named_failure`."""
    if not path.is_file():
        raise InputError(f"{path} is missing: {advice}")
    if file_sha256(path) != sha256:
        raise InputError(f"{path} is damaged (its SHA-256 differs): {advice}")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Locks a directory; `InputError` if another call holds its lock."""
    folder = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            message = f"Another call is writing {path}: wait for its end, or stop it"
            raise InputError(message) from error
        except OSError as error:  # some network file systems have no locks
            _logger.debug("%s cannot be locked: %s", path, error)
        yield
    finally:
        os.close(folder)
