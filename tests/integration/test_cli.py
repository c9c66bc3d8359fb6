"""The command line: what goes to which stream, and how bad input ends."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tensorflow as tf
import urllib3
from command_line import assert_documented, assert_refused, cli

from keras_transformer._version import __version__
from keras_transformer.checkpoints import State
from keras_transformer.cli import check, main
from keras_transformer.export.bulk import BulkReport
from keras_transformer.export.check import CHECKS
from keras_transformer.export.options import ExportOptions
from keras_transformer.run import Run
from keras_transformer.trainers.data.prepared import read_validation_pairs

COMMANDS = ("prepare", "train", "import", "average", "evaluate", "translate", "export", "convert")
COMMANDS += ("check", "plot", "runs", "serve", "gateway", "translate-corpus")
COMMANDS += ("demo",)
HEAVY = ("tensorflow", "keras", "apache_beam", "starlette", "grpc", "matplotlib", "sacrebleu")
ROOT = Path(__file__).parents[2]
PROGRAM = Path(sys.executable).with_name("keras-transformer")


@pytest.fixture(scope="module")
def saved_model(exported):
    """The folder of a model with one version, 7."""
    return exported.path.parent


def test_export(tiny_run, saved_model, tmp_path, monkeypatch):
    """What is asked for, of the run's own short sentences, and how rounded answers compare."""
    asked = {}

    def export(translator, folder, version, options, **others):
        asked.update(others, decoding=translator.defaults, options=options)
        return shutil.copytree(saved_model / "7", folder / str(version))

    monkeypatch.setattr("keras_transformer.export.saved_model.export_saved_model", export)
    options = ("--weights", "float16", "--compute", "bfloat16", "--version", 3)
    options += ("--beam-size", 2, "--early-stopping", "first")
    code, out, err = cli("export", tiny_run.path, tmp_path / "tiny", *options)
    assert (code, out) == (0, ""), err
    assert (tmp_path / "tiny" / "3").is_dir()
    assert asked["options"] == ExportOptions(weights="float16", compute="bfloat16")
    assert (asked["decoding"].beam_size, asked["decoding"].early_stopping) == (2, "first")
    pairs = read_validation_pairs(tiny_run.path / "corpus")
    assert asked["examples"] == [pair.source for pair in pairs[:3]]
    assert asked["details"]["checkpoint"]["step"] == tiny_run.best.step
    assert "of 12 validation sentences have the same translation" in err


def test_bfloat16_needs_a_processor_that_has_it(tmp_path, monkeypatch, capsys):
    (tmp_path / "assets.extra").mkdir()
    (tmp_path / "saved_model.pb").touch()
    metadata = tmp_path / "assets.extra" / "metadata.json"
    for compute, has_it, warns in (
        ("bfloat16", False, True),
        ("bfloat16", True, False),
        ("float32", False, False),
    ):
        metadata.write_text(json.dumps({"compute": compute}))
        monkeypatch.setattr(check, "computes_bfloat16", lambda has_it=has_it: has_it)
        assert check.find_export(tmp_path) == tmp_path
        assert (str(tmp_path) in one_line(capsys.readouterr().err)) == warns
    metadata.unlink()  # a SavedModel of another program
    assert check.find_export(tmp_path) == tmp_path
    assert capsys.readouterr().err == ""


def test_check(saved_model, tmp_path, monkeypatch):
    monkeypatch.setitem(CHECKS, "Session", lambda export: "")  # a process; see test_check.py
    folder = shutil.copytree(saved_model, tmp_path / "tiny")
    code, out, _ = cli("check", folder, "--json")
    findings = json.loads(out)
    assert (code, findings["weights"]["problem"]) == (0, None)
    assert_documented("check", findings["weights"])
    (folder / "7" / "assets.extra" / "metadata.json").unlink()
    assert_refused(cli("check", folder), f".*{folder}.*")


def one_line(text):
    return " ".join(text.splitlines())


def test_help_needs_nothing_heavy():
    program = f"""
import sys
from keras_transformer.cli.main import main
for command in {["", *COMMANDS]}:
    sys.argv = ["keras-transformer", *command.split(), "--help"]
    try:
        main()
    except SystemExit as error:
        assert not error.code, command
print({set(HEAVY)} & set(sys.modules))
"""
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
    usages = re.findall(r"Usage: keras-transformer ([\w-]*)", process.stdout)
    assert usages == ["", *COMMANDS]
    assert process.stdout.splitlines()[-1] == "set()"


