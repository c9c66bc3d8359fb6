"""A corpus through Beam and a model that spells in capitals, with kills and lines that fail."""

import bz2
import gzip
import hashlib
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

pytest.importorskip("apache_beam")

import tensorflow as tf
from apache_beam.io.localfilesystem import LocalFileSystem
from disk import full_disk
from typer.testing import CliRunner

from keras_transformer.cli import translate_corpus as command
from keras_transformer.cli.main import app
from keras_transformer.errors import InputError
from keras_transformer.export import beam_files, bulk, bulk_input
from keras_transformer.export.bulk import translate_corpus, translate_shard
from keras_transformer.export.bulk_input import Shard, Source
from keras_transformer.files import locked

MAX_LENGTH = 23
TEMPORARY = f"temporary-{0:032x}"


class Capitals(tf.Module):
    """Fails at a batch with the word boom; cuts nothing, but says so of long lines."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def translate(self, text):
        fine = tf.logical_not(tf.strings.regex_full_match(text, ".*boom.*"))
        check = tf.debugging.Assert(tf.reduce_all(fine), ["no boom,\nplease"])
        with tf.control_dependencies([check]):
            upper = tf.strings.upper(text, encoding="utf-8")
        return {
            "translation": upper,
            "score": tf.zeros(tf.shape(text)),
            "truncated": tf.strings.length(text) > MAX_LENGTH,
        }

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def lower(self, text):
        return {"translation": tf.strings.lower(text, encoding="utf-8")}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
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
    path.write_bytes(b"\n".join(lines))  # and no line feed at the end
    expected = [line.decode(errors="replace").strip("\r").upper() for line in lines]
    expected[9] = expected[17] = ""
    expected[10] = "L S E T"
    return path, expected


def shards_of(output):
    return [path.read_text(encoding="utf-8") for path in sorted(output.glob("translation-*"))]


def lines_of(output):
    text = "".join(shards_of(output))
    assert text.endswith("\n")
    return text.split("\n")[:-1]


def state_of(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def messages_of(caplog):
    """What was logged, but for the first use of what TensorFlow calls deprecated."""
    others = ("root", "tensorflow")
    return [record.getMessage() for record in caplog.records if record.name not in others]


FAILED = "10\tnot valid UTF-8 at byte 8\n"


def test_line_for_line(corpus, model, tmp_path):
    path, expected = corpus
    told = []
    report = translate_corpus(
        str(path),
        str(tmp_path / "out"),
        str(model),
        lines_per_shard=13,
        progress=lambda done, total: told.append((done, total)),
    )
    assert lines_of(tmp_path / "out") == expected
    assert [shard.count("\n") for shard in shards_of(tmp_path / "out")] == [13, 13, 13, 4]
    failed, boom = (tmp_path / "out" / "failed.tsv").read_text().splitlines(keepends=True)
    assert failed == FAILED
    assert boom.startswith("18\t")
    assert "no boom" in boom
    long = sum(len(line) > MAX_LENGTH for line in path.read_bytes().split(b"\n"))
    assert (report.lines, report.failed, report.truncated) == (43, 2, long)
    assert (report.shards, report.lines_now) == (4, 43)
    assert report.seconds > 0
    assert sum(done for done, _ in told) == 4
    assert {total for _, total in told} == {4}
    assert not list((tmp_path / "out").glob("temporary*"))


def test_second_call_translates_what_is_missing(corpus, model, tmp_path):
    path, expected = corpus
    output = tmp_path / "out"
    arguments = (str(path), str(output), str(model))
    translate_corpus(*arguments, lines_per_shard=13)
    first, second, *_ = sorted(output.glob("translation-*"))
    second.unlink()
    (output / TEMPORARY).write_text("half a sh")
    before = state_of(output)
    report = translate_corpus(*arguments, lines_per_shard=13)
    assert (report.lines, report.lines_now, report.failed) == (43, 13, 2)
    assert lines_of(output) == expected
    after = state_of(output)
    assert after[first] == before[first]
    assert output / TEMPORARY not in after
    report = translate_corpus(*arguments, lines_per_shard=13)
    assert (report.lines_now, report.failed) == (0, 2)


def cut(path, size=0):
    path.write_bytes(path.read_bytes()[:size])


DAMAGES = {
    "shard emptied": lambda shard, report: cut(shard),
    "shard cut": lambda shard, report: cut(shard, -9),
    "shard changed": lambda shard, report: shard.write_bytes(
        shard.read_bytes().replace(b"1", b"2")
    ),
    "shard gone": lambda shard, report: shard.unlink(),
    "report cut": lambda shard, report: cut(report, 3),
    "report gone": lambda shard, report: report.unlink(),
    "report of another kind": lambda shard, report: report.write_text("[]"),
    "report of an older version": lambda shard, report: report.write_text(
        '{"lines": 13, "failed": [], "truncated": []}'
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_second_call_mends_what_is_not_as_it_was_written(corpus, model, tmp_path, damage, caplog):
    path, expected = corpus
    output = tmp_path / "out"
    arguments = (str(path), str(output), str(model))
    translate_corpus(*arguments, lines_per_shard=13)
    before = state_of(output)
    first, second, *_ = sorted(output.glob("translation-*"))
    DAMAGES[damage](second, output / "reports" / "00001.json")
    (output / f"{first.name}.bak").write_text("no shard")
    report = translate_corpus(*arguments, lines_per_shard=13)
    assert (report.lines, report.lines_now, report.failed) == (43, 13, 2)
    (output / f"{first.name}.bak").unlink()
    assert lines_of(output) == expected
    after = state_of(output)
    assert after.keys() == before.keys()
    assert after[first] == before[first]
    told = [] if damage == "shard gone" else [f"Not as it was written, and made again: {second}"]
    assert messages_of(caplog) == told


@pytest.mark.parametrize("content", ["[]", "{}", "", '{"format', "\x00"])
def test_damaged_manifest(corpus, model, tmp_path, content):
    output = tmp_path / "out"
    translate_corpus(str(corpus[0]), str(output), str(model))
    (output / "manifest.json").write_text(content)
    with pytest.raises(InputError, match=f"^{output}/manifest.json is damaged, or of another"):
        translate_corpus(str(corpus[0]), str(output), str(model))


def test_names_that_look_like_patterns(corpus, model, tmp_path):
    """They are names of their own, and nothing beside them is touched."""
    path, expected = corpus
    odd, output = tmp_path / "in[1]*?.txt", tmp_path / "o[1]*?"
    path.rename(odd)
    (tmp_path / "in1xy.txt").write_text("decoy")
    decoys = [tmp_path / "o1xy", tmp_path / "ox1]yz"]
    for decoy in decoys:
        decoy.mkdir()
        for name in ("manifest.json", "translation-00001-of-00004", TEMPORARY):
            (decoy / name).write_text("mine")
    before = [state_of(decoy) for decoy in decoys]
    for lines_now in (43, 13, 0):
        report = translate_corpus(str(odd), str(output), str(model), lines_per_shard=13)
        assert (report.lines, report.lines_now) == (43, lines_now)
        assert lines_of(output) == expected
        if lines_now == 43:
            cut(output / "translation-00001-of-00004")
            (output / TEMPORARY).write_text("left")
    assert not (output / TEMPORARY).exists()
    assert [state_of(decoy) for decoy in decoys] == before
    (tmp_path / "[x]").mkdir()
    (tmp_path / "[x]" / "notes").write_text("mine")
    with pytest.raises(InputError, match="is not empty, and no translation"):
        translate_corpus(str(odd), str(tmp_path / "[x]"), str(model))


@pytest.mark.distributed
def test_killed_and_called_again(model, tmp_path):
    lines = [f"line {n}" for n in range(700)]
    path, output = tmp_path / "corpus.txt", tmp_path / "out"
    path.write_text("".join(f"{line}\n" for line in lines))
    program = (
        "from keras_transformer.export.bulk import translate_corpus;"
        f"translate_corpus({str(path)!r}, {str(output)!r}, {str(model)!r}, lines_per_shard=1)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(list(output.glob("translation-*"))) < 3:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    before = {path: at for path, at in state_of(output).items() if "translation-" in path.name}
    assert 3 <= len(before) < len(lines)
    report = translate_corpus(str(path), str(output), str(model), lines_per_shard=1)
    assert (report.lines, report.lines_now) == (len(lines), len(lines) - len(before))
    assert lines_of(output) == [line.upper() for line in lines]
    after = state_of(output)
    assert {path: after[path] for path in before} == before


def test_shard_is_seen_whole_or_not_at_all(corpus, model, tmp_path, monkeypatch):
    path, expected = corpus
    output = tmp_path / "out"
    rename = bulk.FileSystems.rename

    def fail_at_second_shard(sources, targets):
        if "translation-00001" in targets[0]:
            assert Path(sources[0]).read_text(encoding="utf-8").count("\n") == 13
            raise OSError("the disk is gone")
        rename(sources, targets)

    monkeypatch.setattr(bulk.FileSystems, "rename", fail_at_second_shard)
    arguments = (str(path), str(output), str(model))
    message = f"^Cannot write {output}/translation-00001-of-00004: the disk is gone$"
    with pytest.raises(InputError, match=message):
        translate_corpus(*arguments, lines_per_shard=13)
    assert lines_of(output) == expected[:13]
    monkeypatch.undo()
    assert translate_corpus(*arguments, lines_per_shard=13).lines_now == 30
    assert lines_of(output) == expected
    assert not list(output.glob("temporary*"))


def test_several_files_in_order_of_their_names(model, tmp_path):
    (tmp_path / "b.txt.bz2").write_bytes(bz2.compress(b"four\nfive\n"))
    (tmp_path / "a.txt").write_bytes(b"one\ntwo\nthree")  # no line feed at the end
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"six\nboom\n") + gzip.compress(b"eight"))
    (tmp_path / "d.txt").write_bytes(b"")
    (tmp_path / "e.md").write_bytes(b"no\n")
    output = tmp_path / "out"
    report = translate_corpus(str(tmp_path / "*.txt*"), str(output), str(model), lines_per_shard=2)
    assert lines_of(output) == ["ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "", "EIGHT"]
    assert (output / "failed.tsv").read_text().startswith("7\t")
    assert (report.lines, report.shards) == (8, 5)


@pytest.mark.distributed
def test_workers_in_other_processes(model, tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"line {n}\n" for n in range(5)))
    options = ["--direct_num_workers=2", "--direct_running_mode=multi_processing"]
    translate_corpus(
        str(path), str(tmp_path / "out"), str(model), lines_per_shard=2, beam_options=options
    )
    assert lines_of(tmp_path / "out") == [f"LINE {n}" for n in range(5)]


def test_nothing_to_translate(model, tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("")
    report = translate_corpus(str(path), str(tmp_path / "out"), str(model))
    assert (report.lines, report.shards) == (0, 0)


def test_signature_and_version(corpus, model, tmp_path):
    path, _ = corpus
    for name, folder, signature in (("a", model, "quiet"), ("b", model / "9", "serving_default")):
        output = tmp_path / name
        translate_corpus(str(path), str(output), str(folder), signature=signature)
        assert lines_of(output)[17] == "a boom"  # nothing is in capitals, nor does it fail


@pytest.mark.parametrize("change", ["input", "model", "signature", "shard size"])
def test_another_corpus_is_refused(corpus, model, tmp_path, change):
    path, _ = corpus
    output = tmp_path / "out"
    translate_corpus(str(path), str(output), str(model), lines_per_shard=20)
    before = state_of(output)
    if change == "input":
        path.write_bytes(path.read_bytes().replace(b"2", b"3"))
    options = {"signature": "quiet"} if change == "signature" else {}
    size = 21 if change == "shard size" else 20
    other = model / "9" if change == "model" else model
    with pytest.raises(InputError, match=f"^{output} was begun with another {change}: choose"):
        translate_corpus(str(path), str(output), str(other), lines_per_shard=size, **options)
    assert state_of(output) == before


@pytest.mark.parametrize("name", ["notes", "temporary-notes", "photos/a"])
def test_foreign_folder_is_refused(corpus, model, tmp_path, name):
    path = tmp_path / "out" / name
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(InputError, match="out is not empty, and no translation of a corpus"):
        translate_corpus(str(corpus[0]), str(tmp_path / "out"), str(model))
    assert [found for found in (tmp_path / "out").rglob("*") if found.is_file()] == [path]


def test_one_call_at_a_time(corpus, model, tmp_path):
    arguments = (str(corpus[0]), str(tmp_path / "out"), str(model))
    translate_corpus(*arguments, lines_per_shard=13)
    before = state_of(tmp_path / "out")
    refused = pytest.raises(InputError, match=f"^Another call is writing {tmp_path}/out: ")
    with locked(tmp_path / "out"), refused:
        translate_corpus(*arguments, lines_per_shard=13)
    assert state_of(tmp_path / "out") == before


def test_shard_that_comes_while_a_call_begins(corpus, model, tmp_path, monkeypatch):
    """By a worker of a call that was stopped: it is no damaged one."""
    path, expected = corpus
    output = tmp_path / "out"
    arguments = (str(path), str(output), str(model))
    translate_corpus(*arguments, lines_per_shard=13)
    first, *_ = sorted(output.glob("translation-*"))
    first.rename(tmp_path / "late")
    deleted, report_of = [], bulk._report

    def report_late(layout, shard):
        report = report_of(layout, shard)
        if not first.exists():
            shutil.copy(tmp_path / "late", first)
        return report

    monkeypatch.setattr(bulk, "_report", report_late)
    monkeypatch.setattr(bulk.beam_files, "delete", deleted.append)
    translate_corpus(*arguments, lines_per_shard=13)
    assert str(first) not in deleted
    assert lines_of(output) == expected


class Far(LocalFileSystem):
    """A file system whose errors are its own, as Google's are."""

    @classmethod
    def scheme(cls):
        return "away"

    def open(self, path, *arguments, **options):
        raise LookupError(f"404 GET\n{path}")

    def exists(self, path):
        raise PermissionError("401 Anonymous caller")


