"""`keras-transformer translate`."""

import contextlib
import itertools
import json
import math
import os
import select
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TextIO

import typer
from typer import Argument, Option

from keras_transformer.cli.console import ProgressBar, load_session, load_tensorflow, say
from keras_transformer.cli.export import warn_of_compute
from keras_transformer.cli.options import BeamSize, EarlyStop, LengthPenalty
from keras_transformer.errors import InputError
from keras_transformer.export.rows import (
    DEFAULT_SIGNATURE,
    REQUEST_BYTES,
    Row,
    by_length,
    open_saved_model,
)
from keras_transformer.export.server.versions import find_version
from keras_transformer.files import decode_lines

# Lines are read in chunks: enough to sort them by length, and the first result comes soon. A chunk
# of a pipe or a terminal ends where the next line is not there yet.
CHUNK_LINES = 1_000

Progress = Callable[[int], None]  # takes the number of texts translated since the last call
Translate = Callable[[list[str], Progress], Sequence[Row]]


def translate_command(
    context: typer.Context,
    model_or_text: Annotated[
        str | None,
        Argument(
            metavar="RUN|SAVEDMODEL",
            help="A run directory or an export. Leave it out with --url or --grpc.",
        ),
    ] = None,
    texts: Annotated[
        list[str] | None, Argument(metavar="TEXT", help="[default: the lines of standard input]")
    ] = None,
    input_file: Annotated[
        Path | None, Option("--input", help="Read texts from this file, one per line.")
    ] = None,
    output_file: Annotated[
        Path | None, Option("--output", help="Write the output to this new file.")
    ] = None,
    url: Annotated[
        str | None, Option(help="Ask a model server over REST, at http://HOST:8501/v1/models/NAME.")
    ] = None,
    grpc: Annotated[
        str | None, Option(metavar="HOST:PORT", help="Ask a model server over gRPC, with --model.")
    ] = None,
    model: Annotated[
        str | None, Option(metavar="NAME", help="Name of the model on the gRPC server.")
    ] = None,
    signature: Annotated[
        str | None,
        Option(
            help="Signature of the export or server: greedy is fast, document cuts no text. "
            f"[default: {DEFAULT_SIGNATURE}]"
        ),
    ] = None,
    timeout: Annotated[float, Option(min=0.001, help="Seconds to wait for the server.")] = 60,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    early_stopping: EarlyStop = None,
    as_json: Annotated[
        bool, Option("--json", help="Print a JSON object per line: translation, score, truncated.")
    ] = False,
) -> None:
    """Translate texts; each gives one line of output.

    The search of an export was fixed when it was exported.
    """
    texts = texts or []
    if model_or_text is not None and (url is not None or grpc is not None):
        texts = [model_or_text, *texts]
    if texts and input_file is not None:
        raise InputError("Give either texts or --input")
    if output_file is not None and output_file.exists():
        raise InputError(f"{output_file} exists already: choose another name for --output")
    options = {
        "beam_size": beam_size,
        "length_penalty": length_penalty,
        "early_stopping": early_stopping,
    }
    search = {name: value for name, value in options.items() if value is not None}
    if url is not None or grpc is not None:
        _refuse(search, f"The search of {url or grpc} was fixed by the export")
        translate = _open_server(url, grpc, model, signature or DEFAULT_SIGNATURE, timeout)
    elif model_or_text is None:
        context.fail("Missing argument 'RUN|SAVEDMODEL', or --url, or --grpc.")
    elif os.path.isfile(os.path.join(model_or_text, "run.json")):
        if signature is not None:
            raise InputError(f"{model_or_text} is a run directory: it has no signature {signature}")
        translate = _open_run(model_or_text, search)
    elif version := find_version(model_or_text):
        _refuse(search, f"{version} is a SavedModel, whose search was fixed when it was exported")
        translate = _open_export(str(version), signature or DEFAULT_SIGNATURE)
    else:
        raise InputError(f"{model_or_text} must be a run directory or a SavedModel")
    if len(texts) == 1 and os.path.isfile(texts[0]):
        say(f"warning: {texts[0]} is a file: --input {texts[0]} translates its lines")
    with contextlib.ExitStack() as stack:
        stream: BinaryIO | None = None
        if not texts:
            stream = stack.enter_context(input_file.open("rb")) if input_file else sys.stdin.buffer
        if output_file is not None:
            output = stack.enter_context(_new_file(output_file))
            stack.enter_context(contextlib.redirect_stdout(output))
        _print_translations(translate, texts, stream, str(input_file or "standard input"), as_json)


def _refuse(search: Mapping[str, Any], reason: str) -> None:
    if search:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in search)
        raise InputError(f"{reason}: {options} cannot be changed")


@contextlib.contextmanager
def _new_file(path: Path) -> Iterator[TextIO]:
    """Opens a new file to write. An error keeps what is written, and deletes an empty file."""
    with path.open("x", encoding="utf-8") as file:
        try:
            yield file
        except BaseException:
            if file.tell() == 0:
                path.unlink()
            else:
                say(f"{path} is incomplete")
            raise


