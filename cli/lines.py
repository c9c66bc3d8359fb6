"""Lines of files, pipes and terminals, in chunks."""

from collections.abc import Iterator
from typing import Any

from keras_transformer.files import decode_lines

# Enough to sort them by length, and the first result comes soon. A chunk of a pipe or a terminal
# ends where the next line is not there yet.
CHUNK_LINES = 1_000
READ_BYTES = 2**20


def read_chunks(stream: Any, name: str) -> Iterator[list[str]]:
    """Yields the lines of a stream; `name` is for messages."""
    lines, chunk = _Lines(stream), []
    for text in decode_lines(lines, name):
        chunk.append(text)
        if lines.waits or len(chunk) == CHUNK_LINES:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


class _Lines:
    """The lines of a stream, as they come; `waits` is whether the next one has not come yet."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.waits = False

    def __iter__(self) -> Iterator[bytes]:
        rest = b""
        while data := self._stream.read1(READ_BYTES):  # what is there, of a pipe
            *lines, rest = (rest + data).split(b"\n")
            for number, line in enumerate(lines, start=1):
                self.waits = number == len(lines)
                yield line + b"\n"
        if rest:
            yield rest


def count_lines(stream: Any) -> int | None:
    """Returns the number of lines; None for a stream that can be read only once."""
    if not stream.seekable():
        return None
    start, count = stream.tell(), sum(1 for _ in stream)
    stream.seek(start)
    return count
