"""Monolingual text as training pairs, and targets of a teacher."""

import dataclasses
from types import SimpleNamespace

import pytest
from layer_weights import randomize

from keras_transformer import InputError, Run, Translator
from keras_transformer.config import BOS_ID
from keras_transformer.registry import build_model
from keras_transformer.trainers.data import writers
from keras_transformer.trainers.data.corpora import Pair, load_corpus
from keras_transformer.trainers.data.preparation import prepare
from keras_transformer.trainers.data.writers import Writer, with_sources, with_targets
from keras_transformer.trainers.fitting.training import train

LINES = ["rot Hund .", "eins zwei", "Katze", "", "Hund Hund .", "öl rot ."]


@pytest.fixture(scope="module")
def back_translator(tiny_run, tmp_path_factory):
    """A run from German to English, with random weights."""
    path, config = tmp_path_factory.mktemp("back") / "run", tiny_run.config
    run = Run.create(
        path, config, tiny_run.tokenizer(), "de", "en", {"extra_length": 2, "length_penalty": 5.0}
    )
    run.save_checkpoint(randomize(build_model(config)), step=1, metrics={}, is_best=True)
    return path


@pytest.fixture
def settings(short_settings, back_translator, tmp_path):
    file = tmp_path / "lines.de"
    file.write_text("".join(f"{line}\n" for line in LINES))
    return dataclasses.replace(
        short_settings,
        monolingual=str(file),
        back_translator=str(back_translator),
        monolingual_share=0.2,  # of 16 pairs and 4 lines
        augment={"list": 0.999},
        max_length=400,
        tokens_per_batch=400,
        max_length_ratio=None,
    )


def english(text):
    return "" if text == "Katze" else f"the\n {text} "


def test_an_interrupted_stage_continues(settings, tmp_path, monkeypatch):
    """The second call translates only what the first one did not."""
    monkeypatch.setattr(writers, "LINES_PER_FILE", 3)
    done = []

    def counted(self, texts, **options):
        if len(done) == 1:
            done.append(None)
            raise KeyboardInterrupt
        done.append(list(texts))
        return [SimpleNamespace(text=english(text), truncated=False) for text in texts]

    monkeypatch.setattr(Translator, "translate", counted)
    with pytest.raises(KeyboardInterrupt):
        prepare(settings, tmp_path / "corpus")
    corpus = prepare(settings, tmp_path / "corpus")
    targets = [LINES[i] for i in (1, 2, 4, 5)]  # spread evenly over the five that are not blank
    assert done == [targets[:3], None, targets[3:]]
    # A source of no tokens is dropped.
    kept = [(f"the {target}", target) for target in targets if target != "Katze"]
    assert len(kept) == 3
    for (source, target), pair in zip(
        corpus.training.read(range(16, 16 + len(kept))), kept, strict=True
    ):
        assert source[0] == BOS_ID
        sides = corpus.tokenizer.encode_pairs([pair[0]], [pair[1]])
        assert [source[1:].tolist()] == sides[0].ids.numpy().tolist()
        assert [target.tolist()] == sides[1].ids.numpy().tolist()
    assert all(BOS_ID not in source for source, _ in corpus.training.read(range(16)))
    # Then each has a copy with a list mark.
    assert len(corpus.training.lengths) == 2 * (16 + len(kept))
    copies = corpus.training.read(range(16 + len(kept), 2 * (16 + len(kept))))
    assert [source[0] == BOS_ID for source, _ in copies] == [False] * 16 + [True] * len(kept)


def test_a_training_that_fails_keeps_what_is_translated(settings, tmp_path, monkeypatch):
    monkeypatch.setattr(writers, "LINES_PER_FILE", 3)

    def failing(self, texts, **options):
        if len(texts) < 3:  # the second file
            raise InputError("The disk is full")
        return [SimpleNamespace(text=english(text), truncated=False) for text in texts]

    monkeypatch.setattr(Translator, "translate", failing)
    with pytest.raises(InputError, match="The disk is full"):
        train(settings, tmp_path / "run", verbose=0)
    assert len([*(tmp_path / "run" / "corpus").glob("translated-*")]) == 1


