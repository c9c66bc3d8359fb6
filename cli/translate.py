"""`keras-transformer translate`."""

import contextlib
import itertools
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from typer import Argument
from typer.core import TyperCommand
from typer.exceptions import TyperException

from keras_transformer.cli.console import ProgressBar, cleaned_up, say
from keras_transformer.cli.lines import CHUNK_LINES, count_lines, open_lines, open_new, read_chunks
from keras_transformer.cli.options import NONE, Search, option_of
from keras_transformer.cli.translators import Model, Translate, TranslateOptions, find_model
from keras_transformer.errors import InputError
from keras_transformer.export.rows import Row
from keras_transformer.files import NOT_LINES, kind_of
from keras_transformer.trainers.data.catalogues import FILLED, FORMATS

SUBTITLES = (".srt", ".vtt")


class TextsCommand(TyperCommand):
    """A command that says how to give it a text that looks like an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        texts = [text for text in args if re.match("-[^-]|--.* ", text)]
        try:
            return super().parse_args(ctx, args)
        except TyperException as error:
            if texts and type(error).__name__ == "NoSuchOption":  # which Typer does not export
                hint = f"Give a text that begins with a hyphen after --, as in: -- {texts[0]!r}"
                ctx.fail(f"{str(error).rstrip()}. {hint}")
            raise


TYPER = {"cls": TextsCommand}


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
    options: TranslateOptions = TranslateOptions(),  # noqa: B008  # it is frozen
    search: Search = NONE,
) -> None:
    """Translate texts; each gives one line of output.

    The search of an export was fixed when it was exported.
    """
    texts = texts or []
    has_server = bool(options.url or options.grpc)
    if model_or_text is not None and has_server:
        texts = [model_or_text, *texts]
    elif model_or_text is None and not has_server:
        context.fail("Missing argument 'RUN|SAVEDMODEL', or --url, or --grpc.")
    model = find_model(None if has_server else model_or_text, options, search)
    _check_options(model, texts)
    if options.input and options.output and _is_document(options.input):
        translate = model.open(is_document=True)
        _translate_document(model, translate, options.input, options.output)
        return
    stream, total = None, len(texts) or None
    if not texts:
        if options.input is None and sys.stdin is None:
            raise InputError("Give texts or --input: the standard input is closed")
        stream = sys.stdin.buffer
        if options.input is not None:
            stream = context.with_resource(open_lines(options.input))
        total = count_lines(stream, _name(options.input))
    is_long = stream is not None and (total or 0) > CHUNK_LINES
    translate = model.with_languages(model.open(is_long=is_long))
    if len(texts) == 1 and os.path.isfile(texts[0]):
        say(f"warning: {texts[0]} is a file: --input {texts[0]} translates its lines")
    with contextlib.ExitStack() as stack:
        if options.output is not None:
            output = stack.enter_context(new_file(options.output))
            stack.enter_context(contextlib.redirect_stdout(output))
        print_translations(translate, texts, stream, total, _name(options.input), options.as_json)


def _name(file: Path | None) -> str:
    return str(file or "standard input")


def _check_options(model: Model, texts: list[str]) -> None:
    options, is_run = model.options, model.is_run
    signature, has_best = options.signature, bool(options.num_best)
    has_prefix = options.prefix is not None
    _refuse(texts and options.input, "Give either texts or --input")
    check_files(options)
    has_server = options.url or options.grpc
    _refuse(options.timeout and not has_server, "--timeout needs --url or --grpc")
    _refuse(
        options.model and options.grpc is None,
        "--model needs --grpc: it is the name of a model on the gRPC server",
    )
    _refuse(
        signature == "nbest" or (has_best and signature),
        "Give --num-best and no --signature: the signature is nbest",
    )
    _refuse(
        is_run and signature, f"{model.name} is a run directory: it has no signature {signature}"
    )
    _refuse(
        signature == "document" and options.sentences is False,
        "Give --whole without --signature document: it translates sentence by sentence",
    )
    _refuse(
        not is_run and has_prefix and (signature or has_best),
        "Give --prefix without --signature and --num-best: it has a signature",
    )
    _refuse(
        options.sentences and (has_prefix or signature not in (None, "document")),
        "Give --sentences without --prefix and --signature",
    )
    _refuse(
        options.sentences and has_best and not is_run,
        "Give --num-best without --sentences: the signature nbest has one text",
    )
    _refuse(
        options.words and not (is_run and options.as_json),
        "--words needs a run directory and --json",
    )
    _refuse(
        model.search and not is_run,
        f"The search of {model.name} was fixed when it was exported: "
        f"{', '.join(map(option_of, model.search))} cannot be changed",
    )


def check_files(options: TranslateOptions) -> None:
    """Refuses files that exist, that are not translated, and whose names say another format."""
    file, output = options.input, options.output
    _refuse(
        output and output.exists(), f"{output} exists already: choose another name for --output"
    )
    _refuse(
        output and not os.access(f"{output.parent}/", os.W_OK),
        f"Cannot write {output}: its folder does not exist, or you may not write in it",
    )
    if file is not None and _is_document(file):
        _refuse(
            kind_of(file) not in (*FILLED, *SUBTITLES),
            f"{file} cannot be filled: that is for {', '.join(FILLED)}",
        )
        _refuse(
            output is None or options.as_json or options.num_best,
            f"{file} needs --output, and no --json or --num-best",
        )
        kinds = {kind_of(file), kind_of(output or file)}
        _refuse(
            len(kinds) > 1 and kinds != {".xlf", ".xliff"},
            f"{output} must end in {kind_of(file)}, the format of {file}",
        )
    elif output is not None:
        written = (".json", ".jsonl") if options.as_json else (".tsv",)
        _refuse(
            kind_of(output) in NOT_LINES and kind_of(output) not in written,
            f"{output} must have another ending, such as .txt: --output writes lines of text, or "
            "with --json .jsonl",
        )


def _refuse(is_wrong: Any, message: str) -> None:
    if is_wrong:
        raise InputError(message)


def _is_document(file: Path) -> bool:
    """Returns whether a file is translated as a whole, and not line by line."""
    return kind_of(file) in (*FORMATS, *SUBTITLES)


def _translate_document(model: Model, translate: Translate, file: Path, output: Path) -> None:
    from keras_transformer.cli.catalogue import fill_catalogue
    from keras_transformer.cli.subtitles import translate_subtitles

    if kind_of(file) in FORMATS:
        asked = model.options.source, model.options.target
        fill_catalogue(file, output, translate, model.languages(), asked)
    else:
        translate = model.with_languages(translate)
        translate_subtitles(file, output, translate, "tags" in (model.protect or ()))


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[TextIO]:
    """Opens a new file to write. An error keeps what is written, and deletes an empty file."""
    file, is_empty = open_new(path), False
    try:
        with cleaned_up(), file:  # on a full disk, its end may fail, too
            try:
                yield file
            except BaseException:
                is_empty = file.tell() == 0
                raise
    except BaseException as error:
        if isinstance(error, OSError):
            error.filename = error.filename or str(path)
        if is_empty or not path.stat().st_size:
            path.unlink()
        else:
            say(f"{path} is incomplete")
        raise


def print_translations(
    translate: Translate, texts: list[str], stream: Any, total: int | None, name: str, as_json: bool
) -> None:
    """Prints the translations of texts, or of the lines of a stream, which has this name."""
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
