"""The command `translate`: texts and files in, one line out for each, and how bad input ends."""

import functools
import gzip
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from command_line import assert_documented, assert_refused, cli
from disk import full_disk

from keras_transformer.cli.lines import CHUNK_LINES
from keras_transformer.cli.translate import SUBTITLES, check_files, new_file, print_translations
from keras_transformer.cli.translators import TranslateOptions
from keras_transformer.export import session
from keras_transformer.files import NOT_LINES
from keras_transformer.trainers.data.catalogues import FORMATS
from keras_transformer.trainers.data.tables import TABLES


@pytest.fixture(scope="module")
def saved_model(exported):
    """The folder of a model with one version, 7."""
    return exported.path.parent


@pytest.fixture(scope="module", autouse=True)
def _one_session():
    """The commands of this file share the session of an export, which takes seconds to open."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "SavedModelSession", functools.cache(session.SavedModelSession))
        yield


def one_line(text):
    return " ".join(text.splitlines())


def test_one_line_out_for_each_line_in(tiny_run, tiny_translator):
    texts = ["red dog .", "", "öl 😀", "one"]
    stdin = "red dog .\r\n\nöl 😀\r\none"  # CRLF, an empty line, no line feed at the end
    code, out, err = cli("translate", tiny_run.path, "--beam-size", 1, stdin=stdin.encode())
    expected = tiny_translator.translate(texts, beam_size=1)
    assert out == "".join(f"{one_line(translation.text)}\n" for translation in expected)
    assert out.split("\n")[1] == ""
    assert code == 0, err


@pytest.mark.timeout(60)
def test_a_pipe_that_pauses(capsys):
    """What has come is translated; the second half of a line may come later."""
    reader, writer = os.pipe()
    sent = ["one\r\ntw", "o\n\nthree\nfo", "ur" + "\n" * CHUNK_LINES, "fünf"]
    chunks = []

    def send():
        os.write(writer, sent.pop(0).encode())
        if not sent:
            os.close(writer)

    def translate(texts, progress):
        chunks.append(texts)
        if sent:
            send()
        return [{"translation": text.upper()} for text in texts]

    send()
    with os.fdopen(reader, "rb") as stream:
        print_translations(translate, [], stream, None, "standard input", False)
    empty = [""] * (CHUNK_LINES - 1)
    assert chunks == [["one"], ["two", "", "three"], ["four", *empty], ["fünf"]]
    assert capsys.readouterr().out.split() == ["ONE", "TWO", "THREE", "FOUR", "FÜNF"]


def test_files_in_and_out(saved_model, tmp_path):
    expected = cli("translate", saved_model, "red dog", "öl")[1]
    texts, output = tmp_path / "texts.txt", tmp_path / "output.txt"
    texts.write_text("red dog\nöl\n")
    arguments = ("translate", saved_model, "--input", texts, "--output", output)
    assert cli(*arguments)[:2] == (0, "")
    assert output.read_text() == expected
    assert_refused(cli(*arguments), f"{output} .*")
    assert_refused(cli(*arguments[:4], "cat"), ".*--input")
    assert f"--input {texts}" in cli("translate", saved_model, texts)[2]
    texts, output = tmp_path / "texts.txt.gz", tmp_path / "output.gz"
    texts.write_bytes(gzip.compress("red dog\nöl\n".encode()))
    arguments = ("translate", saved_model, "--input", texts)
    assert cli(*arguments, "--output", output)[:2] == (0, "")
    assert gzip.decompress(output.read_bytes()).decode() == expected
    for content in (b"red dog\n", texts.read_bytes()[:-9]):
        texts.write_bytes(content)
        assert_refused(cli(*arguments), f"Cannot read {texts}: .*")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.docx", b"PK", "is not lines of text"),
        ("a.TSV.gz", b"", "is a table: copy the texts of a column to a file"),
        ("picture", b"\x89PNG\r\n\x00", "is not text"),
        ("film.srt", b"1\n0:01 --> 0:02\nred dog\n", "needs --output"),
    ],
)
def test_files_that_are_not_lines(saved_model, tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    result = cli("translate", saved_model, "--input", tmp_path / name)
    assert_refused(result, f"{tmp_path / name} {message}.*")


@pytest.mark.parametrize(
    ("arguments", "output", "message"),
    [
        (["a cat"], "b.docx", "must have another ending, such as .txt"),
        (["--input", "a.txt"], "b.SRT.gz", "must have another ending"),
        (["--input", "a.txt"], "b.jsonl", "must have another ending"),
        (["--input", "a.txt", "--json"], "b.csv", "must have another ending"),
        (["--input", "a.po"], "b.txt", "must end in .po, the format of a.po"),
        (["--input", "a.vtt.gz"], "b.srt", "must end in .vtt, the format of a.vtt.gz"),
    ],
)
def test_outputs_of_another_format(saved_model, arguments, output, message):
    """No file is read, as none is there."""
    result = cli("translate", saved_model, *arguments, "--output", output)
    assert_refused(result, f"{output} {message}.*")


def test_output_in_a_folder_that_is_not_there(saved_model):
    result = cli("translate", saved_model, "--input", "a.srt", "--output", "none/b.srt")
    assert_refused(result, "Cannot write none/b.srt: .*")


def test_files_that_are_not_lines_are_known():
    assert {*FORMATS, *SUBTITLES, *TABLES} <= {*NOT_LINES}


def test_formats_that_lines_may_have(tmp_path):
    for options in (
        {"as_json": True, "output": tmp_path / "a.jsonl"},
        {"num_best": 2, "output": tmp_path / "a.tsv"},
        {"input": tmp_path / "a.xlf", "output": tmp_path / "b.XLIFF.gz"},
    ):
        check_files(TranslateOptions(**options))


def test_subtitles(saved_model, tmp_path):
    (tmp_path / "a.srt").write_text("1\n0:01 --> 0:02\n<i>red dog</i>\n")
    files = ("--input", tmp_path / "a.srt", "--output", tmp_path / "b.srt")
    code, out, err = cli("translate", saved_model, *files)
    expected = cli("translate", saved_model, "red dog")[1].strip()
    assert (code, out) == (0, ""), err
    assert (tmp_path / "b.srt").read_text() == f"1\n0:01 --> 0:02\n<i>{expected}</i>\n"


@pytest.mark.parametrize("text", ["- Two dogs", "-5 dogs", "--two dogs"])
def test_a_text_that_looks_like_an_option(text):
    code, out, err = cli("translate", "run", text)
    assert (code, out) == (2, "")
    assert f"-- '{text}'" in err


def test_output_of_a_failure(saved_model, tmp_path):
    texts, output = tmp_path / "texts.txt", tmp_path / "output.txt"
    arguments = ("translate", saved_model, "--input", texts, "--output", output)
    texts.write_bytes(b"\xff\n")
    assert cli(*arguments)[0] == 1
    assert not output.exists()  # so that the same command can be repeated
    texts.write_bytes(b"cat\n" * CHUNK_LINES + b"\xff\n")
    code, _, err = cli(*arguments)
    assert (code, f"{output} is incomplete" in err) == (1, True)
    assert len(output.read_text().splitlines()) == CHUNK_LINES
    texts.write_bytes(b"cat\n" * 20)
    for name in ("full.txt", "full.gz"):
        output = tmp_path / name
        with full_disk(8):
            code, _, err = cli(*arguments[:4], "--output", output)
        assert code == 1
        assert f"{output} is incomplete\nerror: {output}: File too large" in err


def test_sigterm_says_what_is_incomplete(tmp_path, capsys):
    output = tmp_path / "output.txt"

    def write(file):
        file.write("eins\n")
        signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit, match=r"^143$"), new_file(output) as file:
        write(file)
    assert output.read_text() == "eins\n"
    assert capsys.readouterr().err == f"{output} is incomplete\n"


def test_translate_for_a_machine(tiny_run, tiny_translator, exported):
    texts = ["red dog .", "", "one " * 29]
    stdin = "".join(f"{text}\n" for text in texts).encode()
    for path, translator, beam_size in (
        (tiny_run.path, tiny_translator, 1),
        (exported.path, exported.translator, None),  # of at most 23 tokens
    ):
        options = ["--beam-size", beam_size] if beam_size else []
        code, out, err = cli("translate", path, *options, "--json", stdin=stdin)
        found = translator.translate(texts, beam_size=beam_size)
        assert found[2].truncated == (path == exported.path)
        assert (code, "warning: text 3 " in err) == (0, found[2].truncated)
        for line, expected in zip(out.removesuffix("\n").split("\n"), found, strict=True):
            assert_documented("translate", json.loads(line))
            assert json.loads(line) == {
                "translation": expected.text,
                "score": pytest.approx(expected.score, rel=1e-4),
                "truncated": expected.truncated,
            }


def test_num_best(exported, tiny_run):
    command = ("translate", exported.path, "red dog .", "", "--num-best")
    code, out, err = cli(*command, 2, "--json")
    assert code == 0, err
    rows = [json.loads(line) for line in out.splitlines()]
    found = exported.translator.translate(["red dog .", ""], num_best=2)
    for row, expected in zip(rows, found, strict=True):
        assert_documented("translate", row)
        assert row["translations"] == [each.text for each in expected.hypotheses]
        assert row["scores"] == pytest.approx([e.score for e in expected.hypotheses], abs=1e-4)
    assert len(rows[1]["translations"]) == 1  # nothing has one translation
    printed = [line.split("\t") for line in cli(*command, 2)[1].splitlines()]
    hypotheses = [hypothesis for each in found for hypothesis in each.hypotheses]
    assert [text for _, text in printed] == [one_line(each.text) for each in hypotheses]
    scores = [each.score for each in hypotheses]
    assert [float(score) for score, _ in printed] == pytest.approx(scores, abs=1e-3)
    assert cli("translate", tiny_run.path, "red dog .", "--num-best", 2)[1].count("\n") == 2
    message = "--num-best must be at most 3, the beams .*Received: num_best=4"
    assert_refused(cli(*command, 4), message)
    assert_refused(cli(*command, 2, "--signature", "greedy"), "Give --num-best .*")


def test_lines_go_sentence_by_sentence(tiny_run, tiny_translator, exported, tmp_path):
    texts = ["One two.", "Red dog.", "One two. Red dog."]
    found = tiny_translator.translate(texts, beam_size=1)
    one, red, whole = (one_line(each.text) for each in found)
    assert len({f"{one} {red}", whole}) == 2
    greedy = ("translate", tiny_run.path, texts[2], "--beam-size", 1)
    assert cli(*greedy)[1] == f"{one} {red}\n"
    assert cli(*greedy, "--whole")[1] == f"{whole}\n"
    is_document = ("--signature", "document")
    refused = cli("translate", exported.path, "a", *is_document, "--whole")
    assert_refused(refused, "Give --whole without --signature document.*")
    one, red = (one_line(each.text) for each in exported.translator.translate(texts[:2]))
    assert cli("translate", exported.path, texts[2], "--sentences")[1] == f"{one} {red}\n"
    catalogue, output = tmp_path / "a.po", tmp_path / "b.po"
    catalogue.write_text(f'msgid "{texts[2]}"\nmsgstr ""\n')
    code, _, err = cli("translate", exported.path, "--input", catalogue, "--output", output)
    assert code == 0, err
    assert f"{one} {red}".replace('"', '\\"') in output.read_text().replace('"\n"', "")


def test_a_text_in_place_of_a_model():
    message = r"two dogs .* must be a run directory or a SavedModel; it does not exist"
    assert_refused(cli("translate", "two dogs " * 60), message)


def test_long_lines_to_document(saved_model):
    translate = ("translate", saved_model, "--signature", "document")
    code, out, err = cli(*translate, stdin=b"one " * 1_900 + b"\n" + b"two " * 1_900 + b"\n")
    assert (code, out.count("\n")) == (0, 2), err  # each has half of the tokens of a request
    assert_refused(
        cli(*translate, stdin=b"one " * 4_200), "The text that begins with 'one .*8192 tokens.*"
    )


def test_many_long_lines(saved_model):
    """They are more than a request may have, so they go in several."""
    code, out, err = cli("translate", saved_model, stdin=(b"x" * 70_000 + b"\n") * 64)
    assert (code, out.count("\n")) == (0, 64), err


@pytest.mark.timeout(60)
def test_a_named_pipe_is_read_once(saved_model, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor(1) as pool:
        pool.submit((tmp_path / "pipe").write_text, "red dog\n\n")
        code, out, err = cli("translate", saved_model, "--input", tmp_path / "pipe")
    assert (code, out.count("\n")) == (0, 2), err


def test_invalid_utf8_on_standard_input(saved_model):
    result = cli("translate", saved_model, stdin=b"one\n\ntwo \xff\nred\n")
    assert_refused(result, "standard input, line 3: .*")
