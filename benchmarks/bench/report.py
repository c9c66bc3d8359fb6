"""The page of benchmarks: medians, ratios and shares of the rounds that `bench run` measured."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import jinja2
import numpy as np
import pandas as pd

from bench.cases import CEILINGS, all_cases

LABELS = {
    "session": "ours, SavedModel in a Session",
    "session-bfloat16": "ours, Session in bfloat16",
    "process": "ours, in process",
    "ctranslate2": "CTranslate2 float32",
    "ctranslate2-int8": "CTranslate2 int8",
    "marian": "MarianMT, generate",
    "keras-hub": "KerasHub, XLA",
    "fit": "ours",
    "fit-xla": "ours, XLA",
    "keras-hub-fit": "KerasHub",
    "keras-hub-fit-xla": "KerasHub, XLA",
    "torch-transformer": "torch nn.Transformer",
    "marian-training": "torch MarianMT",
}
TEMPLATE = Path(__file__).with_name("page.md.jinja")
BUSY = 0.15  # cores that other processes may use
# Only some kinds of cases have these; a run of others does not write them.
COUNTS = ("tokens", "flops", "grown", "peak", "prepare", "same", "bleu", "sentences")
COUNTS += ("import", "load", "first", "bytes", "pairs_per_second")
MIN_SHARE = 0.75  # of the ceiling, for a training step of base
MAX_START = 4.0  # seconds, from the shell to the first translation of tiny
MAX_COST = 1.5  # of a target token at 256, over that at 32

FIT, TORCH = ("fit", "fit-xla"), ("torch-transformer",)
HUB = ("keras-hub-fit", "keras-hub-fit-xla")
BATCH, ONE = "decoding/base/forced/S25/B32/K4", "decoding/base/forced/S25/B1/K4"
SMALL_ONE = ONE.replace("base", "tiny")
# A label, a case, systems of ours, systems of peers, and how many times as fast the fastest of ours
# must be.
TARGETS = [
    ("Decoding, base, one sentence, beam 4", ONE, ["session"], ["ctranslate2"], 1.0),
    ("the same in bfloat16", ONE, ["session-bfloat16"], ["ctranslate2"], 1.3),
    ("the same in float32", ONE, ["session"], ["marian"], 2.5),
    ("Decoding, tiny, one sentence, beam 4", SMALL_ONE, ["session"], ["ctranslate2"], 0.7),
    ("Decoding, base, 32 sentences, beam 4", BATCH, ["session"], ["ctranslate2"], 1.5),
    ("the same", BATCH, ["session"], ["ctranslate2-int8"], 1.0),
    ("the same", BATCH, ["session"], ["marian"], 1.6),
    ("Multi30k, text to text, beam 4", "multi30k/K4", ["session"], ["ctranslate2"], 1.1),
] + [
    (f"Training, {size}, lengths of {name}", f"training/{size}/{name.lower()}", FIT, peers, ratio)
    for size, ratios in (("tiny", (2.0, 1.3)), ("base", (1.5, 1.3)))
    for name in ("Multi30k", "WMT")
    for peers, ratio in zip((TORCH, HUB), ratios, strict=True)
]
# Tables of the page: columns of `Results.rows`, with a head and a form.
SYSTEM = {"label": ("", "{}")}
STARTS = {"size": ("", "{}"), **SYSTEM, "import": ("import", "{:.2f}"), "load": ("load", "{:.2f}")}
STARTS |= {"first": ("first translation", "{:.2f}"), "seconds": ("all", "{:.2f}")}
STARTS |= {"peak_mb": ("memory", "{:,.0f}"), "mb": ("on disk", "{:,.0f}")}
PEAKS = {name: STARTS[name] for name in ("size", "label", "peak_mb")}
MULTI30K = {**SYSTEM, "rate": ("target tokens per second", "{:,.0f}")}
MULTI30K |= {"seconds": ("seconds", "{:.2f}"), "bleu": ("BLEU, lower-cased", "{:.2f}")}
MULTI30K |= {"same": ("equal to our first row's", "{:.1%}")}
PREPARATION = {"kind": ("", "{}"), "size": ("", "{}"), **SYSTEM, "prepare": ("s", "{:.1f}")}


class Results:
    """Rounds with their cases.

    Attributes:
        rounds: a row for each case, system and round, as `bench run` writes them.
        rows: a row for each case and system: medians, what is computed of them, and the case.
    """

    def __init__(self, rounds: pd.DataFrame) -> None:
        self.rounds = rounds.reindex(columns=list(dict.fromkeys([*rounds.columns, *COUNTS])))
        cases = pd.DataFrame([*all_cases()]).set_index("id").convert_dtypes()
        medians = self.rounds.groupby(["case", "system"]).median(numeric_only=True).reset_index()
        order = {name: number for number, name in enumerate([*cases.index, *LABELS])}
        self.rows = (
            medians.join(cases, on="case")
            .sort_values(["case", "system"], key=lambda names: names.map(order))
            .assign(
                label=medians.system.map(LABELS),
                rate=medians.tokens / medians.seconds,
                peak_mb=medians.peak / 1e6,
                mb=medians.bytes / 1e6,
            )
        )

    def kind(self, kind: str) -> pd.DataFrame:
        """The rows of a kind of cases."""
        return self.rows[(self.rows.kind == kind) & ~self.rows.system.isin(CEILINGS)]

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
        of_case = self.rounds[self.rounds.case == case]
        seconds = of_case.pivot(index="round", columns="system", values="seconds")
        return peer, float((seconds[peer] / seconds[found[0].idxmin()]).median())

    def share(self, case: str, systems: Sequence[str]) -> float:
        """Part of the ceiling that the fastest of the systems reaches. NaN: not measured."""
        rounds = self.rounds[self.rounds.case == case]
        ceiling = rounds[rounds.system.isin(CEILINGS)]
        found = self.rows[(self.rows.case == case) & self.rows.system.isin(systems)]
        rates = [(each.flops / each.seconds).max() for each in (found, ceiling)]
        return float(rates[0] / rates[1])

    def growth(self) -> Iterator[tuple[str, pd.DataFrame]]:
        """Yields each axis with `value`, `seconds` and `grown`, if two values were measured."""
        for name, rows in self.kind("growth").groupby(lambda row: self.rows.case[row][:-6]):
            found = rows.pivot(index="value", columns="system", values=["seconds", "grown"])
            found = found.reindex(columns=[("seconds", "process"), ("grown", "memory")]).dropna()
            found.columns = ["seconds", "grown"]
            if len(found) > 1:
                size, axis = name.removeprefix("growth-").split("/")
                found["grown"] = found.grown.clip(lower=2**20)
                yield axis if size == "small" else f"{axis}, {size}", found.reset_index()


def write(rounds: pd.DataFrame, page: Path) -> None:
    """Writes the page, and the figures beside it."""
    from bench.figures import draw

    page.parent.mkdir(parents=True, exist_ok=True)
    results = Results(rounds)
    page.write_text(render(results, draw(results, page)), encoding="utf-8")


def compact(rounds: pd.DataFrame) -> pd.DataFrame:
    """The table of a release: a row for each case and system."""
    machine = rounds.machine.str.split(". Python").str[0]
    measured = rounds.assign(machine=machine, unit="s")[~rounds.system.isin(CEILINGS)]
    table = measured.groupby(["case", "system"], sort=False).agg(
        rounds=("round", "count"),
        median=("seconds", "median"),
        min=("seconds", "min"),
        unit=("unit", "first"),
        tokens=("tokens", "first"),
        machine=("machine", "first"),
    )
    return table.assign(tokens=table.tokens.astype("Int64")).reset_index()


def render(results: Results, figures: dict[str, str]) -> str:
    """The page; `figures` has the file names of "speed" and "growth", if they were drawn."""
    rounds, rows = results.rounds, results.rows
    products = rows[rows.system.isin(CEILINGS)]
    same = rows[rows.beam == 1].groupby("label", sort=False).same.mean().dropna()
    busy = rounds[rounds.busy > BUSY].case.nunique()
    long = rows[rows.case.str.endswith("forced/S100/B32/K4")].dropna(subset="label")
    prepared = rows[rows.kind.isin(["decoding", "training"])]
    prepared = prepared.groupby(["kind", "size", "label"], sort=False).prepare.max().reset_index()
    template = jinja2.Template(TEMPLATE.read_text("utf-8"), trim_blocks=True)
    page = template.render(
        figures=figures,
        dates=" to ".join(sorted({rounds.when.min()[:10], rounds.when.max()[:10]})),
        last=rounds.iloc[-1],
        ceilings=dict((products.flops / products.seconds / 1e9).groupby(products.system).median()),
        same=", ".join(f"{label} {share:.1%}" for label, share in same.items()),
        several=rounds.revision.nunique() > 1 or rounds.machine.nunique() > 1,
        busy=busy and f"{busy} of {rounds.case.nunique()}",
        targets=_targets(results),
        decoding=list(_decoding(results)),
        multi30k={
            f"{found.sentences.iloc[0]:,.0f} captions, beam {beam}": table(found, MULTI30K)
            for beam, found in results.kind("multi30k").groupby("beam", sort=False)
        },
        training=_rates(results, results.kind("training"), ["size", "lengths"], FIT),
        growth=_growth(results),
        start=table(results.kind("start"), STARTS),
        peaks=table(long, PEAKS),
        pipeline=results.kind("pipeline").to_dict("records"),
        preparation=table(prepared, PREPARATION),
    )
    return re.sub(r"\n{3,}", "\n\n", page).strip() + "\n"


def table(rows: pd.DataFrame, columns: dict[str, tuple[str, str]]) -> str:
    """A table of Markdown of columns with heads and forms, or nothing if it has no rows."""
    cells = {name: rows[name].map(form.format, "ignore") for name, (_, form) in columns.items()}
    return _markdown(pd.DataFrame(cells), [head for head, _ in columns.values()])


def _markdown(cells: pd.DataFrame, head: Sequence[str]) -> str:
    cells = cells.astype(object).fillna("-")
    return cells.to_markdown(index=False, headers=head, disable_numparse=True) * bool(len(cells))


def _rates(results: Results, rows: pd.DataFrame, names: list[str], ours: Sequence[str]) -> str:
    """Tokens per second by case and system, the highest of a case in bold."""
    cases = rows.groupby("case", sort=False)[names].first()
    rates = rows.pivot(index="case", columns="system", values="rate").reindex(cases.index)
    rates = rates[[name for name in LABELS if name in rates]]
    best = rates.eq(rates.max(axis="columns"), axis="index")
    cells = rates.map("{:,.0f}".format, "ignore").astype(object)
    cells = cases.join(cells.mask(best, "**" + cells + "**"))
    shares = pd.Series({case: results.share(case, ours) for case in cases.index}, dtype=float)
    cells["share"] = shares.map("{:.0%}".format, "ignore")
    heads = [*names, *(LABELS[name] for name in rates), "our best, of the ceiling"]
    return _markdown(cells, heads)


def _targets(results: Results) -> str:
    rows = []

    def add(ours: str, over: str, target: str, form: str, value: float, margin: float) -> None:
        verdict = "not measured" if pd.isna(margin) else "reached" if margin >= 0 else "not reached"
        rows.append([ours, over, target, "-" if pd.isna(value) else form.format(value), verdict])

    for label, case, ours, peers, least in TARGETS:
        peer, ratio = results.ratio(case, ours, peers)
        add(label, LABELS[peer], f"{least:.1f} x", "**{:.2f} x**", ratio, ratio - least)
    share = results.share("training/base/full", FIT)
    label = "Training step, base, without padding"
    add(label, "matrix product", f"{MIN_SHARE:.0%}", "**{:.0%}**", share, share - MIN_SHARE)
    start = results.seconds("start/tiny", ["session"]).min()
    label = "From the shell to the first translation, tiny"
    add(label, "-", f"below {MAX_START:.0f} s", "**{:.1f} s**", start, MAX_START - start)
    short, long = (
        results.seconds(f"growth-base/target/{length:05}", ["process"]).min() / length
        for length in (32, 256)
    )
    label, cost = "Cost of a target token at 256, base, beam 4", long / short
    add(label, "at 32", f"below {MAX_COST:.1f} x", "**{:.2f} x**", cost, MAX_COST - cost)
    return _markdown(pd.DataFrame(rows), ["ours", "over", "target", "measured", ""])


def _decoding(results: Results) -> Iterator[tuple[str, int | None, str]]:
    """Yields a title, the length if it is forced, and a table, for each size of model."""
    shape = ["source", "batch", "beam"]
    rows = results.kind("decoding").sort_values(shape, kind="stable")
    for (size, stop), group in rows.groupby(["size", rows.target.isna()]):
        title = f"{size.capitalize()}, {'natural stop' if stop else 'forced length'}"
        length = None if stop else group.target.iloc[0]
        yield title, length, _rates(results, group, shape, ("session", "process"))


def _growth(results: Results) -> str:
    """The times and the memory of each axis, and the exponents p of y = c x^p."""
    rows = []
    for axis, frame in results.growth():
        row = [axis, " ".join(map("{:,}".format, frame.value))]
        for costs, form in ((frame.seconds, "{:.3g}"), (frame.grown / 1e6, "{:,.0f}")):
            exponent = np.polyfit(np.log(frame.value.astype(float)), np.log(costs), 1)[0]
            row += [" ".join(map(form.format, costs)), f"**{exponent:.2f}**"]
        rows.append(row)
    return _markdown(
        pd.DataFrame(rows), ["", "sizes", "seconds", "exponent", "megabytes", "exponent"]
    )
