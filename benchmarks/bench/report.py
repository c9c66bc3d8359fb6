"""The page of what `bench run` wrote; nothing is measured here."""

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.arithmetic import fit_exponent
from bench.cases import (
    CEILINGS,
    CT2,
    DECODERS,
    FIT,
    FIT_XLA,
    HUB_FIT,
    HUB_FIT_XLA,
    MARIAN,
    PROCESS,
    SESSION,
    TORCH,
    TRAINERS,
)
from bench.figures import (
    BUSY,
    LABELS,
    Results,
    best,
    growth_axes,
    growth_of,
    is_busy,
    measured,
    ratio,
    seconds,
    share,
    systems_of,
    token_cost,
)
from bench.pictures import draw

NOTHING = "-"


class Target(NamedTuple):
    """What is wanted: the best of `ours` over the best of `peers`, in rates."""

    what: str
    case: str
    ours: tuple[str, ...]
    peers: tuple[str, ...]
    least: float


_B32, _B1 = "decoding/base/forced/S25/B32/K4", "decoding/base/forced/S25/B1/K4"
_HUB = (HUB_FIT, HUB_FIT_XLA)
_FIT = (FIT, FIT_XLA)
TARGETS = (
    Target("Decoding, base, 32 sentences, beam 4: in process", _B32, (PROCESS,), (CT2,), 1.1),
    Target("the same: SavedModel in a Session", _B32, (SESSION,), (CT2,), 0.8),
    Target("the same", _B32, (SESSION,), (MARIAN,), 1.6),
    Target("One sentence, beam 4: SavedModel in a Session", _B1, (SESSION,), (CT2,), 0.9),
    Target("the same", _B1, (SESSION,), (MARIAN,), 2.5),
    Target("Multi30k, text to text: in process", "multi30k/K4", (PROCESS,), (CT2,), 1.1),
    Target("the same: SavedModel in a Session", "multi30k/K4", (SESSION,), (CT2,), 1.1),
    *(
        Target(f"Training, {size}, lengths of {name}", f"training/{size}/{of}", _FIT, peers, least)
        for size, of_torch, of_hub in (("tiny", 2.0, 1.5), ("base", 1.5, 1.3))
        for name, of in (("Multi30k", "multi30k"), ("WMT", "wmt"))
        for peers, least in (((TORCH,), of_torch), (_HUB, of_hub))
    ),
)
LEAST_SHARE = 0.75  # of the ceiling, a training step of base
MOST_COST = 1.5  # of a target token at 256, over that at 32


def write(results: Results, page: Path) -> None:
    """Writes the page, and the pictures beside it."""
    page.parent.mkdir(parents=True, exist_ok=True)
    pictures = draw(results, page)
    page.write_text(render(results, pictures), encoding="utf-8")


