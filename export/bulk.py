"""Translation of text files with Apache Beam, on this machine or on any other runner.

    OUTPUT/
      translation-000000-000000   the first file's first lines, translated line for line
      translation-000000-000001   its next lines, and so on
      problems-000000-000001.tsv  file, line number and reason of lines that failed or were cut

An element of the pipeline is a shard, some thousand consecutive lines: Beam's `ReadFromText` keeps
no order of lines.
"""

import codecs
import itertools
import json
import os
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

import apache_beam as beam
from apache_beam.io.filesystem import BeamIOError
from apache_beam.io.filesystems import FileSystems
from apache_beam.metrics.metric import Metrics, MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.runners.runner import PipelineResult
from apache_beam.utils.shared import Shared

from keras_transformer.errors import InputError, as_input_error, one_line, require
from keras_transformer.export.metadata import FOLDER, METADATA, find_version
from keras_transformer.export.options import BATCH_ROWS, DEFAULT_SIGNATURE, max_size_of
from keras_transformer.export.rows import Row, by_length
from keras_transformer.export.session import open_saved_model
from keras_transformer.files import NOT_LINES, kind_of
from keras_transformer.languages import Languages

# DirectRunner would first look for a binary of the Prism runner on the network.
LOCAL_RUNNER = "FnApiRunner"
METRICS = "translate_corpus"
TOO_LONG = "too long, its end was not translated"


class Shard(NamedTuple):
    """Consecutive lines of a file."""

    name: str  # the numbers of file and shard; names sort in the order of the input
    path: str
    first_line: int  # its number in the file, counted from 1
    lines: list[bytes]  # without their ends


class BulkReport(NamedTuple):
    """Counts of a translated corpus, from the runner's metrics, and the time of the call."""

    seconds: float
    lines: int = 0
    failed: int = 0  # lines that could not be translated, and are empty in the output
    truncated: int = 0  # lines whose end was not translated
    shards: int = 0


def translate_corpus(
    pattern: str,
    output: str,
    model: str,
    *,
    signature: str = DEFAULT_SIGNATURE,
    source: str | None = None,
    target: str | None = None,
    lines_per_shard: int = 10_000,
    beam_options: Sequence[str] = (),
) -> BulkReport:
    """Translates text files, one text per line, with a SavedModel on Apache Beam.

    Args:
        pattern: a file, or a pattern for several, which are read in order of their names. Files
            may be compressed (.gz, .bz2, .xz, .zst).
        output: a folder that is empty or does not exist.
        model: `MODELS/NAME`, whose newest version is used, or the folder of a version. On a remote
            file system it must be the folder of a version.
        signature: one that turns `text` into `translation`.
        source: the language of the text, of a model of several, as `Translator.translate` takes it.
        target: that of the translation.
        lines_per_shard: the number of lines in an output file.
        beam_options: options of Beam and its runners. Without `--runner` the pipeline runs in this
            process, in memory of about four times the size of the text.

    Raises:
        InputError: if the input, the model or an option cannot be used, or `output` is not empty.
    """
    rule = "`lines_per_shard` must be at least 1"
    require(lines_per_shard >= 1, rule, lines_per_shard=lines_per_shard)
    started = time.monotonic()
    options = _pipeline_options(beam_options)
    FileSystems.set_options(options)
    pattern, output = _absolute(pattern), _absolute(output)
    paths = _files_of_lines(pattern)
    _require_empty(output)
    version = model if FileSystems.get_scheme(model) else find_version(os.path.abspath(model))
    if version is None:
        raise InputError(f"{model} is neither a SavedModel nor a folder of versions")
    tag = ""
    if source or target:
        tag = _languages(str(version)).tag(source, target)
    try:
        pipeline = beam.Pipeline(options=options)
    except (ValueError, ImportError) as error:  # an unknown runner
        raise InputError(one_line(error)) from error
    _ = (
        pipeline
        | "Files" >> beam.Create(list(enumerate(paths)))
        | "Read" >> beam.FlatMap(read_shards, lines_per_shard)
        | "Spread" >> beam.Reshuffle()  # over all workers
        | "Translate" >> beam.Map(translate_shard, str(version), signature, Shared(), tag)
        | "Write" >> beam.Map(write_shard, output=output)
    )
    counters = _run(pipeline).metrics().query(MetricsFilter().with_namespace(METRICS))["counters"]
    counts = {counter.key.metric.name: counter.result for counter in counters}
    return BulkReport(time.monotonic() - started, **counts)


def read_shards(file: tuple[int, str], lines_per_shard: int) -> Iterator[Shard]:
    """Yields the shards of a file; only a line feed ends a line."""
    number, path = file
    # Each file system and compression has its own errors.
    with as_input_error(f"Cannot read {path}"), closing(FileSystems.open(path)) as content:
        lines = (line.rstrip(b"\r\n") for line in iter(content.readline, b""))
        for shard in itertools.count():
            chunk = list(itertools.islice(lines, lines_per_shard))
            if not chunk:
                break
            if shard == 0:
                if chunk[0].startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                    raise InputError("it is UTF-16: convert it to UTF-8")
                chunk[0] = chunk[0].removeprefix(codecs.BOM_UTF8)
            first_line = 1 + shard * lines_per_shard
            yield Shard(f"{number:06}-{shard:06}", path, first_line, chunk)
        # Beam does not notice that a compressed file is truncated.
        decompressor = getattr(content, "_decompressor", None)
        if decompressor is not None and not decompressor.eof:
            raise EOFError("the compressed file is truncated")


