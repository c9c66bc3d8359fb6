"""The report of a run: its text as HTML, its pictures inline; nothing is asked of any host."""

import base64
import html
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_transformer.errors import InputError
from keras_transformer.files import named_failure, write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from keras_transformer.plots import Style

FILE = "report.html"
MARK = '<meta name="generator" content="keras-transformer plot">'
DPI = 144  # dots an inch: one and a half for each of a page's 96
STYLES: "tuple[Style, Style]" = ("light", "dark")

escape = html.escape


class Report:
    """Sections and pictures, written to a folder at the end.

    Args:
        folder: a new or empty folder, or one with an earlier report, which is replaced.

    Raises:
        InputError: if it is something else.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._sections: list[str] = []
        self._pictures: dict[str, bytes] = {}
        self._earlier = _earlier_pictures(folder)

    def section(self, heading: str, *parts: str) -> None:
        """Adds a section of HTML parts."""
        self._sections.append(f"<section>\n<h2>{escape(heading)}</h2>\n{_lines(parts)}\n</section>")

    def picture(self, name: str, caption: str, draw: "Callable[[Style], Figure]") -> str:
        """Draws a picture in both styles, to be written as `NAME.png` and `NAME-dark.png`.

        Args:
            name: of the file, without its ending.
            caption: what is to be seen.
            draw: makes the figure in a style.

        Returns:
            HTML.
        """
        file = re.sub(r"[^\w-]", "-", name) + ".png"
        uris, width = [], 0
        for style, path in zip(STYLES, (file, _dark(file)), strict=True):
            figure, png = draw(style), io.BytesIO()
            figure.savefig(png, format="png", dpi=DPI)
            self._pictures[path] = png.getvalue()
            uris.append("data:image/png;base64," + base64.b64encode(png.getvalue()).decode())
            width = round(figure.get_figwidth() * 96)
        return (
            f'<figure data-file="{file}"><div class="scroll" tabindex="0"><picture>'
            f'<source media="(prefers-color-scheme: dark)" srcset="{uris[1]}">'
            f'<img src="{uris[0]}" width="{width}" alt="{escape(caption)}"></picture></div>'
            f"<figcaption>{escape(caption)}</figcaption></figure>"
        )

    def write(self, title: str, about: str) -> Path:
        """Writes the page and the pictures, and returns the page's path.

        The page comes first, so that a folder is known for a report's whatever happens.

        Raises:
            InputError: if something cannot be written.
        """
        template = resources.files("keras_transformer.cli").joinpath(FILE).read_text("utf-8")
        values = {
            "title": escape(title),
            "about": escape(about),
            "sections": "\n".join(self._sections),
        }
        page = re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], template)
        with named_failure(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.folder / FILE, page.encode())
        for name, png in self._pictures.items():
            write_whole(self.folder / name, png)
        for name in self._earlier - self._pictures.keys():
            with named_failure(self.folder / name):
                (self.folder / name).unlink(missing_ok=True)
        return self.folder / FILE


def _earlier_pictures(folder: Path) -> set[str]:
    """Names of the pictures of an earlier report; none of a new or empty folder."""
    try:
        # A call that was killed may have left what it was writing.
        if not folder.exists() or {path.name for path in folder.iterdir()} <= {f"{FILE}.tmp"}:
            return set()
        page = (folder / FILE).read_text(encoding="utf-8") if (folder / FILE).exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"Cannot write a report to {folder}: {error}") from error
    if MARK not in page:
        raise InputError(f"{folder} holds something other than a report: choose another folder")
    files = re.findall(r'data-file="([\w-]+\.png)"', page)
    return {name for file in files for name in (file, _dark(file))}


def paragraph(text: str) -> str:
    """Returns a paragraph of plain text."""
    return f"<p>{escape(text)}</p>"


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "") -> str:
    """Returns a table; floats have two digits, and numbers stand right."""
    rows = [list(row) for row in rows]
    is_number = [
        bool(rows) and all(isinstance(row[column], int | float) for row in rows)
        for column in range(len(heads))
    ]
    head = "".join(
        f'<th scope="col"{_number_class(number)}>{escape(text)}</th>'
        for text, number in zip(heads, is_number, strict=True)
    )
    body = _lines(
        "<tr>"
        + "".join(
            f"<td{_number_class(number)}>{escape(_text(value))}</td>"
            for value, number in zip(row, is_number, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return (
        f'<div class="scroll" tabindex="0"><table>{title}<thead><tr>{head}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


def settings_tables(groups: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns groups of names and values side by side, values as they are."""
    tables = []
    for name, values in groups.items():
        rows = _lines(
            f'<tr><th scope="row">{escape(key)}</th><td class="code">{escape(str(value))}</td></tr>'
            for key, value in values.items()
        )
        tables.append(f"<div><h3>{escape(name)}</h3><table><tbody>{rows}</tbody></table></div>")
    return f'<div class="settings">{_lines(tables)}</div>'


def example(label: str, texts: Mapping[str, tuple[str, str]]) -> str:
    """Returns a translation beside what it is compared with.

    Args:
        label: what it is an example of.
        texts: by name, (language, text).
    """
    items = _lines(
        f'<dt>{escape(name)}</dt><dd dir="auto" lang="{escape(language)}">{escape(text)}</dd>'
        for name, (language, text) in texts.items()
    )
    return f'<div class="example"><p class="soft">{escape(label)}</p><dl>{items}</dl></div>'


def _dark(file: str) -> str:
    return file.removesuffix(".png") + "-dark.png"


def _lines(parts: Iterable[str]) -> str:
    return "\n".join(parts)


def _number_class(is_number: bool) -> str:
    return ' class="number"' if is_number else ""


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
