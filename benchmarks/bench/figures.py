"""The figures of the page."""

from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from bench.cases import DECODERS, TRAINERS
from bench.report import LABELS, Results

PANELS = {
    "decoding/base/forced/S25/B32/K4": "Base, beam 4, 32 sentences",
    "decoding/base/forced/S25/B1/K4": "Base, beam 4, 1 sentence",
    "multi30k/K4": "Multi30k test2016, beam 4",
    "training/tiny/multi30k": "Training, tiny, Multi30k's lengths",
    "training/base/wmt": "Training, base, WMT's lengths",
}


def draw(results: Results, page: Path) -> dict[str, str]:
    """Draws what was measured, beside the page; returns the files' names."""
    figures = {"speed": _speed(results), "growth": _growth(results)}
    names = {name: f"{page.stem}-{name}.png" for name, figure in figures.items() if figure}
    for name, file in names.items():
        figures[name].savefig(page.with_name(file), dpi=110)
    return names


def _speed(results: Results) -> Figure | None:
    rates = {
        title: results.systems(case, (TRAINERS if "training" in case else DECODERS)[::-1]).rate
        for case, title in PANELS.items()
        if case in results.cases.index
    }
    if not rates:
        return None
    figure = Figure(figsize=(8, 2.6 * len(rates)), layout="constrained")
    panels = figure.subplots(len(rates), squeeze=False).ravel()
    for panel, (title, found) in zip(panels, rates.items(), strict=True):
        labels = [LABELS[name] for name in found.index]
        colors = ["C0" if label.startswith("ours") else "C1" for label in labels]
        bars = panel.barh(labels, found, color=colors)
        panel.bar_label(bars, [f"{rate:,.0f}" for rate in found], padding=3)
        panel.set(title=title, xlim=(0, 1.12 * found.max()), xlabel="Target tokens per second")
        panel.spines[["top", "right"]].set_visible(False)
    figure.get_layout_engine().set(h_pad=0.12)  # inches: a title is apart from the axis above it
    return figure


def _growth(results: Results) -> Figure | None:
    axes = {name: frame for name, frame in results.growth() if len(frame) > 2}
    if not axes:
        return None
    rows, columns = -(-len(axes) // 3), min(3, len(axes))
    figure = Figure(figsize=(3.2 * columns, 2.6 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel in panels[len(axes) :]:
        panel.set_axis_off()
    for panel, (name, frame) in zip(panels, axes.items(), strict=False):
        panel.loglog(frame.value, frame.seconds, "o-", label="seconds")
        panel.loglog(frame.value, frame.grown / 1e9, "s--", label="gigabytes")
        panel.set(title=f"By {name}", ylabel="Seconds or gigabytes")
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_formatter("")
        panel.set_xticks(frame.value, [f"{value:,}" for value in frame.value], fontsize=8)
        panel.set_xticks([], minor=True)
        panel.grid(color="0.9")
    panels[0].legend(fontsize=8)
    return figure
