"""Invisible characters: a source is read as if they were not there."""

import sys

import pytest
import regex
import tensorflow as tf

from keras_transformer.texts.sentences import split_sentences
from keras_transformer.tokenizers import SentencePieceTokenizer, WordPieceTokenizer
from keras_transformer.tokenizers.invisible import visible, visible_text, without

SOURCES = ["the teacher\u00ad sees {name} at https://a.org", "a cat"] * 9
TARGETS = ["der Leh\u00adrer sieht {name} unter https://a.org", "eine Katze"] * 9
# Joiners, selectors of Mongolian letters and of symbols, and the tags of flags.
WITH_WORDS = {*range(0x180B, 0x180E), 0x180F, 0x200C, 0x200D}


@pytest.fixture(scope="module")
def tokenizer():
    return SentencePieceTokenizer.train(SOURCES, 310, targets=TARGETS)


def test_what_unicode_ignores_is_not_read(tokenizer):
    """The list is that of Unicode's property, in the data of another library."""
    ignored = regex.compile(r"\p{Default_Ignorable_Code_Point}")
    numbers = (n for n in range(sys.maxunicode + 1) if not 0xD800 <= n < 0xE000)
    found = [chr(n) for n in numbers if ignored.match(chr(n)) and n not in WITH_WORDS]
    assert len(found) > 4_000
    texts = tf.constant([f"{each}the tea{each}cher" for each in (*found, "\ufffa", "\ufeff\u200e")])
    assert set(tokenizer.wrapper.read(texts)[0].numpy().tolist()) == {b"the teacher"}
    alone = tokenizer.encode(tf.constant(["\u00ad", "\u200b \u2060"]))
    assert alone.lengths.numpy().tolist() == [0, 0]


@pytest.mark.parametrize(
    "text",
    [
        "می\u200cروم क्\u200dष",
        "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f ❤\ufe0f 1\ufe0f\u20e3",
        "👁\ufe0f\u200d🗨\ufe0f 👩🏽\u200d🚀 ᠠ\u180b \u0600\u0661",
        "é e\u0301 ก็",
    ],
)
def test_what_belongs_to_words_and_symbols_stays(text):
    assert visible(tf.constant(text)).numpy().decode() == text
    assert visible_text(text) == text


def test_pairs_and_sentences(tokenizer):
    read, context = tokenizer.wrapper.read(tf.constant(["the tea\u00adcher"]))
    assert read.numpy().tolist() == [b"the teacher"]
    targets, _ = tokenizer.wrapper.read_targets(context, tf.constant(["der Leh\u00adrer"]))
    assert targets.numpy()[0].decode() == "der Leh\u00adrer"
    hidden, restore = tokenizer.wrapper.hide(tf.constant(["One.\u200b\u202a Two\u202c sees."]))
    parts = restore(split_sentences(hidden)).to_list()
    assert parts == [[b"One.", b" ", b"Two sees."]]
    assert tokenizer.wrapper.read(["THE\u200b TEA\u00adCHER"])[0].numpy().tolist() == [
        b"The teacher"
    ]


def test_the_vocabulary_is_learned_without_them(tokenizer):
    other = SentencePieceTokenizer.train(
        [text.replace("\u00ad", "") for text in SOURCES], 310, targets=TARGETS
    )
    assert tokenizer.model == other.model
    words = WordPieceTokenizer.train(["the teacher"], 40)
    assert words.wrapper.read(["tea\u00adcher"])[0].numpy().tolist() == [b"teacher"]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("the tea\u00adcher sees {na\u00adme}", "the teacher sees {na\u00adme}"),  # byte for byte
        ("\u202ahttps://a.org\u202c sees", "https://a.org sees"),
        ("https://a\u00ad.org\u200b/x sees", "https://a.org/x sees"),  # found without them only
        ("a\u2060 %\u2060s and ❤\ufe0f", "a %s and ❤\ufe0f"),
    ],
)
def test_protected_strings_stay_as_they_are(text, written):
    protect = ["placeholders", "urls", "symbols"]
    pairs = list(zip(SOURCES, TARGETS, strict=True))
    protection = pytest.importorskip("keras_transformer.protection.tokenizer")
    tokenizer = protection.ProtectingTokenizer.learn(lambda: pairs, 340, protect)
    source = tokenizer.encode(tf.constant([text, "a cat"]))
    found = tokenizer.write(source, source.ids[:, None])[:, 0].numpy()
    assert [each.decode() for each in found] == [written, "a cat"]
    hidden, restore = tokenizer.wrapper.hide(tf.constant([text]))
    assert restore(split_sentences(hidden)).to_list() == [[written.encode()]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a X", "a"),
        ("X a", "a"),
        ("X", ""),
        ("aXb", "ab"),
        ("aX b", "a b"),
        ("a XX b", "a b"),
        ("X a X X b X", "a b"),
        (" a  b ", " a  b "),
    ],
)
def test_no_space_is_left_where_a_word_goes(text, expected):
    assert without(tf.constant([[text]]), "X").numpy()[0, 0].decode() == expected
