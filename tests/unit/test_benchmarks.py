"""The benchmark's plain parts: counts, exponents, what is measured, and the page of results."""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from bench import __main__ as program
from bench import figures, report
from bench.arithmetic import decoding_flops, fit_exponent, median_ratio, training_flops
from bench.cases import CEILINGS, all_cases, growth, sizes_of, smoke_cases
from bench.worker import SYSTEMS

from keras_transformer.config import TransformerConfig

SIZES = TransformerConfig(
    vocab_size=5, d_model=2, d_ff=3, num_heads=1, num_encoder_layers=1, num_decoder_layers=1
)
PRODUCT = {"seconds": [0.25, 0.5], "prepare": 1.0, "flops": 1e9}  # at best 4 GFLOP/s


def system(seconds, tokens=960, **more):
    return {"seconds": seconds, "tokens": tokens, "prepare": 2.0, "peak": 3e8, **more}


def results_of(*cases, busy=0.1):
    """Results of cases, each a case and its systems."""
    machine = {
        "cpu": "a CPU",
        "vector": "avx2",
        "cores": 4,
        "threads": 2,
        "memory_gib": 8,
        "python": "3.11.7",
        "packages": {"torch": "2.13.0"},
        "revision": "abc",
    }
    return {
        "machine": machine,
        "cases": {
            case["id"]: {
                **case,
                "when": "2026-11-21T12:00:00+00:00",
                "busy": busy,
                "code": "a",
                "systems": {**systems, CEILINGS[0]: PRODUCT},
            }
            for case, systems in cases
        },
    }


def case_of(name):
    return next(case for case in all_cases() if case["id"] == name)


def test_decoding_flops_by_hand():
    # Encoder, 3 tokens: 3 (4 * 4 + 2 * 2 * 3) = 84, scores and heads 2 * 2 * 9 = 36. Memory: 24.
    # A decoder's token: 6 * 4 + 12 = 36, logits 10. Keys seen in 2 steps: 1 + 2 + 2 * 3 = 9.
    assert decoding_flops(SIZES, [3], target=2, beam=2) == 2 * (84 + 36 + 24 + 2 * (2 * 46 + 36))
    one = decoding_flops(SIZES, [3], 2, 2)
    assert decoding_flops(SIZES, [3, 3, 3], 2, 2) == 3 * one


def test_decoding_flops_of_base():
    # 0.31 GFLOP a target token with beam 4, attention left out.
    d = 512
    expected = 2 * 4 * (6 * (6 * d * d + 2 * d * 2048) + d * 32_000)
    longer, shorter = (decoding_flops(sizes_of("base"), [1], t, 4) for t in (2, 1))
    assert longer - shorter == pytest.approx(expected, rel=1e-3)
    assert expected == pytest.approx(0.31e9, rel=0.01)


def test_training_flops_by_hand():
    assert training_flops(SIZES, [(3, 2)]) == 6 * (84 + 36 + 24 + 2 * 46 + 36)
    assert training_flops(SIZES, [(3, 2), (3, 2)]) == 2 * training_flops(SIZES, [(3, 2)])


def test_fit_exponent():
    assert fit_exponent([1, 2, 4], [3, 12, 48]) == pytest.approx(2)
    assert fit_exponent([10, 1000], [7, 7]) == pytest.approx(0)


def test_fit_exponent_of_one_size():
    with pytest.raises(ValueError, match="two different sizes"):
        fit_exponent([3, 3], [1, 2])


def test_median_ratio_is_of_rounds():
    # The second round was slow for both.
    assert median_ratio([1.0, 10.0, 1.0], [2.0, 21.0, 2.2]) == pytest.approx(2.1)


def test_cases_are_named_once_and_have_systems():
    for cases in (list(all_cases()), list(smoke_cases())):
        assert set(Counter(case["id"] for case in cases).values()) == {1}
        assert {name for case in cases for name in case["systems"]} <= set(SYSTEMS)
    assert {target.case for target in report.TARGETS} <= {case["id"] for case in all_cases()}


def test_sizes_by_name():
    assert sizes_of("small-V2000-L6").vocab_size == 2_000
    assert sizes_of("small-V2000-L6").num_decoder_layers == 6
    assert sizes_of(growth("layers", 8)["size"]).num_encoder_layers == 8


