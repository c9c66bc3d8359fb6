import dataclasses
import json
import re

import numpy as np
import pytest
import sentencepiece
from disk import full_disk

from keras_transformer.errors import InputError
from keras_transformer.files import locked
from keras_transformer.tokenizer import EOS_ID, WordPieceTokenizer
from keras_transformer.trainers import preparation
from keras_transformer.trainers.corpora import load_corpus
from keras_transformer.trainers.preparation import prepare
from keras_transformer.trainers.prepared import (
    Report,
    TokenizedPairs,
    is_prepared,
    open_prepared,
    read_report,
)
from keras_transformer.trainers.recipes import TrainSettings

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
    """Writes pairs as text and returns settings of them; shards are of 7 pairs."""
    monkeypatch.setattr(preparation, "PAIRS_PER_SHARD", 7)
    monkeypatch.setattr(preparation, "train_tokenizer", lambda *_: tokenizer_of(WORDS))
    folder = tmp_path / "text"
    folder.mkdir()

    def write_text(pairs, split="train", **settings):
        for language, texts in zip(("de", "en"), zip(*pairs, strict=True), strict=True):
            text = "".join(f"{text}\n" for text in texts)
            (folder / f"{language}.{split}.txt").write_text(text, encoding="utf-8")
        settings = {"source": "de", "target": "en", "tokenizer": "wordpiece", **settings}
        return TrainSettings(data=str(folder), **settings)

    return write_text


