"""Pictures of attention, encodings, schedules, trainings, corpora and translations.

Every function returns a Matplotlib figure, to show in a notebook or to save with `savefig`, in a
light or a dark style whose colours the colour-blind tell apart. They take plain arrays and lists,
and no model; Matplotlib is imported when one is called: `pip install 'keras3-transformer[plots]'`.

Shapes (the package's glossary): S source length, T target length, D d_model, N heads; Q queries.
"""

import itertools
import math
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.letters import BASE_FONT, NEEDS_MATPLOTLIB, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

Style = Literal["light", "dark"]


PIECE_SIZE = 8  # of the letters of a piece, in points
PIECE_ROOM = 0.15  # of a piece along an axis, in inches, where there are not too many
MAX_PIECE = 18  # characters; a longer piece is cut
MAX_WIDTH = 11.0  # of a figure of attention, in inches
MAX_POINTS = 2_000  # of a curve that is computed


class _Theme(NamedTuple):
    """Colours of a style.

    Attributes:
        paper: background.
        ink: text.
        soft: axes.
        faint: grid.
        colors: of curves; told apart by the colour-blind (Okabe and Ito 2008).
        heat: from the lowest to the highest weight, ever further from the paper.
        diverging: from -1 by 0 to 1.
    """

    paper: str
    ink: str
    soft: str
    faint: str
    colors: tuple[str, ...]
    heat: tuple[str, ...]
    diverging: tuple[str, ...]


_THEMES = {
    "light": _Theme(
        paper="#ffffff",
        ink="#1d2430",
        soft="#5a6475",
        faint="#e1e5ec",
        colors=("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#1d2430", "#e69f00"),
        heat=("#ffffff", "#a9c8e8", "#2f7fc1", "#0b3c74", "#041a38"),
        diverging=("#d55e00", "#ffffff", "#0072b2"),
    ),
    "dark": _Theme(
        paper="#1a202a",
        ink="#e6eaf1",
        soft="#9da8ba",
        faint="#343d4c",
        colors=("#56b4e9", "#e69f00", "#00b98a", "#cc79a7", "#e6eaf1", "#f0e442"),
        heat=("#1a202a", "#1f4f85", "#3d8fd9", "#9fd0ff", "#f4faff"),
        diverging=("#e69f00", "#1a202a", "#56b4e9"),
    ),
}
_DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)), (0, (6, 1.5, 1.5, 1.5)))


