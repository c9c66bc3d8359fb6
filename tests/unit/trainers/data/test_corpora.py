import gzip
import hashlib
import itertools
import json
import re

import pytest
import tensorflow_datasets as tfds

from keras_transformer.cli.demo import EXAMPLES
from keras_transformer.errors import InputError
from keras_transformer.trainers.data.corpora import (
    Corpus,
    Pair,
    bundled_splits,
    hold_out,
    load_corpus,
)


@pytest.fixture
def write(tmp_path):
    """Writes files of a corpus: `write(en_train=b"...")` is `en.train.txt`."""

    def write_files(**files):
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            (tmp_path / f"{name.replace('_', '.')}.txt").write_bytes(data)
        return load_corpus(str(tmp_path), "en", "de")

    return write_files


@pytest.mark.parametrize(
    ("data", "languages", "message"),
    [
        ("bundled", ("de", "de"), "Source and target language must differ. .*'de' twice"),
        ("bundled", ("en", "fr"), "holds the languages en and de. .*'fr'"),
        ("nowhere", ("en", "de"), "There is no folder nowhere: data must be 'bundled'"),
        ("{folder}", ("en", "de"), r"must hold files en\.SPLIT\.txt and de\.SPLIT\.txt"),
        ("tfds:parrots", ("en", "de"), "TensorFlow Datasets has no 'parrots'.*wmt14_translate"),
        ("tfds:parrot_translate", ("en", "de"), r"tfds:parrot_translate holds .* Received: 'de'$"),
    ],
)
def test_no_such_corpus(tfds_dir, data, languages, message):
    (tfds_dir / "de.val.txt").touch()
    (tfds_dir / "en.train.txt").touch()
    with pytest.raises(InputError, match=message):
        load_corpus(data.format(folder=tfds_dir), *languages)


def test_bundled_both_ways():
    there = load_corpus("bundled", "en", "de")
    back = load_corpus("bundled", "de", "en")
    assert there.splits == back.splits == ("train", "val", "test")
    assert there.validation_split == "val"
    for split in there.splits:
        pairs = list(there.pairs(split))
        assert pairs == bundled_splits()[split]
        assert list(back.pairs(split)) == [Pair(pair.target, pair.source) for pair in pairs]
    # Which language is which, by their articles.
    sources, targets = zip(*(pair.sides for pair in there.pairs("val")), strict=True)
    assert sum(" the " in text for text in sources) > 100 > sum(" the " in text for text in targets)


def sides_of(corpus, split):
    return [pair.sides for pair in corpus.pairs(split)]


def words_of(texts):
    return {word for text in texts for word in re.findall(r"[\w']+", text.lower())}


def test_bundled_pairs():
    """No sentence is in two pairs, held-out words occur in training, and the text never changes."""
    splits = bundled_splits()
    assert [len(split) for split in splits.values()] == [24_000, 500, 500]
    sides = {name: [pair.sides for pair in split] for name, split in splits.items()}
    for train, *others in zip(*(zip(*split, strict=True) for split in sides.values()), strict=True):
        texts = [text for side in (train, *others) for text in side]
        assert len(set(texts)) == 25_000
        assert words_of(itertools.chain(*others)) <= words_of(train)
    # The demo, the notebooks and the figures of the documentation are of this text.
    content = json.dumps(sides, ensure_ascii=False).encode()
    assert hashlib.sha256(content).hexdigest()[:16] == "14f32d52b769b615"


def test_demo_translates_sentences_that_training_does_not_see():
    sources = {pair.source for pair in bundled_splits()["train"]}
    assert sources.isdisjoint(EXAMPLES)
    assert words_of(EXAMPLES) <= words_of(sources)