def _open_server(
    url: str | None, grpc: str | None, model: str | None, signature: str, timeout: float
) -> Translate:
    from keras_transformer.export.clients import GrpcClient, RestClient

    if url is not None and grpc is None:
        return _counted(RestClient(url, signature=signature, timeout=timeout).translate)
    if url is None and grpc is not None and model is not None:
        load_tensorflow()
        return _counted(GrpcClient(grpc, model, signature=signature, timeout=timeout).translate)
    raise InputError("Give either --url URL, or --grpc HOST:PORT and --model NAME")


def _open_run(folder: str, search: Mapping[str, Any]) -> Translate:
    load_tensorflow()
    import tensorflow as tf

    from keras_transformer.translator import Translator

    # The optimization of the graph takes longer than it saves in a short run.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    translator = Translator.load(folder)
    # The names are those of an export's outputs.
    return lambda texts, progress: [
        {"translation": each.text, "score": each.score, "truncated": each.truncated}
        for each in translator.translate(texts, **search, progress=progress)
    ]


def _open_export(version: str, signature: str) -> Translate:
    load_session()
    warn_of_compute(Path(version))
    translate = _counted(open_saved_model(version, signature))
    max_size = REQUEST_BYTES if signature == "document" else math.inf
    return lambda texts, progress: by_length(
        [text.encode(errors="replace") for text in texts],
        lambda batch: translate(batch, progress),
        max_size=max_size,
    )


def _counted(
    translate: Callable[[Sequence[str | bytes]], Sequence[Row]],
) -> Callable[[Sequence[str | bytes], Progress], Sequence[Row]]:
    def translate_and_count(texts: Sequence[str | bytes], progress: Progress) -> Sequence[Row]:
        rows = translate(texts)
        progress(len(rows))
        return rows

    return translate_and_count


def _print_translations(
    translate: Translate, texts: list[str], stream: BinaryIO | None, name: str, as_json: bool
) -> None:
    """Prints the translations of texts, or of the lines of a stream."""
    pipe = None if stream is None or stream.seekable() else _Pipe(stream)
    lines = iter(texts) if stream is None else decode_lines(pipe or stream, name)
    is_typed = stream is not None and stream.isatty()
    if is_typed:
        say("Type a text and press Enter. Ctrl-D ends.")
    # A bar would mix with the text on the same terminal.
    is_bar_shown = not (is_typed or sys.stdout.isatty())
    chunks = _chunks(lines, pipe)
    started, number = time.monotonic(), 0
    total = len(texts) if stream is None else _count_lines(stream)
    with ProgressBar("Translating", total, is_bar_shown) as progress:
        rows = itertools.chain.from_iterable(translate(chunk, progress) for chunk in chunks)
        for number, row in enumerate(rows, 1):
            text = " ".join(row["translation"].splitlines())
            typer.echo(json.dumps(row, ensure_ascii=False) if as_json else text)
            if row.get("truncated", False):
                say(f"warning: text {number} is too long, and its end was left out")
    if stream is not None and not is_typed:
        say(f"Translation: lines of {name}: {number:,} in {time.monotonic() - started:.1f} s")


def _chunks(lines: Iterator[str], pipe: "_Pipe | None") -> Iterator[list[str]]:
    chunk = []
    for line in lines:
        chunk.append(line)
        if len(chunk) == CHUNK_LINES or (pipe and not pipe.has_line()):
            yield chunk
            chunk = []
    if chunk:
        yield chunk


class _Pipe:
    """The lines of a pipe or a terminal, which may pause."""

    def __init__(self, stream: BinaryIO) -> None:
        self._descriptor = stream.fileno()
        self._lines: deque[bytes] = deque()
        self._rest: list[bytes] = []  # parts of a line whose end has not come
        self._is_open = True

    def __iter__(self) -> Iterator[bytes]:
        while self._lines or self._is_open:
            if self._lines:
                yield self._lines.popleft()
            else:
                self._read()

    def has_line(self) -> bool:
        """Returns whether the next line is there; takes in what has come, and never waits."""
        while not self._lines and self._is_open and select.select([self._descriptor], [], [], 0)[0]:
            self._read()
        return bool(self._lines)

    def _read(self) -> None:
        data = os.read(self._descriptor, 2**16)
        *ends, rest = data.split(b"\n")
        for end in ends:
            self._lines.append(b"".join([*self._rest, end, b"\n"]))
            self._rest.clear()
        self._rest.append(rest)
        if not data:
            self._is_open = False
            self._lines.extend(filter(None, [b"".join(self._rest)]))


def _count_lines(stream: BinaryIO) -> int | None:
    """Returns the number of lines; None for a stream that can be read only once."""
    if not stream.seekable():
        return None
    start, count = stream.tell(), sum(1 for _ in stream)
    stream.seek(start)
    return count
