"""Corpora of several pairs of languages."""

import dataclasses
import gzip
import itertools
from collections import Counter

import numpy as np
import pytest

from keras_transformer.errors import InputError
from keras_transformer.trainers.data import preparation
from keras_transformer.trainers.data.batches import BatchPlan, plan_of
from keras_transformer.trainers.data.corpora import Pair, load_corpus
from keras_transformer.trainers.data.languages import drawn, pairs_of, rates_of
from keras_transformer.trainers.data.preparation import prepare, sampled
from keras_transformer.trainers.data.prepared import CorpusManifest
from keras_transformer.trainers.settings import TrainSettings

pytestmark = pytest.mark.usefixtures("eager")

NUMBERS = {"en": "one two three", "de": "eins zwei drei", "fr": "un deux trois"}


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("en", "de", ["en-de"]),
        ("en", "de, fr,de,", ["en-de", "en-fr"]),
        ("en,de", "en,de,fr", ["en-de", "en-fr", "de-en", "de-fr"]),
        ("de", "de", []),
    ],
)
def test_pairs(source, target, expected):
    assert ["-".join(pair) for pair in pairs_of(source, target)] == expected


def test_rates_by_hand():
    """9,000 and 1,000 pairs: by the square root, shares are 3/4 and 1/4 of 10,000."""
    assert rates_of([9, 1], 2) == pytest.approx([7.5 / 9, 2.5])
    assert rates_of([7, 2, 11], 1) == pytest.approx([1, 1, 1])
    assert [*drawn("abcd", 2.5)] == [*"aabbbccddd"]
    assert [*drawn("abcdef", 1 / 3)] == ["c", "f"]


@pytest.fixture
def write(tmp_path):
    """Writes lines of a split in some languages; n copies of three numbers."""

    def write_lines(languages, split="train", copies=1, folder="text"):
        (tmp_path / folder).mkdir(exist_ok=True)
        for language in languages.split(","):
            lines = NUMBERS[language].split() * copies
            path = tmp_path / folder / f"{language}.{split}.txt"
            path.write_text("".join(f"{line}\n" for line in lines))
        return str(tmp_path / folder)

    return write_lines


def sides_of(corpus, split="train"):
    return [(pair.tagged_source, pair.target) for pair in corpus.pairs(split)]


def test_a_folder_of_several_languages(write):
    folder = write("en,de,fr")
    corpus = load_corpus(folder, "en", "de,fr")
    assert sides_of(corpus) == [
        (">>en:de<< one", "eins"),
        (">>en:de<< two", "zwei"),
        (">>en:de<< three", "drei"),
        (">>en:fr<< one", "un"),
        (">>en:fr<< two", "deux"),
        (">>en:fr<< three", "trois"),
    ]
    first = next(corpus.pairs("train"))
    assert first == Pair("one", "eins", ("en", "de"))
    assert [*corpus.parts] == [("en", "de"), ("en", "fr")]
    both = load_corpus(folder, "fr,de", "de,fr")
    assert sides_of(both)[::3] == [(">>fr:de<< un", "eins"), (">>de:fr<< eins", "un")]


def test_each_data_with_its_pairs(write):
    """A pair that no data has is left out; a language that none has is an error."""
    one, other = write("en,de"), write("en,fr", folder="more")
    write("en,fr", "dev", folder="more")
    corpus = load_corpus([one, other], "en,de,fr", "en,de,fr")
    assert ["-".join(pair) for pair in corpus.parts] == ["en-de", "en-fr", "de-en", "fr-en"]
    assert (corpus.splits, corpus.validation_split) == (("train", "val"), "val")
    assert sides_of(corpus, "val")[2:4] == [(">>en:fr<< three", "trois"), (">>fr:en<< un", "one")]
    with pytest.raises(InputError, match=r"no text has the languages en and cs"):
        load_corpus([one, other], "en", "de,cs")
    with pytest.raises(InputError, match=r"text must hold files en\.SPLIT\.txt and cs"):
        load_corpus(one, "en", "de,cs")


def test_a_table_of_several_columns(tmp_path):
    path = tmp_path / "all.csv.gz"
    path.write_bytes(gzip.compress(b"fr;id;en;de\nun;1;one;eins\ndeux;2;two;zwei\n"))
    assert sides_of(load_corpus(str(path), "en,fr", "de"))[::2] == [
        (">>en:de<< one", "eins"),
        (">>fr:de<< un", "eins"),
    ]


