"""Texts in capitals, titles, and the letters of languages, whose values are those of ICU 72."""

# ruff: noqa: RUF001 -- all scripts

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from tokenizer_texts import CORPUS, VOCAB_SIZE, ids_of

from keras_transformer.config import EOS_ID
from keras_transformer.run import Run
from keras_transformer.tokenizers import (
    EncodedTexts,
    SentencePieceTokenizer,
    Tokenizer,
    WordPieceTokenizer,
)
from keras_transformer.tokenizers.case import as_sentences, in_small_letters, upper
from keras_transformer.trainers.data.preparation import prepare
from keras_transformer.trainers.data.prepared import StoredPairs

TURKISH = ["Ankara ve İstanbul çok iyi", "istanbul ılık", "ANKARA VE İSTANBUL"] * 3


@pytest.fixture(scope="module")
def tokenizer():
    return SentencePieceTokenizer.train(CORPUS, VOCAB_SIZE)


@pytest.fixture(scope="module")
def titles():
    texts = ["the red dog sees a cat , the Öl", "a red cat sees the dog , the Öl", "The dog"] * 4
    return SentencePieceTokenizer.train(texts, 340)


@pytest.mark.parametrize(
    ("text", "as_read"),
    [
        ("THE RED DOG", "The red dog"),
        ("1. ÖL: A “CAT”!", "1. Öl: a “cat”!"),
        ("ΟΔΟΣ ΝΕΑ", "Οδος νεα"),  # with a final sigma
        ("DOG", "DOG"),  # may be an acronym
        ("A. B. C. D.", "A. B. C. D."),  # initials
        ("THE RED DOG sees", "THE RED DOG sees"),
        ("中文中文", "中文中文"),
        ("我在NASA工作", "我在NASA工作"),  # nobody writes it in small letters
        ("ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ", "ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ"),  # nor Cherokee, whose letters are capitals
        ("", ""),
    ],
)
def test_a_text_in_capitals_is_read_as_a_sentence(tokenizer, text, as_read):
    source = tokenizer.encode(tf.constant([text, "the Dog"]))
    assert tokenizer.source.decode(source.ids)[0] == as_read
    (written,) = tokenizer.write(source, source.ids[:, None]).numpy()[:1, 0]
    assert written.decode() == text
    _, targets = tokenizer.encode_pairs([text] * 3, ["DER", "Der DOG", "öl"])
    expected = ["Der" if text != as_read else "DER", "Der DOG", "öl"]
    assert tokenizer.target.decode(targets.ids) == expected


@pytest.mark.parametrize(
    ("text", "as_read"),
    [
        ("The Red Dog, The “Cat”", "The red dog, the “cat”"),
        (" The\tRed\u3000 Dog A Cat\n", "The red dog a cat"),
        ("The Öl J. Dog O.K. NATO", "The Öl J. dog O.K. NATO"),
        ("• The Red Dog! A Cat: The Dog", "• The red dog! A cat: the dog"),
        (">>deu<< 1. The Red Dog, A Cat", ">>deu<< 1. The red dog, a cat"),
        ("The Red Dog", "The Red Dog"),  # three words may be a name
        ("The Red Dog and The Cat", "The Red Dog and The Cat"),
        ("A B C D", "A B C D"),
    ],
)
def test_a_title_is_read_as_a_sentence(titles, text, as_read):
    """The vocabulary has Öl and not öl. Initials and words with more capitals stay."""
    source = titles.encode([text, as_read, "the dog"])
    read = [*ids_of(titles, as_read), EOS_ID]
    assert np.trim_zeros(source.ids.numpy()[0]).tolist() == read
    assert titles.encode_pairs([text], ["Der Hund"])[0].ids.numpy().tolist() == [read]
    assert titles.write(source, source.ids[:, None]).numpy()[0, 0].decode() == as_read