@pytest.mark.parametrize("ending", ["tsv", "CSV", "tsv.gz", "csv.GZ"])
def test_table(tmp_path, ending):
    path = tmp_path / f"pairs.{ending}"
    comma = "\t" if "tsv" in ending else ", "
    rows = [comma.join(("de", "id", "en"))]
    rows += [comma.join((f"zwei {n % 907}", str(n), f"two {n % 907}")) for n in range(1009)]
    text = "\n".join(rows)
    text += f"\nsagt er{comma}7{comma}" + ('a "b' if "tsv" in ending else '"a, ""b\r\nc"')
    path.write_bytes(gzip.compress(text.encode()) if "gz" in ending.lower() else text.encode())
    corpus = load_corpus(str(path), "en", "de")
    splits = [list(corpus.pairs(split)) for split in ("train", "val", "test")]
    assert sum(map(len, splits)) == 1010
    assert all(20 < len(split) < 100 for split in splits[1:])
    sources = [{pair.source for pair in split} for split in splits]
    assert sum(map(len, sources)) == len(set.union(*sources)) == 908  # none is in two
    pairs = set(itertools.chain(*splits))
    assert {
        Pair("two 3", "zwei 3"),
        Pair('a "b' if "tsv" in ending else 'a, "b c', "sagt er"),
    } < pairs


def test_few_pairs_are_all_for_training(tmp_path):
    (tmp_path / "a.tsv").write_bytes(b"en\tde\none\teins\ntwo\tzw\rei\n")
    corpus = load_corpus(str(tmp_path / "a.tsv"), "en", "de")
    assert (corpus.splits, corpus.validation_split) == (("train",), None)
    assert list(corpus.pairs("train")) == [Pair("one", "eins"), Pair("two", "zw ei")]


@pytest.mark.parametrize(
    ("mark", "encoding", "separator", "end"),
    [
        (b"", "utf-8", ",", "\n"),
        (b"\xef\xbb\xbf", "utf-8", ";", "\r\n"),
        (b"\xff\xfe", "utf-16-le", "\t", "\n"),
        (b"\xfe\xff", "utf-16-be", ",", "\r\n"),
    ],
)
def test_tables_of_a_spreadsheet(tmp_path, mark, encoding, separator, end):
    # The first has 0A in both halves, the second is a surrogate pair.
    rows = [
        ("de", "x,;y", "en"),
        ("\u0a0a", "", "\U0001f600"),
        ("a,b;c", 'd"e', "f  "),
        ("", "", ""),
    ]
    cells = [[f'"{cell.replace(chr(34), chr(34) * 2)}"' for cell in row] for row in rows]
    text = end.join(map(separator.join, cells))
    (tmp_path / "a.csv").write_bytes(mark + text.encode(encoding))
    corpus = load_corpus(str(tmp_path / "a.csv"), "de", "en")
    pairs = {pair for split in corpus.splits for pair in corpus.pairs(split)}
    assert pairs == {Pair(row[0], row[2]) for row in rows[1:-1]}  # the last one is empty


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (['"a ""b"""\tc, d', '"e, f"\tg'], [('a "b"', "c, d"), ("e, f", "g")]),
        (['"a, b"\tc', "d\te"], [("a, b", "c"), ("d", "e")]),  # Excel
        (['"a, b"\tc', "d, e\tf"], [('"a, b"', "c"), ("d, e", "f")]),
        (['"a, b"\tc', '"d"\te'], [('"a, b"', "c"), ('"d"', "e")]),
        (['"a ""b"""\tc', '"d" e\tf'], [('"a ""b"""', "c"), ('"d" e', "f")]),
    ],
)
def test_quotes_of_a_spreadsheet_in_tsv(tmp_path, rows, expected):
    """They are text unless all texts that a spreadsheet would enclose are enclosed."""
    (tmp_path / "a.tsv").write_text("\n".join((" en\tde ", *rows)))
    corpus = load_corpus(str(tmp_path / "a.tsv"), "en", "de")
    assert sorted(p.sides for s in corpus.splits for p in corpus.read(s)) == sorted(expected)


