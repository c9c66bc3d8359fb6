"""The benchmark's counts, its cases, and the page of results."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from bench import report
from bench.cases import CEILINGS, QUICK, all_cases, sizes_of
from bench.inputs import batches, case_flops, pair_lengths, pass_flops, write_text
from bench.models import fixed_length
from bench.processes import take_starts, take_turns
from bench.profiler import milliseconds
from bench.systems import SYSTEMS, Translating

from keras_transformer import DecodingOptions, TransformerConfig
from keras_transformer.texts.texts import TextSearch
from keras_transformer.tokenizers import EncodedTexts

SIZES = TransformerConfig(
    vocab_size=5, d_model=2, d_ff=3, num_heads=1, num_encoder_layers=1, num_decoder_layers=1
)
B32 = "decoding/base/forced/S25/B32/K4"
ROW = {"machine": "a CPU", "revision": "abc", "busy": 0.1, "when": "2026-11", "tokens": 960}


def rounds_of(**systems):
    """Rounds by `case@system`: seconds, or a pair of them and of other columns."""
    rows = []
    for name, value in systems.items():
        seconds, more = value if isinstance(value, tuple) else (value, {})
        case, system = name.split("@")
        rows += [
            {**ROW, "case": case, "system": system, "round": number, "seconds": each, **more}
            for number, each in enumerate(seconds)
        ]
    return pd.DataFrame(rows)


def cells_of(**systems):
    """The rows of the page's tables, as lists of cells."""
    page = report.render(report.Results(rounds_of(**systems)), None)
    lines = [line for line in page.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


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
    assert {case for _, case, *_ in report.TARGETS} | {*QUICK, *report.PANELS} <= names


def test_targets_reached_missed_and_not_measured():
    cells = cells_of(
        **{
            f"{B32}@session": [2.0, 20.0, 2.0],  # the second round was slow for both
            f"{B32}@process": [4.0, 4.0, 5.0],
            f"{B32}@ctranslate2": [3.5, 40.0, 3.5],
            f"{B32}@ctranslate2-split": [3.0, 30.0, 3.0],
            "serving/tiny/08@session": ([4.0], {"sentences": 128, "p50": 61.2, "p99": 75.0}),
            f"{B32}@marian": [3.0, 3.0, 3.0],
            "start/tiny@session": ([4.5], dict.fromkeys(("import", "load", "first"), 1.5)),
            "training/base/full@fit-xla": ([2.0], {"flops": 6e9}),
            "training/base/full@torch-transformer": ([3.0], {"flops": 6e9}),
            f"training/base/full@{CEILINGS[0]}": ([0.25, 0.5], {"flops": 1e9}),  # 4 GFLOP/s at best
            "growth-base/target/00032@process": [1.0],
            "growth-base/target/00256@process": [16.0],
            # 4 times the memory for 8 times the length
            "growth-base/target/00032@memory": ([1.0], {"grown": 2e8}),
            "growth-base/target/00256@memory": ([1.0], {"grown": 8e8}),
        }
    )
    label = "Decoding, base, 32 sentences, beam 4"
    fastest = "CTranslate2 float32, 2 x 1 threads"
    assert [label, fastest, "1.35 x", "**1.50 x**", "reached"] in cells
    assert ["the same", "MarianMT, generate", "1.60 x", "**1.50 x**", "not reached"] in cells
    one = "the same one sentence"
    assert [one, "MarianMT, generate", "2.50 x", "-", "not measured"] in cells
    assert ["8", "ours, SavedModel in a Session", "32", "61", "75"] in cells
    verdicts = {row[0]: row[3:] for row in cells}
    start = verdicts["From the shell to the first translation, tiny"]
    assert start == ["**4.5 s**", "not reached"]
    assert verdicts["Training step, base, without padding"] == ["**75%**", "reached"]
    cost = verdicts["Cost of a target token at 256, base, beam 4"]
    assert cost == ["**2.00 x**", "not reached"]
    # 960 tokens in 2, 4, 3.5, 3 and 3 seconds
    assert ["25", "32", "4", "**480**", "240", "274", "320", "320", "-"] in cells
    assert ["base", "full", "**480**", "320", "75%"] in cells
    assert ["target, base", "32 256", "1 16", "**1.33**", "200 800", "**0.67**"] in cells


def test_the_files_of_a_report(tmp_path):
    case = "decoding/tiny/forced/S25/B1/K1"
    rounds_of(
        **{
            f"{B32}@session": [4.0, 3.0, 7.0],
            f"{B32}@{CEILINGS[0]}": [1.0],
            f"{case}@session": ([1.0], {"tokens": 30, "same": 1.0, "busy": 1.3}),
            f"{case}@ctranslate2": ([2.0], {"tokens": 30, "same": 0.5}),
        }
    ).to_csv(tmp_path / "rounds.csv", index=False)
    report.write(tmp_path / "rounds.csv", tmp_path / "page.md", tmp_path / "0.1.csv")
    page = (tmp_path / "page.md").read_text()
    assert "during 1 of 2 cases" in page
    assert "CTranslate2 float32, 1 x 2 threads 50.0%" in page
    assert "(page-speed.png)" in page
    assert (tmp_path / "page-speed.png").read_bytes().startswith(b"\x89PNG")
    lines = (tmp_path / "0.1.csv").read_text().splitlines()
    assert lines[1] == f"{B32},session,3,4,3,960,a CPU"
    assert len(lines) == 4  # without the ceiling


@pytest.mark.programs
def test_systems_that_fail_are_left_out(tmp_path, capsys):
    case = {"kind": "growth", "systems": ("ctranslate2", "product-tensorflow")}  # no texts
    (turn,), counts = take_turns(case, 1, tmp_path / "log")
    assert turn["system"] == "product-tensorflow"
    assert turn["seconds"] > 0
    assert counts["product-tensorflow"]["flops"] == 4 * 2.0 * 2048**3
    assert take_starts({"systems": ("ctranslate2",)}, 2, tmp_path / "log") == ([], {})
    assert capsys.readouterr().out.count("  ctranslate2: skipped, KeyError") == 2


def test_a_system_that_has_just_started_translates_all_texts_at_once():
    class Upper(Translating):
        def translate(self, texts):
            return [text.upper() for text in texts]

    system = Upper()
    system.texts = ["a", "b"]
    assert system.run() == ["A", "B"]


def test_batches_of_an_epoch():
    case = {"size": "tiny", "lengths": "wmt", "tokens_per_batch": 512, "num_batches": 3}
    found = batches(case)
    for (inputs, labels, weights), (padded, *_) in zip(*found.values(), strict=True):
        assert labels.size <= 512
        assert weights.sum() == pytest.approx(1)
        rows, length = inputs["source_ids"].shape
        np.testing.assert_array_equal(padded["source_ids"][:rows, :length], inputs["source_ids"])
        assert np.count_nonzero(padded["source_ids"]) == np.count_nonzero(inputs["source_ids"])


def test_lengths_of_wmt(tmp_path):
    # Luong et al. 2015: 25.8 and 24.4 words a side; 1.15 and 1.3 tokens a word, and an end.
    expected = [25.8 * 1.15 + 1, 24.4 * 1.3 + 1]
    np.testing.assert_allclose(pair_lengths("wmt").mean(axis=0), expected, rtol=0.03)
    write_text(tmp_path, 700)
    for language, mean in (("en", 25.8), ("de", 24.4)):
        lines = (tmp_path / f"{language}.train.txt").read_text().splitlines()
        assert len(lines) == 700
        assert np.mean([len(line.split()) for line in lines]) == pytest.approx(mean, rel=0.1)


def test_fixed_length(tiny_translator):
    model, tokenizer = tiny_translator.model, tiny_translator.tokenizer
    with fixed_length(7):
        search = TextSearch(model, tokenizer, DecodingOptions(beam_size=1))
    source = EncodedTexts.of(tf.ragged.constant([[5, 6], [4, 5, 6]], dtype=tf.int32))
    assert search.search(source).ids.shape[2] <= 7
    assert search.max_target_tokens == 7 < 2 + search.options.extra_length


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
