"""Pictures of encodings, schedules, runs, corpora and scores."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_transformer.checkpoints import PER_TOKEN
from keras_transformer.errors import InputError
from keras_transformer.plots.style import (
    Style,
    Theme,
    drawing,
    show_grid,
    show_heat,
    show_thousands,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)), (0, (6, 1.5, 1.5, 1.5)))


def positional_encoding(encoding: np.ndarray, *, style: Style = "light") -> "Figure":
    """Draws what is added to the embedding at each position (section 3.5).

    Args:
        encoding: float [T, D], for example
            `sinusoidal_encoding(np.arange(100), d_model=512)`, or learned ones.
    """
    encoding = np.asarray(encoding)
    highest = np.abs(encoding).max()
    with drawing(style, (8, 4.5)) as (figure, (panel,), theme):
        image = show_heat(panel, encoding, theme.diverging, highest, lowest=-highest)
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
                    points = [(line["step"], line[name]) for line in metrics if name in line]
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


def _look(theme: Theme, index: int) -> dict[str, Any]:
    """Returns the color and the dashes of a curve."""
    color = theme.colors[index % len(theme.colors)]
    return {"color": color, "linestyle": DASHES[index % len(DASHES)]}
