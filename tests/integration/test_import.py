"""The command line with an imported model, which has its tags and two languages of pieces."""

import json
from pathlib import Path

import pytest
from command_line import assert_refused, cli
from marian_models import extract


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """A run, and sentences."""
    folder = extract("huggingface", tmp_path_factory.mktemp("models")) / "shared"
    run = folder / "run"
    code, _, err = cli("import", folder, run, "--like", "huggingface", "--target", "deu")
    assert code == 0, err
    assert "Import: en to deu, " in err
    return run, json.loads((folder / "expected.json").read_text("utf-8"))["sentences"]


def test_opennmt(tmp_path):
    folder = extract("opennmt", tmp_path) / "all/run"
    code, _, err = cli("import", folder, tmp_path / "run", "--source", "en", "--target", "de")
    assert code == 0, err
    assert "Import: en to de, " in err
    assert_refused(
        cli("import", folder, tmp_path / "x", "--like", "huggingface"),
        f"{folder} holds another kind of model: --like is not for it",
    )


def test_evaluate_and_plot(imported, tmp_path):
    run, _ = imported
    assert_refused(cli("evaluate", run), f"{run} was trained elsewhere: give --data or --test-set")
    (tmp_path / "en.test.txt").write_text("Did they go?\n")
    (tmp_path / "deu.test.txt").write_text("Gingen sie?\n")
    code, out, _ = cli("evaluate", run, "--data", tmp_path, "--json")
    assert code == 0
    assert json.loads(out)["beam_size"] == 4
    code, _, err = cli("plot", run)
    assert code == 0, err
    assert "<html" in (run / "report/report.html").read_text("utf-8")


def test_convert(imported, tmp_path):
    run, _ = imported
    code, _, err = cli("convert", run, tmp_path / "hub", "--to", "marian")
    assert code == 0
    assert f"Converted: 7 files, 0.1 MB: {tmp_path / 'hub'}" in err
    assert_refused(
        cli("convert", run, tmp_path / "x", "--to", "marian", "--quantization", "int8"),
        "--quantization is for CTranslate2. Received: --to marian",
    )
    code, *_ = cli(
        "convert", run, tmp_path / "ct2", "--to", "ctranslate2", "--quantization", "int8"
    )
    assert code == 0
    assert (Path(tmp_path) / "ct2/model.bin").is_file()
