"""The settings of a training with their defaults and meanings, as their fields declare them."""

import dataclasses
import json
import textwrap
from collections.abc import Iterator
from typing import Any, NamedTuple

import typer

from keras_transformer.config import TransformerConfig
from keras_transformer.records import settings_of
from keras_transformer.trainers.settings import GROUPS, TrainSettings

PRESETS = ("tiny", "base", "big")
PAGE = """# Settings

The settings of a recipe and of `--set`, with their defaults. `keras-transformer train
--list-settings` prints the same list. A recipe may have them in sections, `[data]`, `[model]`,
`[training]` and `[search]`; those of the model's sizes must be in `[model]`.
"""


class Row(NamedTuple):
    """A setting, as `--set` takes it."""

    name: str
    default: str  # empty if there is none
    meaning: str


def rows_of(section: str) -> Iterator[Row]:
    """Yields the settings of a section."""
    fields = {field.name: field for field in dataclasses.fields(TrainSettings)}
    for name, declared in settings_of(GROUPS[section]).items():
        default, factory = fields[name].default, fields[name].default_factory
        if factory is not dataclasses.MISSING:
            default = factory()
        yield Row(name, _text(default), declared.help)
    if section != "model":
        return
    sizes = [TransformerConfig.from_preset(name, vocab_size=8).to_dict() for name in PRESETS]
    for name, declared in settings_of(TransformerConfig).items():
        texts = [_text(values[name]) for values in sizes]
        default = texts[0]
        if len(set(texts)) > 1:
            default = f"{', '.join(texts)} ({', '.join(PRESETS)})"
        yield Row(f"model.{name}", default, declared.help)


def list_settings(wanted: bool) -> None:
    """Prints all settings and ends the command, if that is wanted."""
    if not wanted:
        return
    for section in GROUPS:
        typer.echo(f"[{section}]")
        for row in rows_of(section):
            typer.echo(f"{row.name} = {row.default}" if row.default else row.name)
            typer.echo(textwrap.indent(textwrap.fill(row.meaning, 86), "    "))
    raise typer.Exit


def page() -> str:
    """Returns the page docs/reference/settings.md."""
    parts = [PAGE.strip()]
    for section in GROUPS:
        parts.append(
            f"\n## {section.capitalize()}\n\n| setting | default | meaning |\n|---|---|---|"
        )
        for row in rows_of(section):
            default = f"`{row.default}`" if row.default else ""
            parts.append(f"| `{row.name}` | {default} | {row.meaning} |")
    return "\n".join([*parts, ""])


def _text(value: Any) -> str:
    """Writes a default as `--set` takes it; nothing if there is none."""
    if value is dataclasses.MISSING:
        return ""
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)


if __name__ == "__main__":
    typer.echo(page(), nl=False)
