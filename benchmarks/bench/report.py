"""The page of benchmarks: medians, ratios and shares of the rounds that `bench run` measured."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import jinja2
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from bench.cases import CEILINGS, all_cases
from bench.systems import LABELS

TEMPLATE = Path(__file__).with_name("page.md.jinja")
BUSY = 0.15  # cores that other processes may use
# Only some kinds of cases have these; a run of others does not write them.
COUNTS = ("tokens", "flops", "grown", "peak", "prepare", "same", "bleu", "sentences")
COUNTS += ("import", "load", "first", "bytes", "p50", "p99")

FIT, TORCH = ("fit", "fit-xla"), ("torch-transformer",)
HUB = ("keras-hub-fit", "keras-hub-fit-xla")
BATCH, ONE = "decoding/base/forced/S25/B32/K4", "decoding/base/forced/S25/B1/K4"
SMALL_ONE, SMALL_BATCH = "decoding/tiny/forced/S25/B1/K4", "decoding/tiny/forced/S25/B32/K4"
FLOAT32, INT8 = ["ctranslate2", "ctranslate2-split"], ["ctranslate2-int8", "ctranslate2-int8-split"]
BFLOAT16 = ["session-bfloat16"]
# A label, a case, systems of ours, systems of peers, and how many times as fast the fastest of ours
# must be.
TARGETS = [
    ("Decoding, base, 32 sentences, beam 4", BATCH, ["session"], FLOAT32, 1.35),
    ("the same", BATCH, ["session"], ["marian"], 1.6),
    ("the same in bfloat16", BATCH, BFLOAT16, INT8, 0.8),
    ("Decoding, base, one sentence, beam 4", ONE, ["session"], FLOAT32, 1.0),
    ("the same one sentence", ONE, ["session"], ["marian"], 2.5),
    ("Decoding, tiny, 32 sentences, beam 4", SMALL_BATCH, ["session"], FLOAT32, 1.2),
    ("Decoding, tiny, one sentence, beam 4", SMALL_ONE, ["session"], FLOAT32, 0.45),
    ("Multi30k, text to text, beam 4", "multi30k/K4", ["session"], FLOAT32, 0.95),
    ("the same in bfloat16", "multi30k/K4", BFLOAT16, FLOAT32, 1.1),
    ("Multi30k, text to text, greedy", "multi30k/K1", ["session"], FLOAT32, 1.0),
] + [
    (f"Training, {size}, lengths of {name}", f"training/{size}/{name.lower()}", FIT, peers, ratio)
    for size, ratios in (("tiny", (2.0, 1.3)), ("base", (1.5, 1.3)))
    for name in ("Multi30k", "WMT")
    for peers, ratio in zip((TORCH, HUB), ratios, strict=True)
]
PANELS = {
    BATCH: "Base, beam 4, 32 sentences",
    ONE: "Base, beam 4, 1 sentence",
    "multi30k/K4": "Multi30k test2016, beam 4",
    "training/tiny/multi30k": "Training, tiny, Multi30k's lengths",
    "training/base/wmt": "Training, base, WMT's lengths",
}
# Columns of tables: heads, where they differ from the name, and forms, where they are numbers.
HEADS = {"kind": "", "size": "", "label": "", "rate": "target tokens per second"}
HEADS |= {"sentences": "captions", "bleu": "BLEU, lower-cased", "peak": "memory"}
HEADS |= {"requests": "requests per second", "p50": "median, ms", "p99": "99th percentile, ms"}
HEADS |= {"same": "equal to our first row's", "first": "first translation", "bytes": "on disk"}
FORMS = dict.fromkeys(("seconds", "bleu", "import", "load", "first"), "{:.2f}")
FORMS |= {"rate": "{:,.0f}", "same": "{:.1%}", "prepare": "{:.1f}"}
FORMS |= dict.fromkeys(("peak", "bytes", "sentences", "requests", "p50", "p99"), "{:,.0f}")
OF_TEXTS = ("sentences", "beam", "label", "rate", "seconds", "bleu", "same")
OF_CLIENTS = ("clients", "label", "requests", "p50", "p99")
OF_STARTS = ("size", "label", "import", "load", "first", "seconds", "peak", "bytes")


class Results:
    """Rounds with their cases.

    Attributes:
        rounds: a row for each case, system and round, as `bench run` writes them.
        rows: a row for each case and system: the medians, the `rate`, and the case's values.
    """

    def __init__(self, rounds: pd.DataFrame) -> None:
        self.rounds = rounds.reindex(columns=list(dict.fromkeys([*rounds.columns, *COUNTS])))
        cases = pd.DataFrame([*all_cases()]).set_index("id").convert_dtypes()
        medians = self.rounds.groupby(["case", "system"]).median(numeric_only=True).reset_index()
        medians["label"] = medians.system.map(LABELS)
        medians["rate"] = medians.tokens / medians.seconds
        medians["requests"] = medians.sentences / medians.seconds
        medians[["peak", "bytes"]] /= 1e6  # megabytes
        order = {name: number for number, name in enumerate([*cases.index, *LABELS])}
        medians = medians.sort_values(["case", "system"], key=lambda names: names.map(order))
        self.rows = medians.join(cases, on="case")

    def kind(self, *kinds: str) -> pd.DataFrame:
        return self.rows[self.rows.kind.isin(kinds) & ~self.rows.system.isin(CEILINGS)]

    def seconds(self, case: str, systems: Sequence[str]) -> pd.Series:
        """The median seconds of those of the systems that were measured."""
        rows = self.rows[self.rows.case == case].set_index("system")
        return rows.seconds.reindex(systems).dropna()

    def ratio(self, case: str, ours: Sequence[str], peers: Sequence[str]) -> tuple[str, float]:
        """The fastest peer, and how many times as fast our fastest system is. NaN: not measured.

        It is the median over the rounds: what slows a round slows both systems.
        """
        found = [self.seconds(case, names) for names in (ours, peers)]
        peer = peers[-1] if found[1].empty else str(found[1].idxmin())
        if any(seconds.empty for seconds in found):
            return peer, np.nan
        rounds = self.rounds[self.rounds.case == case]
        seconds = rounds.pivot(index="round", columns="system", values="seconds")
        return peer, float((seconds[peer] / seconds[found[0].idxmin()]).median())

    def share(self, case: str, systems: Sequence[str]) -> float:
        """Part of the ceiling that the fastest of the systems reaches. NaN: not measured."""
        ours = self.rows[(self.rows.case == case) & self.rows.system.isin(systems)]
        ceiling = self.rounds[(self.rounds.case == case) & self.rounds.system.isin(CEILINGS)]
        rate, highest = ((each.flops / each.seconds).max() for each in (ours, ceiling))
        return float(rate / highest)


def write(rounds: Path, page: Path, release: Path) -> None:
    """Writes the page, the picture beside it, and the table of a release, of a table of rounds."""
    results = Results(pd.read_csv(rounds))
    picture = page.with_name(f"{page.stem}-speed.png")
    page.write_text(render(results, draw(results, picture)), encoding="utf-8")
    found = results.rounds[~results.rounds.system.isin(CEILINGS)]
    found = found.groupby(["case", "system"], sort=False)
    seconds = found.seconds.agg(rounds="count", median="median", min="min")
    table = seconds.join(found[["tokens", "machine"]].first())
    table.to_csv(release, float_format="%.4g")
    print(f"Wrote {page} and {release}")


def draw(results: Results, path: Path) -> str | None:
    """Draws the speed of what was measured; returns the file's name."""
    rows = results.rows.dropna(subset="label")
    shown = [case for case in PANELS if (rows.case == case).any()]
    if not shown:
        return None
    figure = Figure(figsize=(8, 2.6 * len(shown)), layout="constrained")
    for panel, case in zip(figure.subplots(len(shown), squeeze=False).flat, shown, strict=True):
        found = rows[rows.case == case].set_index("label").rate[::-1]
        colors = ["C0" if label.startswith("ours") else "C1" for label in found.index]
        panel.bar_label(panel.barh(found.index, found, color=colors), fmt="{:,.0f}", padding=3)
        panel.set(title=PANELS[case], xlabel="Target tokens per second")
        panel.margins(x=0.12)
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    return path.name


