"""The page of benchmarks: medians, ratios and shares of the rounds that `bench run` measured."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd

from bench.cases import CEILINGS, DECODERS, TRAINERS, all_cases

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
COUNTS = ("tokens", "flops", "grown", "peak", "prepare", "same", "bleu", "sentences")
COUNTS += ("import", "load", "first", "bytes")
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


class Results:
    """Rounds with their cases.

    Attributes:
        rounds: a row for each case, system and round, as `bench run` writes them.
        medians: of all columns of numbers, and the `rate` in tokens per second, by case and system.
        cases: the measured cases, by their ids.
    """

    def __init__(self, rounds: pd.DataFrame) -> None:
        # Only some kinds of cases have these; a run of others does not write them.
        rounds = rounds.reindex(columns=list(dict.fromkeys([*rounds.columns, *COUNTS])))
        self.rounds = rounds
        self.medians = rounds.groupby(["case", "system"]).median(numeric_only=True)
        self.medians["rate"] = self.medians.tokens / self.medians.seconds
        cases = pd.DataFrame([*all_cases()]).set_index("id")
        self.cases = cases[cases.index.isin(rounds.case)]

    def kind(self, kind: str) -> pd.DataFrame:
        """The measured cases of a kind."""
        return self.cases[self.cases.kind == kind]

    def systems(self, case: str, names: Sequence[str]) -> pd.DataFrame:
        """The medians of those of the systems that were measured."""
        rows = self.medians[self.medians.index.get_level_values("case") == case]
        return rows.droplevel("case").reindex(names).dropna(subset="seconds")

    def measured(self, kind: str, systems: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yields each case of a kind with the medians of each of the systems that were measured."""
        for case, values in self.kind(kind).iterrows():
            for name, medians in self.systems(case, systems).iterrows():
                yield {**values, **medians, "id": case, "system": LABELS[name]}

    def ratio(self, case: str, ours: Sequence[str], peers: Sequence[str]) -> tuple[str, float]:
        """The fastest peer, and how many times as fast our fastest system is. NaN: not measured.

        It is the median over the rounds: what slows a round slows both systems.
        """
        found = [self.systems(case, names).seconds for names in (ours, peers)]
        peer = peers[-1] if found[1].empty else str(found[1].idxmin())
        if any(seconds.empty for seconds in found):
            return peer, np.nan
        of_case = self.rounds[self.rounds.case == case]
        seconds = of_case.pivot(index="round", columns="system", values="seconds")
        return peer, float((seconds[peer] / seconds[found[0].idxmin()]).median())

    def share(self, case: str, systems: Sequence[str]) -> float:
        """Part of the ceiling that the fastest of the systems reaches. NaN: not measured."""
        found = self.systems(case, systems)
        products = self.rounds[(self.rounds.case == case) & self.rounds.system.isin(CEILINGS)]
        if found.empty or products.empty:
            return np.nan
        rates = found.flops / found.seconds
        return float(rates.max() / (products.flops / products.seconds).max())

    def growth(self) -> Iterator[tuple[str, pd.DataFrame]]:
        """Yields each axis with `value`, `seconds` and `grown`, if two values were measured."""
        columns = [("seconds", "process"), ("grown", "memory")]
        found = self.medians.unstack("system").reindex(columns=columns)
        found.columns = ["seconds", "grown"]
        found["grown"] = found.grown.clip(lower=2**20)
        cases = self.kind("growth")
        for name, group in cases.groupby(cases.index.str.rsplit("/", n=1).str[0], sort=False):
            size, axis = name.removeprefix("growth-").split("/")
            frame = group[["value"]].astype(int).join(found).dropna()
            if len(frame) > 1:
                yield axis if size == "small" else f"{axis}, {size}", frame


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
    rounds = results.rounds
    products = results.medians.query("system in @CEILINGS")
    greedy = results.cases[results.cases.beam == 1].index
    same = results.medians.same.unstack("system").reindex(greedy).mean().reindex(DECODERS)
    busy = rounds[rounds.busy > BUSY].case.nunique()
    template = jinja2.Template(TEMPLATE.read_text("utf-8"), trim_blocks=True)
    page = template.render(
        figures=figures,
        number=_format,
        dates=" to ".join(sorted({rounds.when.min()[:10], rounds.when.max()[:10]})),
        last=rounds.iloc[-1],
        ceilings=dict((products.flops / products.seconds / 1e9).groupby("system").median()),
        same=", ".join(f"{LABELS[name]} {share:.1%}" for name, share in same.dropna().items()),
        several=rounds.revision.nunique() > 1 or rounds.machine.nunique() > 1,
        busy=busy and f"{busy} of {rounds.case.nunique()}",
        targets=_targets(results),
        decoding=list(_decoding(results)),
        multi30k=list(results.measured("multi30k", DECODERS)),
        training=_training(results),
        growth=list(results.growth()),
        exponent=_exponent,
        start=list(results.measured("start", DECODERS)),
        peaks=list(results.measured("decoding", DECODERS)),
        pipeline=results.systems("pipeline", ["pipeline"]).to_dict("records"),
        preparation=_preparation(results),
    )
    return re.sub(r"\n{3,}", "\n\n", page).strip() + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown, or nothing if it has no rows."""
    rows = list(rows)
    lines = (head, ["---"] * len(head), *rows)
    return "\n".join(f"| {' | '.join(row)} |" for row in lines) if rows else ""


def _format(value: float, form: str) -> str:
    return "-" if pd.isna(value) else form.format(value)


def _rates(results: Results, cases: pd.DataFrame, systems: Sequence[str]) -> pd.DataFrame:
    """Cells of tokens per second for cases and systems, the highest of a case in bold."""
    rates = results.medians.rate.unstack("system").reindex(cases.index)
    rates = rates.reindex(columns=systems).dropna(axis="columns", how="all")
    best = rates.eq(rates.max(axis="columns"), axis="index")
    cells = rates.map(_format, form="{:,.0f}")
    return cells.where(~best, "**" + cells + "**").rename(columns=LABELS)


def _targets(results: Results) -> str:
    rows = []

    def add(ours: str, over: str, target: str, form: str, value: float, margin: float) -> None:
        verdict = "not measured" if pd.isna(margin) else "reached" if margin >= 0 else "not reached"
        rows.append([ours, over, target, _format(value, form), verdict])

    for label, case, ours, peers, least in TARGETS:
        peer, ratio = results.ratio(case, ours, peers)
        add(label, LABELS[peer], f"{least:.1f} x", "**{:.2f} x**", ratio, ratio - least)
    share = results.share("training/base/full", FIT)
    label = "Training step, base, without padding"
    add(label, "matrix product", f"{MIN_SHARE:.0%}", "**{:.0%}**", share, share - MIN_SHARE)
    start = results.systems("start/tiny", ["session"]).seconds.sum() or np.nan
    label = "From the shell to the first translation, tiny"
    add(label, "-", f"below {MAX_START:.0f} s", "**{:.1f} s**", start, MAX_START - start)
    short, long = (
        results.systems(f"growth-base/target/{length:05}", ["process"]).seconds.sum() / length
        for length in (32, 256)
    )
    cost = long / short if short and long else np.nan
    label = "Cost of a target token at 256, base, beam 4"
    add(label, "at 32", f"below {MAX_COST:.1f} x", "**{:.2f} x**", cost, MAX_COST - cost)
    return _table(["ours", "over", "target", "measured", ""], rows)


def _decoding(results: Results) -> Iterator[tuple[str, int | None, str]]:
    """Yields a title, the length if it is forced, and a table, for each size of model."""
    cases = results.kind("decoding")
    for (size, is_forced), group in cases.groupby(["size", cases.target.notna()], sort=False):
        shape = group[["source", "batch", "beam"]].astype(int)
        rows = shape.sort_values([*shape]).astype(str).join(_rates(results, group, DECODERS))
        if is_forced:
            shares = [results.share(case, ("session", "process")) for case in rows.index]
            rows["our best, of the ceiling"] = [_format(share, "{:.0%}") for share in shares]
        title = f"{size.capitalize()}, {'forced length' if is_forced else 'natural stop'}"
        length = int(group.target.iloc[0]) if is_forced else None
        yield title, length, _table([*rows], rows.to_numpy())


def _training(results: Results) -> str:
    cases = results.kind("training")
    cells = cases[["size", "lengths"]].rename(columns={"size": ""})
    rates = _rates(results, cases, TRAINERS)
    shares = [_format(results.share(case, FIT), "{:.0%}") for case in cases.index]
    head = [*cells, *rates, "our best, of the ceiling"]
    return _table(head, np.column_stack([cells, rates, shares]))


def _exponent(sizes: pd.Series, costs: pd.Series) -> float:
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


def _preparation(results: Results) -> str:
    """The seconds that loading, compiling and warming up take."""
    rows = []
    prepare = results.medians.prepare.unstack("system")
    for kind, systems in (("decoding", DECODERS), ("training", TRAINERS)):
        cases = results.kind(kind)
        for size in ("base", "tiny"):
            longest = prepare.reindex(cases.index[cases["size"] == size]).max().reindex(systems)
            rows += [[kind, size, LABELS[name], f"{s:.1f}"] for name, s in longest.dropna().items()]
    return _table(["", "", "", "s"], rows)