def render(results: Results, pictures: dict[str, str]) -> str:
    """Returns the page.

    Args:
        results: as `bench run` wrote them.
        pictures: file names by "speed" and "growth", as far as there are any.
    """
    sections = [
        _introduction(results),
        "## Targets\n\n" + _targets(results),
        _picture(pictures.get("speed"), "Target tokens per second"),
        _decoding(results),
        _multi30k(results),
        _training(results),
        _growth(results),
        _picture(pictures.get("growth"), "Time and memory by size"),
        _start(results),
        _pipeline(results),
        _preparation(results),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# The sections.


def _introduction(results: Results) -> str:
    machine = results["machine"]
    cases = results["cases"].values()
    dates = sorted(case["when"][:10] for case in cases)
    when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    versions = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    busy = [case for case in cases if case["busy"] > BUSY]
    lines = [
        "# Benchmarks",
        "<!-- made by `python -m bench report` of benchmarks/results.json -->",
        f"Measured on {when}: {machine['cpu']} ({machine['vector']}), {machine['threads']} of "
        f"{machine['cores']} cores, {machine['memory_gib']} GiB, no GPU. Python "
        f"{machine['python']}, {versions}; revision {machine['revision']}.",
        "`make bench` measures, `make bench-quick` measures a little of everything in three "
        "minutes. All systems of a case take turns, A B C A B C, each in a process of its own that "
        "is loaded, compiled and warm, so that training at base size needs 20 GB of memory. "
        "A figure is the median over the rounds, and a ratio the "
        "median of the rounds' ratios. The ceiling is the fastest matrix product (2048³, float32, "
        "torch or TensorFlow) of the same rounds; a share of it counts only the products that the "
        "real tokens need. Every repeat is in `benchmarks/results.json`. What was done to be "
        "fast, and what limits it: [where the time goes](speed.md).",
        _products(results),
        "Random weights are the same for all systems, and so are the trained ones. "
        + _sameness(results),
    ]
    if len({case["code"] for case in cases}) > 1:
        lines.append("**The code changed between the cases: measure again with --again.**")
    elsewhere = [
        case
        for case in cases
        if any(machine[name] != value for name, value in case.get("made_on", {}).items())
    ]
    if elsewhere:
        lines.append(
            f"**{len(elsewhere)} of {len(cases)} cases were measured on another machine, or with "
            "other versions of the packages: measure them again.**"
        )
    if busy:
        lines.append(
            f"**{len(busy)} of {len(results['cases'])} cases were measured while other work ran on "
            "the machine: do not trust their figures.**"
        )
    return "\n\n".join(line for line in lines if line)


def _products(results: Results) -> str:
    """How fast the libraries multiply that the systems stand on."""
    rates: dict[str, list[float]] = {name: [] for name in CEILINGS}
    for case in results["cases"].values():
        for name in CEILINGS:
            if name in (found := measured(case)):
                rates[name].append(found[name]["flops"] / seconds(found[name]))
    if not all(rates.values()):
        return ""
    torch, tensorflow = (statistics.median(rates[name]) / 1e9 for name in CEILINGS)
    return (
        f"That product runs at {torch:.0f} GFLOP/s in torch and at {tensorflow:.0f} in TensorFlow "
        "on this processor, so a part of the ratios to torch's systems is its library's."
    )


def _sameness(results: Results) -> str:
    """How many translations are equal to ours; by greedy search, which leaves no choice."""
    shares: dict[str, list[float]] = {}
    for case in results["cases"].values():
        if case["kind"] in ("decoding", "multi30k") and case["beam"] == 1:
            for name, each in case["systems"].items():
                if "same" in each:
                    shares.setdefault(name, []).append(each["same"])
    if not shares:
        return ""
    text = ", ".join(
        f"{LABELS[name]} {100 * statistics.mean(values):.1f} %" for name, values in shares.items()
    )
    return f"Equal translations by greedy search: {text}."


def _targets(results: Results) -> str:
    rows = []
    for target in TARGETS:
        found = systems_of(results, target.case)
        times = ratio(found, target.ours, target.peers)
        peer = best(found, target.peers) or target.peers[-1]
        rows.append(
            [
                target.what,
                LABELS[peer],
                f"{target.least:.1f} x",
                NOTHING if times is None else f"**{times:.2f} x**",
                _verdict(times, target.least, is_busy(results, target.case)),
            ]
        )
    name = "training/base/full"
    part = share(results, name, best(systems_of(results, name), _FIT))
    rows.append(
        [
            "Training step, base, without padding",
            "matrix product",
            f"{LEAST_SHARE:.0%}",
            NOTHING if part is None else f"**{part:.0%}**",
            _verdict(part, LEAST_SHARE, is_busy(results, name)),
        ]
    )
    cost = token_cost(results)
    rows.append(
        [
            "Cost of a target token at 256, base, beam 4",
            "at 32",
            f"below {MOST_COST:.1f} x",
            NOTHING if cost is None else f"**{cost:.2f} x**",
            _verdict(
                None if cost is None else MOST_COST - cost, 0.0, is_busy(results, "growth-base")
            ),
        ]
    )
    return table(["ours", "over", "target", "measured", ""], rows)


def _verdict(reached: float | None, least: float, busy: bool) -> str:
    if reached is None:
        return "not measured"
    if busy:
        return "other work ran"
    return "reached" if reached >= least else "not reached"


def _rates(found: dict[str, Any], names: Sequence[str]) -> list[str]:
    """Tokens a second of each system, the largest in bold."""
    rates = {name: found[name]["tokens"] / seconds(found[name]) for name in names if name in found}
    cells = {name: f"{rate:,.0f}" for name, rate in rates.items()}
    if rates:
        top = max(rates, key=rates.__getitem__)
        cells[top] = f"**{cells[top]}**"
    return [cells.get(name, NOTHING) for name in names]


def _decoding(results: Results) -> str:
    cases = [case for case in results["cases"].values() if case["kind"] == "decoding"]
    parts = []
    for size in dict.fromkeys(case["size"] for case in cases):
        for forced in (True, False):
            chosen = [
                case for case in cases if case["size"] == size and bool(case["target"]) == forced
            ]
            chosen.sort(key=lambda case: (case["source"], case["batch"], case["beam"]))
            if not chosen:
                continue
            names = [name for name in DECODERS if any(name in measured(case) for case in chosen)]
            rows = []
            for case in chosen:
                found = measured(case)
                part = share(results, case["id"], best(found, DECODERS[:2])) if forced else None
                shape = [str(case[key]) for key in ("source", "batch", "beam")]
                cells = [_percent(part)] if forced else []
                rows.append([*shape, *_rates(found, names), *cells])
            head = ["source", "batch", "beam", *(LABELS[name] for name in names)]
            head += ["our best, of the ceiling"] if forced else []
            text = (
                f"All hypotheses have {chosen[0]['target']} tokens."
                if forced
                else "Sources are uneven, and translations end by themselves. Beam searches "
                "differ: ours goes on until no hypothesis could become better, CTranslate2 until K "
                "have ended, and each has a length penalty of its own. Real "
                "text is below."
            )
            title = f"### {size.capitalize()}, {'forced length' if forced else 'natural stop'}"
            parts.append(f"{title}\n\n{text} Target tokens per second of the best hypotheses:")
            parts.append(table(head, rows))
    return "\n\n".join(["## Decoding", *parts]) if parts else ""


def _percent(part: float | None) -> str:
    return NOTHING if part is None else f"{part:.0%}"


def _multi30k(results: Results) -> str:
    parts = []
    for case in results["cases"].values():
        if case["kind"] != "multi30k":
            continue
        found = measured(case)
        rows = [
            [
                LABELS[name],
                f"{found[name]['tokens'] / seconds(found[name]):,.0f}",
                f"{seconds(found[name]):.2f}",
                f"{found[name]['bleu']:.2f}",
                f"{found[name]['same']:.1%}",
            ]
            for name in DECODERS
            if name in found
        ]
        head = ["", "target tokens per second", "seconds", "BLEU", "equal to our first row's"]
        parts.append(f"{case['sentences']:,} captions, beam {case['beam']}:\n\n{table(head, rows)}")
    if not parts:
        return ""
    text = (
        "Captions from text to text, with the same trained weights. The length penalty has the "
        "same exponent, but not the same formula."
    )
    return "\n\n".join(["## Multi30k, test2016", text, *parts])


def _training(results: Results) -> str:
    cases = [case for case in results["cases"].values() if case["kind"] == "training"]
    rows = []
    for case in cases:
        found = measured(case)
        part = share(results, case["id"], best(found, _FIT))
        rows.append([case["size"], case["lengths"], *_rates(found, TRAINERS), _percent(part)])
    if not rows:
        return ""
    text = (
        "Target tokens per second that are not padding. Batches are those of an epoch's plan, of "
        "2,048 tokens a side (tiny) or 1,024 (base). Ours computes label smoothing, loss, "
        "perplexity and accuracy; KerasHub and MarianMT their loss alone, without smoothing. "
        "Lengths: Multi30k's; WMT's, modelled; and 33 for all."
    )
    head = ["", "lengths", *(LABELS[name] for name in TRAINERS), "our best, of the ceiling"]
    return f"## Training\n\n{text}\n\n{table(head, rows)}"


def _growth(results: Results) -> str:
    rows = []
    for name, cases in growth_axes(results).items():
        values = [case["value"] for case in cases]
        if len(values) < 2:
            continue
        times, memory = growth_of(cases)
        rows.append(
            [
                name,
                " ".join(f"{value:,}" for value in values),
                " ".join(f"{time:.3g}" for time in times),
                f"**{fit_exponent(values, times):.2f}**",
                " ".join(f"{each / 1e6:,.0f}" for each in memory),
                f"**{fit_exponent(values, memory):.2f}**",
            ]
        )
    if not rows:
        return ""
    text = (
        "Decoding in process; one size changes, the others stay at 8 sentences of 25 tokens, 32 "
        "target tokens, beam 4, V = 8,000, 3 + 3 layers, d_model 256. An exponent p fits y = c xᵖ. "
        "Memory is what a fresh process takes beyond the loaded model and graph."
    )
    head = ["", "sizes", "seconds", "exponent", "megabytes", "exponent"]
    return f"## Growth\n\n{text}\n\n{table(head, rows)}"


def _start(results: Results) -> str:
    rows = []
    for case in results["cases"].values():
        if case["kind"] != "start":
            continue
        for name, each in measured(case).items():
            stages = [statistics.median(each[stage]) for stage in ("import", "load", "first")]
            rows.append(
                [
                    case["size"],
                    LABELS[name],
                    *(f"{value:.2f}" for value in (*stages, seconds(each))),
                    f"{statistics.median(each['peak']) / 1e6:,.0f}",
                    f"{each['bytes'] / 1e6:,.0f}" if "bytes" in each else NOTHING,
                ]
            )
    if not rows:
        return ""
    text = (
        "A fresh process translates one sentence of 25 tokens into 30, beam 4; seconds, and "
        "megabytes of memory at most and on disk. Files have been read before."
    )
    head = ["", "", "import", "load", "first translation", "all", "memory", "on disk"]
    return f"## Start, memory and size\n\n{text}\n\n{table(head, rows)}\n\n{_peaks(results)}"


def _peaks(results: Results) -> str:
    """Memory of the processes that decoded the largest case."""
    rows = []
    for size in ("base", "tiny"):
        found = systems_of(results, f"decoding/{size}/forced/S100/B32/K4")
        rows += [
            [size, LABELS[name], f"{found[name]['peak'] / 1e6:,.0f}"]
            for name in DECODERS
            if name in found
        ]
    if not rows:
        return ""
    text = "Megabytes at most while 32 sources of 100 tokens are decoded with beam 4:"
    return f"{text}\n\n{table(['', '', 'memory'], rows)}"


def _pipeline(results: Results) -> str:
    found = systems_of(results, "pipeline").get("pipeline")
    if found is None:
        return ""
    return (
        "## Input pipeline\n\n"
        f"{found['tokens'] / seconds(found):,.0f} target tokens per second, in batches of 25,000 "
        "tokens from the bundled corpus, prepared, in training order, without a model; of text of "
        "WMT's lengths: [results](results.md#a-corpus-of-wmts-size). Preparing it: "
        f"{found['pairs_per_second']:,.0f} pairs per second."
    )


def _preparation(results: Results) -> str:
    """How long loading, compiling and warming up took."""
    rows = []
    for kind, sizes in (("decoding", ("base", "tiny")), ("training", ("base", "tiny"))):
        for size in sizes:
            found: dict[str, list[float]] = {}
            for case in results["cases"].values():
                if case["kind"] == kind and case["size"] == size:
                    for name, each in measured(case).items():
                        if name in LABELS:
                            found.setdefault(name, []).append(each["prepare"])
            rows += [
                [kind, size, LABELS[name], f"{max(values):.1f}"] for name, values in found.items()
            ]
    if not rows:
        return ""
    text = "Seconds, the most of all cases; not part of the figures above."
    return "\n\n".join(["## Loading, compiling, warming up", text, table(["", "", "", "s"], rows)])


def _picture(file: str | None, text: str) -> str:
    return f"![{text}]({file})" if file else ""
