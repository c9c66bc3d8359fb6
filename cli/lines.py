"""Files of lines, pipes and terminals: their lines in chunks, and which files are refused."""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

from keras_transformer import files
from keras_transformer.errors import InputError
from keras_transformer.trainers.data.tables import TABLES

# Enough to sort them by length, and the first result comes soon. A chunk of a pipe or a terminal
# ends where the next line is not there yet.
CHUNK_LINES = 1_000
READ_BYTES = 2**20


def open_lines(path: Path) -> BinaryIO:
    """Opens a file of lines, also `.gz`; `InputError` if it holds something else."""
    advice = "--input takes lines of text, .srt, .vtt, .po, .xlf or .xliff, and each as .gz"
    if files.kind_of(path) in TABLES:
        raise InputError(
            f"{path} is a table: copy the texts of a column to a file, one on each line"
        )
    if files.kind_of(path) in files.NOT_LINES:
        raise InputError(f"{path} is not lines of text: {advice}")
    stream = files.open_binary(path)
    if stream.seekable():  # and not a pipe, which is read once
        with files.read_failure(path):
            start = stream.read(2**13)
            stream.seek(0)
        if b"\0" in start and not start.startswith((b"\xff\xfe", b"\xfe\xff")):  # UTF-16
            stream.close()
            raise InputError(f"{path} is not text: {advice}")
    return stream


def open_new(path: Path) -> TextIO:
    """Opens a new file to write text, compressed if its name ends in `.gz`."""
    if path.suffix.lower() == ".gz":
        return cast("TextIO", gzip.open(path, "xt", encoding="utf-8"))
    return path.open("x", encoding="utf-8")


def write_new(path: Path, content: bytes) -> None:
    """Writes a new file, compressed if its name ends in `.gz`; an error leaves none."""
    is_compressed = path.suffix.lower() == ".gz"
    path.touch(exist_ok=False)
    try:
        with files.named_failure(path):
            path.write_bytes(gzip.compress(content) if is_compressed else content)
    except BaseException:
        path.unlink()
        raise


def read_chunks(stream: Any, name: str) -> Iterator[list[str]]:
    """Yields the lines of a stream; `name` is for messages."""
    lines, chunk = _Lines(stream, name), []
    for text in files.decode_lines(lines, name):
        chunk.append(text)
        if lines.waits or len(chunk) == CHUNK_LINES:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


class _Lines:
    """The lines of a stream, as they come; `waits` is whether the next one has not come yet."""

    def __init__(self, stream: Any, name: str) -> None:
        self._stream = stream
        self._name = name
        self.waits = False

    def __iter__(self) -> Iterator[bytes]:
        rest = b""
        while data := self._read():
            *lines, rest = (rest + data).split(b"\n")
            for number, line in enumerate(lines, start=1):
                self.waits = number == len(lines)
                yield line + b"\n"
        if rest:
            yield rest

    def _read(self) -> bytes:
        with files.read_failure(self._name):
            return bytes(self._stream.read1(READ_BYTES))  # what is there, of a pipe


def count_lines(stream: Any, name: str) -> int | None:
    """Returns the number of lines; None for a stream that can be read only once."""
    if not stream.seekable():
        return None
    with files.read_failure(name):
        start, count = stream.tell(), sum(1 for _ in stream)
        stream.seek(start)
    return count