def test_ordinals_may_stand_in_capitals():
    texts = tf.constant(["EL 1º DE MAYO", "EL 1º de MAYO"])
    assert as_sentences(texts, tf.strings.split)[1].numpy().tolist() == [True, False]


def test_sharp_s_in_capitals(tokenizer):
    source = tokenizer.encode(tf.constant(["STRASSE"]))
    ids = tokenizer.target.tokenize(["Straße"]).to_tensor()
    assert tokenizer.write(source, ids[:, None]).numpy()[0, 0] == b"STRASSE"


@pytest.mark.parametrize(
    ("language", "text", "capitals"),
    [
        ("", "istanbul straße i\u0307", "ISTANBUL STRASSE I\u0307"),
        ("tr", "istanbul çok iyi, ılık", "İSTANBUL ÇOK İYİ, ILIK"),
        ("az-Latn", "şəhəri", "ŞƏHƏRİ"),
        ("el", "Άνθρωπος, μαΐου", "ΑΝΘΡΩΠΟΣ, ΜΑΪΟΥ"),
        ("ell", "σήμερα ή αύριο; «ή»", "ΣΗΜΕΡΑ Ή ΑΥΡΙΟ; «Ή»"),
        ("el_GR", "άυλος τσάι ρολόι προϊόν", "ΑΫΛΟΣ ΤΣΑΪ ΡΟΛΟΪ ΠΡΟΪΟΝ"),
        ("el", "ἢ καλὸς ᾠδή ᾴ", "Ή ΚΑΛΟΣ ΩΙΔΗ ΑΙ"),
        ("el", "ἡ ᾗ ή ή 'ή α'ή", "Η ΗΙ Ή Ή 'Ή Α'Η"),
        ("el", "İ é Å", "İ É Å"),  # only Greek letters lose their accents
        ("lt", "i\u0307\u0301", "I\u0301"),
        ("hy", "և", "ԵՎ"),
        ("nl", "ijs", "IJS"),
    ],
)
def test_capitals(language, text, capitals):
    assert upper(tf.constant([[text]]), language).numpy()[0, 0].decode() == capitals


@pytest.mark.parametrize(
    ("language", "text", "as_read"),
    [
        ("tr_TR", "ANKARA VE İSTANBUL", "Ankara ve istanbul"),
        ("tur", "IŞIK, ILIK İYİ I\u0307", "Işık, ılık iyi i"),
        ("aze", "BAKI ŞƏHƏRİ", "Bakı şəhəri"),
        ("nl", "IJSLAND IS MOOI", "IJsland is mooi"),
        ("de", "IJSLAND, GROẞ", "Ijsland, groß"),
        ("en", "GO TO İZMİR", "Go to izmir"),  # no dot of its own
    ],
)
def test_small_letters(language, text, as_read):
    assert in_small_letters(tf.constant([text]), language).numpy()[0].decode() == as_read


def test_a_title_in_small_letters():
    titles = tf.constant(["Bugün Ankara İyi Ve Ilık"])
    read, capitals = as_sentences(titles, lambda words: tf.strings.split(words, "x"), "tr")
    assert read.numpy()[0].decode() == "Bugün ankara iyi ve ılık"
    assert not capitals.numpy().any()


@pytest.mark.parametrize("kind", [SentencePieceTokenizer, WordPieceTokenizer])
def test_a_file_is_read_with_languages(kind, tmp_path):
    kind.train(TURKISH, 330).save(tmp_path / "tokenizer")
    tokenizer = Tokenizer.load(tmp_path / "tokenizer").of_languages(("tr", "tr"))
    text = "ANKARA VE İSTANBUL ÇOK İYİ ILIK"
    source = tokenizer.encode(tf.constant([text]))
    assert tokenizer.source.decode(source.ids) == ["Ankara ve istanbul çok iyi ılık"]
    assert tokenizer.write(source, source.ids[:, None]).numpy()[0, 0].decode() == text
    (target,) = tokenizer.encode_pairs([text], [text])[1].ids.numpy()
    assert tokenizer.target.decode([target]) == ["Ankara ve istanbul çok iyi ılık"]


