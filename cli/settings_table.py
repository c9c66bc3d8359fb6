"""The settings of a training, with their defaults, as the classes that have them declare them."""

import dataclasses
import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import typer

from keras_transformer.config import TransformerConfig
from keras_transformer.records import settings_of
from keras_transformer.trainers.settings import TrainSettings

PRESETS = ("tiny", "base", "big")
PAGE = """# Settings

The settings of a recipe and of `--set`, with their defaults. `keras-transformer train
--list-settings` prints the same list. In a recipe, those of the model are in the table `[model]`.

| setting | default | meaning |
|---|---|---|
{rows}
"""


def settings() -> Iterator[tuple[str, str, str]]:
    """Yields the name, the default and the meaning of each setting, as `--set` takes them."""
    meanings = _meanings(TrainSettings)
    for field in dataclasses.fields(TrainSettings):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        yield field.name, _text(default), meanings[field.name]
    sizes = [TransformerConfig.from_preset(name, vocab_size=8).to_dict() for name in PRESETS]
    for name, declared in settings_of(TransformerConfig).items():
        if name not in TransformerConfig.of_tokenizer:
            texts = [_text(values[name]) for values in sizes]
            default = (
                texts[0] if len(set(texts)) == 1 else f"{', '.join(texts)} ({', '.join(PRESETS)})"
            )
            yield f"model.{name}", default, declared.help


def list_settings(wanted: bool) -> None:
    """Prints all settings and ends the command, if that is wanted."""
    if not wanted:
        return
    for name, default, meaning in settings():
        typer.echo(f"{name} = {default}" if default else name)
        typer.echo(textwrap.fill(meaning, 90, initial_indent="    ", subsequent_indent="    "))
    raise typer.Exit


def page() -> str:
    """Returns the page docs/reference/settings.md."""
    rows = "\n".join(
        f"| `{name}` | {f'`{default}`' if default else ''} | {meaning} |"
        for name, default, meaning in settings()
    )
    return PAGE.format(rows=rows)


def _meanings(kind: type) -> dict[str, str]:
    """Reads the attributes from the docstring of a class."""
    _, attributes = (inspect.getdoc(kind) or "").split("\nAttributes:\n")
    attributes = attributes.split("\n\n")[0]
    found = re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", attributes, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def _text(value: Any) -> str:
    """Writes a default as `--set` takes it; nothing if there is none."""
    if value is dataclasses.MISSING:
        return ""
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)


if __name__ == "__main__":
    typer.echo(page(), nl=False)