def attention_heads(
    scores: np.ndarray,
    queries: Sequence[str],
    keys: Sequence[str],
    *,
    title: str = "",
    style: Style = "light",
) -> "Figure":
    """Draws what each head of a layer attends to, a panel a head (cf. the paper's Figures 3 to 5).

    Args:
        scores: float [N, Q, S], a layer of `Translator.attention`.
        queries: the rows' pieces.
        keys: the columns' pieces.
        title: a heading.
        style: "light" or "dark".

    Raises:
        InputError: if the sizes do not fit, or Matplotlib is missing.

    Example:
        >>> from keras_transformer import Translator, plots
        >>> translator = Translator.load("my-run")  # where train wrote
        >>> attention = translator.attention("Two dogs play.")
        >>> figure = plots.attention_heads(
        ...     attention.cross[-1], attention.target_pieces, attention.source_pieces
        ... )
        >>> figure.savefig("heads.png")
    """
    _check_sizes(scores, queries, keys)
    num_heads = len(scores)
    left, below = _label_room(queries), _label_room(keys)
    widest = (MAX_WIDTH - left - 0.6) / min(num_heads, 2) - 0.15
    width = min(max(1.9, PIECE_ROOM * len(keys)), widest)
    height = min(max(1.3, PIECE_ROOM * len(queries)), widest)
    rows = math.ceil(num_heads / max(1, int((MAX_WIDTH - left - 0.6) / (width + 0.15))))
    columns = math.ceil(num_heads / rows)
    is_ragged = num_heads % columns > 0  # then the last row but one has labels below it, too
    size = (
        left + columns * (width + 0.15) + 0.6,
        below * (1 + is_ragged) + rows * (height + 0.35) + 0.3 * bool(title),
    )
    grid = {"nrows": rows, "ncols": columns, "sharex": True, "sharey": True}
    with _drawing(style, size, **grid) as (figure, panels, theme):
        for head, panel in enumerate(panels):
            if head >= num_heads:
                panel.set_axis_off()
                continue
            image = _heat(panel, scores[head], theme, scores.max())
            panel.set_title(f"Head {head + 1}", fontsize=9)
        for panel in panels[::columns]:
            _label_pieces(panel.yaxis, queries, height)
        # The last row may be short: the lowest panel of each column has the labels.
        lowest = panels[num_heads - columns : num_heads] if rows > 1 else panels
        for panel in lowest:
            _label_pieces(panel.xaxis, keys, width)
            panel.tick_params(axis="x", labelbottom=True)
        _label_bar(figure.colorbar(image, ax=panels, shrink=min(1, 3 / size[1]), pad=0.01), theme)
        _title(figure, title)
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

    Raises:
        InputError: if the sizes do not fit, or Matplotlib is missing.
    """
    _check_sizes(scores, queries, keys)
    if head is not None and not 0 <= head < len(scores):
        raise InputError(f"`head` must be from 0 to {len(scores) - 1}. Received: head={head}")
    weights = scores.mean(axis=0) if head is None else scores[head]  # [T, S]
    width, height = (
        min(max(2.0, 1.5 * PIECE_ROOM * len(pieces)), MAX_WIDTH - 2) for pieces in (keys, queries)
    )
    size = (width + _label_room(queries) + 0.8, height + _label_room(keys) + 0.3 * bool(title))
    with _drawing(style, size) as (figure, (panel,), theme):
        image = _heat(panel, weights, theme, weights.max())
        panel.xaxis.tick_top()
        _label_pieces(panel.xaxis, keys, width)
        _label_pieces(panel.yaxis, queries, height)
        _label_bar(figure.colorbar(image, ax=panel, shrink=min(1, 3 / height), pad=0.02), theme)
        _title(figure, title)
    return figure


def positional_encoding(encoding: np.ndarray, *, style: Style = "light") -> "Figure":
    """Draws what is added to the embedding at each position (section 3.5).

    Args:
        encoding: float [T, D], for example
            `sinusoidal_encoding(np.arange(100), d_model=512)`, or learned ones.
        style: "light" or "dark".

    Raises:
        InputError: if it is empty.
    """
    encoding = np.asarray(encoding)
    if not encoding.size:
        raise InputError(f"`encoding` must not be empty. Received: the shape {encoding.shape}")
    highest = float(np.abs(encoding).max())
    with _drawing(style, (8, 4.5)) as (figure, (panel,), theme):
        image = panel.imshow(
            encoding,
            aspect="auto",
            interpolation="nearest",
            cmap=_colormap(theme.diverging),
            vmin=-highest,
            vmax=highest,
        )
        panel.set(xlabel="Dimension", ylabel="Position")
        _label_bar(figure.colorbar(image, ax=panel, pad=0.02), theme, "Value")
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

    Raises:
        InputError: if there is no schedule, or no update.

    Example:
        >>> from keras_transformer import WarmupSchedule, plots
        >>> schedules = {name: WarmupSchedule(512, int(name)) for name in ("2000", "4000")}
        >>> figure = plots.learning_rate(schedules, steps=20_000)
        >>> [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
        ['2000', '4000']
    """
    if not schedules or steps < 1:
        raise InputError(
            "There must be a schedule and an update to draw. "
            f"Received: {len(schedules)} schedules, steps={steps}"
        )
    done = np.unique(np.linspace(0, steps - 1, min(steps, MAX_POINTS)).round().astype(int))
    with _drawing(style, (7.5, 4)) as (figure, (panel,), theme):
        looks = dict(zip(schedules, _looks(theme), strict=False))
        for name, schedule in schedules.items():
            panel.plot(done + 1, np.asarray(schedule(done)), **looks[name])
        panel.set(xlabel="Update", ylabel="Learning rate", xlim=(0, None), ylim=(0, None))
        panel.ticklabel_format(axis="y", style="sci", scilimits=(-2, 2), useMathText=True)
        _thousands(panel.xaxis)
        _grid(panel, theme)
        _legend(panel, theme, looks.items())
    return figure