@pytest.fixture
def far(monkeypatch):
    monkeypatch.setattr(beam_files.FileSystems, "get_filesystem", lambda path: Far(None))


def test_missing_file_of_another_file_system(far):
    with pytest.raises(OSError, match=r"^404 GET away://x/manifest\.json$"):
        beam_files.read("away://x/manifest.json")


@pytest.mark.parametrize("look", [beam_files.match, beam_files.exists])
def test_file_system_that_does_not_tell(far, look):
    message = r"^Cannot look for away://x/en\.txt: 401 Anonymous caller$"
    with pytest.raises(InputError, match=message):
        look("away://x/en.txt")


@pytest.mark.parametrize("num_shards", [3, 100_000, 100_001])
def test_names_of_shards_sort_as_their_numbers(num_shards):
    layout = bulk.Layout("out", num_shards)
    names = [layout.shard(number) for number in range(num_shards)]
    assert names == sorted(names)
    assert (
        layout.shard(2) == f"out/translation-{'0' * (num_shards > 100_000)}00002-of-{num_shards:05}"
    )
    assert bulk.Layout("out", 100_000).shard(99_999) == "out/translation-99999-of-100000"


def test_full_disk(tmp_path):
    message = f"^Cannot write {tmp_path}/failed.tsv: File too large$"
    with pytest.raises(InputError, match=message), full_disk(10):
        beam_files.write(str(tmp_path / "failed.tsv"), b"x" * 11, str(tmp_path / "temporary"))


