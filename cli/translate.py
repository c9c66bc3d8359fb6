"""`keras-transformer translate`."""

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from keras_transformer.cli.console import load_tensorflow, say
from keras_transformer.errors import InputError

# Lines read before the first is translated: enough to sort by length, little to wait for.
CHUNK_LINES = 1_000
SESSION_ROWS = 32


class Line(NamedTuple):
    """A translated line, and whether its source was cut."""

    text: str
    truncated: bool


def translate_command(
    model: Annotated[
        Path, typer.Argument(metavar="RUN|SAVEDMODEL", help="A run directory or an export.")
    ],
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEXT ...]", help="Lines of standard input when there is none."),
    ] = None,
    beam_size: Annotated[
        int | None, typer.Option(help="Beams; 1 is greedy search. [default: the run's or export's]")
    ] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Strength of the length penalty. [default: likewise]")
    ] = None,
) -> None:
    """Translate texts; one line comes out for each line that goes in."""
    options = {
        name: value
        for name, value in (("beam_size", beam_size), ("alpha", alpha))
        if value is not None
    }
    if not texts and sys.stdin is None:
        raise InputError("Standard input is closed: give TEXT, or lines of standard input")
    load_tensorflow()
    translate = _load(model, options)
    lines = iter(texts) if texts else _stdin_lines()
    number = 0
    chunk_lines = 1 if not texts and sys.stdin.isatty() else CHUNK_LINES
    while chunk := list(itertools.islice(lines, chunk_lines)):
        for line in translate(chunk):
            number += 1
            typer.echo(" ".join(line.text.splitlines()))
            if line.truncated:
                say(f"warning: text {number} is too long and its end was not translated")


def _load(model: Path, options: dict[str, float]) -> Callable[[list[str]], Iterator[Line]]:
    """Opens a run directory or a SavedModel, and returns what translates."""
    if not model.exists():
        raise InputError(f"There is no {model}: it must be a run directory or a SavedModel")
    if (model / "run.json").is_file():
        from keras_transformer.translator import Translator

        translator = Translator.load(model)
        return lambda texts: (
            Line(translation.text, translation.truncated)
            for translation in translator.translate(texts, **options)  # type: ignore[arg-type]
        )
    version = model if (model / "saved_model.pb").is_file() else _newest_version(model)
    if version is None:
        raise InputError(f"{model} is neither a run directory nor a SavedModel")
    if options:
        raise InputError(
            f"{model} is a SavedModel, whose search was fixed when it was exported: "
            f"{', '.join(options)} cannot be changed"
        )
    from keras_transformer.export.session import SavedModelSession

    try:
        session = SavedModelSession(version)
    except ValueError as error:
        raise InputError(str(error)) from error

    def translate(texts: list[str]) -> Iterator[Line]:
        for start in range(0, len(texts), SESSION_ROWS):
            for row in session.translate(texts[start : start + SESSION_ROWS]):
                yield Line(row["translation"], row["truncated"])

    return translate


def _newest_version(model: Path) -> Path | None:
    versions = [path for path in model.glob("*/") if path.name.isdecimal()]
    return max(versions, key=lambda path: int(path.name), default=None)


def _stdin_lines() -> Iterator[str]:
    """Only a line feed ends a line; Python's text mode knows more."""
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            yield line.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise InputError(f"standard input, line {number}: not valid UTF-8") from error
