"""The command line: what goes to which stream, and how bad input ends."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import assert_documented, assert_refused, cli

from keras_transformer._version import __version__
from keras_transformer.cli import translate
from keras_transformer.export.bulk import BulkReport
from keras_transformer.run import Run
from keras_transformer.trainers import corpora
from keras_transformer.trainers.corpora import load_corpus

COMMANDS = ("prepare", "train", "average", "evaluate", "translate", "export", "check")
COMMANDS += ("plot", "serve", "translate-corpus", "demo")
HEAVY = ("tensorflow", "keras", "apache_beam", "starlette", "grpc", "matplotlib", "sacrebleu")
MAX_SOURCE_LENGTH = 11
ROOT = Path(__file__).parents[2]
PROGRAM = Path(sys.executable).with_name("keras-transformer")


@pytest.fixture(scope="module")
def saved_model(tiny_run, tmp_path_factory):
    """The folder of a model with one version, exported by the command."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    options = ("--beam-size", 1, "--max-source-length", MAX_SOURCE_LENGTH, "--version", 3)
    code, out, err = cli("export", tiny_run.path, folder, *options)
    assert (code, out) == (0, "")
    assert "Export: SavedModel in" in err
    assert "  Session    ok     loads without Keras, answers 3 examples" in err
    assert f"Next: keras-transformer serve {folder}, or keras-transformer translate" in err
    return folder


@pytest.mark.programs
def test_rounded_weights(tiny_run, tmp_path):
    options = ("--weights", "float16", "--beam-size", 1)
    code, out, err = cli("export", tiny_run.path, tmp_path / "tiny", *options)
    assert (code, out) == (0, ""), err
    assert re.search(
        r"Rounded weights: 0\.\d MB; BLEU \d+\.\d\d, with float32 \d+\.\d\d; "
        r"\d+ of 12 validation sentences translated alike",
        err,
    )
    assert re.search(r"weights +ok +[\d,]+ of float16, stored once", err)


def test_check(saved_model):
    code, out, err = cli("check", saved_model, "--json")
    assert (code, err) == (0, f"Check: nothing to complain about: {saved_model / '3'}\n")
    findings = json.loads(out)
    assert findings["weights"]["problem"] is None
    assert "of float32, stored once" in findings["weights"]["detail"]
    (saved_model / "3" / "assets.extra" / "metadata.json").rename(saved_model / "kept")
    try:
        assert_refused(cli("check", saved_model), ".* is not an export of this package: .*")
    finally:
        (saved_model / "kept").rename(saved_model / "3" / "assets.extra" / "metadata.json")


def one_line(text):
    return " ".join(text.splitlines())


def test_goes_on_when_nobody_reads_its_log():
    """And ends with its own status, and its result."""
    program = """
import logging, threading, typer
from keras_transformer.cli import main
from keras_transformer.errors import TrainingStoppedError
def work():
    logging.getLogger("keras_transformer").info("Version 2 is available")
    typer.echo("goes on")
def app():
    main.show_log()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    raise TrainingStoppedError("stopped", 130)
main.app = app
main.main()
"""
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.run(
        [sys.executable, "-c", program], stderr=writer, stdout=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert (process.returncode, process.stdout) == (130, b"goes on\n")


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


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("train", "tfds:NAME[/CONFIG]"),
        ("train", "[default: the recipe's]"),
        ("translate", "[default: the run's or export's]"),
    ],
)
def test_help_shows_what_is_in_brackets(command, text):
    code, out, _ = cli(command, "--help")
    assert code == 0
    words = out.replace("│", " ").split()  # lines may be wrapped anywhere
    assert text.replace(" ", "") in "".join(words)


def test_version():
    assert cli("--version") == (0, f"{__version__}\n", "")


def test_one_line_out_for_each_line_in(tiny_run, tiny_translator):
    texts = ["red dog .", "", "öl 😀", "one"]
    stdin = "red dog .\r\n\nöl 😀\r\none"  # CRLF, an empty line, no line feed at the end
    code, out, err = cli("translate", tiny_run.path, "--beam-size", 1, stdin=stdin.encode())
    expected = tiny_translator.translate(texts, beam_size=1)
    assert out == "".join(f"{one_line(translation.text)}\n" for translation in expected)
    assert out.split("\n")[1] == ""
    assert (code, err) == (0, "")


def test_mark_of_utf8_is_no_text(monkeypatch):
    mark = b"\xef\xbb\xbf"
    stdin = io.TextIOWrapper(io.BytesIO(mark + b"one\n" + mark + b"two\n"))
    monkeypatch.setattr("sys.stdin", stdin)
    assert list(translate._stdin_lines()) == ["one", "\ufefftwo"]


