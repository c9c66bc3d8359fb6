"""Terms whose translation is given."""

import pytest

from keras_transformer.errors import InputError
from keras_transformer.protection.terms import read_glossary, term_marker

GLOSSARY = {"file": "soubor", "file system": "souborový systém", "C++": "C++", "硬盘": "disk"}
GLOSSARY["サーバー"] = "server"  # its last letter is of no script of its own


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("a file, profile files", "a ⟦file|soubor⟧, profile files"),
        ("file system", "⟦file system|souborový systém⟧"),
        ("C++ and C++11 file2", "⟦C++|C++⟧ and ⟦C++|C++⟧11 file2"),
        ("删除硬盘吗", "删除⟦硬盘|disk⟧吗"),
        ("このサーバーを再起動", "この⟦サーバー|server⟧を再起動"),
        ("请访问https://a.org查看硬盘", "请访问https://a.org查看⟦硬盘|disk⟧"),
        ("File ⟦file|spis⟧", "File ⟦file|spis⟧"),
        (
            "file_name, FILE_file obj.file a.file() $file",
            "file_name, FILE_file obj.file a.file() $file",
        ),
        (
            "file->open a->file file::b /tmp/file ~/file/x and/file",
            "file->open a->file file::b /tmp/file ~/file/x and/⟦file|soubor⟧",
        ),
        ("file.txt @file file() file", "file.txt @file file() ⟦file|soubor⟧"),
        ("file. file-file (file) file(s)", "F. F-F (F) F(s)".replace("F", "⟦file|soubor⟧")),
        (
            "--file -f file -file C++-file",
            "--file -f F -F ⟦C++|C++⟧-F".replace("F", "⟦file|soubor⟧"),
        ),
        ("https://a.org/&gt;file", "https://a.org/&gt;⟦file|soubor⟧"),
        ("✔\ufe0ffile", "✔\ufe0f⟦file|soubor⟧"),
        (
            "{file} %(file)s <a file> https://a.org/file",
            "{file} %(file)s <a file> https://a.org/file",
        ),
    ],
)
def test_whole_words_are_marked_the_longest_first(text, marked):
    assert term_marker(GLOSSARY)(text) == marked
    assert term_marker({})(text) == text


def test_no_term_is_marked_in_what_a_model_protects():
    protect = ["tags", r"[\w]+-[0-9]+", r"(?P<a", r"\x{2116}\s?\pL+"]
    text = "ABC-12 of ABC: <ABC> № ABC"
    glossary = {"ABC": "x"}
    assert term_marker(glossary, protect)(text) == "ABC-12 of ⟦ABC|x⟧: <ABC> № ABC"
    assert term_marker(glossary)(text).startswith("⟦ABC|x⟧-12")
    own = term_marker(glossary, [r"\[\w+\]", r"\w+-"])
    assert own("[ABC] ÄBC-ABC") == "[ABC] ÄBC-⟦ABC|x⟧"
    assert term_marker(glossary, ["ABC"])("ABC") == "ABC"


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("वे काम करें", "कर"),
        ("यह किताब है", "ताब"),
        ("वह करेगा", "करे"),
        ("தமிழில்", "தமிழ"),
        ("a cafe\u0301 here", "cafe"),
    ],
)
def test_a_word_goes_on_after_its_marks(text, term):
    mark_terms = term_marker({term: "x"})
    assert mark_terms(text) == text
    assert mark_terms(f"({term})") == f"(⟦{term}|x⟧)"


def test_a_term_is_found_composed_and_decomposed():
    mark_terms = term_marker({"caf\u00e9": "x", "\u1112\u1161\u11ab": "y"})
    text = "caf\u00e9 cafe\u0301 \ud55c \u1112\u1161\u11ab"
    marked = "⟦caf\u00e9|x⟧ ⟦cafe\u0301|x⟧ ⟦\ud55c|y⟧ ⟦\u1112\u1161\u11ab|y⟧"
    assert mark_terms(text) == marked


def test_a_term_may_begin_another_one():
    glossary = dict.fromkeys(["ab", "ab.", "ab.cd", "中", "ab中", ".x"], "y")
    marked = "⟦ab.cd|y⟧ ⟦ab.|y⟧c ⟦ab中|y⟧x cab a⟦.x|y⟧ x⟦中|y⟧ ⟦ab|y⟧"
    plain = "ab.cd ab.c ab中x cab a.x x中 ab"
    assert term_marker(glossary)(plain) == marked


def test_a_percentage_is_text():
    mark_terms = term_marker({"Rabatt": "x", "discount": "y"})
    text = "80%-Rabatt 8%-discount 50%iger %discount"
    assert mark_terms(text) == "80%-⟦Rabatt|x⟧ 8%-⟦discount|y⟧ 50%iger %discount"


@pytest.mark.parametrize("glossary", [{"": "x"}, {"a|b": "x"}, {"a": "⟧"}])
def test_terms_that_cannot_be_marked(glossary):
    with pytest.raises(InputError, match="`glossary` must have terms"):
        term_marker(glossary)


def test_a_glossary_is_read(tmp_path):
    path = tmp_path / "terms.tsv"
    path.write_bytes("\ufefffile\tsoubor\r\n\r\ndisk drive\tjednotka".encode())
    assert read_glossary(path) == {"file": "soubor", "disk drive": "jednotka"}
    path.write_bytes(b"file\tsoubor\rdog\tpes\r")  # of an old Mac
    assert read_glossary(path) == {"file": "soubor", "dog": "pes"}
    for content, message in (
        ("file soubor", r"terms.tsv, line 1: a line must have .*Received: 'file soubor'"),
        ("a\tb\na\tc", "line 2: 'a' has another translation before"),
        (b"\xff\t1", "line 1: not valid UTF-8"),
    ):
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(InputError, match=message):
            read_glossary(path)
    with pytest.raises(InputError, match="Cannot read the glossary"):
        read_glossary(tmp_path / "none")
