"""Input of a corpus's translation: text files, cut into shards that workers read by themselves."""

import bz2
import codecs
import gzip
import hashlib
import itertools
import lzma
import posixpath
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems

from keras_transformer.errors import InputError
from keras_transformer.export import beam_files
from keras_transformer.files import sha256

DECOMPRESSORS: dict[str, Callable[[Any], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}


class Shard(NamedTuple):
    """Consecutive lines of a file of the input.

    Attributes:
        number: counted from 0.
        path: of the file.
        offset: of the first line in the file, in bytes of its uncompressed content.
        first_line: its number in the whole input, counted from 1.
        num_lines: at least 1.
        sha256: of the lines as they are in the file, in hexadecimal.
    """

    number: int
    path: str
    offset: int
    first_line: int
    num_lines: int
    sha256: str


class Source(NamedTuple):
    """Lines as they are in the input, without their ends and a file's byte order mark."""

    shard: Shard
    lines: list[bytes]


def plan(pattern: str, lines_per_shard: int) -> tuple[list[Shard], str]:
    """Cuts an input into shards, and returns its fingerprint too. It reads all of it."""
    paths = [pattern] if beam_files.exists(pattern) else beam_files.match(pattern)
    if not paths:
        raise InputError(f"There is no file {pattern}")
    shards: list[Shard] = []
    total = 0
    fingerprint = hashlib.sha256()
    for path in paths:
        content = hashlib.sha256()
        offset = 0
        for lines in _chunks(path, lines_per_shard):
            chunk = b"".join(lines)
            shards.append(Shard(len(shards), path, offset, 1 + total, len(lines), sha256(chunk)))
            content.update(chunk)
            offset += len(chunk)
            total += len(lines)
        fingerprint.update(content.digest())
    return shards, fingerprint.hexdigest()


def read_shard(shard: Shard) -> Source:
    """Reads the lines of a shard."""
    with _open(shard.path) as file:
        file.seek(shard.offset)
        lines = [*itertools.islice(_lines(file), shard.num_lines)]
    if sha256(b"".join(lines)) != shard.sha256:
        raise InputError(f"{shard.path} has changed while it was being translated")
    if shard.offset == 0:
        lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)
    return Source(shard, [line.rstrip(b"\r\n") for line in lines])


def _chunks(path: str, num_lines: int) -> Iterator[list[bytes]]:
    try:
        with _open(path) as file:
            lines = _lines(file)
            while chunk := list(itertools.islice(lines, num_lines)):
                yield chunk
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise InputError(f"Cannot read {path}: {error}") from error


def _lines(file: Any) -> Iterator[bytes]:
    """Only a line feed ends a line."""
    return iter(file.readline, b"")


@contextmanager
def _open(path: str) -> Iterator[Any]:
    """Opens a file that may be compressed.

    Python's own modules notice that a file has been cut off, which Beam's readers take for its end.
    """
    ending = posixpath.splitext(path)[1].lower()
    decompress = DECOMPRESSORS.get(ending)
    if decompress is None:
        if CompressionTypes.detect_compression_type(f"x{ending}") != CompressionTypes.UNCOMPRESSED:
            raise InputError(
                f"Cannot read {path}: of compressed files .gz, .bz2 and .xz can be read; unpack it"
            )
        with closing(FileSystems.open(path)) as file:
            yield file
    else:
        raw = FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED)
        with closing(raw), decompress(raw) as file:
            yield file
