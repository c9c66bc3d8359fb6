"""`keras-transformer translate`."""

import contextlib
import itertools
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from typer import Argument, Option
from typer.core import TyperCommand
from typer.exceptions import TyperException

from keras_transformer.cli.check import find_export, inside
from keras_transformer.cli.console import ProgressBar, say
from keras_transformer.cli.lines import (
    CHUNK_LINES,
    count_lines,
    open_lines,
    open_new,
    read_chunks,
)
from keras_transformer.cli.options import (
    BeamSize,
    EarlyStop,
    LengthPenalty,
    NoRepeat,
    SampleFrom,
    SampleSeed,
    Temperature,
    search_of,
)
from keras_transformer.cli.translators import (
    Translate,
    languages_of,
    open_export,
    open_run,
    open_server,
    protected_by,
    with_best,
    with_terms,
)
from keras_transformer.errors import InputError
from keras_transformer.export.options import DEFAULT_SIGNATURE
from keras_transformer.export.rows import Row
from keras_transformer.files import kind_of
from keras_transformer.trainers.data.catalogues import FILLED, FORMATS

SUBTITLES = (".srt", ".vtt")
SERVER_TIMEOUT = 60  # seconds


class TextsCommand(TyperCommand):
    """A command that says how to give it a text that looks like an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the arguments of the command."""
        texts = [text for text in args if re.match("-[^-]|--.* ", text)]
        try:
            return super().parse_args(ctx, args)
        except TyperException as error:
            if texts and type(error).__name__ == "NoSuchOption":  # which Typer does not export
                hint = f"Give a text that begins with a hyphen after --, as in: -- {texts[0]!r}"
                ctx.fail(f"{str(error).rstrip()}. {hint}")
            raise


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
        Path | None,
        Option(
            "--input",
            help="Read texts from this file, one per line; or translate subtitles (.srt, .vtt), or "
            "the empty entries of a gettext catalogue (.po) or XLIFF, into --output. Also as .gz.",
        ),
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
    num_best: Annotated[
        int | None,
        Option(
            min=1,
            help="Print so many translations of each text, best first, each on a line behind its "
            "score; at most as many as there are beams.",
        ),
    ] = None,
    prefix: Annotated[
        str | None,
        Option(
            help="How each translation begins. Its last word may go on, unless a space follows "
            "it. An export and a server need the signature complete."
        ),
    ] = None,
    words: Annotated[
        bool, Option("--words", help="With --json, add each word's probability; for a run.")
    ] = False,
    sentences: Annotated[
        bool | None,
        Option(
            "--sentences/--whole",
            help="Translate each line of a text or entry of a catalogue sentence by sentence, or "
            "as one text. [default: by sentence for runs and catalogues, else as the signature]",
        ),
    ] = None,
    terms: Annotated[
        Path | None,
        Option(
            help="A glossary for a model that protects strings: on each line a word of the source, "
            "a tab and its translation."
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        Option(min=0.001, help=f"Seconds to wait for the server. [default: {SERVER_TIMEOUT}]"),
    ] = None,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    early_stopping: EarlyStop = None,
    no_repeat_ngram: NoRepeat = None,
    sample_from: SampleFrom = None,
    temperature: Temperature = None,
    sample_seed: SampleSeed = None,
    as_json: Annotated[
        bool, Option("--json", help="Print a JSON object per line: translation, score, truncated.")
    ] = False,
) -> None:
    """Translate texts; each gives one line of output.

    The search of an export was fixed when it was exported.
    """
    server = url or grpc
    texts = texts or []
    if model_or_text is not None and server is not None:
        texts = [model_or_text, *texts]
    elif model_or_text is None and server is None:
        context.fail("Missing argument 'RUN|SAVEDMODEL', or --url, or --grpc.")
    folder = "" if model_or_text is None or server is not None else model_or_text
    is_run = os.path.isfile(os.path.join(folder, "run.json")) if folder else False
    version = find_export(folder) if folder and not is_run else None
    if folder and not is_run and version is None:
        raise InputError(f"{folder} must be a run directory or a SavedModel{inside(folder)}")
    search = search_of(context)
    _check_options({**context.params, "texts": texts, "search": search}, server or folder, is_run)
    stream: Any = None
    if not texts:
        if input_file is None and sys.stdin is None:
            raise InputError("Give texts or --input: the standard input is closed")
        stream = context.with_resource(open_lines(input_file)) if input_file else sys.stdin.buffer
    input_name = str(input_file or "standard input")
    total = len(texts) if stream is None else count_lines(stream, input_name)
    # The optimization of a graph takes a second or two, and saves a few percent of a search.
    optimize = stream is not None and (total or 0) > CHUNK_LINES
    is_document = _is_catalogue(input_file) or _is_subtitles(input_file)
    name = signature or (DEFAULT_SIGNATURE if num_best is None else "nbest")
    if prefix is not None:
        name = "complete"
    elif signature is None and (sentences or (sentences is None and is_document)):
        name = "document"
    protect = [] if terms is None else protected_by(version, folder)
    if server is not None:
        translate = open_server(url, grpc, model, name, timeout or SERVER_TIMEOUT, prefix)
    elif version is None:
        translate = open_run(folder, search, optimize, num_best, prefix, words, sentences)
    else:
        translate = open_export(str(version), name, optimize, num_best is not None, prefix)
    if terms is not None:
        translate = with_terms(translate, terms, protect)
    if num_best is not None and not is_run:
        translate = with_best(translate, num_best)
    if is_document and input_file is not None and output_file is not None:
        from keras_transformer.cli.catalogue import fill_catalogue
        from keras_transformer.cli.subtitles import translate_subtitles

        if _is_catalogue(input_file):
            fill_catalogue(input_file, output_file, translate, languages_of(version, folder))
        else:
            translate_subtitles(input_file, output_file, translate, _protects_tags(version, folder))
        return
    if len(texts) == 1 and os.path.isfile(texts[0]):
        say(f"warning: {texts[0]} is a file: --input {texts[0]} translates its lines")
    with contextlib.ExitStack() as stack:
        if output_file is not None:
            output = stack.enter_context(_new_file(output_file))
            stack.enter_context(contextlib.redirect_stdout(output))
        _print_translations(translate, texts, stream, total, input_name, as_json)