def test_targets_reached_missed_and_not_measured():
    case = case_of("decoding/base/forced/S25/B32/K4")
    systems = {
        "session": system([4.0, 4.0, 5.0]),
        "process": system([2.0, 2.0, 2.0]),
        "ctranslate2": system([3.0, 3.0, 3.0]),
        "marian": system([6.0, 6.0, 6.0]),
    }
    page = report.render(results_of((case, systems)), {})
    lines = page.splitlines()
    assert (
        "| Decoding, base, 32 sentences, beam 4: in process | CTranslate2 float32 | 1.1 x "
        "| **1.50 x** | reached |"
    ) in lines
    assert "| the same | MarianMT, generate | 1.6 x | **1.50 x** | not reached |" in lines
    assert "| the same | MarianMT, generate | 2.5 x | - | not measured |" in lines
    # 960 tokens in 2, 3, 4 and 6 seconds.
    assert "| 25 | 32 | 4 | 240 | **480** | 320 | 160 | " in page
    assert "do not trust" not in page


def test_share_of_the_ceiling():
    case = case_of("training/base/full") | {"flops": 6e9}
    systems = {"fit-xla": system([2.0]), "torch-transformer": system([3.0])}
    results = results_of((case, systems))
    assert figures.share(results, "training/base/full", "fit-xla") == pytest.approx(0.75)
    assert "| 75% | **75%** | reached |" in report.render(results, {})


def test_cost_of_a_token_and_growth():
    short, long = growth("target", 32, "base"), growth("target", 256, "base")
    results = results_of(
        (short, {"process": system([1.0]), "memory": system([1.5], grown=2e8)}),
        (long, {"process": system([16.0]), "memory": system([17.0], grown=8e8)}),
    )
    assert figures.token_cost(results) == pytest.approx(2.0)
    page = report.render(results, {})
    assert "| below 1.5 x | **2.00 x** | not reached |" in page
    # 16 times the time and 4 times the memory for 8 times the length.
    assert "| 32 256 | 1 16 | **1.33** | 200 800 | **0.67** |" in page


def test_skipped_systems_and_a_busy_machine():
    case = case_of("decoding/tiny/natural/S25/B1/K1")
    systems = {
        "session": system([1.0], tokens=30, same=1.0),
        "keras-hub": {"skipped": "the process ended with status 1"},
        "ctranslate2": system([2.0], tokens=30, same=0.5),
    }
    page = report.render(results_of((case, systems), busy=1.3), {})
    assert "**1 of 1 cases were measured while other work ran" in page
    assert "CTranslate2 float32 50.0 %" in page
    assert "| 25 | 1 | 1 | **30** | 15 |" in page


def test_what_is_measured_again_keeps_its_systems(tmp_path, monkeypatch):
    first, second = (f"decoding/base/forced/S25/B{rows}/K4" for rows in (32, 1))
    results = results_of((case_of(first), {"ctranslate2": system([1.0])}))
    path = tmp_path / "results.json"
    path.write_text(json.dumps(results))
    measured = {}

    def take_turns(crew, case, systems, rounds, seconds, say):
        measured[case["id"]] = list(systems)
        return {name: system([1.0]) for name in systems}

    for name, value in {
        "machine": lambda: results["machine"],
        "prepare": lambda *_: None,
        "busy_cores": lambda: 0.0,
        "take_turns": take_turns,
        "BUILD": tmp_path,
    }.items():
        monkeypatch.setattr(program, name, value)
    arguments = argparse.Namespace(
        only=[first, second],
        systems=["session"],
        targets=False,
        quick=False,
        smoke=False,
        once=False,
        again=False,
        rounds=2,
        seconds=1.0,
        run=None,
    )
    program.measure(list(program.choose(arguments)), arguments, path)
    assert measured == {first: ["session", "ctranslate2"], second: ["session"]}
    program.measure([case_of(second)], arguments, path)
    assert measured[second] == list(case_of(second)["systems"])


def test_case_of_another_machine():
    cases = [case_of(f"decoding/tiny/natural/S25/B1/K{beams}") for beams in (1, 4)]
    results = results_of(*((case, {"session": system([1.0])}) for case in cases))
    first, second = results["cases"].values()
    first["made_on"] = {"cpu": "a CPU", "packages": {"torch": "2.13.0"}}
    second["made_on"] = {"cpu": "a CPU", "packages": {"torch": "2.12.0"}}
    assert "**1 of 2 cases were measured on another machine, or" in report.render(results, {})
    second["made_on"] = first["made_on"]
    assert "on another machine" not in report.render(results, {})


def test_pictures(tmp_path):
    case = case_of("decoding/base/forced/S25/B1/K4")
    systems = {"session": system([1.0]), "ctranslate2": system([2.0])}
    longs = [
        (growth("target", size), {"process": system([size / 9]), "memory": system([1], grown=size)})
        for size in (16, 32, 64)
    ]
    report.write(results_of((case, systems), *longs), tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    for name in ("page-speed.png", "page-growth.png"):
        assert f"({name})" in page
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