def test_samples(settings, back_translator, tmp_path):
    pairs = [Pair("red", "rot"), *(Pair("", line, is_synthetic=True) for line in LINES if line)]
    searched, sampled = (
        list(with_sources(pairs, writer, ("en", "de")))
        for count in (None, 5)
        for writer in [
            Writer("name", str(back_translator), [("de", "en")], tmp_path, sample_from=count)
        ]
    )
    assert searched[0] == sampled[0] == pairs[0]
    for one, other, pair in zip(searched[1:], sampled[1:], pairs[1:], strict=True):
        assert one.target == other.target == pair.target
        assert (one.is_synthetic, other.is_synthetic) == (True, True)
    assert searched != sampled


def test_a_student_learns_from_its_teacher(settings, tiny_run, tmp_path):
    """It is prepared as a corpus with the teacher's translations; those of `mix` stay."""
    common = dataclasses.replace(settings, mix=settings.data, mix_share=0.5, augment={})
    student = dataclasses.replace(common, teacher=str(tiny_run.path))
    corpus = prepare(student, tmp_path / "corpus")
    sources = [pair.source for pair in load_corpus(settings.data, "en", "de").pairs("train")]
    teacher = Translator.load(tiny_run.path, no_repeat_ngram=4)
    written = [" ".join(result.text.split()) for result in teacher.translate(sources)]
    assert sum(map(bool, written)) > len(sources) / 2
    (tmp_path / "written").mkdir()
    for name, lines in (("en", sources), ("de", written)):
        (tmp_path / "written" / f"{name}.train.txt").write_text("\n".join([*lines, ""]), "utf-8")
    same = dataclasses.replace(common, data=str(tmp_path / "written"))
    expected = prepare(same, tmp_path / "expected", tokenizer=corpus.tokenizer)
    count = len(expected.training.lengths)
    found, wanted = (
        [[side.tolist() for side in pair] for pair in each.training.read(range(count))]
        for each in (corpus, expected)
    )
    assert found == wanted
    assert len(corpus.training.lengths) == count


def test_texts_that_a_model_wrote_keep_their_targets(tiny_run, tmp_path, monkeypatch, caplog):
    def translate(self, texts, **options):
        return [SimpleNamespace(text=english(text), truncated=len(text) < 6) for text in texts]

    monkeypatch.setattr(Translator, "translate", translate)
    teacher = Writer("teacher", str(tiny_run.path), [("en", "de")], tmp_path)
    pairs = [Pair("red dog .", "x"), Pair("a", "b", is_synthetic=True), Pair("1\u202f%\u00a0", "y")]
    written = [Pair("red dog .", "the red dog ."), pairs[1]]
    written.append(Pair("1\u202f%\u00a0", "the 1\u202f%\u00a0"))  # no-break spaces stay
    assert list(with_targets(pairs, teacher, ("en", "de"))) == written
    assert "too long for the run of `teacher`: 1 texts" in caplog.text


def test_refused(settings, tiny_run, tmp_path):
    with pytest.raises(InputError, match="`monolingual` and `back_translator` need each other"):
        dataclasses.replace(settings, back_translator=None)
    wrong = dataclasses.replace(settings, back_translator=str(tiny_run.path))
    with pytest.raises(InputError, match="`back_translator` must be a run from de to en"):
        prepare(wrong, tmp_path / "corpus")
    wrong = dataclasses.replace(settings, teacher=settings.back_translator)
    with pytest.raises(InputError, match="`teacher` must be a run from en to de"):
        prepare(wrong, tmp_path / "corpus")
    with pytest.raises(InputError, match=r"Cannot read .*nothing"):
        prepare(dataclasses.replace(settings, monolingual="nothing"), tmp_path / "corpus")
    with pytest.raises(InputError, match=r"must be a file of lines .*\.PO\.gz"):
        prepare(dataclasses.replace(settings, monolingual="a.PO.gz"), tmp_path / "corpus")
    (tmp_path / "blank").write_text(" \n\n")
    with pytest.raises(InputError, match="blank holds no text"):
        prepare(
            dataclasses.replace(settings, monolingual=str(tmp_path / "blank")), tmp_path / "corpus"
        )
    assert not (tmp_path / "corpus").exists()