def test_tsv_with_all_texts_in_quotes(tmp_path):
    """As LibreOffice and pandas write it, if asked to."""
    rows = ['"en"\t"de"', '"a ""b"" c"\t"d"', '"e, f"\t"g\th"', "i\tj"]
    (tmp_path / "a.tsv").write_text("\n".join(rows))
    corpus = load_corpus(str(tmp_path / "a.tsv"), "en", "de")
    assert sides_of(corpus, "train") == [('a "b" c', "d"), ("e, f", "g\th"), ("i", "j")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.tsv",
            b"one\teins",
            "pairs.*a.tsv: the first line must name .*, en and de .*: one, eins",
        ),
        ("a.tsv", b"en\tde\none", "a.tsv, line 2: a column is missing"),
        ("a.tsv", b"en\tde\tde\n", "a.tsv: the first line names de more than once"),
        ("a.csv", b"en,de\na,b,\nYes, a dog,Ja", "a.csv, line 3: more columns than the first line"),
        ("a.csv", b"en,de\n\xff,b", "a.csv, line 2: not valid UTF-8"),
        ("a.csv", b'en,de\na,b\n\nc,"d\ne,f\n', "a.csv: after line 2, a quote is not"),
        ("a.csv", b'en,de\na,"b"c\n', "a.csv: after line 1, a quote .* does not enclose"),
        ("a.csv", b"\xfe\xff\0e\0n\0,\0d\0e\0\n\xd8", "a.csv, line 2: not valid UTF-16"),
        ("a.tsv", "en\tde\na b\tc".encode("utf-16-le"), "a.tsv has zero bytes: it must be UTF-8"),
        ("a.csv.gz", b"en,de", "Cannot read .*a.csv.gz: Not a gzipped file"),
        ("a.xlsx", b"", r"a.xlsx must end in .tsv, .csv"),
    ],
)
def test_bad_tables(tmp_path, name, content, message):
    path = tmp_path / "pairs" / name
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        list(load_corpus(str(path), "en", "de").pairs("train"))


def test_folder(write):
    corpus = write(
        en_train="a dog\na cat\n",
        de_train="ein Hund\neine Katze\n",
        en_test="öl",  # the last line needs no end
        de_test="Öl\n",
        en_extra="no German\n",
        fr_train="un chien\nun chat\n",
    )
    assert corpus.splits == ("test", "train")
    assert corpus.validation_split is None
    assert sides_of(corpus, "train") == [("a dog", "ein Hund"), ("a cat", "eine Katze")]
    assert sides_of(corpus, "test") == [("öl", "Öl")]
    turned = load_corpus(corpus.name, "de", "en")
    assert sides_of(turned, "train") == [("ein Hund", "a dog"), ("eine Katze", "a cat")]


def table(path, numbers, languages="en\tde"):
    path.parent.mkdir(exist_ok=True)
    rows = "".join(f"two {number}\tzwei {number}\n" for number in numbers)
    path.write_text(f"{languages}\n{rows}")
    return str(path)


def test_several_files_are_one_corpus(tmp_path, caplog):
    caplog.set_level("INFO")
    files = [
        table(tmp_path / "a.tsv", range(900)),
        table(tmp_path / "b" / "b.tsv", range(500, 1400)),
    ]
    corpus = load_corpus([*files, files[0]], "en", "de")
    splits = {split: list(corpus.pairs(split)) for split in corpus.splits}
    assert {split: len(pairs) > 20 for split, pairs in splits.items()} == dict.fromkeys(
        ("train", "val", "test"), True
    )
    assert sum(map(len, splits.values())) == 1_800
    sources = [{pair.source for pair in pairs} for pairs in splits.values()]
    assert sum(map(len, sources)) == len(set.union(*sources)) == 1_400  # none is in two
    assert [caplog.text.count(f"{file}: 900 pairs") for file in files] == [1, 1]
    table(tmp_path / "b" / "fr.csv", range(3), languages="en\tfr")
    (tmp_path / "b" / "read.me").touch()
    folder = load_corpus(str(tmp_path / "b"), "en", "de")
    alone = load_corpus(files[1], "en", "de")
    assert list(folder.pairs("train")) == list(alone.pairs("train"))
    assert "1 files of other languages are left out" in caplog.text
    with pytest.raises(InputError, match=r"fr\.csv: the first line must name"):
        load_corpus([files[0], str(tmp_path / "b" / "fr.csv")], "en", "de")
    (tmp_path / "b" / "damaged.csv").write_bytes(b"en,de\n\xff,b")
    with pytest.raises(InputError, match=r"damaged\.csv, line 2: not valid UTF-8"):
        load_corpus(str(tmp_path / "b"), "en", "de")
    assert "not read" not in caplog.text
    for name in ("c.zip", "d.tsv.xz", "e.xlsx", "f.bz2"):
        (tmp_path / "b" / name).touch()
    with pytest.raises(InputError, match=r"b must hold files en.* It holds 3 .* of others"):
        load_corpus(str(tmp_path / "b"), "en", "pl")
    assert (
        "b: 4 files of other formats are not read, such as c.zip, d.tsv.xz, e.xlsx\n" in caplog.text
    )