def render(results: Results, picture: str | None) -> str:
    rounds, rows = results.rounds, results.rows
    products = rows[rows.system.isin(CEILINGS)]
    same = rows[rows.beam == 1].groupby("label", sort=False).same.mean().dropna()
    busy = rounds[rounds.busy > BUSY].case.nunique()
    template = jinja2.Template(TEMPLATE.read_text("utf-8"), trim_blocks=True)
    page = template.render(
        picture=picture,
        dates=" to ".join(sorted({rounds.when.min()[:10], rounds.when.max()[:10]})),
        last=rounds.iloc[-1],
        ceilings=dict((products.flops / products.seconds / 1e9).groupby(products.system).median()),
        same=", ".join(f"{label} {share:.1%}" for label, share in same.items()),
        several=rounds.revision.nunique() > 1 or rounds.machine.nunique() > 1,
        busy=busy and f"{busy} of {rounds.case.nunique()}",
        targets=_targets(results),
        decoding=list(_decoding(results)),
        multi30k=table(results.kind("multi30k"), *OF_TEXTS),
        serving=table(results.kind("serving"), *OF_CLIENTS),
        training=_rates(results, results.kind("training"), ["size", "lengths"], FIT),
        growth=_growth(results),
        start=table(results.kind("start"), *OF_STARTS),
        pipeline=results.kind("pipeline").to_dict("records"),
    )
    return re.sub(r"\n{3,}", "\n\n", page).strip() + "\n"


