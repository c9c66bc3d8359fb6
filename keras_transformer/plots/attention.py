"""Pictures of attention: what the queries of a layer attend to (as the paper's Figures 3 to 5)."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_transformer.errors import InputError, require
from keras_transformer.plots.style import PIECE_SIZE, Style, cut_piece, drawing, show_heat

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

PIECE_ROOM = 0.15  # inches of a piece along an axis; less where there are many pieces
MAX_WIDTH = 11.0  # inches of a figure of attention
MAX_HEIGHT = 10.0  # inches of its lines
MIN_WEIGHT = 0.05  # lighter lines are left out: one is invisible, many together are not


def attention_heads(
    scores: np.ndarray,
    queries: Sequence[str],
    keys: Sequence[str],
    *,
    title: str = "",
    style: Style = "light",
) -> "Figure":
    """Draws a panel for each head of a layer.

    Args:
        scores: float [N, Q, S], a layer of `Translator.attention`.
        queries: the rows' pieces.
        keys: the columns' pieces.

    Example:
        >>> from keras_transformer import Translator, plots
        >>> translator = Translator.load("my-run")  # where train wrote
        >>> attention = translator.attention("Two dogs play.")
        >>> figure = plots.attention_heads(
        ...     attention.cross[-1], attention.target_pieces, attention.source_pieces
        ... )
        >>> figure.savefig("heads.png")
    """
    scores = _checked(scores, queries, keys)
    names = [f"Head {head}" for head in range(1, len(scores) + 1)]
    return _draw_weights(scores, names, queries, keys, PIECE_ROOM, title, style)


def attention_lines(
    scores: np.ndarray,
    queries: Sequence[str],
    keys: Sequence[str],
    *,
    query: int | None = None,
    title: str = "",
    style: Style = "light",
) -> "Figure":
    """Draws lines from queries to what they attend to, a color for each head.

    A line is as opaque as its weight is large. Other arguments are those of `attention_heads`.

    Args:
        query: whose lines to draw, counted from 0; None for all.

    Example:
        >>> import numpy as np
        >>> from keras_transformer import plots
        >>> scores = np.full((4, 3, 3), 1 / 3)  # four heads
        >>> figure = plots.attention_lines(scores, ["Two", "dogs", "play"], ["Two", "dogs", "play"])
        >>> [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
        ['Head 1', 'Head 2', 'Head 3', 'Head 4']
    """
    scores = _checked(scores, queries, keys)
    _check_index("query", query, len(queries))
    height = min(MAX_HEIGHT, 1.4 * PIECE_ROOM * max(4, len(queries), len(keys)))
    size = (3.4 + _label_room(queries) + _label_room(keys), height + 0.8)
    is_drawn = scores > MIN_WEIGHT  # [N, Q, S]
    if query is not None:
        is_drawn &= np.arange(len(queries))[:, None] == query
    head, row, column = np.nonzero(is_drawn)
    apart = 0.7 * ((head + 0.5) / len(scores) - 0.5)  # the heads' lines are side by side
    ends = (column + 0.5 + apart) * len(queries) / len(keys) - 0.5  # in rows of the left column
    lines = np.stack([np.zeros_like(ends), row + apart, np.ones_like(ends), ends], axis=1)
    with drawing(style, size, [title, *queries, *keys]) as (figure, (panel,), theme):
        colors: Any = theme.colors[: len(scores)]
        if len(scores) > len(colors):
            from matplotlib import colormaps

            colors = colormaps["turbo"](np.linspace(0.1, 0.9, len(scores)))
        _draw_lines(panel, lines.reshape(-1, 2, 2), head, scores[is_drawn], colors)
        for axes, pieces in ((panel, queries), (panel.twinx(), keys)):
            axes.set(xlim=(-0.02, 1.02), ylim=(len(pieces) - 0.5, -0.5), xticks=[])
            axes.tick_params(length=0, labelsize=PIECE_SIZE)
            axes.spines[:].set_visible(False)
            _label_pieces(axes.yaxis, pieces, height)
        panel.legend(
            loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4, frameon=False, fontsize=PIECE_SIZE
        )
        figure.suptitle(title, fontsize=11)
    return figure


def _draw_lines(
    panel: "Axes", lines: np.ndarray, head: np.ndarray, weights: np.ndarray, colors: Any
) -> None:
    """Draws lines, float [lines, 2, 2], in the colors of their heads, and names the heads."""
    from matplotlib.collections import LineCollection
    from matplotlib.colors import to_rgba_array

    rgba = to_rgba_array(colors)[head]
    rgba[:, 3] = np.minimum(weights, 1.0)
    widths = 0.5 + 1.5 * rgba[:, 3]
    panel.add_collection(LineCollection(list(lines), linewidths=widths, colors=rgba))
    for index, color in enumerate(colors, start=1):
        panel.plot([], [], color=color, linewidth=2, label=f"Head {index}")


def alignment(
    scores: np.ndarray,
    queries: Sequence[str],
    keys: Sequence[str],
    *,
    head: int | None = None,
    title: str = "",
    style: Style = "light",
) -> "Figure":
    """Draws which source pieces the target's pieces attend to, by a head or by all.

    Other arguments are those of `attention_heads`.

    Args:
        head: which head, counted from 0; None for the mean of all.
    """
    scores = _checked(scores, queries, keys)
    _check_index("head", head, len(scores))
    weights = scores.mean(axis=0) if head is None else scores[head]  # [T, S]
    return _draw_weights(weights[None], [""], queries, keys, 1.5 * PIECE_ROOM, title, style)


def _checked(scores: np.ndarray, queries: Sequence[str], keys: Sequence[str]) -> np.ndarray:
    scores = np.asarray(scores)
    shape = scores.shape
    if len(shape) != 3 or shape[1:] != (len(queries), len(keys)) or 0 in shape:
        raise InputError(
            "`scores` must be of the shape (heads, queries, keys), with a piece for each query "
            f"and key. Received: {shape}, {len(queries)} queries and {len(keys)} keys"
        )
    return scores


def _check_index(name: str, index: int | None, count: int) -> None:
    is_place = index is None or 0 <= index < count
    require(is_place, f"`{name}` must be from 0 to {count - 1}", **{name: index})


def _draw_weights(
    weights: np.ndarray,
    names: Sequence[str],
    queries: Sequence[str],
    keys: Sequence[str],
    piece_room: float,
    title: str,
    style: Style,
) -> "Figure":
    """Draws a panel for each array [Q, S] of weights, under its name."""
    room = MAX_WIDTH - _label_room(queries) - 0.6  # inches for the panels and what is between them
    width = min(max(1.9, piece_room * len(keys)), room / min(len(weights), 2) - 0.15)
    height = min(max(1.3, piece_room * len(queries)), room / 2)
    # As many panels a row as there is room for, if all rows are full.
    max_columns = max(1, int(room / (width + 0.15)))
    columns = max(n for n in range(1, max_columns + 1) if len(weights) % n == 0)
    rows = len(weights) // columns
    size = (
        MAX_WIDTH - room + columns * (width + 0.15),
        _label_room(keys) + rows * (height + 0.35) + 0.3 * bool(title),
    )
    grid = {"nrows": rows, "ncols": columns, "sharex": True, "sharey": True}
    with drawing(style, size, [title, *queries, *keys], **grid) as (figure, panels, theme):
        for name, matrix, panel in zip(names, weights, panels, strict=True):
            image = show_heat(panel, matrix, theme.heat, weights.max())
            panel.set_title(name, fontsize=9)
            panel.tick_params(labelsize=PIECE_SIZE)
            panel.tick_params(axis="x", rotation=90)
        _label_pieces(panels[0].yaxis, queries, height)
        _label_pieces(panels[0].xaxis, keys, width)
        figure.colorbar(image, ax=panels, label="Weight", shrink=min(1, 3 / size[1]), pad=0.02)
        figure.suptitle(title, fontsize=11)
    return figure


def _label_pieces(axis: "Axis", pieces: Sequence[str], inches: float) -> None:
    """Labels an axis with evenly spaced pieces, as many as there is room for."""
    step = math.ceil(1.25 * PIECE_SIZE / 72 * len(pieces) / inches)
    ticks = range(0, len(pieces), step)
    axis.set_ticks(ticks, labels=[cut_piece(pieces[row]) for row in ticks])


def _label_room(pieces: Iterable[str]) -> float:
    """Returns about how many inches the longest label takes."""
    return 0.15 + 0.62 * PIECE_SIZE / 72 * max(len(cut_piece(piece)) for piece in pieces)