def test_full_disk(write, corpus):
    settings = write(numbered(9))
    expected = prepare(settings, corpus)
    shard = corpus / "train-00001.array_record"
    before = shard.read_bytes()
    for path in (shard, shard.with_suffix(".json"), corpus / "train.json"):
        path.unlink()
    refused = rf"Cannot write {shard}: [^\n]*\. What was finished before is whole, and a new call"
    with pytest.raises(InputError, match=refused), full_disk(len(before) // 2):
        prepare(settings, corpus)
    assert prepare(settings, corpus).training.lengths.tolist() == expected.training.lengths.tolist()
    assert shard.read_bytes() == before


def numbered(count):
    """Pairs of (one word, two words), all different."""
    return [(WORDS[i], f"{WORDS[i + 1]} {WORDS[i]}") for i in range(count)]


def interrupted(settings, folder, after):
    """Prepares until the pairs of the shard after `after` whole ones are tokenised."""
    calls = []

    def stop(pairs):
        calls.append(pairs)
        if len(calls) > after:
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
    """Checks that a call raises just this error and changes nothing."""
    before = contents(folder)
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        call()
    assert contents(folder) == before


def kept(folder, split="train"):
    pairs = TokenizedPairs(folder, split)
    return [[ids.tolist() for ids in pair] for pair in pairs.read(range(len(pairs.lengths)))]


# What is written.


def test_pairs_are_the_tokens_and_the_end(corpus_dir, tiny_settings, corpus):
    prepared = prepare(tiny_settings, corpus)
    processor = sentencepiece.SentencePieceProcessor(model_proto=prepared.tokenizer.model)
    for split, written in (("train", prepared.training), ("val", prepared.validation)):
        texts = list(load_corpus(str(corpus_dir), "en", "de").pairs(split))
        expected = [[[*processor.encode(text), E] for text in pair] for pair in texts]
        assert written.lengths.tolist() == [[len(ids) for ids in pair] for pair in expected]
        assert [[s.tolist(), t.tolist()] for s, t in written.read(range(len(texts)))] == expected
    assert prepared.validation_pairs == texts
    assert open_prepared(corpus).tokenizer.model == prepared.tokenizer.model


def test_rows_are_read_in_the_order_asked_for_across_shards(write, corpus):
    pairs = prepare(write(numbered(17)), corpus).training
    assert len(list(corpus.glob("train-*.array_record"))) == 3
    assert pairs.lengths.tolist() == [[2, 3]] * 17
    rows = [16, 0, 6, 7, 13, 14, 6]
    assert [[s.tolist(), t.tolist()] for s, t in pairs.read(rows)] == [
        [[4 + row, E], [5 + row, 4 + row, E]] for row in rows
    ]


@pytest.mark.parametrize("count", [6, 7, 8, 14])
def test_shards_hold_all_pairs(write, corpus, count):
    prepare(write(numbered(count)), corpus)
    assert [source for source, _ in kept(corpus)] == [[4 + row, E] for row in range(count)]


def test_calls_of_the_tokenizer_do_not_show(write, corpus, monkeypatch):
    monkeypatch.setattr(preparation, "PAIRS_PER_CALL", 3)
    prepare(write([*numbered(5), ("", "w1"), *numbered(11)]), corpus)
    assert [s[0] for s, _ in kept(corpus)] == [4 + row for row in (*range(5), *range(11))]


def test_progress_counts_the_training_pairs(write, corpus):
    write(numbered(3), "val")
    counts = []
    prepare(write([*numbered(15), ("", "")]), corpus, counts.append)
    assert sum(counts) == 16


def test_validation_keeps_its_text(write, corpus):
    validation = [("w3", "w5"), ("", "w7"), ("w1\t ö", "\u2028w2")]
    write(validation, "dev")
    prepared = prepare(write(numbered(9)), corpus)
    assert prepared.validation_pairs == open_prepared(corpus).validation_pairs == validation
    assert prepared.validation.lengths.tolist() == [[2, 2], [3, 2]]
    assert read_report(corpus, "val").dropped == {"empty": 1}


def test_no_validation(write, corpus):
    prepared = prepare(write(numbered(9)), corpus)
    assert (prepared.validation, prepared.validation_pairs) == (None, [])


def test_is_prepared(write, corpus, tmp_path):
    assert not is_prepared(corpus)
    assert not is_prepared(tmp_path)
    prepare(write(numbered(3)), corpus)
    assert is_prepared(corpus)
    assert is_prepared(str(corpus))


# Cleaning.


@pytest.mark.parametrize(
    ("settings", "pair", "reason"),
    [
        ({}, ("", "w1"), "empty"),
        ({}, ("w1", ""), "empty"),
        ({}, (" \t\u00a0", "\u3000"), "empty"),
        # Four tokens and the end are five.
        ({"max_length": 5}, ("w1 w2 w3 w4", "w1 w2 w3 w4"), None),
        ({"max_length": 5}, ("w1 w2 w3 w4 w5", "w1 w2 w3 w4"), "too_long"),
        ({"max_length": 5}, ("w1 w2 w3 w4", "w1 w2 w3 w4 w5"), "too_long"),
        ({"max_length": 5}, ("", "w1 w2 w3 w4 w5"), "empty"),
        ({"max_length_ratio": 2.5}, ("w1 w2", "w1 w2 w3 w4 w5"), None),
        ({"max_length_ratio": 2.5}, ("w1 w2", "w1 w2 w3 w4 w5 w6"), "length_ratio"),
        ({"max_length_ratio": 2.5}, ("w1 w2 w3", "w1"), "length_ratio"),
        ({"max_length_ratio": None}, ("w1 " * 37, "w1"), None),
        ({}, ("w1 " * 9, "w1"), None),
        ({}, ("w1 " * 10, "w1"), "length_ratio"),  # 9 is Moses's
        ({"source_script": "Latin"}, ("Hund собака", "w1"), "script"),  # 4 and 6 letters
        ({"source_script": "Latin"}, ("Hunde кошка", "w1"), None),  # 5 and 5
        ({"source_script": "Latin"}, ("w1", "собака"), None),
        ({"source_script": "Latin"}, ("12 + 7 = 19!", "w1"), None),
        ({"target_script": "Latin"}, ("w1", "собака"), "script"),
        ({"target_script": "Cyrillic"}, ("w1", "собака"), None),
        ({"target_script": "Han"}, ("w1", "dog"), "script"),
        ({"target_script": "Latin"}, ("собака", "dog"), None),
    ],
)
def test_rules(write, corpus, settings, pair, reason):
    prepare(write([GOOD, pair, GOOD], **settings), corpus)
    report = read_report(corpus)
    assert report.kept == len(kept(corpus)) == (2 if reason else 3)
    assert report.dropped == ({reason: 1} if reason else {})
    assert report.examples == ({reason: [pair]} if reason else {})


def test_duplicates_across_shards(write, corpus):
    pairs = numbered(18)
    pairs[5] = pairs[3]  # in a shard
    pairs[9] = pairs[17] = pairs[2]  # in others
    pairs[10] = (pairs[4][0], "w0")  # the same source alone
    pairs[11] = ("w0", pairs[4][1])  # the same target alone
    prepare(write(pairs, drop_duplicates=True), corpus)
    assert read_report(corpus) == Report(15, {"duplicate": 3}, {"duplicate": [pairs[3]]})
    first = [row for row in range(18) if row not in (5, 9, 17)]
    assert [s for s, _ in kept(corpus)] == [
        [FIRST_WORD + WORDS.index(pairs[row][0]), E] for row in first
    ]


def test_duplicates_stay_unless_asked(write, corpus):
    prepare(write([GOOD] * 9), corpus)
    assert read_report(corpus) == Report(9, {}, {})


def test_report_adds_up_the_shards(write, corpus):
    bad = [(f"w{number} " * 11, "w1") for number in range(9)]
    prepare(write([*bad[:5], GOOD, ("", "w1"), GOOD, *bad[5:]]), corpus)
    report = read_report(corpus)
    assert (report.kept, report.dropped) == (2, {"length_ratio": 9, "empty": 1})
    assert report.examples == {"length_ratio": bad[:3], "empty": [("", "w1")]}


def test_shard_of_which_nothing_is_left(write, corpus):
    prepare(write([*numbered(7), *[("", "w1")] * 7, *numbered(9)[7:]]), corpus)
    assert [s for s, _ in kept(corpus)] == [[4 + row, E] for row in range(9)]


def test_report_in_a_line():
    assert str(Report(1234, {"too_long": 5678, "empty": 1}, {})) == (
        "1,234 pairs (dropped: 5,678 too long, 1 empty)"
    )
    assert str(Report(7, {}, {})) == "7 pairs (dropped: none)"


@pytest.mark.parametrize("split", ["train", "val"])
def test_nothing_left(write, corpus, split):
    settings = write(numbered(3), "train", max_length=5)
    write([("", "w1"), ("w1 " * 5, "w1"), ("w1", "")], split)
    message = (
        f"No sentence pair of {split} is left: 2 because a side has no token, "
        "1 because a side has more than `max_length` tokens, the end symbol included"
    )
    with pytest.raises(InputError, match=f"^{message}$"):
        prepare(settings, corpus)
    # What is wrong with the validation split is said before hours of work.
    assert (corpus / "train-00000.json").exists() == (split == "train")


@pytest.mark.parametrize("name", ["source_script", "target_script"])
def test_unknown_script(write, corpus, name):
    message = (
        f"^`{name}` must be a Unicode script, such as Latin or Cyrillic. "
        f"Received: {name}='Klingon'$"
    )
    with pytest.raises(InputError, match=message):
        prepare(write(numbered(3), **{name: "Klingon"}), corpus)
    assert not corpus.exists()


def test_lengths_must_fit_into_their_type(write, corpus):
    settings = write(numbered(3), max_length=2**16, tokens_per_batch=2**17)
    with pytest.raises(InputError, match=r"at most 65535\. Received: max_length=65536$"):
        prepare(settings, corpus)
    assert not corpus.exists()


# Going on.


@pytest.mark.parametrize("after", [0, 1, 2])
def test_interrupted_goes_on(write, corpus, tmp_path, after):
    write(numbered(5), "val")
    settings = write([*numbered(17), numbered(3)[0], ("", "")], drop_duplicates=True)
    prepare(settings, tmp_path / "whole")
    interrupted(settings, corpus, after)
    done = [path for path in corpus.iterdir() if path.name.startswith("train-0")]
    done = [path for path in done if int(path.name[6:11]) < after and path.suffix != ".tmp"]
    assert len(done) == 3 * after
    before = {path: path.stat().st_mtime_ns for path in done}
    prepare(settings, corpus)
    assert {path: path.stat().st_mtime_ns for path in done} == before
    assert contents(corpus) == contents(tmp_path / "whole")


def test_interrupted_in_the_validation_split(write, corpus, tmp_path, monkeypatch):
    write(numbered(5), "val")
    settings = write(numbered(9))
    prepare(settings, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(preparation, "no_progress", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            prepare(settings, corpus, lambda _: None)
    prepare(settings, corpus)
    assert contents(corpus) == contents(tmp_path / "whole")


def test_a_second_call_changes_nothing(write, corpus):
    settings = write(numbered(9))
    prepare(settings, corpus)
    before = contents(corpus)
    assert prepare(settings, corpus).training.lengths.tolist() == [[2, 3]] * 9
    assert contents(corpus) == before


def test_what_training_alone_needs_may_change(write, corpus):
    settings = write(numbered(9))
    prepare(settings, corpus)
    other = dataclasses.replace(settings, steps=3, seed=7, preset="base", beam_size=2)
    assert prepare(other, corpus).training.lengths.tolist() == [[2, 3]] * 9
    assert open_prepared(corpus, other).training.lengths.tolist() == [[2, 3]] * 9


def test_a_validation_split_that_comes_or_goes(write, corpus, tmp_path):
    settings = write(numbered(9))
    prepare(settings, corpus)
    write(numbered(5), "val")
    message = f"{corpus} was prepared without a validation split, and its text is with one now: "
    refuses(lambda: prepare(settings, corpus), message + "prepare it in a new folder", corpus)
    other = tmp_path / "other"
    interrupted(settings, other, after=1)
    for language in ("de", "en"):
        (tmp_path / "text" / f"{language}.val.txt").unlink()
    message = f"{other} was prepared with a validation split, and its text is without one now: "
    refuses(lambda: prepare(settings, other), message + "prepare it in a new folder", other)


def test_one_call_at_a_time(write, corpus):
    settings = write(numbered(9))
    corpus.mkdir()
    message = f"Another call is writing {corpus}: wait for its end, or stop it"
    with locked(corpus):
        refuses(lambda: prepare(settings, corpus), message, corpus)
    assert prepare(settings, corpus).training.lengths.tolist() == [[2, 3]] * 9


def test_interrupted_is_not_whole(write, corpus):
    interrupted(write(numbered(17)), corpus, after=1)
    message = f"{corpus} is no whole corpus: prepare it again, and it goes on"
    refuses(lambda: open_prepared(corpus), message, corpus)
    refuses(lambda: read_report(corpus), message, corpus)


def test_changed_text(write, corpus):
    pairs = numbered(17)
    interrupted(write(pairs), corpus, after=1)
    settings = write([*pairs[:6], ("w1", "w1"), *pairs[7:]])
    message = (
        f"{corpus}/train-00000.array_record was made from other text or another tokenizer: "
        "prepare the corpus in a new folder"
    )
    refuses(lambda: prepare(settings, corpus), message, corpus)


@pytest.mark.parametrize(
    ("name", "value", "before"),
    [
        ("vocab_size", 300, None),
        ("max_length", 31, 256),
        ("max_length_ratio", None, 9.0),
        ("drop_duplicates", True, False),
        ("source_script", "Latin", None),
        ("target_script", "Han", None),
        ("tokenizer", "bpe", "wordpiece"),
    ],
)
def test_other_settings(write, corpus, name, value, before):
    settings = write(numbered(9))
    prepare(settings, corpus)
    other = dataclasses.replace(settings, **{name: value})
    message = f"{corpus} was prepared with {name}={before!r}. Received: {name}={value!r}"
    refuses(lambda: prepare(other, corpus), message, corpus)
    refuses(lambda: open_prepared(corpus, other), message, corpus)


def test_other_languages(write, corpus):
    settings = write(numbered(9))
    prepare(settings, corpus)
    other = dataclasses.replace(settings, source="en", target="de")
    message = f"{corpus} was prepared with source='de'. Received: source='en'"
    refuses(lambda: prepare(other, corpus), message, corpus)


@pytest.mark.parametrize("is_whole", [True, False])
def test_other_tokenizer(write, corpus, is_whole):
    settings = write(numbered(17))
    if is_whole:
        prepare(settings, corpus)
    else:
        interrupted(settings, corpus, after=1)
    tokenizer_of(WORDS[::-1]).save(corpus / "tokenizer.model")
    message = (
        f"{corpus}/tokenizer.model is not the tokenizer that {corpus} was prepared with: its "
        "SHA-256 is not the one in corpus.json"
    )
    refuses(lambda: prepare(settings, corpus), message, corpus)
    if is_whole:
        refuses(lambda: open_prepared(corpus), message, corpus)


def test_shards_of_other_tokenizers(write, corpus):
    prepare(write(numbered(9)), corpus)
    other = tokenizer_of(WORDS[::-1])
    other.save(corpus / "tokenizer.model")
    manifest = json.loads((corpus / "corpus.json").read_text())
    manifest["tokenizer_sha256"] = other.fingerprint
    (corpus / "corpus.json").write_text(json.dumps(manifest))
    message = (
        f"{corpus}/train-00000.array_record was tokenised by another tokenizer than "
        f"{corpus}/tokenizer.model: delete {corpus} and prepare it again"
    )
    refuses(lambda: open_prepared(corpus), message, corpus)


@pytest.mark.parametrize("has_validation", [False, True])
def test_missing_tokenizer(write, corpus, has_validation):
    settings = write(numbered(9))
    if has_validation:
        write(numbered(3), "val")
    prepare(settings, corpus)
    (corpus / "tokenizer.model").unlink()
    message = f"Cannot read the tokenizer {corpus}/tokenizer.model: No such file or directory"
    refuses(lambda: prepare(settings, corpus), message, corpus)
    refuses(lambda: open_prepared(corpus), message, corpus)


@pytest.mark.parametrize("is_prepared_again", [True, False])
@pytest.mark.parametrize("damage", ["truncated", "missing", "no JSON", "broken JSON"])
def test_damaged_shard(write, corpus, damage, is_prepared_again):
    settings = write(numbered(17))
    prepare(settings, corpus)
    shard = corpus / "train-00001.array_record"
    data = shard.read_bytes()
    again = f"delete {corpus} and prepare it again"
    if damage == "truncated":
        shard.write_bytes(data[:-11])
        message = f"{shard} is damaged, {len(data) - 11} bytes instead of {len(data)}: {again}"
    elif damage == "missing":
        shard.unlink()
        message = f"{shard} is missing: {again}"
    elif damage == "no JSON":
        shard.with_suffix(".json").unlink()
        message = f"{shard} is missing: {again}"
    else:
        shard.with_suffix(".json").write_text("{")
        message = f"{shard.with_suffix('.json')} is damaged"
    refuses(
        lambda: prepare(settings, corpus) if is_prepared_again else open_prepared(corpus),
        message,
        corpus,
    )


def test_damaged_record(write, corpus):
    prepare(write(numbered(17)), corpus)
    shard = corpus / "train-00001.array_record"
    data = bytearray(shard.read_bytes())
    first = data.index(np.array([2, FIRST_WORD + 7, E], np.int32).tobytes())  # row 7's
    data[first] ^= 1
    shard.write_bytes(data)
    pairs = open_prepared(corpus).training
    assert len(pairs.read([0, 6, 8, 16])) == 4
    assert pairs.damage is None
    again = re.escape(f"): delete {corpus} and prepare it again")
    message = rf"^{re.escape(str(shard))} is damaged \([^\n]*mismatch[^\n]*{again}$"
    with pytest.raises(InputError, match=message) as caught:
        pairs.read([0, 7, 16])
    assert pairs.damage is caught.value
    assert [ids.tolist() for ids in pairs.read([6])[0]] == [[FIRST_WORD + 6, E], [11, 10, E]]


@pytest.mark.parametrize("is_swapped", [True, False])
def test_shard_of_other_pairs(write, corpus, is_swapped):
    """Of the same size, for files are of whole blocks."""
    texts = [" ".join(WORDS[: 1 + number]) for number in range(17)]
    prepare(write([(text, text) for text in texts]), corpus)
    first, second, last = sorted(corpus.glob("train-*.array_record"))
    contents = first.read_bytes(), second.read_bytes()
    assert len({len(contents[0]), len(contents[1]), last.stat().st_size}) == 1
    if is_swapped:
        first.write_bytes(contents[1])
        second.write_bytes(contents[0])
        message = f"{corpus} holds pairs of other lengths than it says"
    else:
        last.write_bytes(contents[0])
        message = f"{corpus}/train-*.array_record hold 21 pairs instead of 17"
    expected = re.escape(f"{message}: delete {corpus} and prepare it again")
    with pytest.raises(InputError, match=f"^{expected}$"):
        TokenizedPairs(corpus, "train").read([16, 3])


def test_whole_shards_are_not_blamed(write, corpus, monkeypatch):
    prepare(write(numbered(17)), corpus)
    pairs = open_prepared(corpus).training

    def fail(rows):
        raise RuntimeError("the disk\nis slow")

    monkeypatch.setattr(pairs._records, "__getitems__", fail)
    with pytest.raises(InputError, match=f"^{corpus} could not be read: the disk is slow$"):
        pairs.read([0])


@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "text", "shape"])
def test_damaged_lengths(write, corpus, damage):
    settings = write(numbered(17))
    prepare(settings, corpus)
    file = corpus / "train-00001.lengths.npy"
    again = f"delete {corpus} and prepare it again"
    message = f"{file} is missing or damaged: {again}"
    if damage == "missing":
        file.unlink()
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "truncated":
        file.write_bytes(file.read_bytes()[:-3])
    elif damage == "text":
        file.write_bytes(b"lengths")
    else:
        np.save(file, np.ones((5, 2), np.uint16))
        message = f"{file} is damaged, of shape (5, 2) instead of (7, 2): {again}"
    refuses(lambda: open_prepared(corpus), message, corpus)
    refuses(lambda: prepare(settings, corpus), message, corpus)


def test_foreign_folder(write, corpus):
    settings = write(numbered(3))
    corpus.mkdir()
    (corpus / "thesis.txt").write_text("dear")
    message = f"{corpus} holds something other than a prepared corpus: choose another folder"
    refuses(lambda: prepare(settings, corpus), message, corpus)


@pytest.mark.parametrize(
    ("manifest", "found"),
    [
        ({"format": "zip", "format_version": 1}, ("zip", 1)),
        ({"format": preparation.FORMAT, "format_version": 97}, (preparation.FORMAT, 97)),
        ({}, (None, None)),
    ],
)
def test_foreign_manifest(write, corpus, manifest, found):
    settings = write(numbered(3))
    corpus.mkdir()
    (corpus / "corpus.json").write_text(json.dumps(manifest))
    message = (
        f"{corpus}/corpus.json must be of the format ('keras-transformer corpus', 1). "
        f"Received: {found}"
    )
    refuses(lambda: prepare(settings, corpus), message, corpus)
    refuses(lambda: open_prepared(corpus, settings), message, corpus)


def test_broken_manifest(write, corpus):
    settings = write(numbered(3))
    corpus.mkdir()
    (corpus / "corpus.json").write_text("{")
    refuses(lambda: prepare(settings, corpus), f"{corpus}/corpus.json is damaged", corpus)


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("corpus.json", [], ": it must be a JSON object"),
        ("corpus.json", {"made_from": None}, ": its made_from is missing or of a wrong type"),
        ("corpus.json", {"tokenizer_sha256": 7}, ": its tokenizer_sha256 is missing or"),
        ("corpus.json", {"has_validation": "yes"}, ": its has_validation is missing or"),
        ("train.json", ["shards"], ": it must be a JSON object"),
        ("train.json", {"shards": 1.5}, ": its shards is missing or of a wrong type"),
        ("train.json", {"shards": 0}, ": it names no pair"),
        ("train-00000.json", "bytes", ": it must be a JSON object"),
        ("train-00000.json", {"kept": True}, ": its kept is missing or of a wrong type"),
        ("val.pairs.json", {"a": 1}, ""),
        ("val.pairs.json", [["a", "b", "c"]], ""),
        ("val.pairs.json", 7, ""),
    ],
)
def test_metadata_of_a_wrong_form(write, corpus, name, change, reason):
    settings = write(numbered(3))
    write(numbered(2), "val")
    prepare(settings, corpus)
    file = corpus / name
    if isinstance(change, dict) and name != "val.pairs.json":
        change = {**json.loads(file.read_text()), **change}
    file.write_text(json.dumps(change))
    with pytest.raises(InputError, match=f"^{re.escape(f'{file} is damaged{reason}')}"):
        open_prepared(corpus)


def test_missing_text_of_the_validation_pairs(write, corpus):
    """Without it there would be no BLEU, and not a word about it."""
    settings = write(numbered(3))
    write(numbered(2), "val")
    prepare(settings, corpus)
    (corpus / "val.pairs.json").unlink()
    refuses(lambda: open_prepared(corpus), f"{corpus}/val.pairs.json is missing", corpus)


def test_interrupted_before_there_is_a_tokenizer(write, corpus, monkeypatch):
    settings = write(numbered(3))
    with monkeypatch.context() as patch:
        patch.setattr(preparation, "train_tokenizer", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            prepare(settings, corpus)
    assert prepare(settings, corpus).training.lengths.tolist() == [[2, 3]] * 3


def test_equal_sides_are_told(write, corpus, tmp_path, caplog):
    same = [(word, word) for word in WORDS[:3]]
    with caplog.at_level("WARNING", logger="keras_transformer"):
        prepare(write([*numbered(27), *same]), corpus)
        assert "both sides" not in caplog.text  # a tenth
        prepare(write([*numbered(26), *same]), tmp_path / "other")
    assert "both sides are equal in 3 of the first 29 pairs" in caplog.text
