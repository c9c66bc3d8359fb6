"""What can be said of the cases that `bench run` measured; nothing is measured here."""

import statistics
from collections.abc import Sequence
from typing import Any

from bench.arithmetic import decoding_flops, median_ratio, training_flops
from bench.cases import (
    CEILINGS,
    CT2,
    CT2_INT8,
    FIT,
    FIT_XLA,
    HUB,
    HUB_FIT,
    HUB_FIT_XLA,
    MARIAN,
    MARIAN_FIT,
    MEMORY,
    PROCESS,
    SESSION,
    TORCH,
    sizes_of,
)

LABELS = {
    SESSION: "ours, SavedModel in a Session",
    PROCESS: "ours, in process",
    CT2: "CTranslate2 float32",
    CT2_INT8: "CTranslate2 int8",
    MARIAN: "MarianMT, generate",
    HUB: "KerasHub, XLA",
    FIT: "ours",
    FIT_XLA: "ours, XLA",
    HUB_FIT: "KerasHub",
    HUB_FIT_XLA: "KerasHub, XLA",
    TORCH: "torch nn.Transformer",
    MARIAN_FIT: "torch MarianMT",
}
BUSY = 0.15  # cores that other work may take

Results = dict[str, Any]


def systems_of(results: Results, name: str) -> dict[str, Any]:
    """The systems of a case that were measured."""
    found = results["cases"].get(name, {"systems": {}})["systems"]
    return {name: each for name, each in found.items() if each.get("seconds")}


def seconds(system: dict[str, Any]) -> float:
    """The median of the rounds."""
    return statistics.median(system["seconds"])


def best(found: dict[str, Any], names: Sequence[str]) -> str | None:
    """The fastest of some systems."""
    present = [name for name in names if name in found]
    return min(present, key=lambda name: seconds(found[name]), default=None)


def ratio(found: dict[str, Any], ours: Sequence[str], peers: Sequence[str]) -> float | None:
    """How much faster our best system is than the peers' best, for the same inputs."""
    a, b = best(found, ours), best(found, peers)
    if a is None or b is None:
        return None
    return median_ratio(found[a]["seconds"], found[b]["seconds"])


def ceiling(found: dict[str, Any]) -> float | None:
    """The fastest matrix product of the case's rounds, operations a second."""
    rates = [
        found[name]["flops"] / min(found[name]["seconds"]) for name in CEILINGS if name in found
    ]
    return max(rates, default=None)


def share(results: Results, name: str, system: str | None) -> float | None:
    """What part of the ceiling a system reaches, counting only real tokens' products."""
    found, case = systems_of(results, name), results["cases"].get(name)
    top = ceiling(found)
    if case is None or top is None or system is None:
        return None
    if case["kind"] == "training":
        flops = case["flops"]
    else:
        sources = [case["source"]] * case["batch"]
        flops = decoding_flops(sizes_of(case["size"]), sources, case["target"], case["beam"])
    return flops / seconds(found[system]) / top


def count_flops(case: dict[str, Any], lengths: Any) -> float:
    """Operations of a training case, from the lengths of all pairs."""
    pairs = [tuple(lengths[row].tolist()) for rows in case["rows"] for row in rows]
    return training_flops(sizes_of(case["size"]), pairs)


def measured(case: dict[str, Any]) -> dict[str, Any]:
    """The systems that a case was measured with."""
    return {name: each for name, each in case["systems"].items() if each.get("seconds")}


def is_busy(results: Results, name: str) -> bool:
    """Whether other work ran during the cases of this name."""
    cases = results["cases"].values()
    return any(case["busy"] > BUSY for case in cases if case["id"].startswith(name))


def token_cost(results: Results) -> float | None:
    """Seconds of a target token of a long translation over those of a short one."""
    costs = []
    for target in (32, 256):
        found = systems_of(results, f"growth-base/target/{target:05d}")
        if PROCESS not in found:
            return None
        costs.append(seconds(found[PROCESS]) / target)
    return costs[1] / costs[0]


def growth_axes(results: Results) -> dict[str, list[dict[str, Any]]]:
    """The measured cases of growth by axis, by rising size."""
    axes: dict[str, list[dict[str, Any]]] = {}
    for case in results["cases"].values():
        if case["kind"] == "growth" and {PROCESS, MEMORY} <= set(measured(case)):
            size = case["id"].split("/")[0].removeprefix("growth-")
            name = case["axis"] if size == "small" else f"{case['axis']}, {size}"
            axes.setdefault(name, []).append(case)
    return {name: sorted(found, key=lambda case: case["value"]) for name, found in axes.items()}


def growth_of(cases: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Seconds, and bytes, of cases."""
    found = [measured(case) for case in cases]
    memory = [max(each[MEMORY]["grown"], 2**20) for each in found]
    return [seconds(each[PROCESS]) for each in found], memory
