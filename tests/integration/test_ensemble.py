"""An ensemble of two runs, from the command to a served answer."""

import shutil

import numpy as np
import pytest
from command_line import assert_refused, cli
from disk import full_disk
from layer_weights import randomize

from keras_transformer import RecurrentConfig, Run
from keras_transformer.registry import build_model
from keras_transformer.trainers.data.prepared import corpus_folder, read_validation_pairs

TEXTS = ["red dog .", "", "öl two one", "one two " * 31]


def make_run(path, tokenizer, config, settings):
    run = Run.create(path, config, tokenizer, "en", "de", settings)
    run.save_checkpoint(randomize(build_model(config)), step=7, metrics={}, is_best=True)
    run.finish()
    return path


@pytest.fixture(scope="module")
def members(tiny_run, tmp_path_factory):
    """A Transformer and a recurrent model, with weights that make no two hypotheses score alike."""
    folder, tokenizer = tmp_path_factory.mktemp("members"), tiny_run.tokenizer()
    config = RecurrentConfig(vocab_size=tokenizer.vocab_size, d_model=6, units=5)
    made = [
        make_run(folder / "one", tokenizer, tiny_run.config, tiny_run.settings),
        make_run(folder / "two", tokenizer, config, {"beam_size": 1}),
    ]
    shutil.copytree(tiny_run.path / "corpus", made[0] / "corpus")
    return made


@pytest.fixture(scope="module")
def ensemble(members):
    path = members[0].with_name("both")
    code, _, err = cli("ensemble", *members, "--run-dir", path)
    assert code == 0, err
    assert all(str(Run.load(member).best.file) in err for member in members)
    assert f"Next: keras-transformer evaluate {path}, or " in err  # the first run's data has text
    return path


def test_it_has_the_members_weights(members, ensemble):
    run = Run.load(ensemble)
    assert run.settings == Run.load(members[0]).settings
    own, first = (read_validation_pairs(corpus_folder(Run.load(x))) for x in (ensemble, members[0]))
    assert own == first != []
    for member, loaded in zip(members, run.model().members, strict=True):
        for weight, expected in zip(loaded.weights, Run.load(member).model().weights, strict=True):
            np.testing.assert_array_equal(weight, expected)


@pytest.mark.programs
def test_it_evaluates_and_draws(ensemble):
    for command, *options in (["evaluate", "--noise"], ["plot"]):
        code, out, err = cli(command, ensemble, *options)
        assert code == 0, err
        assert ("BLEU, title" in out) == (command == "evaluate")
    assert (ensemble / "report" / "noise-test.png").exists()
    assert (ensemble / "evaluation" / "test-typing.hypothesis").exists()


def test_refused(members, ensemble, tiny_run, tmp_path):
    one, two = members
    new = tmp_path / "new"
    result = cli("ensemble", one, two, "--run-dir", ensemble)
    assert_refused(result, f"{ensemble} exists already: choose another run directory")
    for members in ([one], [one, two, one]):
        result = cli("ensemble", *members, "--run-dir", new)
        assert_refused(result, "`members` must be two or more different run directories. .*")
    other = make_run(tmp_path / "other", tiny_run.tokenizer(), tiny_run.config, {"task": "parsing"})
    message = f"The task of all runs must be the same: .*{one} has translation, and {other} has .*"
    assert_refused(cli("ensemble", one, other, "--run-dir", new), message)
    result = cli("train", "--data", "bundled", "--set", f"init_from={ensemble}", "--run-dir", new)
    assert_refused(result, "An ensemble cannot be trained: .*")
    result = cli("train", "--run-dir", ensemble, "--resume", "--data", "bundled", "--steps", 9)
    assert_refused(
        result, f"{ensemble} was imported or is an ensemble, so it cannot be resumed. .*"
    )
    assert not (ensemble / "metrics.jsonl").exists()
    result = cli("convert", ensemble, new, "--to", "ctranslate2")
    assert_refused(result, "Only a Transformer .*")
    with full_disk(9_000):
        result = cli("ensemble", one, two, "--run-dir", new)
    assert_refused(result, "Cannot write .*: File too large.*")
    assert not new.exists()
