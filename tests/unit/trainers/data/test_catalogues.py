"""The files of translators: as training pairs, and filled by a model."""

import contextlib
import functools
import gzip
import shutil
import struct
from pathlib import Path

import pytest

from keras_transformer.cli.catalogue import fill_catalogue
from keras_transformer.errors import InputError
from keras_transformer.languages import Languages
from keras_transformer.trainers.data.corpora import load_corpus

FOLDER = Path(__file__).parents[3] / "data" / "catalogues"
CATALOGUE, XLIFF_2, SEVERAL = (
    (FOLDER / name).read_text("utf-8") for name in ("a.po", "B.XLIFF", "several.xlf")
)
SEGMENTED = """<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
<file original="a" source-language="en" target-language="cs" datatype="plaintext"><body>
<trans-unit id="1"><source>Two. Three.</source><seg-source><mrk mtype="seg" mid="1">Two.</mrk> \
<mrk mtype="seg" mid="2">Three.</mrk></seg-source></trans-unit></body></file></xliff>"""
OPEN = ("Open", "Otevřít")
FILES = ("%d file", "%d soubor"), ("%d files", "%d souborů")


def compiled(entries):
    """A catalogue as msgfmt compiles it."""
    texts = [sorted(entries), [entries[key] for key in sorted(entries)]]
    place, tables, content = 28 + 16 * len(entries), [], b""
    for column in texts:
        for text in column:
            tables += [len(text.encode()), place + len(content)]
            content += text.encode() + b"\0"
    number = len(entries)
    header = struct.pack("7I", 0x950412DE, 0, number, 28, 28 + 8 * number, 0, 0)
    return header + struct.pack(f"{4 * number}I", *tables) + content


def sides_of(path, target):
    return [pair.sides for pair in load_corpus(str(path), "en", target).pairs("train")]


def write(folder, name):
    if name != "a.mo":
        return Path(shutil.copy(FOLDER / name, folder))
    entries = {"": "Content-Type: text/plain; charset=UTF-8\n", "menu\4Open": "Otevřít"}
    entries["%d file\0%d files"] = "%d soubor\0%d soubory\0%d souborů"
    (folder / name).write_bytes(compiled(entries))
    return folder / name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.po", {OPEN, *FILES}),
        ("a.mo", {OPEN, *FILES}),
        ("a.xlf", {OPEN}),
        ("B.XLIFF", {OPEN}),
        ("a.tmx", {OPEN}),
    ],
)
def test_pairs(tmp_path, name, expected):
    path = write(tmp_path, name)
    corpus = load_corpus(str(path), "en", "cs")
    assert {pair.sides for pair in corpus.pairs("train")} == expected
    if name == "a.mo":  # it names no language, so the source is what the program has
        return
    corpus = load_corpus(str(path), "cs", "en")
    assert {pair.sides[::-1] for pair in corpus.pairs("train")} == expected


def test_what_is_left_out_is_counted(tmp_path, caplog):
    caplog.set_level("INFO")
    load_corpus(str(write(tmp_path, "a.po")), "en", "cs")
    assert "3 pairs; left out: 1 fuzzy, 3 empty" in caplog.text
    no_plural = CATALOGUE.replace("%d souborů", "")
    (tmp_path / "b.po").write_text(no_plural, "utf-8")
    load_corpus(str(tmp_path / "b.po"), "en", "cs")
    assert "2 pairs; left out: 1 fuzzy, 4 empty" in caplog.text


@pytest.mark.parametrize("name", ["a.po", "a.mo", "a.xlf", "B.XLIFF", "a.tmx"])
def test_compressed_files(tmp_path, name):
    path = write(tmp_path, name)
    expected = list(load_corpus(str(path), "en", "cs").pairs("train"))
    compressed = path.with_name(f"{name}.gz")
    compressed.write_bytes(gzip.compress(path.read_bytes()))
    assert list(load_corpus(str(compressed), "en", "cs").pairs("train")) == expected
    compressed.write_bytes(compressed.read_bytes()[:-9])
    with pytest.raises(InputError, match=r"^Cannot read .*\.gz: "):
        load_corpus(str(compressed), "en", "cs")


def test_lines_without_letters_are_copied(tmp_path):
    (tmp_path / "a.po").write_text('msgid "1,234.5 €\\n…\\nred"\nmsgstr ""\n', "utf-8")
    asked = []

    def record(texts, progress):
        asked.extend(texts)
        return translate(texts, progress)

    fill_catalogue(tmp_path / "a.po", tmp_path / "b.po", record)
    assert asked == ["red"]
    filled = (tmp_path / "b.po").read_text("utf-8")
    assert '"1,234.5 €\\n"\n"…\\n"\n"RED"\n' in filled


