"""A corpus through Beam and a model that spells in capitals, with lines that fail."""

import bz2
import gzip
import json
import lzma
import os
import signal
import sys

import pytest
import tensorflow as tf
import zstandard
from apache_beam.io.filesystems import FileSystems
from disk import full_disk
from typer.testing import CliRunner

from keras_transformer.cli import translate_corpus as command
from keras_transformer.cli.main import app
from keras_transformer.errors import InputError
from keras_transformer.export import bulk
from keras_transformer.export.bulk import Shard, translate_corpus

MAX_LENGTH = 23
COMPRESSIONS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.compress,
}


class Capitals(tf.Module):
    """Fails at a batch with the word boom; marks long lines as truncated."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")], autograph=False)
    def translate(self, text):
        fine = tf.logical_not(tf.strings.regex_full_match(text, ".*boom.*"))
        check = tf.debugging.Assert(tf.reduce_all(fine), ["no boom,\nplease"])
        with tf.control_dependencies([check]):
            upper = tf.strings.upper(text, encoding="utf-8")
        return {"translation": upper, "truncated": tf.strings.length(text) > MAX_LENGTH}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")], autograph=False)
    def lower(self, text):
        return {"translation": tf.strings.lower(text, encoding="utf-8")}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")], autograph=False)
    def measure(self, text):
        return {"length": tf.strings.length(text)}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder of two versions; the newer, 10, is in capitals."""
    folder = tmp_path_factory.mktemp("models") / "capitals"
    module = Capitals()
    module.weight = tf.Variable([1.0])
    signatures = {"serving_default": module.translate, "quiet": module.lower}
    tf.saved_model.save(module, str(folder / "10"), {**signatures, "measure": module.measure})
    tf.saved_model.save(module, str(folder / "9"), {"serving_default": module.lower})
    return folder


@pytest.fixture
def corpus(tmp_path):
    """Lines in a file, some of which cannot be translated, and their translations."""
    lines = [f"{'wört ' * (n * 7 % 11)}{n}".encode() for n in range(43)]
    lines[4] = b""
    lines[9] = b"broken \xff\xfe"
    lines[10] = "l\u2028s\x85e\x0bt".encode()
    lines[17] = b"a boom"
    lines[30] = b"carriage\r"
    path = tmp_path / "corpus.txt"
    path.write_bytes(b"\n".join(lines))  # without a line feed at the end
    expected = [line.decode(errors="replace").strip("\r").upper() for line in lines]
    expected[9] = expected[17] = ""
    expected[10] = "L S E T"
    return path, expected


@pytest.fixture
def cli():
    """Runs the command."""
    return lambda *arguments: CliRunner().invoke(app, ["translate-corpus", *map(str, arguments)])


def shards_of(output):
    return [path.read_text(encoding="utf-8") for path in sorted(output.glob("translation-*"))]


def lines_of(output):
    return "".join(shards_of(output)).removesuffix("\n").split("\n")


def test_line_for_line(corpus, model, tmp_path, cli, monkeypatch):
    said = []
    monkeypatch.setattr(command, "say", said.append)
    path, expected = corpus
    output = tmp_path / "out"
    arguments = [path, output, "--model", model, "--lines-per-shard", 13]
    result = cli(*arguments, "--runner=FnApiRunner", "--direct_num_workers", 1)
    assert result.exit_code == 0, result.exception
    assert lines_of(output) == expected
    assert [shard.count("\n") for shard in shards_of(output)] == [13, 13, 13, 4]
    lines = enumerate(path.read_bytes().split(b"\n"), start=1)
    long = [number for number, line in lines if len(line) > MAX_LENGTH]
    warning, corpus_line = said
    counts = f"2 lines failed and are empty, {len(long)} lines are too long"
    assert warning.startswith(f"warning: {counts}")
    assert corpus_line.startswith("Corpus: 43 lines in ")
    assert corpus_line.endswith(f", 4 shards: {output}/translation-*")
    problems = "".join(each.read_text() for each in sorted(output.glob("problems-*.tsv")))
    rows = [row.split("\t") for row in problems.splitlines()]
    assert {file for file, _, _ in rows} == {str(path)}
    assert [int(number) for _, number, _ in rows] == sorted([10, 18, *long])
    reasons = {int(number): reason for _, number, reason in rows}
    assert "can't decode byte 0xff in position 7" in reasons[10]
    assert "no boom" in reasons[18]
    assert {reasons[number] for number in long} == {bulk.TOO_LONG}
    assert len([*output.iterdir()]) == len([*output.glob("[tp]r*-*")])  # no temporary files


