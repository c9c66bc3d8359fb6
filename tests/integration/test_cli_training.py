"""The command line from a recipe to an average: settings, preparation, resuming, scores."""

import json
import re
import shutil

import pytest
from command_line import assert_documented, assert_refused, cli
from eager import eagerly

from keras_transformer.cli.train import make_settings
from keras_transformer.files import locked
from keras_transformer.run import Run
from keras_transformer.trainers.data.prepared import corpus_folder, read_validation_pairs


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """A recipe of a training of a second, with all that a recipe may ask for."""
    path = tmp_path_factory.mktemp("recipe") / "small.toml"
    path.write_text(
        "vocab_size = 290\naugment = {}\nsteps = 4\ntokens_per_batch = 300\nmax_length = 40\n"
        "steps_per_validation = 1\nkeep_checkpoints = 3\nbeam_size = 2\nlength_penalty = 1.5\n"
        "[model]\nd_model = 12\nd_ff = 14\nnum_heads = 2\nnum_encoder_layers = 1\n"
        "num_decoder_layers = 1\n"
    )
    return path


@pytest.fixture(scope="module")
def recipe_run(recipe, corpus_dir, tmp_path_factory):
    """A run of the recipe, by way of a prepared corpus."""
    folder = tmp_path_factory.mktemp("recipe_run")
    code, out, err = cli("prepare", folder / "corpus", "--recipe", recipe, "--data", corpus_dir)
    assert (code, out) == (0, ""), err
    options = ["--recipe", recipe, "--data", folder / "corpus", "--run-dir", folder / "run"]
    changes = ["--set", "model.d_ff=18", "--set", "label_smoothing=0.2", "--seed", 3]
    with eagerly():
        code, out, err = cli("train", *options, *changes)
    assert (code, out) == (0, ""), err
    assert len(re.findall(r"^After \d updates", err, re.M)) == 4  # a line for each validation
    return folder / "run"


def test_run_records_the_resolved_recipe(recipe_run):
    settings = json.loads((recipe_run / "run.json").read_text())["settings"]
    assert (settings["steps"], settings["seed"], settings["label_smoothing"]) == (4, 3, 0.2)
    assert (settings["model"]["d_model"], settings["model"]["d_ff"]) == (12, 18)
    assert settings["warmup_steps"] == 4000  # neither in the recipe nor on the command line


def test_prepare_for_a_machine(corpus_dir, tmp_path):
    folder = tmp_path / "corpus"
    options = ["--data", corpus_dir, "--set", "max_length=7", "--set", "augment={}"]
    options += ["--vocab-size", 284, "--json"]
    code, out, err = cli("prepare", folder, *options)
    assert code == 0, err
    prepared = json.loads(out)
    assert_documented("prepare", prepared)
    assert prepared["corpus"] == str(folder)
    assert prepared["kept"] + prepared["dropped"]["too_long"] == 150
    assert len(prepared["examples"]["too_long"]) == 3
    assert json.loads((folder / "corpus.json").read_text())["made_from"]["vocab_size"] == 284
    assert f"train --data {folder} --run-dir" in err
    given = {"data": [str(folder)]}
    found = make_settings(given)
    assert (found.vocab_size, found.max_length, found.augment) == (284, 7, {})
    assert make_settings({}, changes=[f"data={folder}"]).vocab_size == 284
    found = make_settings({**given, "vocab_size": 285}, changes=["max_length=8"])
    assert (found.vocab_size, found.max_length) == (285, 8)  # which `train` refuses


def test_a_student_has_the_settings_of_its_teacher(recipe_run, corpus_dir, tmp_path):
    given = {"teacher": str(recipe_run), "preset": "tiny-fast", "steps": 7}
    teacher, student = Run.load(recipe_run).settings, make_settings(given).to_dict()
    of_model = {"model", "preset"}  # its sizes are its own
    differing = {name for name, value in student.items() if value != teacher[name]}
    assert differing - of_model == given.keys() - of_model | {"data"}
    assert student["data"] == str(corpus_dir)  # which the teacher's prepared corpus is from
    config = make_settings(given).config()
    assert (config.num_encoder_layers, config.num_decoder_layers) == (6, 1)
    file = tmp_path / "recipe.toml"
    file.write_text(f'data = "{corpus_dir}"\nseed = 9\n')
    assert make_settings(given, str(file)).seed == 9
    assert make_settings(given, str(file)).source == "en"