def test_only_a_line_feed_ends_a_line(saved_model):
    stdin = "red\u2028dog\x0bcat\x85one\n".encode()
    code, out, _ = cli("translate", saved_model, stdin=stdin)
    assert (code, out.count("\n")) == (0, 1)


def test_line_breaks_in_a_translation_are_spaces(tiny_run, tiny_translator, monkeypatch):
    class Breaking:
        @classmethod
        def load(cls, path):
            return cls()

        def translate(self, texts, progress):
            (translation,) = tiny_translator.translate(["one"])
            return [translation._replace(text=f"{text}\nx\u2028y") for text in texts]

    monkeypatch.setattr("keras_transformer.translator.Translator", Breaking)
    assert cli("translate", tiny_run.path, "one", "two") == (0, "one x y\ntwo x y\n", "")


def test_nothing_in_nothing_out(saved_model):
    assert cli("translate", saved_model, stdin=b"") == (0, "", "")


def test_saved_model_in_its_own_process(saved_model, tiny_translator):
    texts = ["red dog .", "", "one " * 23]
    process = subprocess.run(
        [sys.executable, "-c", "from keras_transformer.cli.main import main; main()"]
        + ["translate", str(saved_model / "3")],
        input="".join(f"{text}\n" for text in texts).encode(),
        capture_output=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr.decode()
    expected = tiny_translator.translate(texts, beam_size=1, max_source_length=MAX_SOURCE_LENGTH)
    lines = [one_line(translation.text) for translation in expected]
    assert process.stdout.decode().split("\n") == [*lines, ""]
    warning = b"warning: text 3 is too long and its end was not translated\n"
    assert process.stderr.count(b"warning:") == process.stderr.count(warning) == 1


def test_folder_of_versions_means_the_newest(saved_model):
    texts = ("red dog .", "", "cat")
    own = cli("translate", saved_model / "3", *texts)
    assert own[0] == 0
    older = saved_model / "2"
    older.mkdir()
    (older / "saved_model.pb").write_bytes(b"no model")
    (saved_model / "notes").mkdir()
    try:
        assert cli("translate", saved_model, *texts) == own
    finally:
        shutil.rmtree(older)
        (saved_model / "notes").rmdir()


def test_evaluate_writes_files_and_prints_scores(tiny_run, corpus_dir, tiny_translator):
    code, out, err = cli("evaluate", tiny_run.path, "--data", corpus_dir, "--beam-size", 1)
    assert code == 0, err
    lines = [re.split("  +", line, maxsplit=2) for line in out.splitlines()]
    assert [label for label, _, _ in lines] == [
        "BLEU",
        "BLEU, lower-cased",
        "BLEU, multimodal protocol",
        "BLEU, the paper's protocol",
        "chrF",
    ]
    for _, value, signature in lines:
        assert re.fullmatch(r"\d+\.\d\d", value)
        assert re.fullmatch(r"nrefs:1\|case:.*\|version:.+", signature)
    folder = tiny_run.path / "evaluation"
    said = f"Evaluation: 9 sentences by {tiny_run.best.file}: {folder / 'test'}.hypothesis"
    assert said in err

    sources = (corpus_dir / "en.test.txt").read_text(encoding="utf-8")
    hypotheses = [t.text for t in tiny_translator.translate(sources.splitlines(), beam_size=1)]
    assert {path.name for path in folder.iterdir()} == {
        f"test.{name}" for name in ("source", "reference", "hypothesis", "scores.json")
    }
    assert (folder / "test.source").read_text(encoding="utf-8") == sources
    references = (corpus_dir / "de.test.txt").read_text(encoding="utf-8")
    assert (folder / "test.reference").read_text(encoding="utf-8") == references
    written = (folder / "test.hypothesis").read_text(encoding="utf-8")
    assert written == "".join(f"{one_line(text)}\n" for text in hypotheses)
    scores = json.loads((folder / "test.scores.json").read_text())
    assert lines[0][1:] == [f"{scores['bleu']['value']:.2f}", scores["bleu"]["signature"]]
    assert scores["data"] == str(corpus_dir)
    assert scores["checkpoint"] == tiny_run.best.file
    assert (scores["num_pairs"], scores["beam_size"]) == (9, 1)


def test_evaluate_while_training_goes_on(tiny_run, corpus_dir, tmp_path, monkeypatch):
    """Reading a corpus may take minutes, after which the best weights are others."""
    shutil.copytree(tiny_run.path, tmp_path / "run")
    run = Run.load(tmp_path / "run")

    def load_slowly(*given):
        run.save_checkpoint(run.model("best"), run.last.step + 1, {}, is_best=True)
        return load_corpus(*given)

    monkeypatch.setattr(corpora, "load_corpus", load_slowly)
    options = ("--data", corpus_dir, "--beam-size", 1, "--checkpoint", "best")
    code, _, err = cli("evaluate", run.path, *options)
    assert code == 0, err
    assert f"Evaluation: 9 sentences by {run.best.file}: " in err


def test_evaluate_for_a_machine(tiny_run, corpus_dir):
    options = ["--data", corpus_dir, "--split", "val", "--beam-size", 1]
    options += ["--baseline", corpus_dir / "de.val.txt"]
    code, out, err = cli("evaluate", tiny_run.path, *options, "--json")
    assert code == 0, err
    printed = json.loads(out)
    assert_documented("evaluate", printed)
    output = tiny_run.path / "evaluation" / "val"
    assert printed.pop("output") == str(output)
    assert printed.pop("baseline") == {
        "bleu": pytest.approx(100),
        "signature": f"nrefs:1|bs:1000|seed:12345|{printed['bleu']['signature'][8:]}",
        "p_value": pytest.approx(0, abs=0.01),
    }
    assert printed == json.loads((output.parent / "val.scores.json").read_text())
    assert f"Next: keras-transformer plot {tiny_run.path}, or keras-transformer export" in err


def test_translate_for_a_machine(tiny_run, tiny_translator, saved_model):
    texts = ["red dog .", "", "one " * 23]
    for path, options in ((tiny_run.path, ["--beam-size", 1]), (saved_model, [])):
        stdin = "".join(f"{text}\n" for text in texts).encode()
        code, out, err = cli("translate", path, *options, "--json", stdin=stdin)
        assert code == 0, err
        longest = MAX_SOURCE_LENGTH if path == saved_model else None
        found = tiny_translator.translate(texts, beam_size=1, max_source_length=longest)
        for line, expected in zip(out.removesuffix("\n").split("\n"), found, strict=True):
            assert_documented("translate", json.loads(line))
            assert json.loads(line) == {
                "translation": expected.text,
                "score": pytest.approx(expected.score, rel=1e-4),
                "truncated": expected.truncated,
            }


def test_translate_corpus_for_a_machine(monkeypatch):
    report = BulkReport(lines=7, failed=0, truncated=1, shards=2, lines_now=5, seconds=2.0)
    monkeypatch.setattr("keras_transformer.export.bulk.translate_corpus", lambda *_, **__: report)
    code, out, err = cli("translate-corpus", "texts", "translated", "--model", "m", "--json")
    assert code == 0, err
    assert json.loads(out) == {"output": "translated", **report._asdict()}
    assert_documented("translate-corpus", json.loads(out))
    assert "Translated: 5 lines in 2.0 s (2.5 a second)\n" in err


@pytest.mark.parametrize("command", ["translate", "evaluate", "export"])
@pytest.mark.parametrize("exists", [False, True])
def test_no_run_directory(tmp_path, corpus_dir, command, exists):
    path = tmp_path / "run"
    if exists:
        path.mkdir()
    rest = {"translate": ["one"], "evaluate": ["--data", corpus_dir], "export": [tmp_path / "m"]}
    code, out, err = cli(command, path, *rest[command])
    message = {
        ("translate", True): f"{path} is neither a run directory nor a SavedModel",
        ("translate", False): f"There is no {path}: it must be a run directory or a SavedModel",
    }.get((command, exists), f"{path} is not a run directory: it holds no file run.json")
    if command != "translate" and not exists:
        message = f"There is no run directory {path}"
    assert (code, out, err) == (1, "", f"error: {message}\n")
    assert not (tmp_path / "m").exists()


def test_unknown_preset_tells_what_there_is(corpus_dir, tmp_path):
    run_dir = tmp_path / "run"
    result = cli("train", "--data", corpus_dir, "--run-dir", run_dir, "--preset", "huge")
    assert_refused(result, "`preset` must be one of tiny, base, big, .*. Received: preset='huge'")
    assert not run_dir.exists()


def test_unknown_split_tells_what_there_is(tiny_run, corpus_dir):
    result = cli("evaluate", tiny_run.path, "--data", corpus_dir, "--split", "dev")
    assert_refused(result, ".* has no split 'dev'. There are: test, train, val")


def test_split_of_a_test_set(tiny_run):
    result = cli("evaluate", tiny_run.path, "--test-set", "wmt14/full", "--split", "val")
    assert_refused(result, "--split is of --data, and a test set has none. Received: val")


def test_unknown_data_folder(tiny_run, tmp_path):
    message = f"There is no folder {tmp_path}/none: data must be .*"
    run_dir = tmp_path / "run"
    assert_refused(cli("evaluate", tiny_run.path, "--data", tmp_path / "none"), message)
    assert_refused(cli("train", "--data", tmp_path / "none", "--run-dir", run_dir), message)
    assert not run_dir.exists()


def test_existing_run_directory(tiny_run, corpus_dir):
    before = (tiny_run.path / "run.json").read_bytes()
    result = cli("train", "--data", corpus_dir, "--run-dir", tiny_run.path)
    assert_refused(result, f"{tiny_run.path} exists and is not empty: go on with it by .*")
    assert (tiny_run.path / "run.json").read_bytes() == before


def test_existing_version(tiny_run, saved_model):
    result = cli("export", tiny_run.path, saved_model, "--version", 3)
    assert_refused(result, f"{saved_model}/3 exists already: choose another version, or delete it")


def test_a_stopped_export_leaves_nothing(tiny_run, tmp_path, monkeypatch):
    def stop(*args):
        assert len(list((tmp_path / "models").iterdir())) == 1
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("keras_transformer.export.saved_model.write_warmup", stop)
    assert cli("export", tiny_run.path, tmp_path / "models")[0] == 143
    assert not list((tmp_path / "models").iterdir())
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(("option", "name"), [("--beam-size", "beam_size"), ("--alpha", "alpha")])
def test_the_search_of_a_saved_model_is_fixed(saved_model, option, name):
    result = cli("translate", saved_model, "one", option, 1)
    assert_refused(result, f".*tiny is a SavedModel, whose search was fixed .*: {name} cannot .*")


def test_damaged_saved_model(tmp_path):
    (tmp_path / "saved_model.pb").write_bytes(b"half")
    result = cli("translate", tmp_path, "one")
    assert_refused(
        result, f"{tmp_path} does not hold a whole SavedModel with a signature serving_default: .*"
    )


def test_wrong_option(tiny_run):
    result = cli("translate", tiny_run.path, "one", "--beam-size", 0)
    assert_refused(result, "`beam_size` must be at least 1. Received: beam_size=0")


def test_results_are_utf8_in_any_locale():
    program = """
from keras_transformer.cli import main
main.app = lambda: main.typer.echo("öl €")
main.main()
"""
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, capture_output=True, env=environment, check=True)
    assert result.stdout.decode("utf-8") == "öl €\n"