@contextlib.contextmanager
def _new_file(path: Path) -> Iterator[TextIO]:
    """Opens a new file to write. An error keeps what is written, and deletes an empty file."""
    with open_new(path) as file:
        try:
            yield file
        except BaseException:
            if file.tell() == 0:
                path.unlink()
            else:
                say(f"{path} is incomplete")
            raise


def _is_catalogue(file: Path | None) -> bool:
    return file is not None and kind_of(file) in FORMATS


def _is_subtitles(file: Path | None) -> bool:
    return file is not None and kind_of(file) in SUBTITLES


def _protects_tags(version: Path | None, folder: str) -> bool:
    try:
        return "tags" in protected_by(version, folder)
    except InputError:  # it protects nothing
        return False


def _check_options(given: Mapping[str, Any], model: str, is_run: bool) -> None:
    """Raises `InputError` for options that do not fit together, or do not fit the model."""
    file, output, signature = given["input_file"], given["output_file"], given["signature"]
    has_best, has_server = given["num_best"] is not None, bool(given["url"] or given["grpc"])
    if given["texts"] and file is not None:
        raise InputError("Give either texts or --input")
    if output is not None and output.exists():
        raise InputError(f"{output} exists already: choose another name for --output")
    if _is_catalogue(file) or _is_subtitles(file):
        if kind_of(file) not in (*FILLED, *SUBTITLES):
            raise InputError(f"{file} cannot be filled: that is for {', '.join(FILLED)}")
        if output is None or given["as_json"] or has_best:
            raise InputError(f"{file} needs --output, and no --json or --num-best")
    if given["timeout"] is not None and not has_server:
        raise InputError("--timeout needs --url or --grpc")
    if given["model"] is not None and given["grpc"] is None:
        raise InputError("--model needs --grpc: it is the name of a model on the gRPC server")
    if signature == "nbest" or (has_best and signature is not None):
        raise InputError("Give --num-best and no --signature: the signature is nbest")
    if is_run and signature is not None:
        raise InputError(f"{model} is a run directory: it has no signature {signature}")
    if not is_run and given["prefix"] is not None and (signature is not None or has_best):
        raise InputError("Give --prefix without --signature and --num-best: it has a signature")
    if given["sentences"] and (
        given["prefix"] is not None or (signature or "document") != "document"
    ):
        raise InputError("Give --sentences without --prefix and --signature")
    if given["sentences"] and has_best and not is_run:
        raise InputError("Give --num-best without --sentences: the signature nbest has one text")
    if given["words"] and not (is_run and given["as_json"]):
        raise InputError("--words needs a run directory and --json")
    if given["search"] and not is_run:
        names = (name.removesuffix("_from").replace("_", "-") for name in given["search"])
        raise InputError(
            f"The search of {model} was fixed when it was exported: --{', --'.join(names)} cannot "
            "be changed"
        )


def _print_translations(
    translate: Translate,
    texts: list[str],
    stream: Any,
    total: int | None,
    name: str,
    as_json: bool,
) -> None:
    """Prints the translations of texts, or of the lines of a stream, `total` if it is known."""
    is_typed = stream is not None and stream.isatty()
    if is_typed:
        say("Type a text and press Enter. Ctrl-D ends.")
    # A bar would mix with the text on the same terminal.
    is_bar_shown = not (is_typed or sys.stdout.isatty())
    started, number = time.monotonic(), 0
    chunks = [texts] if stream is None else read_chunks(stream, name)
    with ProgressBar("Translating", total, is_bar_shown) as progress:
        rows = itertools.chain.from_iterable(translate(chunk, progress) for chunk in chunks)
        for number, row in enumerate(rows, 1):
            typer.echo(json.dumps(row, ensure_ascii=False) if as_json else "\n".join(_lines(row)))
            if row.get("truncated", False):
                say(f"warning: text {number} is too long, and its end was left out")
    if stream is not None and not is_typed:
        say(f"Translation: lines of {name}: {number:,} in {time.monotonic() - started:.1f} s")


def _lines(row: Row) -> Iterator[str]:
    """Yields a translation, or the best ones behind their scores, a line each."""
    if "translations" not in row:
        yield " ".join(row["translation"].splitlines())
        return
    for text, score in zip(row["translations"], row["scores"], strict=True):
        yield f"{score:.4f}\t{' '.join(text.splitlines())}"
