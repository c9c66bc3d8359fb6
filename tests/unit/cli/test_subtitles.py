"""Subtitles: their text is translated, and every other byte stays."""

import gzip
from pathlib import Path

import pytest
from disk import full_disk

from keras_transformer.cli.subtitles import translate_subtitles
from keras_transformer.errors import InputError

FOLDER = Path(__file__).parents[2] / "data" / "subtitles"
SRT, SRT_IN_CAPITALS, VTT = (
    (FOLDER / name).read_text("utf-8") for name in ("film.srt", "capitals.srt", "film.vtt")
)
VTT_IN_CAPITALS = (
    VTT.replace("Tom &amp; two &lt;dogs", "TOM &amp; TWO &lt;DOGS")
    .replace("Hi <i>you</i>!", "HI YOU!")
    .replace("\na\ndog\n", "\nA\nDOG\n")
)


def in_capitals(texts, progress):
    assert len(set(texts)) == len(texts)
    return [{"translation": text.upper()} for text in texts]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_srt(tmp_path, capsys, encoding, end):
    (tmp_path / "a.SRT").write_bytes(SRT.replace("\n", end).encode(encoding))
    translate_subtitles(tmp_path / "a.SRT", tmp_path / "b.srt", in_capitals)
    expected = SRT_IN_CAPITALS.replace("\n", end).encode(encoding)
    assert (tmp_path / "b.srt").read_bytes() == expected
    assert "1 of them have lost tags" in capsys.readouterr().err


def test_vtt(tmp_path):
    (tmp_path / "a.vtt.gz").write_bytes(gzip.compress(VTT.encode()))
    translate_subtitles(tmp_path / "a.vtt.gz", tmp_path / "b.vtt.gz", in_capitals)
    written = gzip.decompress((tmp_path / "b.vtt.gz").read_bytes()).decode()
    assert written == VTT_IN_CAPITALS


def test_tags_inside_a_text_go_to_a_model_that_keeps_them(tmp_path):
    (tmp_path / "a.srt").write_text("0:01 --> 0:02\n{\\an8}a <font color='x'>red dog</font> runs\n")
    found = []

    def translate(texts, progress):
        found.extend(texts)
        return [{"translation": "", "truncated": True}]

    translate_subtitles(tmp_path / "a.srt", tmp_path / "b.srt", translate, keeps_tags=True)
    assert found == ["a <font color='x'>red dog</font> runs"]
    # Without a translation, the text stays.
    assert (tmp_path / "b.srt").read_bytes() == (tmp_path / "a.srt").read_bytes()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\nb\nc\nd", "ONE"),  # fewer characters than lines
        ("{\\an8} {\\b1}Hello <i>world</i>", "{\\an8} {\\b1}ONE"),
        ("x < y and <3 you > z", "ONE"),  # no tag
    ],
)
def test_unusual_texts(tmp_path, text, expected):
    (tmp_path / "a.srt").write_text(f"0:01 --> 0:02\n{text}\n")

    def one(texts, progress):
        return [{"translation": "ONE"} for _ in texts]

    translate_subtitles(tmp_path / "a.srt", tmp_path / "b.srt", one, keeps_tags=True)
    assert (tmp_path / "b.srt").read_text() == f"0:01 --> 0:02\n{expected}\n"


def test_notes_of_a_song_are_no_text(tmp_path):
    (tmp_path / "a.srt").write_text(
        "0:01 --> 0:02\n♪ la la\nla ♪\n<i>♪ one ♪</i>\n♬ two\n\n0:03 --> 0:04\n♪\n"
    )
    found = []

    def translate(texts, progress):
        found.extend(texts)
        return in_capitals(texts, progress)

    translate_subtitles(tmp_path / "a.srt", tmp_path / "b.srt", translate)
    assert found == ["la la la", "one", "two"]
    assert (tmp_path / "b.srt").read_text() == (
        "0:01 --> 0:02\n♪ LA LA\nLA ♪\n<i>♪ ONE ♪</i>\n♬ TWO\n\n0:03 --> 0:04\n♪\n"
    )


def test_no_break_spaces_stay(tmp_path):
    (tmp_path / "a.srt").write_text("0:01 --> 0:02\na dog\n")
    written = "\u00ab\u00a0un  \x1d\u2028chien\u202f!\u00a0\u00bb\u3000"
    translate_subtitles(
        tmp_path / "a.srt", tmp_path / "b.srt", lambda texts, progress: [{"translation": written}]
    )
    expected = "0:01 --> 0:02\n\u00ab\u00a0un chien\u202f!\u00a0\u00bb\u3000\n"
    assert (tmp_path / "b.srt").read_text() == expected


def test_a_break_joins_no_words(tmp_path):
    (tmp_path / "a.srt").write_text("0:01 --> 0:02\nred<br>dog<BR />r<b>u</b>ns\n")
    translate_subtitles(tmp_path / "a.srt", tmp_path / "b.srt", in_capitals)
    assert (tmp_path / "b.srt").read_text() == "0:01 --> 0:02\nRED DOG RUNS\n"


@pytest.mark.parametrize(
    "times",
    [
        "00:00:03;000 --> 00:00:04;000",
        "00: 00: 03,000 - -> 00: 00: 04,000",
        "0:03 -> 0:04",
        "00:00:03.5\u2013>00:00:04.5",
    ],
)
def test_times_that_are_badly_written_are_no_text(tmp_path, times):
    text = f"1\n0:01 --> 0:02\nhello\n\n2\n{times}\n12:30 or 1 - 2 > 1:30\n"
    (tmp_path / "a.srt").write_text(text)
    translate_subtitles(tmp_path / "a.srt", tmp_path / "b.srt", in_capitals)
    expected = text.replace("hello", "HELLO").replace("or", "OR")
    assert (tmp_path / "b.srt").read_text() == expected


def test_no_other_file_is_written(tmp_path):
    """Also none of the name of a temporary file, such as the subtitles themselves."""
    (tmp_path / "tmp-a.srt").write_text("0:01 --> 0:02\nhello\n")
    translate_subtitles(tmp_path / "tmp-a.srt", tmp_path / "a.srt", in_capitals)
    assert (tmp_path / "tmp-a.srt").read_text() == "0:01 --> 0:02\nhello\n"
    with pytest.raises(FileExistsError):
        translate_subtitles(tmp_path / "tmp-a.srt", tmp_path / "a.srt", in_capitals)
    with full_disk(10), pytest.raises(InputError, match=r"Cannot write .*b\.srt: File too large"):
        translate_subtitles(tmp_path / "tmp-a.srt", tmp_path / "b.srt", in_capitals)
    assert {path.name for path in tmp_path.iterdir()} == {"tmp-a.srt", "a.srt"}


def test_files_that_are_no_subtitles(tmp_path):
    for content, message in (
        (b"a text\n", r"a\.srt holds no subtitles"),
        (b"1\n0:01 --> 0:02\n\xe4\n", r"a\.srt, line 3: not valid UTF-8"),
    ):
        (tmp_path / "a.srt").write_bytes(content)
        with pytest.raises(InputError, match=message):
            translate_subtitles(tmp_path / "a.srt", tmp_path / "b.srt", in_capitals)
        assert not (tmp_path / "b.srt").exists()