def test_invalid_utf8_on_standard_input(saved_model):
    result = cli("translate", saved_model, stdin=b"one\n\ntwo \xff\nred\n")
    assert_refused(result, "standard input, line 3: not valid UTF-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["translate"], "Missing argument 'RUN"),
        (["fly"], "No such command 'fly'"),
        (["train", "--data", "bundled"], "Missing option '--run-dir'"),
        (
            ["export", "run", "models", "--version", "x"],
            "Invalid value for '--version'",
        ),
        (["evaluate", "run", "--data", "x", "--checkpoint", "worst"], "'worst' is not one of"),
        (["serve", "m", "--run-timeout", "inf"], "Invalid value for '--run-timeout': inf is more"),
        (["serve", "m", "--poll-seconds", "nan"], "Invalid value for '--poll-seconds'"),
        (["serve", "m", "--batch-timeout-ms", "1e13"], "Invalid value for '--batch-timeout-ms'"),
        (["serve", "m", "--read-timeout", "inf"], "Invalid value for '--read-timeout'"),
        (["translate", "--url", "u", "x", "--timeout", "inf"], "Invalid value for '--timeout'"),
    ],
)
def test_wrong_usage(arguments, message):
    code, out, err = cli(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--beam-size", 10**20],
            f"`beam_size` must be at most 1000. Received: beam_size={10**20}",
        ),
        (["--alpha", "inf"], "`alpha` must be at most 1000. Received: alpha=inf"),
    ],
)
def test_search_has_bounds(tiny_run, arguments, message):
    assert_refused(cli("translate", tiny_run.path, "one", *arguments), message)


@pytest.mark.parametrize("stream", ["stdin", "stdout"])
def test_closed_stream(tiny_run, stream):
    program = "import sys; sys.{} = None; from keras_transformer.cli.main import main; main()"
    command = [sys.executable, "-c", program.format(stream), "translate", tiny_run.path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"error: Standard (input|output).*\n", done.stderr)
