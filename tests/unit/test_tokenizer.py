"""Subwords: ids, normalisation, files, and the errors of training."""

import io
import re
import unicodedata

import keras
import pytest
import sentencepiece
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.errors import InputError
from keras_transformer.tokenizer import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    UNK_ID,
    Tokenizer,
    VocabularyTooLargeError,
)

CORPUS = ["the red dog sees the cat", "der rote Hund sieht die Katze", "öl über alles"] * 3
VOCAB_SIZE = 293
FIRST_BYTE = 4  # after pad, unk, bos, eos


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(CORPUS, VOCAB_SIZE)


def ids_of(tokenizer, text):
    return tokenizer.tokenize(tf.constant([text])).to_list()[0]


def round_trip(tokenizer, text):
    return tokenizer.detokenize(tokenizer.tokenize(tf.constant([text]))).numpy()[0].decode()


def test_fixed_ids(tokenizer):
    assert (PAD_ID, UNK_ID, BOS_ID, EOS_ID) == (0, 1, 2, 3)
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    assert [processor.id_to_piece(i) for i in range(6)] == [
        "<pad>",
        "<unk>",
        "<s>",
        "</s>",
        "<0x00>",
        "<0x01>",
    ]
    assert tokenizer.vocab_size == processor.vocab_size() == VOCAB_SIZE


def test_ids_are_sentencepieces_own(tokenizer):
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    for text in (*CORPUS, "a cat 😀 sees öl", "x" * 97):
        assert ids_of(tokenizer, text) == processor.encode(text)


@pytest.mark.parametrize("text", ["😀", "中文", "שלום", "dog 😀 中"])
def test_unseen_characters_become_their_bytes(tokenizer, text):
    ids = ids_of(tokenizer, text)
    assert UNK_ID not in ids
    as_bytes = [i - FIRST_BYTE for i in ids if FIRST_BYTE <= i < FIRST_BYTE + 256]
    unseen = "".join(character for character in text if character not in "dog ")
    assert bytes(as_bytes) == unseen.encode()
    assert round_trip(tokenizer, text) == text


@settings(max_examples=60, deadline=None)
@given(
    text=st.text(
        st.characters(max_codepoint=0x24FF, categories=["Lu", "Ll", "Nd", "Po"])
        | st.sampled_from(" \t\n\r\u00a0\u2003\u3000ﬁ①Ⅳ㎏ＡöÅ한中😀")
    )
)
def test_round_trip_is_nfkc_with_single_spaces(tokenizer, text):
    assert round_trip(tokenizer, text) == " ".join(unicodedata.normalize("NFKC", text).split())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("e\u0301t\u00e9", "\u00e9t\u00e9"),  # a combining accent
        ("a\u2581b", "a b"),  # the meta symbol
        ("  a \t\r\n b\u3000", "a b"),
    ],
)
def test_normalization(tokenizer, text, expected):
    assert round_trip(tokenizer, text) == expected


@pytest.mark.parametrize("control", ["\x00", "\x01", "\x1b", "\x7f", "\x80", "\x9b"])
def test_control_characters_are_dropped(tokenizer, control):
    assert round_trip(tokenizer, f"a{control}b") in ("ab", "a b")


def test_truncation_at_the_boundary(tokenizer):
    text = "the red dog"
    tokens = ids_of(tokenizer, text)
    n = len(tokens)
    assert n > 3
    for max_length, expected, truncated in (
        (n + 2, tokens, False),
        (n + 1, tokens, False),  # just fits, EOS included
        (n, tokens[:-1], True),
        (2, tokens[:1], True),
    ):
        encoded = tokenizer.encode(tf.constant([text]), max_length)
        assert encoded.ids.numpy().tolist() == [[*expected, EOS_ID]]
        assert encoded.lengths.numpy().tolist() == [len(expected)]
        assert encoded.truncated.numpy().tolist() == [truncated]


def test_rows_are_padded_to_the_longest(tokenizer):
    texts = ["the red dog", "", "cat", " \t\u00a0\n"]
    encoded = tokenizer.encode(tf.constant(texts), max_length=31)
    rows = [ids_of(tokenizer, text) for text in texts]
    length = len(rows[0]) + 1
    expected = [[*row, EOS_ID] + [PAD_ID] * (length - len(row) - 1) for row in rows]
    assert encoded.ids.numpy().tolist() == expected
    assert encoded.lengths.numpy().tolist() == [len(row) for row in rows]
    assert encoded.lengths.numpy()[[1, 3]].tolist() == [0, 0]
    assert not encoded.truncated.numpy().any()
    assert (encoded.ids.dtype, encoded.lengths.dtype) == (tf.int32, tf.int32)


def test_no_text_at_all(tokenizer):
    encoded = tokenizer.encode(tf.constant([], tf.string), max_length=5)
    assert (encoded.ids.shape[0], encoded.lengths.shape, encoded.truncated.shape) == (0, 0, 0)