def test_validation_text_of_one_language_is_named(write, caplog):
    write(en_train="a\n", de_train="b\n", en_dev="c\n", de_val="d\n", en_more="e\n")
    assert "en.dev.txt, de.val.txt" in caplog.text
    assert "more" not in caplog.text


def test_folders_of_lines_keep_their_splits_among_files(write, tmp_path):
    write(en_train="a\n", de_train="b\n", en_dev="c\n", de_dev="d\n", en_more="e", de_more="f")
    file = table(tmp_path / "more" / "a.tsv", range(900))
    corpus = load_corpus([str(tmp_path), file], "en", "de")
    alone = load_corpus(file, "en", "de")
    assert sorted(corpus.splits) == ["more", "test", "train", "val"]
    assert sides_of(corpus, "train") == [("a", "b"), *sides_of(alone, "train")]
    assert sides_of(corpus, "val") == [("c", "d"), *sides_of(alone, "val")]
    assert sides_of(corpus, "more") == [("e", "f")]
    assert corpus.validation_split == "val"


def test_compressed_lines(write, tmp_path):
    (tmp_path / "en.train.txt.gz").write_bytes(gzip.compress(b"a\nb\n"))
    corpus = write(de_train="c\nd\n")
    assert sides_of(corpus, "train") == [("a", "c"), ("b", "d")]
    with pytest.raises(InputError, match=r"must hold one of en\.train\.txt and en\.train\.txt\.gz"):
        write(en_train="")
    (tmp_path / "en.train.txt").unlink()
    (tmp_path / "en.train.txt.gz").write_bytes(gzip.compress(b"a\nb\n")[:-9])
    with pytest.raises(InputError, match=r"Cannot read .*en\.train\.txt\.gz: "):
        list(load_corpus(str(tmp_path), "en", "de").pairs("train"))


def test_validation_split_goes_by_several_names():
    for splits, expected in {
        ("train", "dev"): "dev",
        ("dev", "validation", "valid"): "valid",
        ("valid", "val"): "val",
        ("train", "evaluation", "test"): None,
    }.items():
        assert Corpus("name", splits, iter).validation_split == expected


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_only_a_line_feed_ends_a_line(write, end, encoding):
    """Line ends and byte order marks are no text."""
    lines = [" a\t ", "", "b\u00a0", "\u2028c\x85d\x0ce\rf"]
    text = "".join(line + end for line in lines)
    corpus = write(en_train=text.encode(encoding), de_train=text)
    assert [pair.source for pair in corpus.pairs("train")] == lines


def test_carriage_returns_end_lines_where_no_line_feed_does(write):
    corpus = write(en_train=b"\xef\xbb\xbfa\r\rb\r", de_train="c\r\rd")
    assert sides_of(corpus, "train") == [("a", "c"), ("", ""), ("b", "d")]


