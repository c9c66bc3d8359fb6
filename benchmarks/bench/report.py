"""The page of benchmarks: medians, ratios and shares of the rounds that `bench run` measured."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jinja2
import numpy as np
import pandas as pd

from bench.cases import CEILINGS, DECODERS, TRAINERS, all_cases

LABELS = {
    "session": "ours, SavedModel in a Session",
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
MIN_SHARE = 0.75  # of the ceiling, for a training step of base
MAX_COST = 1.5  # of a target token at 256, over that at 32
FIT = ("fit", "fit-xla")


class Target(NamedTuple):
    """The fastest of `ours` must be `ratio` times as fast as the fastest of `peers`."""

    label: str
    case: str
    ours: tuple[str, ...]
    peers: tuple[str, ...]
    ratio: float


def _targets() -> Iterator[Target]:
    process, session, ct2, marian = (
        (name,) for name in ("process", "session", "ctranslate2", "marian")
    )
    in_session = "the same: SavedModel in a Session"
    case = "decoding/base/forced/S25/B32/K4"
    label = "Decoding, base, 32 sentences, beam 4: in process"
    yield Target(label, case, process, ct2, 1.1)
    yield Target(in_session, case, session, ct2, 0.8)
    yield Target("the same", case, session, marian, 1.6)
    case = "decoding/base/forced/S25/B1/K4"
    label = "One sentence, beam 4: SavedModel in a Session"
    yield Target(label, case, session, ct2, 0.9)
    yield Target("the same", case, session, marian, 2.5)
    yield Target("Multi30k, text to text: in process", "multi30k/K4", process, ct2, 1.1)
    yield Target(in_session, "multi30k/K4", session, ct2, 1.1)
    hub = ("keras-hub-fit", "keras-hub-fit-xla")
    for size, torch_ratio, hub_ratio in (("tiny", 2.0, 1.5), ("base", 1.5, 1.3)):
        for lengths in ("Multi30k", "WMT"):
            case = f"training/{size}/{lengths.lower()}"
            label = f"Training, {size}, lengths of {lengths}"
            yield Target(label, case, FIT, ("torch-transformer",), torch_ratio)
            yield Target(label, case, FIT, hub, hub_ratio)


TARGETS = tuple(_targets())


class Results:
    """Rounds with their cases.

    Attributes:
        rounds: a row for each case, system and round, as `bench run` writes them.
        medians: of all columns of numbers, and the `rate` in tokens a second, by case and system.
        cases: the measured cases, by their ids.
    """

    def __init__(self, rounds: pd.DataFrame) -> None:
        self.rounds = rounds
        self.medians = rounds.groupby(["case", "system"]).median(numeric_only=True)
        self.medians["rate"] = self.medians.tokens / self.medians.seconds
        cases = pd.DataFrame([*all_cases()]).set_index("id")
        self.cases = cases[cases.index.isin(rounds.case)]

    def kind(self, kind: str) -> pd.DataFrame:
        """The measured cases of a kind."""
        return self.cases[self.cases.kind == kind]

    def of(self, column: str, case: str, systems: Sequence[str]) -> pd.Series:
        """A column of the medians for those of the systems that were measured."""
        if case not in self.cases.index:
            return pd.Series(dtype=float)
        return self.medians.loc[case, column].reindex(systems).dropna()

    def fastest(self, case: str, systems: Sequence[str]) -> str | None:
        """The fastest of the systems that were measured."""
        seconds = self.of("seconds", case, systems)
        return None if seconds.empty else str(seconds.idxmin())

    def ratio(self, target: Target) -> float:
        """The median over the rounds: what slows a round slows both systems. NaN: not measured."""
        ours, peer = (self.fastest(target.case, names) for names in (target.ours, target.peers))
        if ours is None or peer is None:
            return np.nan
        of_case = self.rounds[self.rounds.case == target.case]
        seconds = of_case.pivot(index="round", columns="system", values="seconds")
        return float((seconds[peer] / seconds[ours]).median())

    def share(self, case: str, systems: Sequence[str]) -> float:
        """Part of the ceiling that the fastest of the systems reaches. NaN: not measured."""
        system = self.fastest(case, systems)
        products = self.rounds[(self.rounds.case == case) & self.rounds.system.isin(CEILINGS)]
        if system is None or products.empty:
            return np.nan
        row = self.medians.loc[(case, system)]
        return float(row.flops / row.seconds / (products.flops / products.seconds).max())

    def growth(self) -> Iterator[tuple[str, pd.DataFrame]]:
        """Yields each axis with `value`, `seconds` and `grown`, if two values were measured."""
        cases = self.kind("growth")
        for name, group in cases.groupby(cases.index.str.rsplit("/", n=1).str[0], sort=False):
            size, axis = name.removeprefix("growth-").split("/")
            found = self.medians[["seconds", "grown"]].unstack("system").reindex(group.index)
            if {"process", "memory"} <= {*found.seconds}:
                grown = found.grown["memory"].clip(lower=2**20)
                columns = {"seconds": found.seconds["process"], "grown": grown}
                frame = pd.DataFrame({"value": group.value.astype(int), **columns}).dropna()
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
        dates=" to ".join(sorted({rounds.when.min()[:10], rounds.when.max()[:10]})),
        last=rounds.iloc[-1],
        ceilings=dict((products.flops / products.seconds / 1e9).groupby("system").median()),
        same=", ".join(f"{LABELS[name]} {share:.1%}" for name, share in same.dropna().items()),
        several=rounds.revision.nunique() > 1 or rounds.machine.nunique() > 1,
        busy=busy and f"{busy} of {rounds.case.nunique()}",
        targets=_target_table(results),
        decoding=list(_decoding(results)),
        multi30k=list(_multi30k(results)),
        training=_training(results),
        growth=_growth(results),
        start=_start(results),
        peaks=_peaks(results),
        pipeline=_pipeline(results),
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


def _target_table(results: Results) -> str:
    rows = []
    for target in TARGETS:
        peer = LABELS[results.fastest(target.case, target.peers) or target.peers[-1]]
        ratio = results.ratio(target)
        row = [target.label, peer, f"{target.ratio:.1f} x", _format(ratio, "**{:.2f} x**")]
        rows.append([*row, _verdict(ratio - target.ratio)])
    label = "Training step, base, without padding"
    share = results.share("training/base/full", FIT)
    row = [label, "matrix product", f"{MIN_SHARE:.0%}", _format(share, "**{:.0%}**")]
    rows.append([*row, _verdict(share - MIN_SHARE)])
    short, long = (
        results.of("seconds", f"growth-base/target/{length:05}", ["process"]).sum() / length
        for length in (32, 256)
    )
    label = "Cost of a target token at 256, base, beam 4"
    cost = long / short if short and long else np.nan
    row = [label, "at 32", f"below {MAX_COST:.1f} x", _format(cost, "**{:.2f} x**")]
    rows.append([*row, _verdict(MAX_COST - cost)])
    return _table(["ours", "over", "target", "measured", ""], rows)


def _verdict(margin: float) -> str:
    return "not measured" if pd.isna(margin) else "reached" if margin >= 0 else "not reached"


def _decoding(results: Results) -> Iterator[tuple[str, int | None, str]]:
    """Yields a title, the length if it is forced, and a table, for each size of model."""
    cases = results.kind("decoding")
    for (size, is_forced), group in cases.groupby(["size", cases.target.notna()], sort=False):
        shape = group[["source", "batch", "beam"]].astype(int)
        rows = shape.sort_values([*shape]).astype(str).join(_rates(results, group, DECODERS))
        if is_forced:
            rows["our best, of the ceiling"] = [
                _format(results.share(case, DECODERS[:2]), "{:.0%}") for case in rows.index
            ]
        title = f"{size.capitalize()}, {'forced length' if is_forced else 'natural stop'}"
        length = int(group.target.iloc[0]) if is_forced else None
        yield title, length, _table([*rows], rows.to_numpy())


def _multi30k(results: Results) -> Iterator[tuple[str, int, str]]:
    """Yields the number of captions, the beam, and a table."""
    head = ["", "target tokens per second", "seconds", "BLEU", "equal to our first row's"]
    for case, beam in results.kind("multi30k").beam.items():
        found = results.medians.loc[case].reindex(DECODERS).dropna(subset="seconds")
        rows = []
        for name, row in found.iterrows():
            figures = (f"{row.rate:,.0f}", f"{row.seconds:.2f}", f"{row.bleu:.2f}")
            rows.append([LABELS[name], *figures, f"{row.same:.1%}"])
        yield f"{found.sentences.iloc[0]:,.0f}", int(beam), _table(head, rows)


def _training(results: Results) -> str:
    cases = results.kind("training")
    cells = cases[["size", "lengths"]].rename(columns={"size": ""})
    rates = _rates(results, cases, TRAINERS)
    shares = [_format(results.share(case, FIT), "{:.0%}") for case in cases.index]
    head = [*cells, *rates, "our best, of the ceiling"]
    return _table(head, np.column_stack([cells, rates, shares]))


def _growth(results: Results) -> str:
    def exponent(frame: pd.DataFrame, column: str) -> str:
        slope, _ = np.polyfit(np.log(frame.value), np.log(frame[column]), 1)
        return f"**{slope:.2f}**"

    rows = [
        [
            axis,
            " ".join(f"{value:,}" for value in frame.value),
            " ".join(f"{seconds:.3g}" for seconds in frame.seconds),
            exponent(frame, "seconds"),
            " ".join(f"{grown / 1e6:,.0f}" for grown in frame.grown),
            exponent(frame, "grown"),
        ]
        for axis, frame in results.growth()
    ]
    return _table(["", "sizes", "seconds", "exponent", "megabytes", "exponent"], rows)


def _start(results: Results) -> str:
    rows = []
    for case, size in results.kind("start")["size"].items():
        found = results.medians.loc[case].reindex(DECODERS).dropna(subset="seconds")
        for name, row in found.iterrows():
            stages = [f"{row[stage]:.2f}" for stage in ("import", "load", "first", "seconds")]
            megabytes = [_format(size / 1e6, "{:,.0f}") for size in (row.peak, row.bytes)]
            rows.append([size, LABELS[name], *stages, *megabytes])
    head = ["", "", "import", "load", "first translation", "all", "memory", "on disk"]
    return _table(head, rows)


def _peaks(results: Results) -> str:
    rows = []
    for size in ("base", "tiny"):
        peaks = results.of("peak", f"decoding/{size}/forced/S100/B32/K4", DECODERS)
        rows += [[size, LABELS[name], f"{peak / 1e6:,.0f}"] for name, peak in peaks.items()]
    return _table(["", "", "memory"], rows)


def _pipeline(results: Results) -> dict[str, str]:
    return {
        name: f"{found.iloc[0]:,.0f}"
        for name, column in (("rate", "rate"), ("pairs", "pairs_per_second"))
        if len(found := results.of(column, "pipeline", ["pipeline"]))
    }


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
