"""Translation of a corpus on Apache Beam: on this machine, or on any runner that Beam knows.

    OUTPUT/
      manifest.json               the input, the model and how the lines are cut into shards
      translation-00000-of-00042  lines of the input, translated, one for one
      reports/00000.json          what there is to say about a shard, with its size and SHA-256
      failed.tsv                  number and reason of each line that has no translation

A shard, some thousand lines, is all that a worker handles at a time: it reads the lines, translates
them and writes the translations under a temporary name, which it changes when they are all there.
So no line is ever moved from one worker to another, and their order needs no sorting. What a worker
has begun and not finished, or what is not as its report says, is simply begun again, in the same
job or in the next. Workers share nothing but the file systems of the input, the output and the
model.
"""

import hashlib
import json
import logging
import posixpath
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.ml.inference.base import ModelHandler, RunInference
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

from keras_transformer.errors import InputError, one_line
from keras_transformer.export import beam_files
from keras_transformer.export.bulk_input import Shard, Source, plan, read_shard
from keras_transformer.export.rows import (
    DEFAULT_SIGNATURE,
    by_length,
    check_signature,
    open_saved_model,
)
from keras_transformer.export.versions import is_version
from keras_transformer.files import sha256

FORMAT_VERSION = 1
LINES_PER_SHARD = 10_000
NOT_UTF8 = "not valid UTF-8"
TEMPORARY = "temporary-" + "[0-9a-f]" * 32  # a pattern of `Layout.temporary`'s names

# Of a batch. The second is rows times bytes of the longest line, so that 64 sentences of usual
# length go together, and a page of text goes alone.
MAX_ROWS = 64
MAX_SIZE = 64 * 512

# Beam's own choice would look for a binary of its Prism runner on the network first.
LOCAL_RUNNER = "FnApiRunner"
POLL_SECONDS = 1.0

_logger = logging.getLogger(__name__)

Translate = Callable[[Sequence[bytes]], list[dict[str, Any]]]


class TranslatedShard(NamedTuple):
    """A shard's translations.

    Attributes:
        shard: where the lines come from.
        lines: a translation for each line, empty where there is none.
        failed: why there is none, by the line's number.
        truncated: numbers of the lines whose end was not translated.
    """

    shard: Shard
    lines: list[str]
    failed: dict[int, str]
    truncated: list[int]


class BulkReport(NamedTuple):
    """What has become of a corpus.

    Attributes:
        lines: of the input.
        failed: number of lines without a translation.
        truncated: number of lines whose end was not translated.
        shards: that the output has.
        lines_now: that were translated in this call.
        seconds: that they took, with loading the model.
    """

    lines: int
    failed: int
    truncated: int
    shards: int
    lines_now: int
    seconds: float


class Layout(NamedTuple):
    """Names in the output folder."""

    folder: str
    num_shards: int

    @property
    def manifest(self) -> str:
        """What was translated by what."""
        return FileSystems.join(self.folder, "manifest.json")

    @property
    def failed(self) -> str:
        """Lines without a translation."""
        return FileSystems.join(self.folder, "failed.tsv")

    def shard(self, number: int) -> str:
        """A shard's translations."""
        width = max(5, len(str(self.num_shards - 1)))  # the names sort as the numbers do
        name = f"translation-{number:0{width}}-of-{self.num_shards:05}"
        return FileSystems.join(self.folder, name)

    def report(self, number: int) -> str:
        """A shard's report."""
        return FileSystems.join(self.folder, "reports", f"{number:05}.json")

    def temporary(self) -> str:
        """A new name for a file that is being written."""
        return FileSystems.join(self.folder, f"temporary-{uuid.uuid4().hex}")


