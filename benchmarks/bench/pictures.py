"""The pictures of the page."""

from pathlib import Path
from typing import Any

from bench.cases import DECODERS, TRAINERS
from bench.figures import LABELS, Results, best, growth_axes, growth_of, seconds, systems_of
from keras_transformer.plots import _drawing, _grid


def draw(results: Results, page: Path) -> dict[str, str]:
    """Draws what there are figures for, beside the page; returns the files' names."""
    pictures = {}
    for name, figure in (("speed", _draw_speed(results)), ("growth", _draw_growth(results))):
        if figure is not None:
            path = page.with_name(f"{page.stem}-{name}.png")
            figure.savefig(path, dpi=110)
            pictures[name] = path.name
    return pictures


def _draw_speed(results: Results) -> Any:
    panels_of = [
        ("Base, beam 4, 32 sentences", "decoding/base/forced/S25/B32/K4", DECODERS),
        ("Base, beam 4, 1 sentence", "decoding/base/forced/S25/B1/K4", DECODERS),
        ("Multi30k test2016, beam 4", "multi30k/K4", DECODERS),
        ("Training, tiny, Multi30k's lengths", "training/tiny/multi30k", TRAINERS),
        ("Training, base, WMT's lengths", "training/base/wmt", TRAINERS),
    ]
    panels_of = [each for each in panels_of if best(systems_of(results, each[1]), each[2])]
    if not panels_of:
        return None
    with _drawing("light", (8, 2.3 * len(panels_of)), nrows=len(panels_of)) as (
        figure,
        panels,
        theme,
    ):
        for panel, (title, name, systems) in zip(panels, panels_of, strict=True):
            found = systems_of(results, name)
            names = [system for system in reversed(systems) if system in found]
            rates = [found[system]["tokens"] / seconds(found[system]) for system in names]
            colors = [theme.colors[0 if LABELS[name].startswith("ours") else 1] for name in names]
            bars = panel.barh([LABELS[system] for system in names], rates, color=colors)
            panel.bar_label(bars, [f"{rate:,.0f}" for rate in rates], padding=3, color=theme.ink)
            panel.set_title(title)
            panel.set_xlim(0, 1.12 * max(rates))
            _grid(panel, theme)
        panels[-1].set_xlabel("Target tokens per second")
    return figure


def _draw_growth(results: Results) -> Any:
    axes = {name: cases for name, cases in growth_axes(results).items() if len(cases) > 2}
    if not axes:
        return None
    columns = min(3, len(axes))
    rows = -(-len(axes) // columns)
    with _drawing("light", (3.2 * columns, 2.6 * rows), nrows=rows, ncols=columns) as (
        figure,
        panels,
        theme,
    ):
        for panel in panels[len(axes) :]:
            panel.set_axis_off()
        for panel, (name, cases) in zip(panels, axes.items(), strict=False):
            values = [case["value"] for case in cases]
            times, memory = growth_of(cases)
            panel.loglog(values, times, "o-", color=theme.colors[0], label="seconds")
            gigabytes = [each / 1e9 for each in memory]
            panel.loglog(values, gigabytes, "s--", color=theme.colors[1], label="gigabytes")
            panel.set_title(name)
            panel.set_xticks(values, [f"{value:,}" for value in values], fontsize=8)
            panel.set_xticks([], minor=True)
            _grid(panel, theme)
        panels[0].legend(fontsize=8)
    return figure
