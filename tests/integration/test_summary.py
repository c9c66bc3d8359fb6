"""The summary of a run, against figures counted another way."""

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest

from keras_transformer.cli.progress import batch_plan, still_improves, summarize, summary_table
from keras_transformer.run import Run
from keras_transformer.trainers.data.batches import BatchPlan, make_dataset
from keras_transformer.trainers.data.prepared import StoredPairs

STEPS = 19  # of 8 batches an epoch


@pytest.fixture
def run(tiny_run):
    """The tiny run of five updates, to be changed by a test."""
    return Run.load(tiny_run.path)


def test_figures_of_a_run(run):
    summary = summarize(run)
    json.dumps(summary)
    assert summary["run_dir"] == str(run.path)
    assert (summary["status"], summary["step"], summary["steps"]) == ("complete", 5, 5)
    assert summary["validations"] == 2  # after 3 and 5 updates
    assert summary["parameters"] == 12_760  # 290 * 16 + 1,960 + 2 * 3,080
    assert summary["seconds"] == run.states[-1].metrics["seconds"]
    for name, kept in {"best": run.best, "last": run.checkpoints[-1]}.items():
        expected = {"step": kept.step, "file": str(run.path / kept.file), "metrics": kept.metrics}
        assert summary[name] == expected
    assert summary["averaged"] is None


def test_pairs_and_tokens_are_those_of_the_batches(run):
    run.checkpoints = [dataclasses.replace(run.last, step=STEPS)]
    pairs = StoredPairs(run.path / "corpus", "train")
    plan = BatchPlan(pairs.lengths, run.settings["tokens_per_batch"], run.settings["seed"])
    assert 2 * plan.batches_per_epoch < STEPS
    counts = np.zeros(3, int)
    for inputs, targets, _ in make_dataset(pairs, plan, range(STEPS)):
        source_ids = inputs["source_ids"].numpy()
        counts += [len(source_ids), (source_ids != 0).sum(), (targets.numpy() != 0).sum()]
    assert batch_plan(run).batches_per_epoch == plan.batches_per_epoch
    seen = summarize(run)["seen"]
    assert [seen[name] for name in ("pairs", "source_tokens", "target_tokens")] == counts.tolist()
    assert seen["epochs"] == counts[0] / 150


def test_without_its_corpus(run, tmp_path):
    shutil.copytree(run.path, tmp_path / "run", ignore=shutil.ignore_patterns("corpus"))
    summary = summarize(Run.load(tmp_path / "run"))
    assert summary["seen"] is None
    assert "seen" not in summary_table(summary)


def test_the_corpus_is_not_read_to_its_end(run, tmp_path):
    """It may have gigabytes, so damage at its end is not found."""
    shutil.copytree(run.path, tmp_path / "run")
    shard = tmp_path / "run" / "corpus" / "train-00000.npy"
    content = shard.read_bytes()
    shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert summarize(Run.load(tmp_path / "run"))["seen"] == summarize(run)["seen"]


def test_table(run):
    metrics = {"of_steps": [2_000, 3_000], "val_token_loss": 2.5}
    averaged = {"step": 3_000, "metrics": metrics, "file": "a"}
    best = {"step": 2_000, "metrics": {"val_token_loss": 2.3456, "val_bleu": 21.04}, "file": "b"}
    last = {"step": 3_000, "metrics": {"token_loss": 1.5}, "file": "c"}  # no validation text
    changes = {"step": 3_000, "seconds": 7_322.4, "averaged": averaged, "best": best, "last": last}
    table = summary_table(summarize(run) | changes)
    parts = {"time": "2:02:02.* 0.41 updates", "best": "2,000 .*2.346.* BLEU 21.0: b"}
    parts |= {"last": "3,000 .*1.500: c", "averaged": "2,000, 3,000 .*2.500: a", "chosen": "best: "}
    for name, part in parts.items():
        assert re.search(part, table[name])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"steps": 9}, False),  # its patience ended it
        ({"validations": 1}, False),
        ({"best": {"step": 4, "metrics": {"val_bleu": 1.0}}}, False),
        ({"best": {"step": 7, "metrics": {"loss": 1.0}}}, False),  # there is no validation text
    ],
)
def test_whether_it_still_improves(changes, expected):
    best = {"step": 7, "metrics": {"val_bleu": 1.0}}
    summary = {"step": 7, "steps": 7, "validations": 2, "best": best}
    assert still_improves(summary | changes) == expected