@pytest.mark.parametrize(
    ("data", "replaced"),
    [
        (b"a\xffb", "a\ufffdb"),  # never in UTF-8
        (b"dog \xe4\xb8", "dog \ufffd"),  # the first two of three bytes
        (b"\xed\xa0\x80", "\ufffd"),  # a surrogate
        (b"\xc0\x80", "\ufffd"),  # an overlong NUL
    ],
)
def test_invalid_utf8_reads_as_replacement_characters(tokenizer, data, replaced):
    ids = ids_of(tokenizer, data)
    assert ids == ids_of(tokenizer, replaced)
    assert UNK_ID not in ids


def test_detokenized_bytes_are_valid_utf8(tokenizer):
    lone = [FIRST_BYTE + byte for byte in (0xFF, 0xC3, 0x28, 0xED, 0xA0)]
    assert tokenizer.detokenize(tf.constant([lone])).numpy()[0].decode().count("\ufffd") == 4


def test_special_ids_leave_no_trace(tokenizer):
    ids = ids_of(tokenizer, "red cat")
    texts = tokenizer.detokenize(tf.constant([[BOS_ID, *ids, EOS_ID, PAD_ID, PAD_ID]]))
    assert texts.numpy().tolist() == [b"red cat"]


def test_graph_is_eager(tokenizer):
    texts = tf.constant(["the red dog", "", "😀 中文", b"\xff", "cat " * 31])
    graph = tf.function(
        lambda texts: tokenizer.encode(texts, 13),
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    for actual, expected in zip(graph(texts), tokenizer.encode(texts, 13), strict=True):
        assert actual.numpy().tolist() == expected.numpy().tolist()


def test_survives_setting_the_random_seed(tokenizer):
    # TensorFlow clears its kernels, and a kept SentencePiece op would lose its model.
    before = ids_of(tokenizer, "the cat")
    keras.utils.set_random_seed(17)
    assert ids_of(tokenizer, "the cat") == before
    assert round_trip(tokenizer, "the cat") == "the cat"


def test_save_and_load(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "t.model")
    loaded = Tokenizer.load(tmp_path / "t.model")
    assert loaded.fingerprint == tokenizer.fingerprint
    assert ids_of(loaded, CORPUS[1]) == ids_of(tokenizer, CORPUS[1])
    other = Tokenizer.train(CORPUS, VOCAB_SIZE - 2)
    assert other.fingerprint != tokenizer.fingerprint


def test_unigram_model():
    tokenizer = Tokenizer.train(CORPUS, 283, model_type="unigram")
    assert tokenizer.vocab_size == 283
    assert round_trip(tokenizer, "the red 😀") == "the red 😀"


def test_missing_file(tmp_path):
    path = tmp_path / "none.model"
    with pytest.raises(InputError, match=f"Cannot read the tokenizer {re.escape(str(path))}: No"):
        Tokenizer.load(path)


def test_wrong_file(tokenizer, tmp_path):
    path = tmp_path / "t.model"
    for content in (b"no model", tokenizer.model[:-7], tokenizer.model[:11]):
        path.write_bytes(content)
        message = f"{re.escape(str(path))}: The tokenizer is not a SentencePiece model"
        with pytest.raises(InputError, match=message):
            Tokenizer.load(path)
    path.write_bytes(b"")
    with pytest.raises(InputError, match=f"^{re.escape(str(path))}: The tokenizer"):
        Tokenizer.load(path)


def test_foreign_special_ids():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=model, vocab_size=29, minloglevel=2
    )
    message = "ids for pad, unk, bos, eos must be 0, 1, 2, 3. Received: -1, 0, 1, 2"
    with pytest.raises(InputError, match=message):
        Tokenizer(model.getvalue())


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_vocabulary_too_large_tells_the_limit(model_type):
    with pytest.raises(VocabularyTooLargeError, match="Received: vocab_size=50000") as caught:
        Tokenizer.train(CORPUS, 50_000, model_type)
    limit = caught.value.limit
    assert f"`vocab_size` must be at most {limit}. " in str(caught.value)
    assert Tokenizer.train(CORPUS, limit, model_type).vocab_size == limit
    with pytest.raises(VocabularyTooLargeError):
        Tokenizer.train(CORPUS, limit + 1, model_type)


@pytest.mark.parametrize("vocab_size", [1, 200, 265])
def test_vocabulary_too_small_tells_the_least(vocab_size):
    # 260 fixed ids, the five letters of the corpus, and the mark of a word's start.
    texts = ["abcde", "edcba", "abc de"]
    message = f"`vocab_size` must be at least .*Received: vocab_size={vocab_size}"
    with pytest.raises(InputError, match=message) as caught:
        Tokenizer.train(texts, vocab_size)
    assert "266" in str(caught.value) or vocab_size < 260
    assert Tokenizer.train(texts, 266).vocab_size == 266


@pytest.mark.parametrize("texts", [[], [""], [" ", "\t\n", "\u3000"]])
def test_corpus_without_text(texts):
    with pytest.raises(InputError, match="The corpus holds no text to train a tokenizer from"):
        Tokenizer.train(iter(texts), 300)
