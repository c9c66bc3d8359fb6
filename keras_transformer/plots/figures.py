"""Pictures of attention, encodings, schedules, runs, corpora and translations.

Each function takes plain arrays and lists and returns a Matplotlib figure, in a light or a dark
style, to show in a notebook or to save with `savefig`. It raises an `InputError` if an argument is
wrong or Matplotlib is missing: `pip install 'keras3-transformer[plots]'`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_transformer.checkpoints import PER_TOKEN
from keras_transformer.errors import InputError
from keras_transformer.plots.style import (
    PIECE_SIZE,
    Style,
    Theme,
    cut_piece,
    drawing,
    show_grid,
    show_thousands,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

PIECE_ROOM = 0.15  # inches of a piece along an axis; less where there are many pieces
MAX_WIDTH = 11.0  # inches of a figure of attention
MAX_HEIGHT = 10.0  # inches of its lines
MIN_WEIGHT = 0.05  # lighter lines are left out: one is invisible, many together are not
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)), (0, (6, 1.5, 1.5, 1.5)))


def attention_heads(
    scores: np.ndarray,
    queries: Sequence[str],
    keys: Sequence[str],
    *,
    title: str = "",
    style: Style = "light",
) -> "Figure":
    """Draws a panel for each head of a layer: what it attends to (as the paper's Figures 3 to 5).

    Args:
        scores: float [N, Q, S], a layer of `Translator.attention`.
        queries: the rows' pieces.
        keys: the columns' pieces.
        title: a heading.
        style: "light" or "dark".

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
    """Draws lines from queries to what they attend to, a color for each head (Figures 3 to 5).

    A line is as opaque as its weight is large.

    Args:
        scores: float [N, Q, S], a layer of `Translator.attention`.
        queries: the left column's pieces.
        keys: the right column's pieces.
        query: whose lines to draw, counted from 0; None for all.
        title: a heading.
        style: "light" or "dark".

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
        from matplotlib import colormaps
        from matplotlib.collections import LineCollection
        from matplotlib.colors import to_rgba_array

        colors: Any = theme.colors[: len(scores)]
        if len(scores) > len(colors):
            colors = colormaps["turbo"](np.linspace(0.1, 0.9, len(scores)))
        rgba = to_rgba_array(colors)[head]
        rgba[:, 3] = np.minimum(scores[is_drawn], 1.0)
        widths = 0.5 + 1.5 * rgba[:, 3]
        segments = list(lines.reshape(-1, 2, 2))
        panel.add_collection(LineCollection(segments, linewidths=widths, colors=rgba))
        for index, color in enumerate(colors, start=1):
            panel.plot([], [], color=color, linewidth=2, label=f"Head {index}")
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


def alignment(
    scores: np.ndarray,
    queries: Sequence[str],
    keys: Sequence[str],
    *,
    head: int | None = None,
    title: str = "",
    style: Style = "light",
) -> "Figure":
    """Draws which source pieces each target piece attends to.

    Args:
        scores: float [N, T, S], a layer's cross-attention of `Translator.attention`.
        queries: the target's pieces.
        keys: the source's pieces.
        head: which head, counted from 0; None for the mean of all.
        title: a heading.
        style: "light" or "dark".
    """
    scores = _checked(scores, queries, keys)
    _check_index("head", head, len(scores))
    weights = scores.mean(axis=0) if head is None else scores[head]  # [T, S]
    return _draw_weights(weights[None], [""], queries, keys, 1.5 * PIECE_ROOM, title, style)


def positional_encoding(encoding: np.ndarray, *, style: Style = "light") -> "Figure":
    """Draws what is added to the embedding at each position (section 3.5).

    Args:
        encoding: float [T, D], for example
            `sinusoidal_encoding(np.arange(100), d_model=512)`, or learned ones.
        style: "light" or "dark".
    """
    encoding = np.asarray(encoding)
    highest = np.abs(encoding).max()
    with drawing(style, (8, 4.5)) as (figure, (panel,), theme):
        image = _heat(panel, encoding, theme.diverging, highest, lowest=-highest)
        panel.set(xlabel="Dimension", ylabel="Position")
        figure.colorbar(image, ax=panel, label="Value", pad=0.02)
    return figure


def learning_rate(
    schedules: Mapping[str, Callable[[np.ndarray], Any]], steps: int, *, style: Style = "light"
) -> "Figure":
    """Draws learning rates by update (section 5.3).

    Args:
        schedules: by name, functions of the number of updates so far, int [steps], such as
            `WarmupSchedule(d_model=512, warmup_steps=4000)`.
        steps: number of updates to draw.
        style: "light" or "dark".

    Example:
        >>> from keras_transformer import WarmupSchedule, plots
        >>> schedules = {name: WarmupSchedule(512, int(name)) for name in ("2000", "4000")}
        >>> figure = plots.learning_rate(schedules, steps=20_000)
        >>> [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
        ['2000', '4000']
    """
    done = np.arange(steps)
    with drawing(style, (7.5, 4), schedules) as (figure, (panel,), theme):
        for index, (name, schedule) in enumerate(schedules.items()):
            panel.plot(done + 1, np.asarray(schedule(done)), label=name, **_look(theme, index))
        panel.set(xlabel="Update", ylabel="Learning rate", xlim=(0, None), ylim=(0, None))
        panel.yaxis.set_major_formatter("{x:g}")
        show_thousands(panel.xaxis)
        show_grid(panel)
        panel.legend()
    return figure


# Prefix of the metrics' names -> how the curves differ.
_SPLITS = {"": {"alpha": 0.6, "linewidth": 1.0}, "val_": {"alpha": 1.0, "linewidth": 1.8}}
# Other metrics, which are scores, have their name in capitals.
_TITLES = {"loss": "Loss with label smoothing", "perplexity": "Perplexity", "chrf": "chrF"}


def training_curves(
    runs: Mapping[str, Sequence[Mapping[str, float]]], *, style: Style = "light"
) -> "Figure":
    """Draws loss, perplexity and scores by update: validation bold, training faint.

    Args:
        runs: by name, what `Run.metrics` returns; a metric that no run has gets no panel.
        style: "light" or "dark".
    """
    measured = {name for metrics in runs.values() for line in metrics for name in line}
    means = ("loss", "perplexity")
    shown = [name for name in means if measured & {f"{split}{name}" for split in _SPLITS}]
    scores = (name for name in measured - {*PER_TOKEN} if name.startswith("val_"))
    shown += sorted(name.removeprefix("val_") for name in scores)
    if not shown:
        raise InputError("There are no metrics to draw: training has not reached a validation")
    size = (2.0 + 3.5 * len(shown), 3.7)
    with drawing(style, size, runs, ncols=len(shown)) as (figure, panels, theme):
        from matplotlib.lines import Line2D
        from matplotlib.ticker import LogLocator

        looks = [_look(theme, index) for index in range(len(runs))]
        for panel, metric in zip(panels, shown, strict=True):
            for metrics, look in zip(runs.values(), looks, strict=True):
                for split, weight in _SPLITS.items():
                    name = f"{split}{metric}"
                    points = [(each["step"], each[name]) for each in metrics if name in each]
                    if points:
                        marker = "o" if len(points) == 1 else None
                        panel.plot(*zip(*points, strict=True), marker=marker, **(look | weight))
            title = _TITLES.get(metric, metric.upper())
            panel.set(title=title, xlabel="Update", xlim=(0, None))
            if metric == "perplexity":
                panel.set_yscale("log")
                panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                panel.yaxis.set_major_formatter("{x:,g}")
                panel.yaxis.set_minor_formatter("")
            show_thousands(panel.xaxis)
            show_grid(panel)
        lines = [look | _SPLITS["val_"] for look in looks]
        lines += [weight | {"color": "gray"} for weight in _SPLITS.values()]
        handles = [Line2D([], [], **line) for line in lines]
        names = [*runs, "training", "validation"]
        # Beside the panels: many curves leave no room within.
        panels[-1].legend(handles, names, handlelength=2.6, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def length_histogram(
    lengths: np.ndarray,
    *,
    names: tuple[str, str] = ("source", "target"),
    padding_share: float | None = None,
    style: Style = "light",
) -> "Figure":
    """Draws how long a corpus's sentences are.

    Args:
        lengths: int [rows, 2], tokens of both sides, such as `StoredPairs.lengths`.
        names: of the sides.
        padding_share: share of the positions of training's batches that are padding, such as
            `BatchPlan.padding_share`; None if it is not known.
        style: "light" or "dark".
    """
    lengths = np.asarray(lengths)
    longest = int(lengths.max())
    step = math.ceil(longest / 60)
    edges = np.arange(1, longest + step + 1, step)
    title = f"{len(lengths):,} pairs"
    if padding_share is not None:
        title += f", {padding_share:.1%} of the positions in training's batches are padding"
    with drawing(style, (7.5, 4), names) as (figure, (panel,), theme):
        for side, name in enumerate(names):
            column = lengths[:, side]
            counts, _ = np.histogram(column, edges)
            label = f"{name}: median {np.median(column):.0f}, longest {column.max()}"
            look = _look(theme, side)
            panel.stairs(counts, edges, linewidth=1.8, label=label, **look)
            panel.stairs(counts, edges, fill=True, alpha=0.15, color=look["color"])
        panel.set(xlabel="Tokens, the end included", ylabel="Sentences", xlim=(0, None))
        show_thousands(panel.yaxis)
        show_grid(panel)
        panel.legend()
        figure.suptitle(title, fontsize=11)
    return figure


def bleu_by_length(
    groups: Iterable[tuple[int, int, int, float]],
    *,
    tokenize: str = "13a",
    title: str = "",
    style: Style = "light",
) -> "Figure":
    """Draws the BLEU of short and of long sentences.

    Args:
        groups: of sentences of about one length, such as those of
            `trainers.scoring.breakdown.bleu_by_length`: the shortest and the longest length, the
            number of sentences, and their BLEU.
        tokenize: the tokenizer of sacreBLEU that counts the tokens.
        title: a heading.
        style: "light" or "dark".
    """
    groups = list(groups)
    if not groups:
        raise InputError("`groups` must hold a group of sentences. Received: none")
    spans = [f"{first}" if first == last else f"{first}-{last}" for first, last, *_ in groups]
    names = [f"{span}\nn = {group[2]:,}" for span, group in zip(spans, groups, strict=True)]
    scores = [score for *_, score in groups]
    with drawing(style, (max(3.5, 1.5 + len(groups)), 3.7), [title]) as (figure, (panel,), theme):
        bars = panel.bar(range(len(groups)), scores, width=0.7, color=theme.colors[0])
        panel.bar_label(bars, fmt="%.1f", padding=2, fontsize=9)
        panel.set_xticks(range(len(groups)), names)
        panel.set(xlabel=f"Tokens of the reference ({tokenize})", ylabel="BLEU")
        panel.set_ylim(0, max(1.0, 1.12 * max(scores)))
        show_grid(panel, axis="y")
        figure.suptitle(title, fontsize=11)
    return figure


def bleu_by_noise(
    clean: float, changed: Mapping[str, float], *, style: Style = "light"
) -> "Figure":
    """Draws the BLEU of text that was changed in several ways, beside that of clean text.

    Args:
        clean: BLEU of the text as it is.
        changed: BLEU by the name of the change.
        style: "light" or "dark".
    """
    scores = {"as it is": clean, **changed}
    with drawing(style, (7.5, 0.9 + 0.32 * len(scores)), scores) as (figure, (panel,), theme):
        colors = [theme.colors[1], *[theme.colors[0]] * len(changed)]
        bars = panel.barh(list(scores), list(scores.values()), height=0.7, color=colors)
        panel.bar_label(bars, fmt="%.1f", padding=3, fontsize=9)
        panel.axvline(clean, color=theme.colors[1], linewidth=1)
        panel.invert_yaxis()
        panel.set(xlabel="BLEU", xlim=(0, max(1.0, 1.12 * max(scores.values()))))
        show_grid(panel, axis="x")
    return figure


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
    if index is not None and not 0 <= index < count:
        raise InputError(f"`{name}` must be from 0 to {count - 1}. Received: {name}={index}")


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
        for name, each, panel in zip(names, weights, panels, strict=True):
            image = _heat(panel, each, theme.heat, weights.max())
            panel.set_title(name, fontsize=9)
            panel.tick_params(labelsize=PIECE_SIZE)
            panel.tick_params(axis="x", rotation=90)
        _label_pieces(panels[0].yaxis, queries, height)
        _label_pieces(panels[0].xaxis, keys, width)
        figure.colorbar(image, ax=panels, label="Weight", shrink=min(1, 3 / size[1]), pad=0.02)
        figure.suptitle(title, fontsize=11)
    return figure


def _look(theme: Theme, index: int) -> dict[str, Any]:
    """Returns the color and the dashes of a curve."""
    return {
        "color": theme.colors[index % len(theme.colors)],
        "linestyle": DASHES[index % len(DASHES)],
    }


def _heat(
    panel: "Axes", values: np.ndarray, colormap: str, highest: float, lowest: float = 0.0
) -> "AxesImage":
    panel.tick_params(length=0)
    return panel.imshow(
        values, aspect="auto", interpolation="nearest", cmap=colormap, vmin=lowest, vmax=highest
    )


def _label_pieces(axis: "Axis", pieces: Sequence[str], inches: float) -> None:
    """Labels an axis with evenly spaced pieces, as many as there is room for."""
    step = math.ceil(1.25 * PIECE_SIZE / 72 * len(pieces) / inches)
    ticks = range(0, len(pieces), step)
    axis.set_ticks(ticks, labels=[cut_piece(pieces[row]) for row in ticks])


def _label_room(pieces: Iterable[str]) -> float:
    """Returns about how many inches the longest label takes."""
    return 0.15 + 0.62 * PIECE_SIZE / 72 * max(len(cut_piece(piece)) for piece in pieces)