def test_compressed_file_that_was_cut(model, tmp_path):
    path = tmp_path / "corpus.txt.GZ"
    path.write_bytes(gzip.compress(b"line\n" * 100)[:-9])
    with pytest.raises(InputError, match=r"Cannot read .*corpus.txt.GZ: Compressed file ended"):
        translate_corpus(str(path), str(tmp_path / "out"), str(model))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("ending", [".zst", ".LZMA"])
def test_compression_whose_cuts_nobody_notices(model, tmp_path, ending):
    path = tmp_path / f"corpus.txt{ending}"
    path.write_bytes(b"half of it")
    message = f"Cannot read {path}: of compressed files .gz, .bz2 and .xz can be read; unpack it"
    with pytest.raises(InputError, match=re.escape(message)):
        translate_corpus(str(path), str(tmp_path / "out"), str(model))
    assert not (tmp_path / "out").exists()


def test_byte_order_mark_is_no_text(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("\ufeffone\n\ufefftwo\n")
    shards, _ = bulk_input.plan(str(path), 1)
    assert [bulk_input.read_shard(shard).lines for shard in shards] == [
        [b"one"],
        ["\ufefftwo".encode()],  # only at the start of a file
    ]


def test_input_that_changes_meanwhile(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("one\ntwo\n")
    (_, shard), _ = bulk_input.plan(str(path), 1)
    assert shard == Shard(1, str(path), 4, 2, 1, hashlib.sha256(b"two\n").hexdigest())
    assert bulk_input.read_shard(shard) == Source(shard, [b"two"])
    for content in ("one\n", "ones\ntwo\n", "one\nten\n", "one\ntwo"):
        path.write_text(content)
        with pytest.raises(InputError, match=r"corpus.txt has changed while it was being transl"):
            bulk_input.read_shard(shard)


def test_input_that_changes_meanwhile_ends_the_call(model, tmp_path, monkeypatch):
    path = tmp_path / "corpus.txt"
    path.write_text("one\ntwo\n")
    claim = bulk._claim
    monkeypatch.setattr(
        bulk, "_claim", lambda *given: (claim(*given), path.write_text("two\none\n"))
    )
    with pytest.raises(InputError, match=f"^{path} has changed while it was being translated$"):
        translate_corpus(str(path), str(tmp_path / "out"), str(model))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.txt", "{out}", "--model", "{model}"], "There is no file .*none.txt"),
        (["{in}", "{out}", "--model", "{in}"], ".*corpus.txt is no SavedModel, nor .*"),
        (
            ["{in}", "{out}", "--model", "{model}", "--signature", "measure"],
            ".*10 has no signature measure that translates. There are: quiet, serving_default",
        ),
        (
            ["{in}", "{out}", "--model", "{model}", "--lines-per-shard", "0"],
            "`lines_per_shard` must be at least 1. Received: lines_per_shard=0",
        ),
        (
            ["{in}", "{out}", "--model", "{model}", "--lines-per-shrad=3"],
            "Neither an option of this command nor of Beam: --lines-per-shrad=3",
        ),
        (
            ["{in}", "{out}", "more", "--model", "{model}"],
            "Neither an option of this command nor of Beam: more",
        ),
        (["{in}", "\udcff", "--model", "{model}"], r"A path must be UTF-8\. Received: '\\udcff'"),
        (["\udcff", "{out}", "--model", "{model}"], r"A path must be UTF-8\. Received: '\\udcff'"),
        (["far://x/y", "{out}", "--model", "{model}"], "far://x/y: Unable to get filesystem .*"),
    ],
)
def test_errors_are_one_sentence(corpus, model, tmp_path, cli, arguments, message):
    names = {"in": corpus[0], "out": tmp_path / "out", "model": model}
    result = cli(*[argument.format(**names) for argument in arguments])
    assert isinstance(result.exception, InputError)
    with pytest.raises(InputError, match=f"^{message}$"):
        raise result.exception
    assert not (tmp_path / "out").exists()