def table(rows: pd.DataFrame, *names: str) -> str:
    cells = {name: rows[name].map(FORMS.get(name, "{}").format, "ignore") for name in names}
    return markdown(pd.DataFrame(cells), [HEADS.get(name, name) for name in names])


def markdown(cells: pd.DataFrame, heads: Sequence[str]) -> str:
    """A table of Markdown, or nothing if it has no rows."""
    if cells.empty:
        return ""
    cells = cells.astype(object).fillna("-")
    return cells.to_markdown(index=False, headers=heads, disable_numparse=True)


def _rates(results: Results, rows: pd.DataFrame, names: list[str], ours: Sequence[str]) -> str:
    """Tokens per second by case and system, the highest of a case in bold."""
    cases = rows.groupby("case", sort=False)[names].first()
    rates = rows.pivot(index="case", columns="system", values="rate").reindex(cases.index)
    rates = rates[[name for name in LABELS if name in rates]]
    best = rates.eq(rates.max(axis="columns"), axis="index")
    cells = rates.map("{:,.0f}".format, "ignore").astype(object)
    cells = cases.join(cells.mask(best, "**" + cells + "**"))
    shares = pd.Series({case: results.share(case, ours) for case in cases.index}, dtype=float)
    cells["our best, of the ceiling"] = shares.map("{:.0%}".format, "ignore")
    return markdown(cells, [LABELS.get(name, HEADS.get(name, name)) for name in cells])


def _targets(results: Results) -> str:
    rows = []

    def add(ours: str, over: str, target: str, form: str, value: float, margin: float) -> None:
        verdict = "not measured" if pd.isna(margin) else "reached" if margin >= 0 else "not reached"
        rows.append([ours, over, target, "-" if pd.isna(value) else form.format(value), verdict])

    for label, case, ours, peers, least in TARGETS:
        peer, ratio = results.ratio(case, ours, peers)
        add(label, LABELS[peer], f"{least:.2f} x", "**{:.2f} x**", ratio, ratio - least)
    share, label = results.share("training/base/full", FIT), "Training step, base, without padding"
    add(label, "matrix product", "75%", "**{:.0%}**", share, share - 0.75)
    start = results.seconds("start/tiny", ["session"]).min()
    label = "From the shell to the first translation, tiny"
    add(label, "-", "below 4 s", "**{:.1f} s**", start, 4 - start)
    short, long = (
        results.seconds(f"growth-base/target/{length:05}", ["process"]).min() / length
        for length in (32, 256)
    )
    label, cost = "Cost of a target token at 256, base, beam 4", long / short
    add(label, "at 32", "below 1.5 x", "**{:.2f} x**", cost, 1.5 - cost)
    return markdown(pd.DataFrame(rows), ["ours", "over", "target", "measured", ""])


def _decoding(results: Results) -> Iterator[tuple[str, int | None, str]]:
    """Yields a title, the length if it is forced, and a table, for each size of model."""
    shape = ["source", "batch", "beam"]
    rows = results.kind("decoding").sort_values(shape, kind="stable")
    for (size, is_natural), group in rows.groupby(["size", rows.target.isna()]):
        title = f"{size.capitalize()}, {'natural stop' if is_natural else 'forced length'}"
        length = None if is_natural else group.target.iloc[0]
        yield title, length, _rates(results, group, shape, ("session", "process"))


def _growth(results: Results) -> str:
    """The times and the memory of each axis, and the exponents p of y = c x^p."""
    rows = []
    for axis, found in results.kind("growth").groupby("axis", sort=False):
        found = found.set_index("value")
        seconds = found[found.system == "process"].seconds
        megabytes = found[found.system == "memory"].grown.clip(lower=2**20) / 1e6
        table = pd.concat([seconds, megabytes], axis="columns").dropna().reset_index()
        if len(table) > 1:
            sizes, *costs = np.log(table.to_numpy(float)).T
            exponents = [f"**{np.polyfit(sizes, each, 1)[0]:.2f}**" for each in costs]
            forms = zip(("{:,.0f}", "{:.3g}", "{:,.0f}"), table.to_numpy(float).T, strict=True)
            cells = [" ".join(map(form.format, column)) for form, column in forms]
            rows.append([axis, *cells[:2], exponents[0], cells[2], exponents[1]])
    heads = ["", "sizes", "seconds", "exponent", "megabytes", "exponent"]
    return markdown(pd.DataFrame(rows), heads)