def test_the_other_commands_take_the_average_or_the_best(recipe_run, corpus_dir):
    code, out, err = cli("average", recipe_run, "--last", 2)
    assert (code, out) == (0, "")
    assert "after 3, 4 updates" in err
    run = Run.load(recipe_run)
    assert run.averaged.file == "checkpoints/averaged-00000003-00000004-2.weights.h5"
    losses = [each.metrics["val_token_loss"] for each in (run.best, run.averaged)]
    name = "best" if losses[0] < losses[1] else "averaged"
    assert f"checkpoint {name}: " in err
    code, out, err = cli("evaluate", recipe_run, "--data", corpus_dir)
    assert code == 0, err
    scores = json.loads((recipe_run / "evaluation" / "test.scores.json").read_text())
    assert scores["checkpoint"] == getattr(run, name).file
    assert (scores["beam_size"], scores["length_penalty"]) == (2, 1.5)  # the recipe's
    assert f"{scores['bleu']['value']:.2f}  {scores['bleu']['signature']}" in out.splitlines()[0]


def test_average_takes_what_there_is(recipe_run, tmp_path):
    run_dir = tmp_path / "run"
    shutil.copytree(recipe_run, run_dir)
    code, _, err = cli("average", run_dir)
    assert code == 0, err
    assert "after 2, 3, 4 updates" in err  # all, for the recipe says 0
    assert_refused(cli("average", recipe_run, "--last", 4), "`last` .*last=4")


def test_baseline_and_tokenized_references(recipe_run, corpus_dir, tmp_path):
    sources = (corpus_dir / "en.test.txt").read_text(encoding="utf-8")
    references = (corpus_dir / "de.test.txt").read_text(encoding="utf-8")
    (tmp_path / "tokenized").write_text(references.lower(), encoding="utf-8")
    options = ["--data", corpus_dir, "--baseline", corpus_dir / "de.test.txt"]
    options += ["--tokenized-references", tmp_path / "tokenized"]
    code, out, err = cli("evaluate", recipe_run, *options)
    assert code == 0, err
    label, signature = out.splitlines()[-1].split("100.00")
    assert label.startswith("BLEU of the baseline")
    assert "|bs:1000|seed:12345|" in signature
    (tmp_path / "short").write_text(sources.split("\n")[0] + "\n", encoding="utf-8")
    for option in ("--baseline", "--tokenized-references"):
        result = cli("evaluate", recipe_run, "--data", corpus_dir, option, tmp_path / "short")
        assert_refused(result, f"{tmp_path}/short must have 9 lines.*")


@pytest.mark.usefixtures("eager")
def test_resume(recipe, recipe_run, corpus_dir, tmp_path):
    run_dir = tmp_path / "run"
    start = ["--recipe", recipe, "--data", corpus_dir]
    for steps, options, resumed in ((2, start, False), (3, start, True), (4, [], True)):
        options = [*options, "--run-dir", run_dir, "--resume", "--steps", steps]
        code, out, err = cli("train", *options, "--json")
        assert code == 0, err
        assert (f"Resumed after {steps - 1} updates" in err) == resumed
        summary = json.loads(out)
        assert_documented("train", summary)
        assert summary["run_dir"] == str(run_dir)
        assert (summary["step"], summary["steps"], summary["validations"]) == (steps, steps, steps)
    assert len((run_dir / "metrics.jsonl").read_text().splitlines()) == 4


@pytest.mark.usefixtures("eager")
def test_more_updates_are_advised_unless_there_was_a_cooldown(recipe, corpus_dir, tmp_path):
    options = ["--recipe", recipe, "--data", corpus_dir, "--steps", 2, "--set", "peak_rate=0.01"]
    options += ["--set", "warmup_steps=1"]  # so that the second validation is the better one
    for cooldown in (0.0, 0.5):
        run_dir = tmp_path / str(cooldown)
        code, _, err = cli("train", *options, "--set", f"cooldown={cooldown}", "--run-dir", run_dir)
        assert code == 0, err
        first, second = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
        assert second["val_loss"] < first["val_loss"]
        assert ("--resume with more --steps may go further" in err) == (cooldown == 0)


def test_the_corpus_may_be_elsewhere(recipe_run):
    """`plot` shows the prepared corpus of a run that has none of its own."""
    folder = corpus_folder(Run.load(recipe_run))
    assert folder == recipe_run.parent / "corpus"
    assert len(read_validation_pairs(folder)) == 12


def test_no_average_during_a_training(recipe_run):
    with locked(recipe_run):
        assert_refused(cli("average", recipe_run), f".*{recipe_run}: .*")


def test_no_data(tmp_path):
    assert_refused(cli("train", "--run-dir", tmp_path / "run"), ".*`data`.*")