def translate_shard(
    shard: Shard, version: str, signature: str, shared: Shared, tag: str = ""
) -> tuple[Shard, list[Row]]:
    """Returns the shard and the outputs for each line, or the reason why it `failed`."""
    # The threads of a process share the model.
    translate = shared.acquire(lambda: open_saved_model(version, signature, optimize=True))
    tagged = [f"{tag} ".encode() + line if tag and line.strip() else line for line in shard.lines]

    def translate_batch(batch: list[bytes]) -> Sequence[Row]:
        try:
            return translate([line.decode() for line in batch])
        except Exception as error:  # invalid UTF-8, or any error of the model's graph
            if len(batch) == 1:
                return [{"translation": "", "failed": one_line(error)}]
            return [row for line in batch for row in translate_batch([line])]

    rows = by_length(tagged, translate_batch, max_size=max_size_of(signature))
    if len(rows) > BATCH_ROWS and all("failed" in row for row in rows):
        raise InputError(
            f"{shard.path}: all of {len(rows):,} lines fail, from line "
            f"{shard.first_line:,} on: {rows[0]['failed']}"
        )
    return shard, rows


def write_shard(translated: tuple[Shard, list[Row]], output: str) -> None:
    shard, rows = translated
    problems = [
        f"{shard.path}\t{number}\t{row.get('failed', TOO_LONG)}"
        for number, row in enumerate(rows, start=shard.first_line)
        if "failed" in row or row.get("truncated", False)
    ]
    if problems:
        _write(FileSystems.join(output, f"problems-{shard.name}.tsv"), problems)
    lines = [" ".join(row["translation"].splitlines()) for row in rows]
    _write(FileSystems.join(output, f"translation-{shard.name}"), lines)
    failed = sum("failed" in row for row in rows)
    counts = {"lines": len(lines), "failed": failed, "truncated": len(problems) - failed}
    for name, count in {**counts, "shards": 1}.items():
        Metrics.counter(METRICS, name).inc(count)


def _write(path: str, lines: Sequence[str]) -> None:
    """Writes a file under a temporary name first, so that it is complete or absent."""
    folder, name = FileSystems.split(path)
    temporary = FileSystems.join(folder, f".{uuid.uuid4().hex}-{name}")
    with as_input_error(f"Cannot write {path}", OSError, BeamIOError):
        with closing(FileSystems.create(temporary)) as file:
            file.write("".join(f"{line}\n" for line in lines).encode())
        FileSystems.rename([temporary], [path])


def _require_empty(folder: str) -> None:
    if os.path.isfile(folder):
        raise InputError(f"{folder} is a file: choose a folder")
    pattern = re.sub(r"[*\[\]]", "?", folder)  # its name is no pattern, and Beam knows no escapes
    if _match(FileSystems.join(pattern, "**")):
        raise InputError(f"{folder} is not empty: choose another folder, or delete it")


def _languages(version: str) -> Languages:
    file = f"{version}/{FOLDER}/{METADATA}"
    message = f"{version} is not an export of this package: cannot read {file}"
    with as_input_error(message), closing(FileSystems.open(file)) as content:
        return Languages(**json.load(content)["languages"])


def _absolute(path: str) -> str:
    return path if FileSystems.get_scheme(path) else os.path.abspath(path)


def _files_of_lines(pattern: str) -> list[str]:
    paths = [pattern] if os.path.isfile(pattern) else _match(pattern)
    if not paths:
        raise InputError(f"There is no file {pattern}")
    for path in paths:
        if kind_of(re.sub(r"\.(bz2|xz|zst)$", "", path)) in NOT_LINES:
            raise InputError(f"{path} is not lines of text, which this command translates")
    return paths


def _match(pattern: str) -> list[str]:
    with as_input_error(f"Cannot look for {pattern}"):  # the network, a login, ...
        (result,) = FileSystems.match([pattern])
    return sorted(metadata.path for metadata in result.metadata_list)


def _pipeline_options(arguments: Sequence[str]) -> PipelineOptions:
    options = PipelineOptions([*arguments])
    standard = options.view_as(StandardOptions)
    if standard.runner is None:  # only another runner may have options that Beam does not know
        known = options.get_all_options().keys()
        unknown = options.get_all_options(retain_unknown_options=True).keys() - known
        if unknown or (arguments and not arguments[0].startswith("--")):
            raise InputError(f"Neither this command nor Beam has these options: {[*arguments]}")
        standard.runner = LOCAL_RUNNER
    return options


def _run(pipeline: beam.Pipeline) -> PipelineResult:
    """Runs a pipeline. Beam's errors hold a traceback as text; the message is its last line."""
    try:
        result = pipeline.run()
        result.wait_until_finish()
    except Exception as error:
        last_line = (str(error).strip() or repr(error)).splitlines()[-1]
        message = re.sub(r"^[\w.]*InputError: |( \[while running .*?\])+$", "", last_line)
        raise InputError(message) from error
    return result
