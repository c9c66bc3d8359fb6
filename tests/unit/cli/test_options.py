"""Options of commands that are made of the fields of a record."""

from typing import Annotated, Literal

import pytest
import typer
from pydantic import Field
from typer.testing import CliRunner

from keras_transformer.cli.options import NONE, Fields, Given, with_fields
from keras_transformer.records import checked_dataclass, setting


@checked_dataclass
class Drawing:
    width: Annotated[int, Field(ge=1)] = 7
    """Width in dots."""
    style: Annotated[Literal["light", "dark"] | None, setting(option="--look")] = None
    """Its style."""
    is_bold: bool = False
    """Whether lines are bold."""
    has_frame: bool = True
    """Whether there is a frame."""


@checked_dataclass
class Files:
    files: str | list[str] = "x"
    """What to draw."""
    others: int = 0
    """Not an option of this command."""


seen = []
app = typer.Typer(rich_markup_mode=None)


@app.command()
@with_fields
def draw(
    name: Annotated[str, typer.Argument()],
    drawing: Drawing = Drawing(),  # noqa: B008
    given: Annotated[Given, Fields(Files, ("files",), default="{}, or so")] = NONE,
) -> None:
    seen.append((name, drawing, given))


def run(*arguments):
    result = CliRunner().invoke(app, [*arguments], catch_exceptions=False)
    return result.exit_code, result.output


def test_a_record_has_what_was_given_and_its_defaults():
    assert run("a", "--width", "3", "--look", "dark", "--is-bold", "--no-has-frame")[0] == 0
    assert run("b")[0] == 0
    expected = Drawing(width=3, style="dark", is_bold=True, has_frame=False)
    assert seen[-2:] == [("a", expected, {}), ("b", Drawing(), {})]
    assert run("a", "--look", "loud")[0] == run("a", "--no-is-bold")[0] == 2
    with pytest.raises(ValueError, match="`width`"):
        run("a", "--width", "0")


def test_what_was_given_is_a_dictionary_and_the_help_is_the_fields():
    assert run("a", "--files", "y", "--files", "z")[0] == 0
    assert seen[-1][2] == {"files": ["y", "z"]}
    _, text = run("--help")
    assert "--others" not in text
    assert "Width in dots. [default: 7]" in text
    assert "What to draw. [default: x, or so]" in " ".join(text.split())