def test_gettext_in_other_charsets(tmp_path):
    """Also where the header has letters of its own, such as the name of a translator."""
    text = f"# Jiří\n{CATALOGUE.replace('UTF-8', 'ISO-8859-2')}"
    (tmp_path / "a.po").write_bytes(text.encode("iso-8859-2"))
    assert OPEN in sides_of(tmp_path / "a.po", "cs")
    fill_catalogue(tmp_path / "a.po", tmp_path / "b.po", translate)
    filled = (tmp_path / "b.po").read_text("utf-8")
    assert filled.startswith("# Jiří\n")
    assert "charset=UTF-8" in filled
    assert 'msgstr "Otevřít"' in filled
    for charset, message in (("UTF-8", "'utf-8' codec"), ("X-NONE", "unknown encoding")):
        (tmp_path / "a.po").write_bytes(text.replace("ISO-8859-2", charset).encode("iso-8859-2"))
        with pytest.raises(InputError, match=rf"^Cannot read .*a\.po: {message}"):
            load_corpus(str(tmp_path / "a.po"), "en", "cs")


def test_codes_of_tmx_are_no_text(tmp_path, caplog):
    caplog.set_level("INFO")
    path = write(tmp_path, "a.tmx")
    load_corpus(str(path), "en", "cs")
    assert "1 pairs; left out: 0 fuzzy, 1 empty, 1 with inline codes" in caplog.text
    text = path.read_text("utf-8").replace("<seg>Open", '<seg><hi type="b">Op</hi>en')
    path.write_text(text.replace("<seg>Otev", "<seg>x<ph/></seg></tuv><tuv lang='cs'><seg>Otev"))
    assert sides_of(path, "cs") == [OPEN]


def test_further_variants_of_a_text_are_counted(tmp_path, caplog):
    caplog.set_level("INFO")
    texts = ("en", "Open"), ("cs", ""), ("cs", "Otevřít"), ("en-GB", "Open"), ("cs", "Otevři")
    variants = (f"<tuv xml:lang='{code}'><seg>{text}</seg></tuv>" for code, text in texts)
    (tmp_path / "a.tmx").write_text(f"<tmx><tu>{''.join(variants)}</tu></tmx>", "utf-8")
    assert sides_of(tmp_path / "a.tmx", "cs") == [OPEN]
    assert "1 pairs; left out: 0 fuzzy, 0 empty, 1 further variants" in caplog.text


def test_units_have_the_languages_of_their_file(tmp_path, caplog, capsys):
    (tmp_path / "a.xlf").write_text(SEVERAL, "utf-8")
    for target, expected in (
        ("cs", [OPEN, ("OK", "OK"), ("Two.", "Dva.")]),
        ("fr", [("Open", "Ouvrir")]),
    ):
        assert sides_of(tmp_path / "a.xlf", target) == expected
    fill_catalogue(tmp_path / "a.xlf", tmp_path / "b.xlf", translate, Languages("en", "cs"))
    filled = (tmp_path / "b.xlf").read_text("utf-8")
    assert '<target state="needs-translation">RED</target>' in filled
    assert "BLUE" not in filled
    assert "ONE." not in filled
    assert filled.count("</target>") == SEVERAL.count("</target>")
    messages = capsys.readouterr().err
    assert "Translation: 1 empty entries" in messages
    assert "There is no target language 'fr', but cs: 1 entries stay" in messages
    with pytest.raises(InputError, match=r"a\.xlf has several languages"):
        fill_catalogue(tmp_path / "a.xlf", tmp_path / "c.xlf", translate)
    with pytest.raises(InputError, match=r"has the language cs, fr\. Received: 'en', 'de'"):
        load_corpus(str(tmp_path / "a.xlf"), "en", "de")


def test_a_variety_of_a_language_is_filled_as_it_is_read(tmp_path):
    for code, name, fits in (("sr_Latn", "sr", True), ("pt_PT", "pt_BR", False)):
        (tmp_path / "a.po").write_text(CATALOGUE.replace("cs_CZ", code), "utf-8")
        output = tmp_path / f"{code}.po"
        fill_catalogue(tmp_path / "a.po", output, translate, Languages("en", name))
        assert (output.read_bytes() != (tmp_path / "a.po").read_bytes()) == fits
        load = functools.partial(load_corpus, str(tmp_path / "a.po"), "en", name)
        with contextlib.nullcontext() if fits else pytest.raises(InputError, match=code):
            load()