def test_rows_without_a_text_are_left_out(tmp_path, caplog):
    caplog.set_level("INFO")
    rows = "".join(f"two {n}\tzwei {n}\t{' ' if n % 2 else f'deux {n}'}\n" for n in range(1000))
    (tmp_path / "a.tsv").write_text(f"en\tde\tfr\n{rows}")
    corpus = load_corpus(str(tmp_path / "a.tsv"), "en", "de,fr")
    pairs = [pair for split in corpus.splits for pair in corpus.pairs(split)]
    assert Counter(pair.languages for pair in pairs) == {("en", "de"): 1000, ("en", "fr"): 500}
    assert all(pair.target.strip() for pair in pairs)
    assert "500 empty" in caplog.text


def test_what_is_held_out_is_so_in_both_directions(tmp_path):
    rows = "".join(f"two {number}\tzwei {number}\n" for number in range(1009))
    (tmp_path / "a.tsv").write_text(f"en\tde\n{rows}")
    corpus = load_corpus(str(tmp_path / "a.tsv"), "en,de", "en,de")
    there, back = (
        {frozenset(pair.sides) for pair in part.pairs("test")} for part in corpus.parts.values()
    )
    assert there == back
    assert 20 < len(there) < 100


def catalogue(path, language, *messages):
    header = f'"Language: {language}\\n"' if language else '"X: y\\n"'
    entries = "".join(f'\nmsgid "{one}"\nmsgstr "{other}"\n' for one, other in messages)
    path.write_text(
        f'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n{header}\n{entries}'
    )


def test_catalogues_of_several_languages(tmp_path):
    """The messages of gettext are in the first source language; an unnamed target is unknown."""
    catalogue(tmp_path / "a.po", "de", ("one", "eins"))
    catalogue(tmp_path / "b.po", "fr_FR", ("two", "deux"))
    catalogue(tmp_path / "c.po", "", ("three", "?"))
    corpus = load_corpus(str(tmp_path), "en,de", "en,de,fr")
    assert sides_of(corpus) == [
        (">>en:de<< one", "eins"),
        (">>en:fr<< two", "deux"),
        (">>de:en<< eins", "one"),
    ]


def test_memory_of_several_languages(tmp_path):
    variants = [
        "".join(
            f'<tuv xml:lang="{language}"><seg>{text}</seg></tuv>'
            for language, text in zip(NUMBERS, texts, strict=True)
        )
        for texts in zip(*(words.split() for words in NUMBERS.values()), strict=True)
    ]
    units = "".join(f"<tu>{variant}</tu>" for variant in variants)
    (tmp_path / "m.tmx").write_text(f'<tmx version="1.4"><body>{units}</body></tmx>')
    found = sides_of(load_corpus(str(tmp_path / "m.tmx"), "fr", "de,en"))
    assert found[1:4] == [
        (">>fr:de<< deux", "zwei"),
        (">>fr:de<< trois", "drei"),
        (">>fr:en<< un", "one"),
    ]


@pytest.fixture
def settings(write, monkeypatch):
    """60 pairs of English and German, 6 of English and French; shards of 40 pairs."""
    monkeypatch.setattr(preparation, "PAIRS_PER_SHARD", 40)
    data = [write("en,de", copies=20), write("en,fr", copies=2, folder="few")]
    write("en,de", "val")
    write("en,fr", "val", folder="few")
    return TrainSettings(
        data=data, source="en", target="de,fr", vocab_size=300, augment={}, tokens_per_batch=256
    )


def test_prepared_corpus_and_report(settings, tmp_path, caplog):
    caplog.set_level("INFO")
    corpus = prepare(settings, tmp_path / "corpus")
    split = CorpusManifest.read(tmp_path / "corpus").train
    assert [(shard.languages, shard.kept) for shard in split.shards] == [
        (("en", "de"), 40),
        (("en", "de"), 20),
        (("en", "fr"), 6),
    ]
    assert {"-".join(pair): part.kept for pair, part in split.parts.items()} == {
        "en-de": 60,
        "en-fr": 6,
    }
    assert "Corpus, train, en to fr: 6 pairs (dropped: none)" in caplog.text
    assert corpus.validation_pairs[3] == Pair("one", "un", ("en", "fr"))
    tokenizer = corpus.tokenizer
    assert (tokenizer.languages, tokenizer.target_languages) == (("en", "de"), ["de", "fr"])
    source, target = corpus.training.read([60])[0]
    assert tokenizer.source.pieces(source).numpy()[0] == b">>fr<<"
    assert tokenizer.target.decode([target])[0] == "un"


