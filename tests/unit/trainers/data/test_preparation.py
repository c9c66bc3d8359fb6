import dataclasses
import itertools

import pytest
import sentencepiece
from disk import full_disk

from keras_transformer.config import EOS_ID
from keras_transformer.errors import InputError
from keras_transformer.tokenizers import WordPieceTokenizer
from keras_transformer.trainers import translation
from keras_transformer.trainers.data import cleaning, preparation
from keras_transformer.trainers.data.corpora import Pair, load_corpus
from keras_transformer.trainers.data.preparation import prepare
from keras_transformer.trainers.data.prepared import (
    CorpusManifest,
    StoredPairs,
    complete_corpus,
    open_prepared,
)
from keras_transformer.trainers.settings import TrainSettings

pytestmark = pytest.mark.usefixtures("eager")  # a corpus has a handful of pairs

E = EOS_ID
FIRST_WORD = 4  # after pad, unk, bos, eos
WORDS = [f"w{number}" for number in range(40)]
GOOD = ("gut", "12")  # by every rule: unknown words are a token, and digits of no script


def tokenizer_of(words):
    """A word is a token: w0 is 4, w1 is 5, ..."""
    pieces = ("# word-pieces", "<pad>", "<unk>", "<s>", "</s>", *words)
    return WordPieceTokenizer("".join(f"{piece}\n" for piece in pieces).encode())