def test_an_export_is_translated_without_tensorflows_python(saved_model):
    """Its import takes seconds. What is imported afterwards is complete.

    A session may be open when the process ends, and outlive the modules that it uses.
    """
    program = f"""
import os, sys
import numpy
from keras_transformer.cli.main import main
from keras_transformer.export.session import SavedModelSession
os.environ.pop("TF_ENABLE_ONEDNN_OPTS", None)
sys.argv = ["keras-transformer", "translate", {str(saved_model)!r}, "one"]
try:
    main()
except SystemExit as error:
    assert not error.code
numpy.kept = SavedModelSession({str(saved_model / "7")!r})
assert not {{"tensorflow", "tensorflow_text", "keras"}} & set(sys.modules)
assert os.environ["TF_ENABLE_ONEDNN_OPTS"] == "1"
import keras, tensorflow
assert tensorflow.keras.optimizers.Adam is keras.optimizers.Adam
try:
    SavedModelSession()
except TypeError:
    pass
"""
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    assert "Error" not in process.stderr


def test_version():
    assert cli("--version") == (0, f"{__version__}\n", "")


def test_evaluate_for_a_machine(tiny_run, corpus_dir):
    options = ["--data", corpus_dir, "--split", "val", "--beam-size", 1]
    options += ["--baseline", corpus_dir / "de.val.txt", "--tokenize", "char"]
    code, out, err = cli("evaluate", tiny_run.path, *options, "--json")
    assert code == 0, err
    printed = json.loads(out)
    assert_documented("evaluate", printed)
    assert printed["tokenize"] == "char"
    assert "|tok:char|" in printed["bleu"]["signature"]
    output = tiny_run.path / "evaluation" / "val-beam_size=1-tokenize=char"
    assert printed.pop("output") == str(output)
    assert printed.pop("baseline") == {
        "bleu": pytest.approx(100),
        "signature": f"nrefs:1|bs:1000|seed:12345|{printed['bleu']['signature'][8:]}",
        "p_value": pytest.approx(0, abs=0.01),
    }
    assert printed == json.loads(Path(f"{output}.scores.json").read_text())


def test_other_data_of_the_same_name_has_other_results(tiny_run, corpus_dir, tmp_path, monkeypatch):
    run = shutil.copytree(tiny_run.path, tmp_path / "run")
    for name in ("a", "b"):
        shutil.copytree(corpus_dir, tmp_path / name / "data")
        monkeypatch.chdir(tmp_path / name)
        code, _, err = cli("evaluate", run, "--data", "data", "--split", "val", "--beam-size", 1)
        assert code == 0, err
    files = (run / "evaluation").glob("*.scores.json")
    found = {json.loads(file.read_text())["data"] for file in files}
    assert {str(tmp_path / name / "data") for name in ("a", "b")} <= found


def test_some_files_of_a_run_hold_out_other_pairs(tiny_run, tmp_path):
    run, files = shutil.copytree(tiny_run.path, tmp_path / "run"), []
    for name in ("a.tsv", "b.tsv"):
        files.append(str(tmp_path / name))
        rows = "".join(f"one {number}\teins\n" for number in range(60))
        (tmp_path / name).write_text(f"en\tde\n{rows}")
    manifest = json.loads((run / "run.json").read_text())
    manifest["settings"]["data"] = files
    (run / "run.json").write_text(json.dumps(manifest))
    for used, warns in ((files[:1], True), (files, False)):
        data = [word for file in used for word in ("--data", file)]
        code, _, err = cli("evaluate", run, "--beam-size", 1, *data)
        assert (code, "may have been trained on" in one_line(err)) == (0, warns), err


def test_translate_corpus_for_a_machine(monkeypatch):
    report = BulkReport(lines=7, failed=0, truncated=1, shards=2, seconds=2.0)
    monkeypatch.setattr("keras_transformer.export.bulk.translate_corpus", lambda *_, **__: report)
    code, out, err = cli("translate-corpus", "texts", "translated", "--model", "far://m", "--json")
    assert code == 0, err
    assert json.loads(out) == {"output": "translated", **report._asdict()}
    assert_documented("translate-corpus", json.loads(out))


