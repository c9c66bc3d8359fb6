"""What the command line says where a user needs to know what comes next, and what it keeps."""

import json
import re
import shutil
import types
from pathlib import Path

import pytest
from command_line import cli

from keras_transformer.cli import settings_table
from keras_transformer.cli.console import evaluation_of
from keras_transformer.config import DecodingOptions
from keras_transformer.errors import TrainingStoppedError
from keras_transformer.trainers.recipes import change_recipe
from keras_transformer.trainers.settings import TrainSettings
from keras_transformer.translator import Translation, Translator

ROOT = Path(__file__).parents[2]


def test_results_of_other_options_are_kept(tiny_run, corpus_dir, tmp_path, monkeypatch):
    def echo(run, checkpoint=None, **search):
        """A translator that needs no model."""
        return types.SimpleNamespace(
            defaults=DecodingOptions.of(run.settings).changed(**search),
            tokenizer=types.SimpleNamespace(lowercase=False),
            translate=lambda texts, progress: [Translation(x, -1.0, False, ()) for x in texts],
        )

    monkeypatch.setattr(Translator, "of", echo)
    run, other = tmp_path / "run", tmp_path / "other"
    shutil.copytree(tiny_run.path, run, ignore=shutil.ignore_patterns("evaluation"))
    shutil.copytree(corpus_dir, other)
    (other / "de.val.txt").write_text("nichts\n" * 12)
    options = ["--split", "val", "--json", "--data"]
    commands = [
        [corpus_dir, "--beam-size", 1],
        [corpus_dir],
        [corpus_dir, "--length-penalty", 0, "--noise"],
        [other],
        [other, "--tokenize", "char"],
        [corpus_dir, "--tokenized-references", corpus_dir / "de.val.txt"],
        [corpus_dir, "--tokenized-references", other / "de.val.txt"],
    ]
    outputs = []
    for _ in range(2):  # the same options replace their own results
        for command in commands:
            code, out, err = cli("evaluate", run, *options, *command)
            assert code == 0, err
            outputs.append(json.loads(out)["output"])
    assert outputs[7:] == outputs[:7]
    assert len(set(outputs[:7])) == 7
    data = [json.loads(Path(f"{path}.scores.json").read_text())["data"] for path in outputs[:7]]
    assert data == [str(command[0]) for command in commands]
    manifest = json.loads((run / "run.json").read_text())
    later = shutil.copy(run / tiny_run.best.file, run / "checkpoints/step-00000099.weights.h5")
    manifest["best"] |= {"file": str(later.relative_to(run)), "step": 99}
    (run / "run.json").write_text(json.dumps(manifest))
    code, out, err = cli("evaluate", run, *options, corpus_dir)  # after more training
    assert (code, json.loads(out)["output"] in outputs) == (0, False), err


def test_what_is_inside_a_folder_is_named(tmp_path):
    run, model = tmp_path / "demo" / "run", tmp_path / "demo" / "models" / "demo"
    for file in (run / "run.json", model / "1" / "saved_model.pb"):
        file.parent.mkdir(parents=True)
        file.touch()
    for command, folder, named in (
        ("translate", tmp_path / "demo", f"{model} and {run}"),
        ("serve", tmp_path / "demo", f"{model} and {run}"),
        ("serve", model.parent, model),
        ("check", model.parent, model),
        ("translate", model.parent, model),
        ("plot", tmp_path / "demo", run),
        ("evaluate", tmp_path, run),
    ):
        code, _, err = cli(command, folder)
        assert (code, err.rstrip().endswith(f" there is {named}")) == (1, True), err
    for command in ("translate", "serve", "check", "plot"):
        code, _, err = cli(command, tmp_path / "nosuch")
        assert code == 1
        assert re.search(r"does not exist|There is no", err)


@pytest.mark.parametrize(
    ("number", "beginning"), [(130, "Stopped"), (143, "Stopped"), (75, "error: Stopped")]
)
def test_a_stop_that_saves_is_no_error(tmp_path, monkeypatch, number, beginning):
    def stop(*_):
        raise TrainingStoppedError("Stopped", number)

    monkeypatch.setattr("keras_transformer.cli.train.train_with_progress", stop)
    assert cli("train", "--data", "x", "--run-dir", tmp_path) == (number, "", f"{beginning}\n")


@pytest.mark.parametrize("data", ["", "{folder}", "x"])
def test_the_suggestion_to_evaluate(tmp_path, data):
    """Without a corpus of text, data is missing; imported runs have none."""
    (tmp_path / "corpus.json").touch()
    words = evaluation_of("run", data.format(folder=tmp_path))
    assert words == ["evaluate", "run", *([] if data == "x" else ["--data", "DATA"])]


def test_all_settings_are_listed(tmp_path):
    code, out, err = cli("train", "--list-settings")
    assert (code, err) == (0, "")
    listed = dict(re.findall(r"^(\S+) = (.*)$", out, re.M))
    values = TrainSettings(data="x").to_dict()
    assert {*listed} >= values.keys() - {"data"}
    changes = [f"{name}={text}" for name, text in listed.items() if "." not in name]
    assert TrainSettings.from_dict(change_recipe({"data": "x"}, changes)).to_dict() == values
    assert listed["model.d_model"].startswith("128, 512, 1024")  # Table 3, and tiny
    page = (ROOT / "docs" / "reference" / "settings.md").read_text("utf-8")
    assert page == settings_table.page()  # python -m keras_transformer.cli.settings_table writes it