def test_several_files_in_order_of_their_names(model, tmp_path):
    (tmp_path / "b.txt.bz2").write_bytes(bz2.compress(b"four\nfive\n"))
    (tmp_path / "a.txt").write_bytes(b"one\ntwo\nthree")
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"six\nboom\n") + gzip.compress(b"eight"))
    (tmp_path / "d.txt").write_bytes(b"")
    (tmp_path / "e.md").write_bytes(b"no\n")
    output = tmp_path / "out"
    report = translate_corpus(str(tmp_path / "*.txt*"), str(output), str(model), lines_per_shard=2)
    assert lines_of(output) == ["ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "", "EIGHT"]
    (problems,) = output.glob("problems-*")
    assert problems.read_text().startswith(f"{tmp_path}/c.txt.gz\t2\t")
    assert (report.lines, report.shards) == (8, 5)


@pytest.mark.parametrize("ending", COMPRESSIONS)
def test_compressed_files(tmp_path, ending):
    path = tmp_path / f"corpus.txt{ending}"
    lines = [f"line {n * n}".encode() for n in range(10)]
    content = COMPRESSIONS[ending](b"\n".join(lines))
    path.write_bytes(content)
    (shard,) = bulk.read_shards((0, str(path)), 10)
    assert shard.lines == lines
    path.write_bytes(content[:-9])
    with pytest.raises(InputError, match=f"^Cannot read {path}: .*truncated"):
        list(bulk.read_shards((0, str(path)), 10))


def test_byte_order_marks(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("\ufeffone\n\ufefftwo\nthree\n")
    assert list(bulk.read_shards((3, str(path)), 2)) == [
        Shard("000003-000000", str(path), 1, [b"one", "\ufefftwo".encode()]),
        Shard("000003-000001", str(path), 3, [b"three"]),
    ]
    path.write_bytes("one\ntwo\n".encode("utf-16"))
    with pytest.raises(InputError, match=f"^Cannot read {path}: it is UTF-16"):
        list(bulk.read_shards((0, str(path)), 2))


@pytest.mark.distributed
def test_workers_in_other_processes(model, tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"line {n}\n" for n in range(5)))
    options = ["--direct_num_workers=2", "--direct_running_mode=multi_processing"]
    report = translate_corpus(
        str(path), str(tmp_path / "out"), str(model), lines_per_shard=2, beam_options=options
    )
    assert lines_of(tmp_path / "out") == [f"LINE {n}" for n in range(5)]
    assert (report.lines, report.shards) == (5, 3)


def test_signature_and_version(corpus, model, tmp_path):
    for name, folder, signature in (("a", model, "quiet"), ("b", model / "9", "serving_default")):
        translate_corpus(str(corpus[0]), str(tmp_path / name), str(folder), signature=signature)
        assert lines_of(tmp_path / name)[17] == "a boom"  # in lower case, and it does not fail


def test_model_on_a_remote_file_system(corpus, model, tmp_path, monkeypatch):
    remote = "ram://models/capitals/10"  # a file system of TensorFlow
    for folder, _, files in tf.io.gfile.walk(str(model / "10")):
        for file in files:
            path = os.path.join(folder, file)
            copy = f"{remote}/{os.path.relpath(path, model / '10')}"
            tf.io.gfile.makedirs(os.path.dirname(copy))
            tf.io.gfile.copy(path, copy)
    translate_corpus(str(corpus[0]), str(tmp_path / "out"), remote)
    assert lines_of(tmp_path / "out") == corpus[1]
    with pytest.raises(InputError, match=f"^{remote} is not an export of this package"):
        translate_corpus(str(corpus[0]), str(tmp_path / "none"), remote, target="de")
    known = {"source": "en", "target": "cs", "sources": ["en"], "targets": ["cs", "de"]}
    tf.io.gfile.makedirs(f"{remote}/assets.extra")
    with tf.io.gfile.GFile(f"{remote}/assets.extra/metadata.json", "w") as file:
        file.write(json.dumps({"languages": known}))
    monkeypatch.setattr(FileSystems, "open", lambda path: tf.io.gfile.GFile(path, "rb"))
    translate_corpus(str(corpus[0]), str(tmp_path / "de"), remote, target="de")
    assert lines_of(tmp_path / "de")[0] == f">>EN:DE<< {corpus[1][0]}"


def test_nothing_to_translate(model, tmp_path):
    (tmp_path / "corpus[1].txt").touch()  # its name is no pattern
    report = translate_corpus(str(tmp_path / "corpus[1].txt"), str(tmp_path / "out"), str(model))
    assert report._replace(seconds=0) == (0, 0, 0, 0, 0)


@pytest.mark.parametrize("name", ["film.srt", "a.PO.xz", "a.tsv.gz"])
def test_files_that_are_not_lines(model, tmp_path, name):
    (tmp_path / "a.txt").touch()
    (tmp_path / name).touch()
    with pytest.raises(InputError, match=rf"^{tmp_path}/{name} is not lines of text, which .*"):
        translate_corpus(str(tmp_path / "*"), str(tmp_path / "out"), str(model))


def test_output_must_be_new(corpus, model, tmp_path):
    output = tmp_path / "out[1]"
    (output / "folder").mkdir(parents=True)
    (output / "folder" / "notes").write_text("mine")
    with pytest.raises(InputError, match="is not empty: choose another folder"):
        translate_corpus(str(corpus[0]), str(output), str(model))
    assert [path.name for path in output.iterdir()] == ["folder"]
    notes = output / "folder" / "notes"
    with pytest.raises(InputError, match="notes is a file: choose a folder"):
        translate_corpus(str(corpus[0]), str(notes), str(model))


def test_output_that_cannot_be_written(tmp_path):
    shard = Shard("000000-000000", "corpus.txt", 1, [b"a"])
    message = f"^Cannot write {tmp_path}/translation-000000-000000: .*too large"
    with pytest.raises(InputError, match=message), full_disk(10):
        bulk.write_shard((shard, [{"translation": "x" * 11}]), str(tmp_path))


# The command.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.txt", "{out}", "--model", "{model}"], "There is no file .*none.txt"),
        (["{in}", "{out}", "--model", "{in}"], ".*corpus.txt must be .*"),
        (
            ["{in}", "{out}", "--model", "{model}", "--signature", "measure"],
            ".*10 has no signature measure that translates. There are: quiet, serving_default",
        ),
        (["{in}", "{out}", "--model", "{model}", "--lines-per-shrad=3"], ".*-shrad=3.*"),
        (["{in}", "{out}", "--model", "{model}", "--runner=No"], "Unexpected .*runner: No. .*"),
        (["far://x/y", "{out}", "--model", "{model}"], ".* far://x/y: Unable to get filesystem .*"),
    ],
)
def test_errors_are_one_sentence(corpus, model, tmp_path, cli, arguments, message):
    names = {"in": corpus[0], "out": tmp_path / "out", "model": model}
    result = cli(*[argument.format(**names) for argument in arguments])
    assert isinstance(result.exception, InputError)
    with pytest.raises(InputError, match=f"^{message}$"):
        raise result.exception
    assert not (tmp_path / "out").exists()


def test_stopped_by_a_signal(model, tmp_path, cli, monkeypatch):
    said = []
    monkeypatch.setattr(command, "say", said.append)
    monkeypatch.setattr(os, "_exit", sys.exit)
    monkeypatch.setattr(bulk, "translate_corpus", lambda *_, **__: signal.raise_signal(15))
    assert cli("x", "out", "--model", model).exit_code == 128 + signal.SIGTERM
    assert said == ["error: stopped by SIGTERM: delete out and start again"]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_without_beam(corpus, model, tmp_path, cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    monkeypatch.delitem(sys.modules, "keras_transformer.export.bulk")
    result = cli(corpus[0], tmp_path / "out", "--model", model)
    assert "pip install 'keras3-transformer[bulk]'" in str(result.exception)


def test_model_that_fails_at_every_line(model, tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("boom\n" * 70)
    with pytest.raises(InputError, match=r"corpus\.txt: all of 70 lines fail.*no boom"):
        translate_corpus(str(path), str(tmp_path / "out"), str(model))