def test_a_stopped_export_leaves_nothing(tiny_run, tmp_path, monkeypatch):
    def stop(*args):
        assert len(list((tmp_path / "models").iterdir())) == 1
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)

    module = tf.Module()
    module.stored, module.graphs, module.inputs = [tf.Variable(0.0)], {}, {}  # nothing to trace
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("keras_transformer.export.saved_model.ServingModule", lambda *_: module)
    monkeypatch.setattr("keras_transformer.export.saved_model.write_warmup", stop)
    assert cli("export", tiny_run.path, tmp_path / "models")[0] == 143
    assert not list((tmp_path / "models").iterdir())
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["translate", "{run}", "x", "--beam-size", 0], "`beam_size`"),
        (["translate", "{run}", "x", "--signature", "greedy"], "{run} .*greedy"),
        (["translate", "{model}", "x", "--signature", "greedy", "--sentences"], ".*--sentences"),
        (["translate", "{run}", "x", "--prefix", "a", "--sentences"], ".*--sentences"),
        (["translate", "{model}", "x", "--num-best", 2, "--sentences"], ".*--sentences"),
        (["train", "--run-dir", "x", "--data", "x", "--protect", "tags,[A]"], "--protect .*tags"),
        (["translate", "{run}", "x", "--terms", "{none}"], "{run} protects none"),
        (["translate", "{model}", "x", "--terms", "{none}"], "{model}.* protects none"),
        (["translate", "{model}", "x", "--beam-size", 1], "{model} .*--beam-size"),
        (["translate", "x", "--grpc", "localhost:1"], "--model"),
        (["check", "{none}"], "{none} must be an export"),
        (["evaluate", "{run}", "--split", "dev"], "'dev'"),
        (["evaluate", "{run}", "--test-set", "wmt14", "--split", "val"], "--test-set"),
        (  # the settings of a run have an empty init_from
            ["train", "--run-dir", "{none}", "--recipe", "{run}", "--preset", "huge"],
            "`preset`",
        ),
        (
            ["train", "--run-dir", "{none}", "--data", "x", "--set", "init_from=2026-11-25"],
            "`init_from`",
        ),
    ],
)
def test_wrong_input(tiny_run, saved_model, tmp_path, arguments, message):
    names = {"run": tiny_run.path, "model": saved_model, "none": tmp_path / "none"}
    before = (tiny_run.path / "run.json").read_bytes()
    result = cli(*(str(argument).format(**names) for argument in arguments))
    assert_refused(result, f".*{message.format(**names)}.*")
    assert (tiny_run.path / "run.json").read_bytes() == before
    assert not (tmp_path / "none").exists()


def test_an_unexpected_error_ends_with_a_line(monkeypatch, capsys):
    monkeypatch.setattr(main, "app", lambda: {}["no such\nkey"])
    with pytest.raises(SystemExit, match="1"):
        main.main()
    *trace, last = capsys.readouterr().err.splitlines()
    assert trace[0].startswith("Traceback")
    assert last == r"error: unexpected KeyError: 'no such\nkey'"


def test_table_of_runs(tiny_run, tmp_path):
    for name in ("a", "b/c"):
        shutil.copytree(tiny_run.path, tmp_path / name)
    curves = tmp_path / "curves.svg"
    new = Run.create(tmp_path / "new", tiny_run.config, tiny_run.tokenizer(), "en", "de", {})
    new.save_state(State({}, 1.0), 213)  # stopped before its first validation
    code, out, err = cli("runs", tmp_path, "--curves", curves)
    assert code == 0, err
    _, *rows = (line.split() for line in out.splitlines())
    assert [row[:3] for row in rows] == [
        ["a", "complete", "5"],
        ["b/c", "complete", "5"],
        ["new", "training", "213"],
    ]
    assert rows[0][4] == f"{tiny_run.best.metrics['val_token_loss']:.2f}"
    assert curves.read_text().count("<!-- b/c -->") == 1  # in the legend
    rows = json.loads(cli("runs", tmp_path, "--json")[1])
    assert rows["a"]["best_step"] == tiny_run.best.step
    assert_documented("runs", rows["a"])
    (tmp_path / "a" / "run.json").write_text("{")
    code, out, err = cli("runs", tmp_path, "--json")
    assert (code, [*json.loads(out)]) == (0, ["b/c", "new"])
    assert "run.json is damaged" in err
    assert cli("runs", tmp_path / "a")[:2] == (1, "")
    corpus = tmp_path / "b" / "c" / "corpus"
    assert_refused(cli("runs", corpus), f".*{corpus}.*")
    assert_refused(cli("runs", tmp_path, "--curves", "x.gif"), "`--curves` .*")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["translate"], "RUN|SAVEDMODEL"),
        (["trian"], "train"),
        (["evaluate", "run", "--checkpoint", "worst"], "--checkpoint"),
        (["serve", "a", "--port", "99999"], "--port"),
    ],
)
def test_wrong_usage(arguments, name):
    code, out, err = cli(*arguments)
    assert (code, out) == (2, "")
    assert name in err


@pytest.mark.programs
def test_readme_serves(exported, tmp_path):
    readme = (ROOT / "README.md").read_text("utf-8")
    serve, curl = re.search(r"^(keras-transformer serve .*)\n(curl .*)$", readme, re.M).groups()
    _, *arguments = shlex.split(serve)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "my-model").symlink_to(exported.path.parent)
    program = "from keras_transformer.cli.main import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments, "--port", "0"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        url = next(line.split()[1] for line in server.stderr if line.startswith("Page: "))
        _, _, data, address = shlex.split(curl.replace("http://127.0.0.1:8501/", url))
        answer = urllib3.request("POST", address, body=data, timeout=60)
        server.terminate()
        server.communicate(timeout=60)
    expected = exported.translator.translate(["Two dogs play."], beam_size=3, length_penalty=0.7)
    assert answer.json()["predictions"][0]["translation"] == expected[0].text