def training_curves(
    runs: Mapping[str, Sequence[Mapping[str, float]]], *, style: Style = "light"
) -> "Figure":
    """Draws loss, perplexity and BLEU by update: validation full, training faint.

    Args:
        runs: by name, what `Run.metrics` returns; what nobody measured is left out.
        style: "light" or "dark".

    Raises:
        InputError: if there are no metrics, or Matplotlib is missing.
    """
    panels_of = [
        (label, metric)
        for label, metric in (
            ("Loss, label-smoothed", "loss"),
            ("Perplexity", "perplexity"),
            ("BLEU", "bleu"),
        )
        if any(f"{of}{metric}" in line for run in runs.values() for line in run for of in _SPLITS)
    ]
    if not panels_of:
        raise InputError("There are no metrics to draw: training has not got to a validation")
    size = (0.5 + 3.5 * len(panels_of), 3.7)
    with _drawing(style, size, ncols=len(panels_of)) as (figure, panels, theme):
        for panel, (label, metric) in zip(panels, panels_of, strict=True):
            for run, look in zip(runs.values(), _looks(theme), strict=False):
                for split, share in _SPLITS.items():
                    points = [
                        (line["step"], line[split + metric])
                        for line in run
                        if line.get(split + metric) is not None
                    ]
                    if points:
                        single = {"marker": "o"} if len(points) == 1 else {}
                        panel.plot(*zip(*points, strict=True), **{**look, **share, **single})
            panel.set(xlabel="Update", xlim=(0, None))
            panel.set_title(label)
            if metric == "perplexity":
                _log_scale(panel)
            _thousands(panel.xaxis)
            _grid(panel, theme)
        looks = [
            *({**look, "linewidth": 1.8} for look, _ in zip(_looks(theme), runs, strict=False)),
            *({**share, "color": theme.soft} for share in _SPLITS.values()),
        ]
        _legend(panels[0], theme, zip([*runs, "training", "validation"], looks, strict=True))
    return figure


# Prefix of the metrics' names -> how the curves differ.
_SPLITS: dict[str, dict[str, Any]] = {
    "": {"alpha": 0.6, "linewidth": 1.0},
    "val_": {"alpha": 1.0, "linewidth": 1.8},
}


def length_histogram(
    lengths: np.ndarray,
    *,
    names: tuple[str, str] = ("source", "target"),
    padding_share: float | None = None,
    style: Style = "light",
) -> "Figure":
    """Draws how long a corpus's sentences are.

    Args:
        lengths: int [rows, 2], tokens of both sides, such as `TokenizedPairs.lengths`.
        names: of the sides.
        padding_share: share of the positions of training's batches that are padding, such as
            `BatchPlan.padding_share`; None if it is not known.
        style: "light" or "dark".

    Raises:
        InputError: if there are none.
    """
    lengths = np.asarray(lengths)
    if not lengths.size:
        raise InputError(f"`lengths` must not be empty. Received: the shape {lengths.shape}")
    longest = int(lengths.max())
    step = math.ceil(longest / 60)
    edges = np.arange(1, longest + step + 1, step)
    facts = [f"{len(lengths):,} pairs"]
    if padding_share is not None:
        facts.append(f"{padding_share:.1%} of the positions in training's batches are padding")
    with _drawing(style, (7.5, 4)) as (figure, (panel,), theme):
        looks: dict[str, dict[str, Any]] = {}
        for side, name in enumerate(names):
            counts, _ = np.histogram(lengths[:, side], edges)
            median, most = int(np.median(lengths[:, side])), int(lengths[:, side].max())
            look: dict[str, Any] = {
                "color": theme.colors[side],
                "linestyle": _DASHES[side],
                "linewidth": 1.8,
            }
            looks[f"{name}: median {median}, longest {most}"] = look
            panel.stairs(counts, edges, **look)
            panel.stairs(counts, edges, fill=True, alpha=0.15, color=theme.colors[side])
        panel.set(xlabel="Tokens, the end included", ylabel="Sentences", xlim=(0, None))
        _thousands(panel.yaxis)
        _grid(panel, theme)
        _legend(panel, theme, looks.items())
        _title(figure, ", ".join(facts))
    return figure


