"""A model of several languages: trained, resumed, extended, evaluated and asked."""

import dataclasses
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from command_line import cli
from eager import eagerly
from shared_fixtures import TINY, WORDS

from keras_transformer import InputError, Translator
from keras_transformer.config import BOS_ID
from keras_transformer.model.transformer import Transformer
from keras_transformer.trainers.data.corpora import Pair, load_corpus
from keras_transformer.trainers.data.preparation import prepare
from keras_transformer.trainers.data.writers import Writer, with_targets
from keras_transformer.trainers.fitting.fine_tuning import initialize
from keras_transformer.trainers.fitting.training import train
from keras_transformer.trainers.settings import TrainSettings

FRENCH = dict(zip(WORDS, ["un", "deux", "rouge", "chien", "chat", "huile"], strict=True))
CZECH = dict(zip(WORDS, ["jedna", "dva", "červený", "pes", "kočka", "olej"], strict=True))


@pytest.fixture(scope="session")
def texts(corpus_dir, tmp_path_factory):
    """The corpus of the other tests in four languages: 150, 12 and 9 lines."""
    folder = shutil.copytree(corpus_dir, tmp_path_factory.mktemp("several") / "text")
    for split in ("train", "val", "test"):
        english = (folder / f"en.{split}.txt").read_text("utf-8").splitlines()
        for language, words in {"fr": FRENCH, "cs": CZECH}.items():
            lines = (" ".join(words.get(x, x) for x in line.split()) + "\n" for line in english)
            (folder / f"{language}.{split}.txt").write_text("".join(lines), "utf-8")
    return folder


@pytest.fixture(scope="session")
def settings(texts):
    return TrainSettings(
        data=str(texts),
        source="en",
        target="de,fr",
        vocab_size=310,
        augment={"lower": 0.2},
        sampling_temperature=3.0,
        steps=4,
        tokens_per_batch=300,
        max_length=40,
        warmup_steps=3,
        steps_per_validation=2,
        bleu_sentences=2,
        extra_length=3,  # so that searches are short
        model=TINY,
    )


@pytest.fixture(scope="session")
def run(settings, tmp_path_factory):
    with eagerly():
        return train(settings, tmp_path_factory.mktemp("several-run") / "run", verbose=0)


def test_a_run_of_several_languages(run):
    assert (run.source, run.target) == ("en", "de")  # of a text that asks for none
    tokenizer = run.tokenizer()
    assert (tokenizer.source_languages, tokenizer.target_languages) == (["en"], ["de", "fr"])
    for line in run.metrics():
        each = [line["val_bleu_en-de"], line["val_bleu_en-fr"]]
        assert line["val_bleu"] == pytest.approx(sum(each) / 2)
        assert "val_chrf_en-de" not in line


def test_evaluation_of_each_pair_and_their_mean(run, texts):
    code, out, err = cli("evaluate", run.path, "--beam-size", 1, "--json")
    assert code == 0, err
    printed = json.loads(out)
    pairs = printed["pairs"]
    assert [*pairs] == ["en-de", "en-fr"]
    values = [found["chrf"]["value"] for found in pairs.values()]
    assert printed["mean"]["chrf"] == pytest.approx(sum(values) / 2)
    assert pairs["en-fr"]["num_pairs"] == 9
    lines = (run.path / "evaluation" / "test-en-fr-beam_size=1.source").read_text("utf-8")
    english = (texts / "en.test.txt").read_text("utf-8").splitlines()
    assert lines.splitlines() == [f">>en:fr<< {line}" for line in english]
    hypotheses = (run.path / "evaluation" / "test-en-fr-beam_size=1.hypothesis").read_text("utf-8")
    asked = Translator.of(run).translate(english, target="fr", beam_size=1)
    assert hypotheses.splitlines() == [result.text for result in asked]


def test_evaluation_of_one_pair_with_noise(run):
    options = ("--target", "fr", "--split", "val", "--noise", "--beam-size", 1)
    code, out, err = cli("evaluate", run.path, *options)
    assert (code, "BLEU, title" in out, "Mean" in out) == (0, True, False), err
    content = json.loads(
        (run.path / "evaluation" / "val-en-fr-beam_size=1.scores.json").read_text("utf-8")
    )
    assert (content["source"], content["target"], content["num_pairs"]) == ("en", "fr", 12)
    source = run.path / "evaluation" / "val-en-fr-beam_size=1-capitals.source"
    assert source.read_text("utf-8").startswith(">>en:fr<< ONE")


def test_evaluation_of_one_pair_is_on_what_was_held_out_of_it(settings, tmp_path):
    """Of both directions, these are the same sentences, also if one is asked for."""
    changes = {"source": "en,de", "target": "en,de", "steps": 1, "bleu_sentences": 0}
    with eagerly():
        both = train(dataclasses.replace(settings, **changes), tmp_path / "both", verbose=0)
    rows = "".join(f"two {number}\tzwei {number}\n" for number in range(100))
    (tmp_path / "a.tsv").write_text(f"en\tde\n{rows}")
    options = ("--data", tmp_path / "a.tsv", "--source", "de", "--target", "en", "--beam-size", 1)
    code, _, err = cli("evaluate", both.path, *options)
    assert code == 0, err
    references = (both.path / "evaluation" / "test-de-en-beam_size=1.reference").read_text("utf-8")
    there = load_corpus(str(tmp_path / "a.tsv"), "en", "de").pairs("test")
    assert references.splitlines() == [pair.source for pair in there]