def test_lowercase_knows_the_language():
    tokenizer = SentencePieceTokenizer.train(
        ["ILIK İYİ"] * 3, 290, lowercase=True, targets=["ILIK İYİ"] * 3, languages=("tr", "az")
    )
    pieces = b"".join(tokenizer.source.pieces(tf.range(260, tokenizer.vocab_size)).numpy()).decode()
    assert "\u0307" not in pieces
    source, target = tokenizer.encode_pairs(["ILIK İYİ"], ["ILIK İYİ"])
    assert tokenizer.source.decode(source.ids) == ["ılık iyi"]
    assert tokenizer.target.decode(target.ids) == ["ılık iyi"]


def test_runs_and_corpora_know_their_languages(tiny_run, tiny_settings, tmp_path):
    assert isinstance(tiny_run, Run)
    run = dataclasses.replace(tiny_run, source="tr", target="el")
    source = run.tokenizer().encode(["ANKARA VE İSTANBUL"])
    assert run.tokenizer().source.decode(source.ids) == ["Ankara ve istanbul"]
    ids = run.tokenizer().target.tokenize(["τσάι"]).to_tensor()
    assert run.tokenizer().write(source, ids[:, None]).numpy()[0, 0].decode() == "ΤΣΑΪ"
    for language, lines in {
        "tr": TURKISH,
        "en": ["Ankara and Izmir", "Istanbul", "GO TO IZMIR"] * 3,
    }.items():
        (tmp_path / f"{language}.train.txt").write_text("".join(f"{line}\n" for line in lines))
    settings = dataclasses.replace(
        tiny_settings, data=str(tmp_path), source="tr", target="en", vocab_size=330
    )
    corpus = prepare(settings, tmp_path / "corpus")
    (source, target), *_ = StoredPairs(tmp_path / "corpus", "train").read([2])
    assert corpus.tokenizer.source.decode([source]) == ["Ankara ve istanbul"]
    assert corpus.tokenizer.target.decode([target]) == ["Go to izmir"]


def test_capitals_of_several_languages():
    """A translation is written by the rules of its own language, and a result without a tag by
    those of the first."""
    tokenizer = SentencePieceTokenizer.train(["ein Beispiel i"] * 3, 290)
    several = tokenizer.with_languages(["en"], ["de", "tr", "el"]).of_languages(("en", "de"))
    texts = [">>tr<< IN THE CITY", ">>en:el<< IN THE CITY", "IN THE CITY", ">>tr<< in the city"]
    read, context = several.wrapper.read(tf.constant(texts))
    read = [text.decode() for text in read.numpy()]
    assert read == [*(f">>{x}<< In the city" for x in ("tr", "el", "de")), ">>tr<< in the city"]
    ids = several.target.tokenize(["şehirde i", "ήλιος", "beispiel", "içinde"]).to_tensor()
    source = EncodedTexts(None, None, None, context)
    written = several.write(source, ids[:, None]).numpy()[:, 0]
    assert [text.decode() for text in written] == ["ŞEHİRDE İ", "ΗΛΙΟΣ", "BEISPIEL", "içinde"]
    targets, _ = several.wrapper.read_targets(context, tf.constant(["X I"] * 4))
    assert [text.decode() for text in targets.numpy()] == ["X ı", "X i", "X i", "X I"]
    turkish = several.of_languages(("en", "tr"))
    assert turkish.wrapper.read(tf.constant(texts))[0].numpy()[2] == b">>tr<< In the city"
    group = tokenizer.with_languages(["en"], ["tr", "el"]).of_languages(("en", "mul"))
    assert group.wrapper.read(tf.constant(["IN THE CITY"]))[0].numpy()[0] == b"In the city"
    assert several.languages == ("en", "de")