def bleu_by_length(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    bounds: Sequence[int] | None = None,
    tokenize: str | None = None,
    lowercase: bool = False,
    title: str = "",
    style: Style = "light",
) -> "Figure":
    """Draws the BLEU of short and of long sentences.

    Args:
        hypotheses: translations, raw text.
        references: raw text.
        bounds: the longest length of each bar but the last; None for up to six bars of about as
            many sentences each.
        tokenize: sacreBLEU's tokeniser, in whose tokens the length of a reference is counted; None
            for its default.
        lowercase: whether case does not count.
        title: a heading.
        style: "light" or "dark".

    Raises:
        InputError: if there are not as many translations as references, or none.
    """
    import sacrebleu

    if not references or len(hypotheses) != len(references):
        raise InputError(
            "There must be a translation for each of some references. "
            f"Received: {len(hypotheses)} translations and {len(references)} references"
        )
    bleu = sacrebleu.BLEU(tokenize=tokenize, lowercase=lowercase)
    lengths = np.array([len(bleu.tokenizer(reference).split()) for reference in references])
    if bounds is None:
        bounds = np.unique(np.quantile(lengths, np.arange(1, 6) / 6, method="lower")).tolist()
    bars, labels = [], []
    for least, most in itertools.pairwise([-1, *bounds, int(lengths.max())]):
        rows = np.flatnonzero((lengths > least) & (lengths <= most)).tolist()
        if rows:
            columns = ([texts[row] for row in rows] for texts in (hypotheses, references))
            hypothesis, reference = columns
            bars.append(bleu.corpus_score(hypothesis, [reference]).score)
            shortest, longest = lengths[rows].min(), lengths[rows].max()
            span = f"{shortest}" if shortest == longest else f"{shortest}-{longest}"
            labels.append(f"{span}\nn = {len(rows):,}")
    with _drawing(style, (max(3.5, 1.5 + len(bars)), 3.7)) as (figure, (panel,), theme):
        drawn = panel.bar(range(len(bars)), bars, width=0.7, color=theme.colors[0])
        panel.bar_label(drawn, fmt="%.1f", padding=2, color=theme.ink, fontsize=9)
        panel.set_xticks(range(len(bars)), labels)
        panel.set(xlabel="Tokens of the reference, number of sentences", ylabel="BLEU")
        panel.margins(y=0.12)
        panel.set_ylim(0, max(1.0, panel.get_ylim()[1]))
        _grid(panel, theme, axis="y")
        _title(figure, title)
    return figure


# What the pictures share.


@contextmanager
def _drawing(
    style: Style, size: tuple[float, float], **grid: Any
) -> Iterator[tuple["Figure", list["Axes"], _Theme]]:
    """Yields an empty figure, its panels row by row, and their colours.

    The figure is laid out at the end, inside Matplotlib's default settings: what the user has set
    does not show, and what is set here does not stay. It is none of pyplot's, which would keep it.
    """
    if style not in _THEMES:
        raise InputError(f"`style` must be 'light' or 'dark'. Received: style={style!r}")
    theme = _THEMES[style]
    try:
        import matplotlib.style
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError(NEEDS_MATPLOTLIB) from error
    colors = {
        "figure.facecolor": theme.paper,
        "axes.facecolor": theme.paper,
        "axes.edgecolor": theme.soft,
        "axes.labelcolor": theme.ink,
        "axes.titlecolor": theme.ink,
        "text.color": theme.ink,
        "xtick.color": theme.soft,
        "ytick.color": theme.soft,
        "xtick.labelcolor": theme.ink,
        "ytick.labelcolor": theme.ink,
        "axes.titlesize": "medium",
        "font.family": [BASE_FONT],
        "font.size": 10,
    }
    with matplotlib.style.context(["default", colors]):
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(squeeze=False, **grid).ravel().tolist()
        yield figure, panels, theme
        figure.draw_without_rendering()  # makes the ticks, while the settings hold


