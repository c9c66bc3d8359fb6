"""The benchmark's counts, its cases, and the page of results."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from bench import report, run
from bench.cases import CEILINGS, QUICK, all_cases, sizes_of
from bench.inputs import batches, case_flops, pair_lengths, pass_flops
from bench.models import fixed_length
from bench.processes import take_turns
from bench.profiler import milliseconds
from bench.systems import SYSTEMS

from keras_transformer import TransformerConfig
from keras_transformer.search import texts as translation

SIZES = TransformerConfig(
    vocab_size=5, d_model=2, d_ff=3, num_heads=1, num_encoder_layers=1, num_decoder_layers=1
)
B32 = "decoding/base/forced/S25/B32/K4"
ROW = {"machine": "a CPU. Python 3", "revision": "abc", "busy": 0.1, "when": "2026-11"}


def rounds_of(**systems):
    """Rounds by `case@system`: seconds, or a pair of them and of other columns."""
    rows = []
    for name, value in systems.items():
        seconds, more = value if isinstance(value, tuple) else (value, {})
        case, system = name.split("@")
        rows += [
            {**ROW, "case": case, "system": system, "round": number, "seconds": each}
            | {"tokens": 960, **more}
            for number, each in enumerate(seconds)
        ]
    return pd.DataFrame(rows)


def page_of(**systems):
    return report.render(report.Results(rounds_of(**systems)), {})


def test_decoding_flops_by_hand():
    # Encoder, 3 tokens: 3 (4 * 4 + 2 * 2 * 3) = 84, scores and heads 2 * 2 * 9 = 36. Cross: 24.
    # A decoder's token: 6 * 4 + 12 = 36, logits 10. Keys seen in 2 steps: 1 + 2 + 2 * 3 = 9.
    assert pass_flops(SIZES, 3, target=2, beam=2) == 2 * (84 + 36 + 24 + 2 * (2 * 46 + 36))


def test_flops_of_cases():
    tiny = sizes_of("tiny")
    case = {"kind": "decoding", "size": "tiny", "source": 7, "target": 5, "batch": 3, "beam": 2}
    assert case_flops(case) == 3 * pass_flops(tiny, 7, 5, 2)
    batch = ({"source_ids": np.array([[4, 5, 0]])}, np.array([[6, 0]]), None)
    case = {"kind": "training", "size": "tiny", "batches": [batch, batch]}
    assert case_flops(case) == 2 * 3 * pass_flops(tiny, 2, 1)


def test_cases_are_named_once_and_have_systems():
    cases = list(all_cases())
    names = {case["id"] for case in cases}
    assert len(names) == len(cases)
    assert {name for case in cases for name in case["systems"]} <= {*SYSTEMS}
    assert {case for _, case, *_ in report.TARGETS} | {*QUICK} <= names


def test_targets_reached_missed_and_not_measured():
    page = page_of(
        **{
            f"{B32}@session": [2.0, 20.0, 2.0],  # the second round was slow for both
            f"{B32}@process": [4.0, 4.0, 5.0],
            f"{B32}@ctranslate2": [3.0, 30.0, 3.0],
            f"{B32}@marian": [3.0, 3.0, 3.0],
            "start/tiny@session": ([4.5], dict.fromkeys(("import", "load", "first"), 1.5)),
        }
    )
    lines = page.splitlines()
    assert (
        "| Decoding, base, 32 sentences, beam 4 | CTranslate2 float32 | 1.5 x "
        "| **1.50 x** | reached |"
    ) in lines
    assert "| the same | MarianMT, generate | 1.6 x | **1.50 x** | not reached |" in lines
    assert "| the same in float32 | MarianMT, generate | 2.5 x | - | not measured |" in lines
    label = "From the shell to the first translation, tiny"
    assert f"| {label} | - | below 4 s | **4.5 s** | not reached |" in lines
    # 960 tokens in 2, 4, 3 and 3 seconds.
    assert "| 25 | 32 | 4 | **480** | 240 | 320 | 320 | - |" in lines
    assert "do not trust" not in page


def test_share_of_the_ceiling():
    case = "training/base/full"
    systems = {
        f"{case}@fit-xla": ([2.0], {"flops": 6e9}),
        f"{case}@torch-transformer": ([3.0], {"flops": 6e9}),
        f"{case}@{CEILINGS[0]}": ([0.25, 0.5], {"flops": 1e9}),  # at best 4 GFLOP/s
    }
    results = report.Results(rounds_of(**systems))
    assert results.share(case, ("fit", "fit-xla")) == pytest.approx(0.75)
    assert "| 75% | **75%** | reached |" in report.render(results, {})


def growth_rounds(size, seconds, grown):
    """Rounds of cases of the axis "target", by their values."""
    name = f"growth-{size}/target/{{:05}}@{{}}"
    process = {name.format(value, "process"): [each] for value, each in seconds.items()}
    memory = {
        name.format(value, "memory"): ([1.0], {"grown": each}) for value, each in grown.items()
    }
    return process | memory


def test_cost_of_a_token_and_growth():
    page = page_of(**growth_rounds("base", {32: 1.0, 256: 16.0}, {32: 2e8, 256: 8e8}))
    assert "| below 1.5 x | **2.00 x** | not reached |" in page
    # 16 times the time and 4 times the memory for 8 times the length.
    assert "| target, base | 32 256 | 1 16 | **1.33** | 200 800 | **0.67** |" in page


def test_equal_translations_and_a_busy_machine():
    case = "decoding/tiny/forced/S25/B1/K1"
    rounds = rounds_of(
        **{
            f"{case}@session": ([1.0], {"tokens": 30, "same": 1.0}),
            f"{case}@ctranslate2": ([2.0], {"tokens": 30, "same": 0.5}),
        }
    ).assign(busy=1.3)
    page = report.render(report.Results(rounds), {})
    assert "during 1 of 1 cases" in page
    assert "CTranslate2 float32 50.0%" in page
    assert "| 25 | 1 | 1 | **30** | 15 |" in page


def test_table_of_a_release():
    table = report.compact(
        rounds_of(**{f"{B32}@session": [4.0, 3.0, 7.0], f"{B32}@{CEILINGS[0]}": [1.0]})
    )
    assert table.to_csv(index=False, header=False) == f"{B32},session,3,4.0,3.0,s,960,a CPU\n"


def test_figures(tmp_path):
    times = {16: 1.0, 32: 2.0, 64: 4.0}
    rounds = rounds_of(
        **{f"{B32}@session": [1.0], f"{B32}@ctranslate2": [2.0]},
        **growth_rounds("small", times, dict.fromkeys(times, 1e8)),
    )
    report.write(rounds, tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    for name in ("page-speed.png", "page-growth.png"):
        assert f"({name})" in page
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_peers_that_are_not_installed(tmp_path, monkeypatch, capsys):
    def take(case, *_):
        turns = [{"system": name, "round": 0, "seconds": 1.0} for name in case["systems"]]
        return turns, {name: {} for name in case["systems"]}

    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(run, "complete", lambda *_: None)
    monkeypatch.setattr(run, "take_turns", take)
    monkeypatch.setattr(run, "PACKAGES", ("no-such-package", "numpy"))
    monkeypatch.setitem(run.LIBRARIES, "peer_marian", ("numpy", "no_such_library"))
    cases = [{"id": "a", "kind": "growth", "systems": ("marian", "process", "fit")}]
    cases.append({"id": "b", "kind": "growth", "systems": ("marian",)})
    run.measure(cases, tmp_path / "rounds.csv", 1)
    rounds = pd.read_csv(tmp_path / "rounds.csv")
    assert rounds.system.tolist() == ["process", "fit"]
    assert rounds.machine[0].endswith(f", numpy {np.__version__}")
    said = capsys.readouterr().out
    assert said.count("marian: skipped, no_such_library is not installed\n") == 1
    assert "b: case 2 of 2" in said
    assert "  skipped: none of its systems can run here\n" in said


@pytest.mark.programs
def test_turns_and_systems_that_fail(tmp_path, capsys):
    case = {"kind": "growth", "systems": ("ctranslate2", "product-tensorflow")}  # no texts
    (turn,), counts = take_turns(case, 1, tmp_path / "log")
    assert "  ctranslate2: skipped, " in capsys.readouterr().out
    assert turn["system"] == "product-tensorflow"
    assert turn["seconds"] > 0
    assert counts["product-tensorflow"]["flops"] == 4 * 2.0 * 2048**3


def test_batches_of_an_epoch():
    case = {"size": "tiny", "lengths": "wmt", "tokens_per_batch": 512, "num_batches": 3}
    found = batches(case)
    for (inputs, labels, weights), (padded, *_) in zip(*found.values(), strict=True):
        assert labels.size <= 512
        assert weights.sum() == pytest.approx(1)
        rows, length = inputs["source_ids"].shape
        np.testing.assert_array_equal(padded["source_ids"][:rows, :length], inputs["source_ids"])
        assert np.count_nonzero(padded["source_ids"]) == np.count_nonzero(inputs["source_ids"])


def test_lengths_of_wmt():
    # Luong et al. 2015: 25.8 and 24.4 words a side; 1.15 and 1.3 tokens a word, and an end.
    expected = [25.8 * 1.15 + 1, 24.4 * 1.3 + 1]
    np.testing.assert_allclose(pair_lengths("wmt").mean(axis=0), expected, rtol=0.03)


def test_fixed_length_replaces_the_package_s():
    lengths = tf.constant([3, 9])
    with fixed_length(7):
        assert translation._max_lengths(None, lengths, None).numpy().tolist() == [7, 7]


def test_profiles_count_the_time_of_nested_operations_once():
    #     0    2    4    6    8    10   12 ms
    #     Run ────────────────────────────┐
    #          function ───────────┐
    #               product ─┐  sum ┐  product ┐
    events = [("Run", 0, 13), ("a:function", 2, 7), ("p:product", 4, 2), ("q:sum", 7, 1.5)]
    events.append(("r:product", 10, 2))
    names = dict(enumerate(name for name, _, _ in events))
    plane = SimpleNamespace(event_metadata={i: SimpleNamespace(name=names[i]) for i in names})
    rows = enumerate((1e9 * start, 1e9 * length) for _, start, length in events)
    line = SimpleNamespace(
        events=[SimpleNamespace(metadata_id=i, offset_ps=a, duration_ps=b) for i, (a, b) in rows]
    )
    found = milliseconds(plane, line)
    assert found == pytest.approx({"function": 3.5, "product": 4.0, "sum": 1.5})