def test_a_model_of_several_languages_fills_each(tmp_path, capsys):
    (tmp_path / "a.xlf").write_text(SEVERAL, "utf-8")
    names = "eng_Latn", "fra_Latn", "ces_Latn"
    known = Languages("eng_Latn", "fra_Latn", names[:1], names[1:])
    fill_catalogue(tmp_path / "a.xlf", tmp_path / "b.xlf", translate, known)
    filled = (tmp_path / "b.xlf").read_text("utf-8")
    assert (
        '<target state="needs-translation">&gt;&gt;ENG_LATN:CES_LATN&lt;&lt; RED</target>' in filled
    )
    assert filled.count("ENG_LATN:FRA_LATN") == 1
    capsys.readouterr()
    fill_catalogue(tmp_path / "a.xlf", tmp_path / "c.xlf", translate, known, (None, "fr"))
    filled = (tmp_path / "c.xlf").read_text("utf-8")
    assert "CES_LATN" not in filled
    assert filled.count("ENG_LATN:FRA_LATN") == 1
    assert "--target is fr, and not cs: 2 entries stay" in capsys.readouterr().err
    known = known._replace(targets=["ces_Latn", "pol_Latn"])
    fill_catalogue(tmp_path / "a.xlf", tmp_path / "d.xlf", translate, known)
    assert "There is no target language 'fr', but " in capsys.readouterr().err


def test_segments_of_xliff_2(tmp_path):
    text = XLIFF_2.replace(
        "</segment></unit>\n",
        """</segment><segment state="initial"><source>Red</source><target>Red</target></segment>
        <segment><source>A <ph id="1"/></source></segment></unit>\n""",
        1,
    )
    (tmp_path / "a.xlf").write_text(text, "utf-8")
    assert sides_of(tmp_path / "a.xlf", "cs") == [OPEN]
    fill_catalogue(tmp_path / "a.xlf", tmp_path / "b.xlf.gz", translate, Languages("en", "cs"))
    filled = gzip.decompress((tmp_path / "b.xlf.gz").read_bytes()).decode()
    assert ">Otevřít</target>" in filled
    assert ">RED</target>" in filled
    assert filled.count("<target") == text.count("<target")


@pytest.mark.parametrize("text", [SEGMENTED, XLIFF_2], ids=["1.2", "2.0"])
def test_xliff_that_is_not_filled_stays(tmp_path, text):
    (tmp_path / "a.xlf").write_text(text, "utf-8")
    fill_catalogue(tmp_path / "a.xlf", tmp_path / "b.xlf", translate, Languages("en", "fr"))
    written = (tmp_path / "b.xlf").read_text("utf-8")
    assert written.split("<file", 1)[1].strip() == text.split("<file", 1)[1].strip()


def test_messages_in_british_english_are_not_in_the_target_language(tmp_path):
    for code in ("cs_CZ", "en_GB"):
        (tmp_path / f"{code}.po").write_text(CATALOGUE.replace("cs_CZ", code), "utf-8")
    assert set(sides_of(tmp_path, "cs")) == {OPEN, *FILES}


def test_variants_of_one_language_are_not_swapped(tmp_path):
    (tmp_path / "a.po").write_text(CATALOGUE.replace("cs_CZ", "en_GB"), "utf-8")
    corpus = load_corpus(str(tmp_path / "a.po"), "en", "en-gb")
    assert OPEN in {pair.sides for pair in corpus.pairs("train")}


def test_folders_of_gettext_name_a_language(tmp_path):
    """A folder of all languages, as /usr/share/locale, is not read as if it had one."""
    for name in ("cs.UTF-8", "de", "fr"):
        folder = tmp_path / name / "LC_MESSAGES"
        folder.mkdir(parents=True)
        (folder / "a.mo").write_bytes(compiled({"": "X: y\n", "Open": f"Open in {name}"}))
    assert sides_of(tmp_path, "cs") == [("Open", "Open in cs.UTF-8")]
    (pair,) = load_corpus(str(tmp_path), "de", "en").pairs("train")
    assert pair.sides == ("Open in de", "Open")


def test_names_of_files_name_a_language(tmp_path):
    """Where the header does not; words that are also rare languages are no names."""
    text = CATALOGUE.replace('"Language: cs_CZ\\n"\n', "")
    for name, language in (("de.po", "de"), ("a.pt_BR.po", "pt_BR"), ("sr@latin.PO.gz", "sr@l")):
        content = text.encode()
        (tmp_path / name).write_bytes(gzip.compress(content) if "gz" in name else content)
        with pytest.raises(InputError, match=f"{name} has the language {language}"):
            load_corpus(str(tmp_path / name), "en", "cs")
    assert OPEN in sides_of(tmp_path / "de.po", "de")
    for name in ("messages.po", "new.po", "in.po", "xx.po"):
        (tmp_path / name).write_text(text, "utf-8")
        assert OPEN in sides_of(tmp_path / name, "cs")