def _check_sizes(scores: np.ndarray, queries: Sequence[str], keys: Sequence[str]) -> None:
    shape = np.shape(scores)
    if len(shape) != 3 or shape[1:] != (len(queries), len(keys)) or 0 in shape:
        raise InputError(
            "`scores` must be of the shape (heads, queries, keys), with a piece for each query "
            f"and key. Received: {shape}, {len(queries)} queries and {len(keys)} keys"
        )


def _colormap(colors: Sequence[str]) -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("keras_transformer", colors)


def _heat(panel: "Axes", weights: np.ndarray, theme: _Theme, highest: float) -> Any:
    image = panel.imshow(
        weights,
        aspect="auto",
        interpolation="nearest",
        cmap=_colormap(theme.heat),
        vmin=0,
        vmax=float(highest),
    )
    panel.tick_params(length=0)
    return image


def _label_bar(bar: Any, theme: _Theme, label: str = "Weight") -> None:
    bar.set_label(label)
    bar.outline.set_edgecolor(theme.soft)


def _title(figure: "Figure", title: str) -> None:
    if title:
        families, (text,) = printable([title])
        figure.suptitle(text, fontsize=11, fontfamily=families, parse_math=False)


def _grid(panel: "Axes", theme: _Theme, axis: Literal["both", "y"] = "both") -> None:
    panel.grid(axis=axis, color=theme.faint)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def _thousands(axis: "Axis") -> None:
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    axis.set_major_locator(MaxNLocator(5, integer=True))
    axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def _log_scale(panel: "Axes") -> None:
    """Few and plain numbers on a logarithmic axis: 5, 10, 20, not 4x10^0."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    panel.set_yscale("log")
    panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=9))
    panel.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    panel.yaxis.set_minor_formatter(NullFormatter())


def _looks(theme: _Theme) -> Iterator[dict[str, Any]]:
    """Colours and dashes of any number of curves, no two of the first 24 alike."""
    for index in itertools.count():
        yield {
            "color": theme.colors[index % len(theme.colors)],
            "linestyle": _DASHES[(index + index // len(theme.colors)) % len(_DASHES)],
        }


def _legend(panel: "Axes", theme: _Theme, entries: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Names curves by their looks; any characters are fine."""
    from matplotlib.lines import Line2D

    names, looks = zip(*entries, strict=True)
    families, texts = printable(names)
    lines = [Line2D([], [], label=str(index), **look) for index, look in enumerate(looks)]
    legend = panel.legend(handles=lines, facecolor=theme.paper, fontsize=9, handlelength=2.6)
    # A label that starts with an underscore would be left out: hence only now.
    for label, text in zip(legend.get_texts(), texts, strict=True):
        label.set(text=text, fontfamily=families, parse_math=False)
    legend.get_frame().set(edgecolor=theme.faint)


def _label_pieces(axis: "Axis", pieces: Sequence[str], room: float) -> None:
    """Writes pieces along an axis of some inches: as many as there is room for, evenly."""
    families, labels = _piece_labels(pieces)
    step = math.ceil(1.25 * PIECE_SIZE / (72 * room / len(pieces)))
    axis.set_ticks(
        range(0, len(pieces), step),
        labels=labels[::step],
        fontsize=PIECE_SIZE,
        fontfamily=families,
        rotation=90 if axis is axis.axes.xaxis else 0,
        parse_math=False,
    )


def _piece_labels(pieces: Sequence[str]) -> tuple[list[str], list[str]]:
    """Fonts and labels of pieces, of which long ones are cut."""
    families, labels = printable(pieces)
    return families, [
        text if len(text) <= MAX_PIECE else f"{text[: MAX_PIECE - 1]}…" for text in labels
    ]


def _label_room(pieces: Sequence[str]) -> float:
    """How long the longest label is, in inches; wide characters count twice."""
    _, labels = _piece_labels(pieces)
    letters = max(
        sum(1 + (unicodedata.east_asian_width(letter) == "W") for letter in label)
        for label in labels
    )
    return 0.15 + 0.62 * PIECE_SIZE / 72 * letters