@pytest.fixture
def corpus(tmp_path):
    """A folder to prepare into."""
    return tmp_path / "corpus"


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes pairs as text and returns settings of them; shards are of 7 pairs, in two calls."""
    monkeypatch.setattr(preparation, "PAIRS_PER_SHARD", 7)
    monkeypatch.setattr(cleaning, "PAIRS_PER_CALL", 4)
    task = dataclasses.replace(
        translation.TRANSLATION, learn_tokenizer=lambda *_: tokenizer_of(WORDS)
    )
    monkeypatch.setattr(translation, "TRANSLATION", task)
    folder = tmp_path / "text"
    folder.mkdir()

    def write_text(pairs, split="train", **settings):
        for language, texts in zip(("de", "en"), zip(*pairs, strict=True), strict=True):
            text = "".join(f"{text}\n" for text in texts)
            (folder / f"{language}.{split}.txt").write_text(text, encoding="utf-8")
        usual = {"source": "de", "target": "en", "tokenizer": "wordpiece", "augment": {}}
        settings = usual | settings
        return TrainSettings(data=str(folder), **settings)

    return write_text


def numbered(count):
    """Pairs of (one word, two words), all different."""
    return [(WORDS[i], f"{WORDS[i + 1]} {WORDS[i]}") for i in range(count)]


def interrupted(settings, folder, after):
    """Prepares until the pairs of the shard after `after` finished ones are tokenized."""
    calls = []

    def stop(pairs):
        calls.append(pairs)
        if len(calls) > 2 * after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(settings, folder, stop)


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def refuses(call, message, folder):
    """Checks that a call raises an error that begins so, and changes nothing."""
    before = contents(folder)
    with pytest.raises(InputError, match=f"^{message}"):
        call()
    assert contents(folder) == before


def report(folder, split="train"):
    found = getattr(CorpusManifest.read(folder), split).total
    return found.kept, found.dropped, found.examples


def kept(folder, split="train"):
    pairs = StoredPairs(folder, split)
    return [[ids.tolist() for ids in pair] for pair in pairs.read(range(len(pairs.lengths)))]


def test_pairs_are_the_tokens_and_the_end(corpus_dir, tiny_settings, corpus):
    prepared = prepare(tiny_settings, corpus)
    processor = sentencepiece.SentencePieceProcessor(model_proto=prepared.tokenizer.model)
    for split, written in (("train", prepared.training), ("val", prepared.validation)):
        texts = list(load_corpus(str(corpus_dir), "en", "de").pairs(split))
        expected = [[[*processor.encode(text), E] for text in pair.sides] for pair in texts]
        assert written.lengths.tolist() == [[len(ids) for ids in pair] for pair in expected]
        assert [[s.tolist(), t.tolist()] for s, t in written.read(range(len(texts)))] == expected
    assert prepared.validation_pairs == texts
    assert open_prepared(corpus).tokenizer.model == prepared.tokenizer.model


def test_rows_are_read_in_the_order_asked_for_across_shards(write, corpus):
    pairs = prepare(write(numbered(17)), corpus).training
    assert len(list(corpus.glob("train-*.npy"))) == 3
    assert pairs.lengths.tolist() == [[2, 3]] * 17
    rows = [16, 0, 6, 7, 13, 14, 6]
    assert [[s.tolist(), t.tolist()] for s, t in pairs.read(rows)] == [
        [[4 + row, E], [5 + row, 4 + row, E]] for row in rows
    ]


@pytest.mark.parametrize("count", [6, 7, 8])
def test_shards_hold_all_pairs(write, corpus, count):
    prepare(write(numbered(count)), str(corpus))
    assert [source for source, _ in kept(corpus)] == [[4 + row, E] for row in range(count)]


def test_validation_keeps_its_text(write, corpus):
    validation = [("w3", "w5"), ("", "w7"), ("w1\t ö", "\u2028w2")]
    write(validation, "dev")
    prepared = prepare(write(numbered(9)), corpus)
    assert (
        prepared.validation_pairs
        == open_prepared(corpus).validation_pairs
        == list(itertools.starmap(Pair, validation))
    )
    assert prepared.validation.lengths.tolist() == [[2, 2], [3, 2]]
    assert report(corpus, "val")[:2] == (2, {"empty": 1})


@pytest.mark.parametrize(
    ("settings", "reasons"),
    [
        (
            {},
            {
                ("", "w1"): "empty",
                ("w1", ""): "empty",
                (" \t\u00a0", "\u3000"): "empty",
                ("w1 " * 9, "w1"): None,
                ("w1 " * 10, "w1"): "length_ratio",  # 9 is Moses's
            },
        ),
        (
            {"max_length": 5},  # four tokens and the end
            {
                ("w1 w2 w3 w4", "w1 w2 w3 w4"): None,
                ("w1 w2 w3 w4 w5", "w1 w2 w3 w4"): "too_long",
                ("w1 w2 w3 w4", "w1 w2 w3 w4 w5"): "too_long",
                ("", "w1 w2 w3 w4 w5"): "empty",
            },
        ),
        (
            {"max_length_ratio": 2.5},
            {
                ("w1 w2", "w1 w2 w3 w4 w5"): None,
                ("w1 w2", "w1 w2 w3 w4 w5 w6"): "length_ratio",
                ("w1 w2 w3", "w1"): "length_ratio",
            },
        ),
        ({"max_length_ratio": None}, {("w1 " * 37, "w1"): None}),
        (
            {"source_script": "Latin"},
            {
                ("Hund собака", "w1"): "script",  # 4 and 6 letters
                ("Hunde кошка", "w1"): None,  # 5 and 5
                ("w1", "собака"): None,
                ("12 + 7 = 19!", "w1"): None,
            },
        ),
        ({"target_script": "Cyrillic"}, {("w1", "собака"): None, ("собака", "dog"): "script"}),
    ],
)
def test_rules(write, corpus, settings, reasons):
    prepare(write([GOOD, *reasons, GOOD], **settings), corpus)
    assert len(kept(corpus)) == 2 + list(reasons.values()).count(None)
    examples = {}
    for pair, reason in reasons.items():
        if reason:
            examples.setdefault(reason, []).append(pair)
    dropped = {reason: len(pairs) for reason, pairs in examples.items()}
    assert report(corpus) == (len(kept(corpus)), dropped, examples)


def test_duplicates_across_shards(write, corpus):
    pairs = numbered(18)
    pairs[5] = pairs[3]  # in a shard
    pairs[9] = pairs[17] = pairs[2]  # in others
    pairs[10] = (pairs[4][0], "w0")  # the same source alone
    pairs[11] = ("w0", pairs[4][1])  # the same target alone
    prepare(write(pairs, drop_duplicates=True), corpus)
    assert report(corpus) == (15, {"duplicate": 3}, {"duplicate": [pairs[3]]})
    first = [row for row in range(18) if row not in (5, 9, 17)]
    assert [s for s, _ in kept(corpus)] == [
        [FIRST_WORD + WORDS.index(pairs[row][0]), E] for row in first
    ]


def test_copies_are_of_the_pairs_that_are_kept(write, corpus, tmp_path):
    pairs = [(f"{word}.", f"{word}.") for word in WORDS[:9]]
    settings = {"drop_duplicates": True, "augment": {"end": 0.999}}
    settings = write([*pairs, pairs[3], ("w30.", ""), GOOD], **settings)
    prepare(settings, tmp_path / "expected")
    train = CorpusManifest.read(tmp_path / "expected").train.total
    assert (train.kept, train.copies) == (19, {"end": 9})
    assert (
        str(train) == "19 pairs (dropped: 1 duplicate, 1 empty; changed copies among them: 9 end)"
    )
    found = kept(tmp_path / "expected")
    assert all(found.count([[FIRST_WORD + word, E]] * 2) == 1 for word in range(9))  # no stop
    interrupted(settings, corpus, after=1)
    prepare(settings, corpus)
    assert contents(corpus) == contents(tmp_path / "expected")


def test_copies_that_are_dropped_do_not_count(write, corpus, monkeypatch):
    longer = Pair("w1 " * 5, "w1")
    monkeypatch.setattr(
        cleaning, "changed_copies", lambda *_: [("end", longer), ("lower", Pair(*GOOD))]
    )
    prepare(write(numbered(3), max_length=5), corpus)
    train = CorpusManifest.read(corpus).train.total
    assert (train.kept, train.copies, train.dropped) == (6, {"lower": 3}, {})


def test_a_field_of_a_table_that_is_too_long_is_dropped(write, corpus, tmp_path):
    rows = ["de,en", "w3,w2", f"w3,{'w2 ' * 50_000}"]  # 150 kB; a limit of Python's is 128 KiB
    (tmp_path / "a.csv").write_text("\n".join(rows))
    prepare(dataclasses.replace(write([GOOD]), data=str(tmp_path / "a.csv")), corpus)
    cut = ("w3", f"{'w2 ' * 33}…")
    assert report(corpus) == (1, {"too_long": 1}, {"too_long": [cut]})


@pytest.mark.parametrize("split", ["train", "val"])
def test_nothing_left(write, corpus, split):
    settings = write(numbered(3), "train", max_length=5)
    write([("", "w1"), ("w1 " * 5, "w1"), ("w1", "")], split)
    message = f"No sentence pair of {split} is left: 2 because .*, 1 because .*`max_length`"
    with pytest.raises(InputError, match=message):
        prepare(settings, corpus)
    # An error in the validation split shows before hours of work.
    assert (corpus / "train-00000.npy").exists() == (split == "train")


def test_unknown_script(write, corpus):
    for name in ("source_script", "target_script"):
        with pytest.raises(InputError, match=f"^`{name}` must be a Unicode script"):
            prepare(write(numbered(3), **{name: "Klingon"}), corpus)
    assert not corpus.exists()


@pytest.mark.parametrize("after", [0, 2])
def test_interrupted(write, corpus, tmp_path, after):
    write(numbered(5), "val")
    settings = write([*numbered(17), numbered(3)[0], ("", "")], drop_duplicates=True)
    prepare(settings, tmp_path / "expected")
    interrupted(settings, corpus, after)
    refuses(lambda: open_prepared(corpus), f"{corpus} is not complete", corpus)
    assert complete_corpus(corpus) is None
    done = sorted(corpus.glob("train-*.npy"))
    assert len(done) == after
    before = {path: path.stat().st_mtime_ns for path in done}
    prepare(settings, corpus)
    assert {path: path.stat().st_mtime_ns for path in done} == before
    assert contents(corpus) == contents(tmp_path / "expected")
    write(numbered(3), "val")  # a complete split does not follow its text
    prepare(settings, corpus)
    assert contents(corpus) == contents(tmp_path / "expected")


@pytest.mark.parametrize("is_shorter", [False, True])
def test_changed_text(write, corpus, is_shorter):
    pairs = numbered(17)
    interrupted(write(pairs), corpus, after=2)
    settings = write(pairs[:7] if is_shorter else [*pairs[:6], ("w1", "w1"), *pairs[7:]])
    message = f"{corpus}/train-0000{int(is_shorter)}.npy was made from other text"
    refuses(lambda: prepare(settings, corpus), message, corpus)


@pytest.mark.parametrize(("name", "value"), [("max_length_ratio", None), ("target_script", "Han")])
def test_other_settings(write, corpus, name, value):
    settings = write(numbered(9))
    prepare(settings, corpus)
    other = dataclasses.replace(settings, **{name: value})
    message = f"{corpus} was prepared with {name}={getattr(settings, name)!r}: .*={value!r}"
    refuses(lambda: prepare(other, corpus), message, corpus)
    refuses(lambda: open_prepared(corpus, other), message, corpus)


def test_full_disk(write, corpus, tmp_path):
    settings = write(numbered(9))
    prepare(settings, tmp_path / "expected")
    interrupted(settings, corpus, after=0)
    shard = corpus / "train-00000.npy"
    size = (tmp_path / "expected" / shard.name).stat().st_size
    with pytest.raises(InputError, match=f"Cannot write {shard}: "), full_disk(size // 2):
        prepare(settings, corpus)
    prepare(settings, corpus)
    assert contents(corpus) == contents(tmp_path / "expected")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("train-00001.npy", None),
        ("train-00001.npy", "one bit"),
        ("val.pairs.json", b"[["),
        ("tokenizer.model", None),
        ("tokenizer.model", tokenizer_of(WORDS[1:]).model),
        ("corpus.json", b'{"format_version": 97}'),
    ],
)
def test_damage(write, corpus, name, content):
    settings = write(numbered(17))
    write(numbered(3), "val")
    prepare(settings, corpus)
    before = bytearray((corpus / name).read_bytes())
    (corpus / name).unlink()
    if content == "one bit":
        before[-1] ^= 1
        (corpus / name).write_bytes(before)
    elif content is not None:
        (corpus / name).write_bytes(content)
    message = f"{corpus / name} is .*: delete {corpus}, then repeat the `prepare` command"
    refuses(lambda: open_prepared(corpus), message, corpus)
    if name.startswith("train"):
        refuses(lambda: prepare(settings, corpus), message, corpus)
        if content != "one bit":
            refuses(lambda: StoredPairs(corpus, "train", check_files=False), message, corpus)


def test_foreign_folder(write, corpus):
    settings = write(numbered(3))
    corpus.mkdir()
    (corpus / "thesis.txt").write_text("dear")
    refuses(lambda: prepare(settings, corpus), f"{corpus} holds something other", corpus)


def test_equal_sides_are_reported(write, corpus, tmp_path, caplog):
    same = [(word, word) for word in WORDS[:3]]
    with caplog.at_level("WARNING", logger="keras_transformer"):
        prepare(write([*numbered(27), *same]), corpus)
        assert "both sides" not in caplog.text  # a tenth
        prepare(write([*numbered(26), *same]), tmp_path / "other")
    assert "both sides are equal" in caplog.text


def test_shifted_lines_are_reported(write, corpus, caplog):
    words = [" ".join([WORDS[0]] * (number * number % 13 + 1)) for number in range(120)]
    with caplog.at_level("WARNING", logger="keras_transformer"):
        prepare(write(list(zip(words, words[1:] + words[:1], strict=True))), corpus)
    assert "after about 0 pairs, targets are 1 lines too early" in caplog.text