class SavedModelHandler(ModelHandler[Source, TranslatedShard, Translate]):
    """A SavedModel for Beam's RunInference; an example is a shard.

    Args:
        path: the folder of a version, as workers see it.
        signature: one that turns `text` into `translation`.
    """

    def __init__(self, path: str, signature: str = DEFAULT_SIGNATURE) -> None:
        # Shards, that is; lines are put into batches by their length.
        super().__init__(min_batch_size=1, max_batch_size=1)
        self._path = path
        self._signature = signature

    def load_model(self) -> Translate:
        """Loads the model, which Beam shares among the threads of a process."""
        return open_saved_model(self._path, self._signature)

    def run_inference(
        self,
        batch: Sequence[Source],
        model: Translate,
        inference_args: dict[str, Any] | None = None,
    ) -> Iterable[TranslatedShard]:
        """Translates shards."""
        return [translate_shard(source, model) for source in batch]

    def get_num_bytes(self, batch: Sequence[Source]) -> int:
        """Returns the size of the lines, for Beam's metrics."""
        return sum(len(line) for source in batch for line in source.lines)


def translate_corpus(
    pattern: str,
    output: str,
    model: str,
    *,
    signature: str = DEFAULT_SIGNATURE,
    lines_per_shard: int = LINES_PER_SHARD,
    beam_options: Sequence[str] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> BulkReport:
    """Translates a corpus; a second call goes on where the first was stopped.

    It also makes those shards again that are not as their reports say.

    Args:
        pattern: a text file, one text a line, or, where no file has that very name, a pattern for
            several, whose order is that of their names. Files may be compressed (.gz, .bz2, .xz),
            but then each shard is found by reading from the start of its file.
        output: a new folder, or that of an earlier call.
        model: `MODELS/NAME`, whose newest version it will be, or the folder of a version.
        signature: of the model.
        lines_per_shard: of the output; workers hold as many lines in memory.
        beam_options: options of Beam and its runners. With no `--runner` all is done in this
            process.
        progress: is called with the number of shards that have just been done, and with that of
            all.

    Returns:
        What has become of the lines.

    Raises:
        InputError: if the input, the model or the options cannot be used, or if the output holds
            something else.
    """
    if lines_per_shard < 1:
        raise InputError(
            f"`lines_per_shard` must be at least 1. Received: lines_per_shard={lines_per_shard}"
        )
    started = time.monotonic()
    options = _pipeline_options(beam_options)
    FileSystems.set_options(options)
    output, pattern = beam_files.absolute(output), beam_files.absolute(pattern)
    version = find_version(beam_files.absolute(model))
    shards, fingerprint = plan(pattern, lines_per_shard)
    manifest = {
        "format_version": FORMAT_VERSION,
        "input": fingerprint,
        "model": model_fingerprint(version, signature),
        "signature": signature,
        "shard_size": lines_per_shard,
    }
    layout = Layout(output, len(shards))
    with beam_files.locked(output):
        _claim(layout, manifest)
        lines_now = _translate_missing(layout, shards, version, signature, options, progress)
        return _finish(layout, shards, lines_now, time.monotonic() - started)


def _translate_missing(
    layout: Layout,
    shards: list[Shard],
    version: str,
    signature: str,
    options: PipelineOptions,
    progress: Callable[[int, int], None],
) -> int:
    """Makes the shards that are not whole, and returns how many lines they have."""
    present = _present(layout)  # first: workers of a call that was stopped may be at work still
    todo = [shard for shard in shards if _report(layout, shard) is None]
    for path in sorted(present & {layout.shard(shard.number) for shard in todo}):
        _logger.warning("Not as it was written, and made again: %s", path)
        beam_files.delete(path)
    progress(len(shards) - len(todo), len(shards))
    if todo:
        with _watched(layout, len(shards) - len(todo), progress):
            pipeline = beam.Pipeline(options=options)
            _ = (
                pipeline
                | "Shards" >> beam.Create(todo)
                # Lets a runner give the shards to all of its workers.
                | "Spread" >> beam.Reshuffle()
                | "Read" >> beam.Map(read_shard)
                | "Translate" >> RunInference(SavedModelHandler(version, signature))
                | "Write" >> beam.Map(write_shard, layout)
            )
            _run(pipeline)
    missing = sum(_report(layout, shard) is None for shard in todo)
    if missing:
        raise InputError(
            f"{missing} of {len(shards)} shards are not in {layout.folder}: "
            "do all workers see it there?"
        )
    return sum(shard.num_lines for shard in todo)


def _run(pipeline: beam.Pipeline) -> None:
    """Runs a pipeline; what stops it is told without Beam's traceback, which is text to it."""
    try:
        pipeline.run().wait_until_finish()
    except OSError:
        raise
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()] or [repr(error)]
        said = lines[0] if isinstance(error, InputError) else lines[-1]
        said = re.sub(r"( \[while running .*?\])+$", "", said)
        raise InputError(re.sub(r"^[\w.]*InputError: ", "", said)) from error