def test_pairs_without_training_text_are_left_out(settings, tmp_path, write, caplog):
    """Text to validate on is none to train on, and a language needs some."""
    both = dataclasses.replace(settings, source="en,de,fr", target="en,de,fr")
    write("fr", "val")  # beside those of English and German
    corpus = prepare(both, tmp_path / "corpus")
    pairs = ["en-de", "en-fr", "de-en", "fr-en"]
    assert ["-".join(x) for x in CorpusManifest.read(tmp_path / "corpus").train.parts] == pairs
    assert {"-".join(pair.languages) for pair in corpus.validation_pairs} == {*pairs}
    assert "en to fr has only 6 training pairs" in caplog.text
    with pytest.raises(InputError, match="no training text of fr"):
        prepare(dataclasses.replace(both, data=both.data[0]), tmp_path / "none")


def test_report_of_what_is_dropped(settings, tmp_path, write):
    write("en,fr", copies=3, folder="few")
    file = tmp_path / "few" / "fr.train.txt"
    file.write_text(file.read_text().replace("deux", " "))
    prepare(settings, tmp_path / "corpus")
    parts = CorpusManifest.read(tmp_path / "corpus").train.parts
    assert parts["en", "de"].dropped == {}
    assert parts["en", "fr"].dropped == {"empty": 3}
    assert str(parts["en", "fr"]) == "6 pairs (dropped: 3 empty)"


def test_a_vocabulary_has_the_shares_of_the_training(settings):
    """60 and 6 pairs with temperature 2: 66 * sqrt(60) / (sqrt(60) + sqrt(6)) is 50.1."""
    corpus = load_corpus(settings.data, "en", "de,fr")
    counts = Counter(pair.languages for pair in sampled(corpus, "train", 2.0))
    assert counts == {("en", "de"): 50, ("en", "fr"): 15}
    assert [*sampled(corpus, "train", 1.0)] == [*corpus.pairs("train")]


def test_batches_by_temperature(settings, tmp_path):
    """Each row of a pair is drawn as often as any other, but for one, in all epochs."""
    pairs = prepare(settings, tmp_path / "corpus").training
    assert pairs.rates(1.0) is None
    np.testing.assert_allclose(pairs.rates(2.0), [50.14 / 60] * 60 + [15.86 / 6] * 6, rtol=1e-3)
    plan, again = (BatchPlan(pairs.lengths, 64, 7, pairs.rates(2.0)) for _ in range(2))
    epochs = 40
    rows = [plan.batch(step)[1].tolist() for step in range(epochs * plan.batches_per_epoch)]
    assert rows == [again.batch(step)[1].tolist() for step in range(len(rows))]
    assert all(len(batch) * int(pairs.lengths[batch].max()) <= 64 for batch in rows)
    first = Counter(itertools.chain.from_iterable(rows[: plan.batches_per_epoch]))
    assert {*first.values()} <= {1, 2, 3}
    assert sum(first[row] for row in range(60)) in (50, 51)
    assert sum(first[row] for row in range(60, 66)) in (15, 16)
    total = Counter(itertools.chain.from_iterable(rows))
    assert min(total.values()) > 0.5 * epochs * 50 / 60  # no row is lost
    other = [
        plan.batch(step)[1] for step in range(plan.batches_per_epoch, 2 * plan.batches_per_epoch)
    ]
    assert {*np.concatenate(other).tolist()} != {*first}
    mean = pairs.lengths[plan.first_epoch].sum(axis=0) / plan.batches_per_epoch
    assert plan.mean_tokens.tolist() == mean.tolist()


def test_without_temperature_batches_are_those_of_the_rows(settings, tmp_path):
    pairs = prepare(settings, tmp_path / "corpus").training
    plan, expected = plan_of(pairs, settings), BatchPlan(pairs.lengths, 256, settings.seed)
    for step in range(plan.batches_per_epoch):
        assert plan.batch(step)[1].tolist() == expected.batch(step)[1].tolist()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": ""}, r"`source` must be names of languages .*Received: source=''$"),
        ({"target": ","}, r"`target` must be names of languages .*Received: target=','$"),
        ({"target": "de,f r"}, r"`target` must be names of languages .*Received: target='de,f r'"),
        ({"tokenizer": "wordpiece"}, "Several languages .* need the `tokenizer` bpe or unigram"),
        ({"sampling_temperature": 0.5}, "`sampling_temperature`"),
    ],
)
def test_bad_settings(changes, message):
    with pytest.raises(InputError, match=message):
        TrainSettings(**{"data": "x", "source": "en", "target": "de,fr", **changes})