@pytest.mark.parametrize(
    ("german", "message"),
    [
        (b"a\n" * 2, "en.train.txt and .*de.train.txt .* Received: 3 and 2$"),
        (b"a\n" * 5, "Received: 3 and 5$"),
        (b"a\n\xf6\nb\n", r"de\.train\.txt, line 2: not valid UTF-8$"),
    ],
)
def test_bad_lines(write, german, message):
    corpus = write(en_train="a\n" * 3, de_train=german)
    with pytest.raises(InputError, match=message):
        list(corpus.pairs("train"))


def test_pairs_are_streamed():
    read = []

    def endless(split):
        for number in itertools.count():
            read.append(number)
            yield Pair(f"{split} {number}", "")

    pairs = Corpus("endless", ("train",), endless).pairs("train")
    assert [next(pairs).source for _ in range(3)] == ["train 0", "train 1", "train 2"]
    assert len(read) <= 4


def test_splits_that_cannot_be_read(write, tmp_path):
    corpus = write(en_train="a\n", de_train="b\n", en_val="", de_val="")
    (tmp_path / "de.train.txt").unlink()
    for split, message in {
        "test": "has no split 'test'. There are: train, val$",
        "val": "the split 'val' is empty",
        "train": "Cannot read .*de.train.txt: No such file",
    }.items():
        with pytest.raises(InputError, match=message):
            corpus.pairs(split)


# TensorFlow Datasets.

PARROTS = {"train": [("um papagaio", "a parrot"), ("olá", "hello")], "validation": [("sim", "yes")]}


class ParrotTranslate(tfds.core.GeneratorBasedBuilder):
    """A translation data set that must be prepared before its splits are known."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = tfds.features.Translation(["pt", "en"])
        return self.dataset_info_from_configs(features=features)

    def _split_generators(self, dl_manager):
        return {split: self._generate_examples(pairs) for split, pairs in PARROTS.items()}

    def _generate_examples(self, pairs):
        for number, (pt, en) in enumerate(pairs):
            yield number, {"pt": pt, "en": en}


@pytest.fixture
def tfds_dir(tmp_path, monkeypatch):
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("is_prepared", [True, False])
def test_tfds(tfds_dir, is_prepared):
    if is_prepared:
        tfds.builder("parrot_translate").download_and_prepare()
    corpus = load_corpus("tfds:parrot_translate", "en", "pt")
    assert set(corpus.splits) == {"train", "validation"}
    assert corpus.validation_split == "validation"
    for split, expected in PARROTS.items():
        # TFDS shuffles once, by a hash of the keys.
        assert sorted(sides_of(corpus, split)) == sorted((en, pt) for pt, en in expected)
        assert list(corpus.pairs(split)) == list(corpus.pairs(split))


def test_tfds_damaged(tfds_dir):
    builder = tfds.builder("parrot_translate")
    builder.download_and_prepare()
    (record,) = builder.data_path.glob("*train*tfrecord*")
    record.write_bytes(record.read_bytes()[:-3])
    corpus = load_corpus("tfds:parrot_translate", "en", "pt")
    with pytest.raises(
        InputError, match=r"^tfds:parrot_translate: the split 'train' cannot be read: .+$"
    ):
        list(corpus.pairs("train"))


def test_a_training_pair_stays_one_when_pairs_are_added():
    """Of 15,000 pairs a twentieth is held out, of 40,000 a fortieth."""
    small, large = (
        hold_out("n", [("n", lambda count=count: (Pair(str(i), "x") for i in range(count)))])
        for count in (15_000, 40_000)
    )
    for split, other in (("val", "test"), ("test", "val")):
        before, now = set(small.pairs(split)), set(large.pairs(split))
        assert len(before) == pytest.approx(750, rel=0.1)
        assert len(now) == pytest.approx(1_000, rel=0.1)
        assert now.isdisjoint(small.pairs("train"))
        assert now.isdisjoint(small.pairs(other))
    assert sum(len(list(large.pairs(split))) for split in large.splits) == 40_000