# Translation.


def translate_shard(source: Source, translate: Translate) -> TranslatedShard:
    """Translates the lines of a shard; a line that cannot be translated spoils no other."""
    shard, lines = source
    failed: dict[int, str] = {}
    texts: dict[int, bytes] = {}
    for number, line in enumerate(lines, start=shard.first_line):
        try:
            line.decode()
        except UnicodeDecodeError as error:
            failed[number] = f"{NOT_UTF8} at byte {error.start + 1}"
        else:
            texts[number] = line

    def rows_or_reasons(batch: list[bytes]) -> list[dict[str, Any] | str]:
        try:
            return [*translate(batch)]
        except Exception as error:  # whatever the model's graph or the memory makes of it
            if len(batch) == 1:
                return [one_line(error)]
            return [answer for text in batch for answer in rows_or_reasons([text])]

    answers = by_length([*texts.values()], rows_or_reasons, max_rows=MAX_ROWS, max_size=MAX_SIZE)
    reasons = [answer for answer in answers if isinstance(answer, str)]
    if len(reasons) == len(answers) > MAX_ROWS:  # it is not the lines
        raise _fails_everywhere(reasons[0])
    translations = dict.fromkeys(failed, "")
    truncated = []
    for number, answer in zip(texts, answers, strict=True):
        if isinstance(answer, str):
            failed[number], translations[number] = answer, ""
        else:
            translations[number] = " ".join(answer["translation"].splitlines())
            if answer.get("truncated", False):
                truncated.append(number)
    in_order = [translations[number] for number in sorted(translations)]
    return TranslatedShard(shard, in_order, failed, truncated)


def _fails_everywhere(reason: str) -> InputError:
    return InputError(f"The model fails at every line: {reason}")


def find_version(model: str) -> str:
    """Returns the folder of a model's newest version, or of the one that `model` is."""
    if beam_files.below(model, "saved_model.pb"):
        return model
    graphs = beam_files.below(model, "*", "saved_model.pb")
    folders = [posixpath.dirname(path) for path in graphs]
    versions = [folder for folder in folders if is_version(posixpath.basename(folder))]
    if not versions:
        raise InputError(f"{model} is no SavedModel, nor does it hold versions of one")
    return max(versions, key=lambda folder: int(posixpath.basename(folder)))


def model_fingerprint(version: str, signature: str) -> str:
    """Hashes a SavedModel, after a look at its signature."""
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    graph = beam_files.read(FileSystems.join(version, "saved_model.pb"))
    try:
        check_signature(
            version, signature, SavedModel.FromString(graph).meta_graphs[0].signature_def
        )
    except (DecodeError, IndexError) as error:
        raise InputError(f"{version} does not hold a SavedModel") from error
    fingerprint = hashlib.sha256(graph)
    for folder in ("assets", "variables"):
        for path in beam_files.below(version, folder, "*"):
            fingerprint.update(beam_files.read(path))
    return fingerprint.hexdigest()


# The output.


def write_shard(translated: TranslatedShard, layout: Layout) -> None:
    """Writes a shard's report, then its translations: the shard is done when both agree."""
    shard, lines, failed, truncated = translated
    content = "".join(f"{line}\n" for line in lines).encode()
    report = {
        "lines": len(lines),
        "failed": sorted(failed.items()),
        "truncated": truncated,
        "input_sha256": shard.sha256,
        "bytes": len(content),
        "sha256": sha256(content),
    }
    beam_files.write(layout.report(shard.number), json.dumps(report).encode(), layout.temporary())
    beam_files.write(layout.shard(shard.number), content, layout.temporary())