# The command.


@pytest.fixture
def cli():
    """Runs the command, with whatever the command line has besides."""
    return lambda *arguments: CliRunner().invoke(app, ["translate-corpus", *map(str, arguments)])


def test_command_reports(corpus, model, tmp_path, cli, monkeypatch):
    said = []
    monkeypatch.setattr(command, "say", said.append)
    path, expected = corpus
    arguments = [path, tmp_path / "out", "--model", model, "--lines-per-shard", 20]
    result = cli(*arguments, "--runner=FnApiRunner", "--direct_num_workers", 1)
    assert result.exit_code == 0, result.exception
    assert lines_of(tmp_path / "out") == expected
    assert "Translated: 43 lines in " in said[0]
    assert f"warning: 2 lines failed and are empty: see {tmp_path}/out/failed.tsv" in said
    assert f"Corpus: 43 lines in 3 shards: {tmp_path}/out/translation-*" in said
    said.clear()
    assert cli(*arguments).exit_code == 0
    assert "Found: 43 lines that an earlier call translated" in said


def test_damaged_model_is_one_sentence(corpus, model, tmp_path, cli, caplog):
    damaged = tmp_path / "damaged"
    shutil.copytree(model / "10", damaged)
    for file in (damaged / "variables").iterdir():
        cut(file, 20)
    result = cli(corpus[0], tmp_path / "out", "--model", damaged)
    assert isinstance(result.exception, InputError)
    message = f"{damaged} does not hold a whole SavedModel with a signature serving_default: "
    assert str(result.exception).startswith(message)
    assert "\n" not in str(result.exception)
    assert not messages_of(caplog)


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM])
def number(request):
    """A signal that is not ignored, as SIGINT is in the background of a shell."""
    before = signal.signal(request.param, signal.SIG_DFL)
    yield request.param
    signal.signal(request.param, before)