def test_a_baseline_is_of_one_pair(run):
    code, _, err = cli("evaluate", run.path, "--baseline", "x")
    assert (code, "give --source and --target" in err) == (1, True), err


@pytest.mark.parametrize("protect", [[], ["placeholders"]])
def test_more_languages(settings, run, tmp_path, protect):
    """Tags are added before protected strings; all other ids keep their embeddings."""
    changes = {"init_from": str(run.path), "target": "de,fr,cs", "steps": 1, "model": {}}
    changes["bleu_sentences"] = 0
    more = dataclasses.replace(settings, protect=protect, **changes)
    with eagerly():
        tuned = train(more, tmp_path / "tuned", verbose=0)
    assert tuned.tokenizer().target_languages == ["de", "fr", "cs"]
    again = dataclasses.replace(
        more, init_from=str(tuned.path), target="de,fr,cs,en", source="en,de"
    )
    tokenizer = prepare(again, tmp_path / "again").tokenizer
    model = Transformer(dataclasses.replace(tuned.config, vocab_size=tokenizer.vocab_size))
    initialize(model, tokenizer, again, is_new=True)
    pieces, before = (
        each.source.pieces(tf.range(each.vocab_size)).numpy().tolist()
        for each in (tokenizer, tuned.tokenizer())
    )
    assert set(pieces) - set(before) == {b">>en<<"}
    assert pieces[-1] == ("⟦32⟧".encode() if protect else b">>en<<")
    chosen, fresh = tuned.model().target_embedding.get_weights()[0], model.target_embedding
    rows = fresh.get_weights()[0]
    for number, piece in enumerate(before):
        np.testing.assert_array_equal(rows[pieces.index(piece)], chosen[number])


def test_from_one_pair_to_several(tiny_run, settings, tmp_path):
    changes = {"init_from": str(tiny_run.path), "vocab_size": None, "model": {}, "steps": 1}
    changes["bleu_sentences"] = 0
    with eagerly():
        tuned = train(dataclasses.replace(settings, **changes), tmp_path / "tuned", verbose=0)
    assert tuned.config.vocab_size == tiny_run.config.vocab_size + 2
    assert (tuned.source, tuned.target) == ("en", "de")


def test_back_translation(settings, texts, run, tmp_path):
    """Monolingual French comes from the run of French to English; its sources are marked."""
    with eagerly():
        back = train(
            dataclasses.replace(settings, source="de,fr", target="en", steps=1, bleu_sentences=0),
            tmp_path / "back",
            verbose=0,
        )
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "fr.txt").write_text("rouge chien .\n\nun chat .\n", "utf-8")
    given = {"monolingual": str(tmp_path / "lines"), "back_translator": str(back.path)}
    more = dataclasses.replace(
        settings, **given, augment={}, max_length=400, tokens_per_batch=400, max_length_ratio=None
    )
    corpus = prepare(more, tmp_path / "corpus")
    sources = [
        result.text
        for result in Translator.of(back).translate(["rouge chien .", "un chat ."], source="fr")
    ]
    kept = [source for source in sources if source.strip()]
    assert len(corpus.training.lengths) == 300 + len(kept)
    rows = corpus.training.read(range(300, 300 + len(kept)))
    for (source, _), text in zip(rows, kept, strict=True):
        ids = corpus.tokenizer([f">>fr<< {text}"]).ids.numpy()[0]
        assert source.tolist() == [BOS_ID, *ids.tolist()]
    wrong = dataclasses.replace(more, back_translator=str(run.path))
    with pytest.raises(InputError, match="There is no source language 'fr'"):
        prepare(wrong, tmp_path / "wrong")
    (tmp_path / "lines" / "fr.txt").unlink()
    with pytest.raises(InputError, match=r"with some of the files de\.txt, fr\.txt"):
        prepare(more, tmp_path / "none")


def test_a_teacher_is_asked_for_the_languages_of_its_student(run, tmp_path, monkeypatch):
    """Also for those of a corpus of one pair, and by the names that the teacher knows."""
    asked = []

    def translate(self, texts):
        asked.extend(texts)
        return [SimpleNamespace(text="x", truncated=False)] * len(texts)

    monkeypatch.setattr(Translator, "translate", translate)
    teacher = Writer("teacher", str(run.path), [("en", "fr")], tmp_path)
    pairs = [Pair("one", "?"), Pair("two", "?", ("eng", "fra"))]
    assert [*with_targets(pairs, teacher, ("en", "fr"))] == [x._replace(target="x") for x in pairs]
    assert asked == [">>en:fr<< one", ">>en:fr<< two"]


def test_a_tag_is_one_token_before_a_text(run):
    source = run.tokenizer().source
    texts = [">>fr<< red dog", "red dog", "red >>fr<< dog", ">>cs<< red", " >>de<<", ""]
    tagged, plain, inside, unknown, alone, empty = source.tokenize(tf.constant(texts)).to_list()
    (tag,) = source.tags.keys() & {">>fr<<"}
    assert tagged == [source.tags[tag], *plain]
    assert not {*inside, *unknown} & {*source.tags.values()}
    assert (alone, empty) == ([], [])
    target = run.tokenizer().target  # a tag in a translation is text
    assert target.decode([target.tokenize(tf.constant([">>fr<< x"])).to_list()[0]]) == [">>fr<< x"]