def _claim(layout: Layout, manifest: Mapping[str, Any]) -> None:
    """Makes the output folder ours, or finds that it is."""
    try:
        found = json.loads(beam_files.read(layout.manifest))
    except OSError:
        found = None
    except ValueError:
        found = {}
    if found is None:
        temporary = beam_files.below(layout.folder, TEMPORARY)
        if beam_files.entries(layout.folder) - set(temporary):
            raise InputError(f"{layout.folder} is not empty, and no translation of a corpus")
        content = json.dumps(manifest, indent=2).encode() + b"\n"
        beam_files.write(layout.manifest, content, layout.temporary())
    elif not isinstance(found, dict) or found.keys() != manifest.keys():
        raise InputError(
            f"{layout.manifest} is damaged, or of another version of this program: "
            "choose another folder, or delete it"
        )
    elif found != manifest:
        keys = [key.replace("_", " ") for key in manifest if found.get(key) != manifest[key]]
        raise InputError(
            f"{layout.folder} was begun with another {' and another '.join(keys)}: "
            "choose another folder, or delete it"
        )
    reports = posixpath.dirname(layout.report(0))
    if not beam_files.exists(reports):
        FileSystems.mkdirs(reports)


def _finish(layout: Layout, shards: list[Shard], lines_now: int, seconds: float) -> BulkReport:
    lines, failed, num_truncated = 0, [], 0
    for shard in shards:
        # Whole, as `_report` has seen.
        report = json.loads(beam_files.read(layout.report(shard.number)))
        lines += report["lines"]
        failed += report["failed"]
        num_truncated += len(report["truncated"])
    reasons = [reason for _, reason in failed if not reason.startswith(NOT_UTF8)]
    if len(failed) == lines and len(reasons) > MAX_ROWS:  # shards too small to tell each by itself
        for shard in shards:
            beam_files.delete(layout.report(shard.number))
        raise _fails_everywhere(reasons[0])
    content = "".join(f"{number}\t{reason}\n" for number, reason in failed)
    beam_files.write(layout.failed, content.encode(), layout.temporary())
    for left in beam_files.below(layout.folder, TEMPORARY):  # by workers that were stopped
        beam_files.delete(left)
    return BulkReport(lines, len(failed), num_truncated, len(shards), lines_now, seconds)


def _present(layout: Layout) -> set[str]:
    """Returns the shards that are there, by their exact names."""
    names = {layout.shard(number) for number in range(layout.num_shards)}
    return names & set(beam_files.below(layout.folder, "translation-*"))


def _report(layout: Layout, shard: Shard) -> dict[str, Any] | None:
    """Returns a shard's report, or None if the shard is not there, or not as the report says."""
    try:
        report: dict[str, Any] = json.loads(beam_files.read(layout.report(shard.number)))
        content = beam_files.read(layout.shard(shard.number))
        said = [report[key] for key in ("lines", "input_sha256", "bytes", "sha256")]
        whole = isinstance(report["failed"], list) and isinstance(report["truncated"], list)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    found = [shard.num_lines, shard.sha256, len(content), sha256(content)]
    return report if whole and said == found else None


@contextmanager
def _watched(layout: Layout, done: int, progress: Callable[[int, int], None]) -> Iterator[None]:
    """Reports progress while the pipeline runs, wherever that may be, by looking at the output."""
    stopped = threading.Event()

    def watch() -> None:
        known = done
        ended = False
        while not ended:
            ended = stopped.wait(POLL_SECONDS)
            try:
                now = len(_present(layout))
            except InputError:  # of a file system far away; it may tell the next time
                continue
            progress(now - known, layout.num_shards)
            known = now

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def _pipeline_options(arguments: Sequence[str]) -> PipelineOptions:
    options = PipelineOptions([*arguments])
    standard = options.view_as(StandardOptions)
    if standard.runner is None:
        known = options.get_all_options()
        unknown = options.get_all_options(retain_unknown_options=True).keys() - known.keys()
        if unknown or (arguments and not arguments[0].startswith("--")):
            raise InputError(
                f"Neither an option of this command nor of Beam: {' '.join(arguments)}"
            )
        standard.runner = LOCAL_RUNNER
    return options