def test_other_languages_and_damaged_files(tmp_path):
    for name, message in (
        ("a.po", r"a\.po has the language cs_CZ\. Received: 'en', 'de'"),
        ("a.xlf", r"a\.xlf has the language cs\. Received: 'en', 'de'"),
    ):
        with pytest.raises(InputError, match=message):
            load_corpus(str(write(tmp_path, name)), "en", "de")
    with pytest.raises(
        InputError, match=r"has the languages CS, cs, de, en, en-GB\. Received: 'fr'"
    ):
        load_corpus(str(write(tmp_path, "a.tmx")), "en", "fr")
    (tmp_path / "bad.tmx").write_text("<tmx>")
    with pytest.raises(InputError, match=r"Cannot read .*bad\.tmx: "):
        load_corpus(str(tmp_path / "bad.tmx"), "en", "cs")


def translate(texts, progress):
    assert len(set(texts)) == len(texts)
    return [{"translation": text.upper().replace("%S", "").replace("%D", "%d")} for text in texts]


def test_empty_entries_are_filled_and_fuzzy(tmp_path, capsys):
    fill_catalogue(write(tmp_path, "a.po"), tmp_path / "b.po", translate)
    filled = (tmp_path / "b.po").read_text("utf-8")
    assert '#, fuzzy\nmsgid "empty"\nmsgstr "EMPTY"\n' in filled
    assert 'msgstr ""\n"TWO\\n"\n"  LINES \\n"\n' in filled
    assert 'msgstr[0] "%d DISK"\nmsgstr[1] "%d DISKS"\nmsgstr[2] "%d DISKS"\n' in filled
    assert 'msgctxt "menu"\nmsgid "Open"\nmsgstr "Otevřít"\n' in filled
    messages = capsys.readouterr().err
    assert "Translation: 3 empty entries" in messages
    assert "in 1 of them, placeholders" in messages
    fill_catalogue(write(tmp_path, "a.xlf"), tmp_path / "b.xlf", translate, Languages("en", "cs"))
    filled = (tmp_path / "b.xlf").read_text("utf-8")
    assert ">CLOSE</target>" in filled
    assert filled.count("<target") == 3
    messages = capsys.readouterr().err
    assert "1 entries with inline elements are left empty" in messages
    assert "stay as they are" not in messages
    fill_catalogue(tmp_path / "a.xlf", tmp_path / "c.xlf", translate, Languages("de", "cs"))
    assert "a.xlf: There is no source language 'en-US', but de: " in capsys.readouterr().err
    fill_catalogue(tmp_path / "a.po", tmp_path / "c.po", translate, Languages("en", "de"))
    assert "a.po: There is no target language 'cs_CZ', but de: " in capsys.readouterr().err
    partly = CATALOGUE.replace('msgstr[1] "%d soubory"', 'msgstr[1] ""')
    partly = partly.replace('msgstr[0] "%d soubor"', 'msgstr[0] ""')
    (tmp_path / "partly.po").write_text(partly, "utf-8")
    fill_catalogue(tmp_path / "partly.po", tmp_path / "whole.po", translate)
    expected = 'msgstr[0] "%d FILE"\nmsgstr[1] "%d FILES"\nmsgstr[2] "%d souborů"\n'
    assert expected in (tmp_path / "whole.po").read_text("utf-8")
    no_header = partly.replace('"Plural-Forms: nplurals=3;', '"X-Forms: nplurals=3;')
    (tmp_path / "none.po").write_text(no_header, "utf-8")
    fill_catalogue(tmp_path / "none.po", tmp_path / "three.po", translate)
    assert expected in (tmp_path / "three.po").read_text("utf-8")
    fewer = partly.replace('msgstr[2] "%d souborů"\n', "").replace('[0] ""', '[0] "%d x"')
    (tmp_path / "two.po").write_text(fewer.replace('[1] ""', '[1] "%d y"'), "utf-8")
    fill_catalogue(tmp_path / "two.po", tmp_path / "all.po", translate)
    expected = 'msgstr[0] "%d x"\nmsgstr[1] "%d y"\nmsgstr[2] "%d FILES"\n'
    assert expected in (tmp_path / "all.po").read_text("utf-8")
    one_form = CATALOGUE.replace("nplurals=3; plural=(n==1) ? 0 : ", "nplurals=1; plural=0;")
    (tmp_path / "ja.po").write_text(one_form, "utf-8")
    fill_catalogue(tmp_path / "ja.po", tmp_path / "filled.po", translate)
    assert 'msgstr[0] "%d DISKS"\n\n' in (tmp_path / "filled.po").read_text("utf-8")