def test_stopped_by_a_signal(corpus, model, tmp_path, cli, monkeypatch, number):
    said, statuses = [], []
    monkeypatch.setattr(command, "say", said.append)
    monkeypatch.setattr(os, "_exit", statuses.append)
    write = bulk.write_shard
    monkeypatch.setattr(
        bulk, "write_shard", lambda *given: (signal.raise_signal(number), write(*given))
    )
    cli(corpus[0], tmp_path / "out", "--model", model)
    deadline = time.monotonic() + 20
    while not statuses and time.monotonic() < deadline:
        time.sleep(0.01)
    assert statuses == [128 + number]
    assert said[0] == f"error: stopped by {number.name}: call it again, and it goes on"
    assert signal.getsignal(number) == signal.SIG_DFL


def test_without_beam(corpus, model, tmp_path, cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    monkeypatch.delitem(sys.modules, "keras_transformer.export.bulk")
    result = cli(corpus[0], tmp_path / "out", "--model", model)
    assert "pip install 'keras3-transformer[bulk]'" in str(result.exception)


# A shard.


def shard_of(*lines):
    return Source(Shard(0, "corpus.txt", 0, 101, len(lines), ""), list(lines))


def test_batches_are_of_one_length_and_have_a_size(monkeypatch):
    monkeypatch.setattr(bulk, "MAX_SIZE", 12)
    batches = []

    def translate(batch):
        batches.append(batch)
        return [{"translation": text.decode().upper()} for text in batch]

    translated = translate_shard(shard_of(b"dddd", b"a", b"x" * 23, b"bb", b"ccc"), translate)
    assert translated.lines == ["DDDD", "A", "X" * 23, "BB", "CCC"]
    assert batches == [[b"a", b"bb", b"ccc"], [b"dddd"], [b"x" * 23]]


def test_model_that_always_fails_is_not_the_lines_fault():
    def translate(batch):
        raise ValueError("the model is\nbroken")

    with pytest.raises(InputError, match="fails at every line: the model is broken"):
        translate_shard(shard_of(*[b"a"] * 70), translate)
    translated = translate_shard(shard_of(b"a", b"\xff"), translate)
    assert translated.lines == ["", ""]
    assert translated.failed == {101: "the model is broken", 102: "not valid UTF-8 at byte 1"}


@pytest.mark.parametrize("lines_per_shard", [7, 60])
def test_model_that_always_fails_at_small_shards(model, tmp_path, lines_per_shard):
    path, output = tmp_path / "corpus.txt", tmp_path / "out"
    path.write_bytes(b"a boom\n" * 65 + b"\xff\n")
    with pytest.raises(InputError, match=r"^The model fails at every line: .*no boom"):
        translate_corpus(str(path), str(output), str(model), lines_per_shard=lines_per_shard)
    assert not list((output / "reports").iterdir())  # the next call tries them again


def test_loaded_once_for_all_threads(model, tmp_path, monkeypatch):
    loads = []
    load = bulk.SavedModelHandler.load_model
    monkeypatch.setattr(
        bulk.SavedModelHandler, "load_model", lambda self: loads.append(os.getpid()) or load(self)
    )
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"line {n}\n" for n in range(7)))
    options = ["--direct_num_workers=3", "--direct_running_mode=multi_threading"]
    translate_corpus(
        str(path), str(tmp_path / "out"), str(model), lines_per_shard=1, beam_options=options
    )
    assert lines_of(tmp_path / "out") == [f"LINE {n}" for n in range(7)]
    assert loads == [os.getpid()]


def test_reports_are_json(corpus, model, tmp_path):
    translate_corpus(str(corpus[0]), str(tmp_path / "out"), str(model), lines_per_shard=20)
    report = json.loads((tmp_path / "out" / "reports" / "00000.json").read_text())
    assert report["lines"] == 20
    assert [number for number, _ in report["failed"]] == [10, 18]
    long = [
        number
        for number, line in enumerate(corpus[0].read_bytes().split(b"\n")[:20], start=1)
        if len(line) > MAX_LENGTH
    ]
    assert report["truncated"] == long
