"""Colors, fonts and figures that the pictures of `plots` share."""

import contextlib
import functools
import logging
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from keras_transformer.errors import InputError, needs_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

Style = Literal["light", "dark"]
PIECE_SIZE = 8  # points of a piece's label
MAX_PIECE = 18  # characters; a longer piece is cut
_logger = logging.getLogger(__name__)


class Theme(NamedTuple):
    """One of Matplotlib's styles, and what this package adds to it."""

    base: str  # name of Matplotlib's style
    paper: str  # background
    heat: str  # colormap of weights from 0 to the highest
    diverging: str  # colormap of values from -1 to 1
    colors: list[str]  # of curves, also for color-blind readers (Okabe and Ito 2008)


_LIGHT = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#1d2430", "#e69f00"]
_DARK = ["#56b4e9", "#e69f00", "#00b98a", "#cc79a7", "#e6eaf1", "#f0e442"]
THEMES: dict[Style, Theme] = {
    "light": Theme("default", "#ffffff", "Blues", "RdBu", _LIGHT),
    "dark": Theme("dark_background", "#1a202a", "magma", "berlin", _DARK),
}


@contextmanager
def drawing(
    style: Style, size: tuple[float, float], texts: Iterable[str] = (), **grid: Any
) -> Iterator[tuple["Figure", list["Axes"], Theme]]:
    """Yields an empty figure of a size in inches, its panels row by row, and its theme.

    Fonts are chosen to draw `texts`; `grid` is for `Figure.subplots`. The user's Matplotlib
    settings neither apply nor change.
    """
    if style not in THEMES:
        raise InputError(f"`style` must be 'light' or 'dark'. Received: style={style!r}")
    with needs_extra("plots"):
        import matplotlib.style
        from matplotlib.figure import Figure
    theme = THEMES[style]
    settings: dict[str, Any] = {"figure.facecolor": theme.paper, "axes.facecolor": theme.paper}
    settings |= {"axes.titlesize": "medium", "axes.axisbelow": True, "grid.alpha": 0.3}
    settings |= {"legend.fontsize": 9, "font.family": find_fonts(frozenset().union(*texts))}
    settings["text.parse_math"] = False  # a dollar sign does not start a formula
    with matplotlib.style.context(["default", theme.base, settings]):
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(squeeze=False, **grid).ravel().tolist()
        yield figure, panels, theme
        figure.draw_without_rendering()  # makes the ticks with these settings


def show_heat(
    panel: "Axes", values: np.ndarray, colormap: str, highest: float, lowest: float = 0.0
) -> "AxesImage":
    """Draws a matrix as colors."""
    panel.tick_params(length=0)
    return panel.imshow(
        values, aspect="auto", interpolation="nearest", cmap=colormap, vmin=lowest, vmax=highest
    )


def show_grid(panel: "Axes", axis: Literal["both", "x", "y"] = "both") -> None:
    """Draws a grid, and removes the frame above and to the right."""
    panel.grid(axis=axis)
    panel.spines[["top", "right"]].set_visible(False)


def show_thousands(axis: "Axis") -> None:
    """Labels an axis of counts with numbers such as 10,000."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(5, integer=True))
    axis.set_major_formatter("{x:,.0f}")


@functools.cache
def find_fonts(characters: frozenset[str]) -> list[str]:
    """Returns installed font families that together have as many of the characters as possible.

    Matplotlib draws a box for a character that is in none of them, and a warning names its script.
    """
    from matplotlib.font_manager import findfont, findSystemFonts, fontManager, get_font

    families, missing = ["DejaVu Sans"], {ord(character) for character in characters}
    missing -= get_font(findfont("DejaVu Sans")).get_charmap().keys()
    if missing:  # Matplotlib's list may be older than a font
        known = {font.fname for font in fontManager.ttflist}
        for path in sorted(set(findSystemFonts()) - known):
            with contextlib.suppress(OSError, RuntimeError):  # a kind that Matplotlib cannot read
                fontManager.addfont(path)
    # Families made to go together come first; the order by name makes pictures reproducible.
    for font in sorted(
        fontManager.ttflist, key=lambda font: ("Noto Sans" not in font.name, font.name)
    ):
        if missing and not font.name.startswith("Last Resort"):  # a font of boxes
            covered = missing & get_font(font.fname).get_charmap().keys()
            families += [font.name] if covered else []
            missing -= covered
    for script in {unicodedata.name(chr(code), "").partition(" ")[0] for code in missing} - {""}:
        _warn_once(
            f"No installed font has the script {script}, so pictures show boxes: install one, such "
            "as Noto Sans (in Debian, fonts-noto-cjk and fonts-noto-core)"
        )
    return families


_warn_once = functools.cache(_logger.warning)


def cut_piece(piece: str) -> str:
    """Returns the label of a token."""
    piece = piece.replace("▁", "␣")  # easier to tell from the axis
    return piece if len(piece) <= MAX_PIECE else f"{piece[: MAX_PIECE - 1]}…"
