"""`keras-transformer translate`."""

import itertools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from keras_transformer.cli.console import (
    load_tensorflow,
    print_json,
    progress_bar,
    say,
    waitable,
)
from keras_transformer.errors import InputError
from keras_transformer.export.rows import DEFAULT_SIGNATURE, by_length, open_saved_model
from keras_transformer.export.versions import find_version

# Lines read before the first is translated: enough to sort by length, little to wait for.
CHUNK_LINES = 1_000
SESSION_ROWS = 32

Row = dict[str, Any]
# Of texts, and of what is called with the number of texts translated since the last call.
Translate = Callable[[list[str], Callable[[int], None]], Sequence[Row]]


class Server(NamedTuple):
    """Where translations come from when they are not made here.

    Attributes:
        url: of a model, over REST; or None.
        grpc: host and port; or None.
        model: the model's name, over gRPC.
        timeout: of a request, in seconds.
    """

    url: str | None
    grpc: str | None
    model: str | None
    timeout: float | None


def translate_command(
    context: typer.Context,
    model_or_text: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN|SAVEDMODEL",
            help="A run directory or an export; nothing with --url or --grpc.",
        ),
    ] = None,
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT", help="Lines of standard input when there is none."),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(help="Ask a model server over REST: http://HOST:8501/v1/models/NAME."),
    ] = None,
    grpc: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Ask a model server over gRPC; needs --model."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="The model's name on the gRPC server.")
    ] = None,
    signature: Annotated[
        str | None,
        typer.Option(
            help="Of an export or a server: greedy is fast, document cuts no text. "
            f"[default: {DEFAULT_SIGNATURE}]"
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            callback=waitable, min=0.001, help="Seconds that a server may take. [default: 60]"
        ),
    ] = None,
    beam_size: Annotated[
        int | None, typer.Option(help="Beams; 1 is greedy search. [default: the run's or export's]")
    ] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Strength of the length penalty. [default: likewise]")
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print a JSON object a line: the translation, its score, ..."),
    ] = False,
) -> None:
    """Translate texts; one line comes out for each line that goes in."""
    options = {
        name: value
        for name, value in (("beam_size", beam_size), ("alpha", alpha))
        if value is not None
    }
    server = Server(url, grpc, model, timeout)
    arguments = [] if model_or_text is None else [model_or_text, *(texts or [])]
    path, texts = _source(context, server, arguments)
    if not texts and sys.stdin is None:
        raise InputError("Standard input is closed: give TEXT, or lines of standard input")
    if path is None:
        translate = _connect(server, signature, options)
    else:
        translate = _load(path, signature, options)
    lines = iter(texts) if texts else _stdin_lines()
    number = 0
    is_typed = not texts and sys.stdin.isatty()
    # Where what is typed or printed can be seen, a bar would be in its way.
    shown = not (is_typed or sys.stdout.isatty())
    with progress_bar("Translating", len(texts) if texts else None, shown) as progress:
        while chunk := list(itertools.islice(lines, 1 if is_typed else CHUNK_LINES)):
            for row in translate(chunk, progress):
                number += 1
                if as_json:
                    print_json(row)
                else:
                    typer.echo(" ".join(row["translation"].splitlines()))
                if row.get("truncated", False):
                    say(f"warning: text {number} is too long and its end was not translated")


def _source(
    context: typer.Context, server: Server, arguments: list[str]
) -> tuple[Path | None, list[str]]:
    """Tells the folder of a model, None if there is a server, from the texts."""
    options = (("--url", server.url), ("--grpc", server.grpc))
    sources = [name for name, value in options if value is not None]
    remote = bool(sources)
    if arguments and (not remote or _holds_model(arguments[0])):
        sources.insert(0, arguments[0])
    if not sources:
        context.fail("Missing argument 'RUN|SAVEDMODEL', or --url, or --grpc.")
    if len(sources) > 1:
        raise InputError(f"Give one source of translations. Received: {', '.join(sources)}")
    if (server.grpc is None) != (server.model is None):
        raise InputError("Give --grpc HOST:PORT and --model NAME together, and neither else")
    if server.timeout is not None and not remote:
        raise InputError("--timeout is for --url and --grpc")
    return (None, arguments) if remote else (Path(arguments[0]), arguments[1:])


def _connect(server: Server, signature: str | None, options: dict[str, float]) -> Translate:
    """Makes a client of a model server, and returns what translates."""
    from keras_transformer.export.clients import TIMEOUT, GrpcClient, RestClient

    _refuse(options, f"The search of {server.url or server.grpc} was fixed by the export")
    signature = signature or DEFAULT_SIGNATURE
    timeout = server.timeout or TIMEOUT
    client: RestClient | GrpcClient
    if server.url is not None:
        client = RestClient(server.url, signature=signature, timeout=timeout)
    else:
        load_tensorflow()
        client = GrpcClient(
            str(server.grpc), str(server.model), signature=signature, timeout=timeout
        )

    def translate(texts: list[str], progress: Callable[[int], None]) -> Sequence[Row]:
        rows = client.translate(texts)
        progress(len(rows))
        return rows

    return translate


def _load(model: Path, signature: str | None, options: dict[str, float]) -> Translate:
    """Opens a run directory or a SavedModel, and returns what translates."""
    if not model.exists():
        raise InputError(f"There is no {model}: it must be a run directory or a SavedModel")
    if (model / "run.json").is_file():
        if signature is not None:
            raise InputError(f"{model} is a run directory: it has no signature {signature}")
        load_tensorflow()
        from keras_transformer.translator import Translator

        translator = Translator.load(model)

        def translate(texts: list[str], progress: Callable[[int], None]) -> Sequence[Row]:
            found = translator.translate(texts, **options, progress=progress)  # type: ignore[arg-type]
            # By the names that the signatures of an export have.
            return [
                {"translation": each.text, "score": each.score, "truncated": each.truncated}
                for each in found
            ]

        return translate
    version = find_version(model)
    if version is None:
        raise InputError(f"{model} is neither a run directory nor a SavedModel")
    _refuse(options, f"{model} is a SavedModel, whose search was fixed when it was exported")
    load_tensorflow()
    rows_of = open_saved_model(str(version), signature or DEFAULT_SIGNATURE)

    def translate_by_length(texts: list[str], progress: Callable[[int], None]) -> Sequence[Row]:
        def translate_batch(batch: list[str]) -> list[Row]:
            rows = rows_of(batch)
            progress(len(rows))
            return rows

        return by_length(texts, translate_batch, max_rows=SESSION_ROWS)

    return translate_by_length


def _refuse(options: dict[str, float], reason: str) -> None:
    if options:
        raise InputError(f"{reason}: {', '.join(options)} cannot be changed")


def _holds_model(path: str) -> bool:
    # A text may be longer than any path, which pathlib does not take well.
    return os.path.isfile(os.path.join(path, "run.json")) or (
        os.path.isdir(path) and find_version(path) is not None
    )


def _stdin_lines() -> Iterator[str]:
    """Only a line feed ends a line; Python's text mode knows more. A mark of UTF-8 is no text."""
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise InputError(f"standard input, line {number}: not valid UTF-8") from error
