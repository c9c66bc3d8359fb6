"""Word-pieces, and what tokenizers of both kinds have in common."""

import re

import pytest
import tensorflow as tf
from tokenizer_texts import CORPUS, VOCAB_SIZE, ids_of, round_trip

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.errors import InputError
from keras_transformer.tokenizers import (
    SentencePieceTokenizer,
    Tokenizer,
    WordPieceTokenizer,
    train_tokenizer,
)

SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")
PIECES = ("a", "ab", "abc", "##b", "##c", "##cd", "##d", "b", "c", "##a", ".", "##.")  # from 4


def word_pieces(*pieces, header="# word-pieces"):
    return "".join(f"{line}\n" for line in (header, *pieces)).encode()


@pytest.fixture(scope="module")
def by_hand():
    return WordPieceTokenizer(word_pieces(*SPECIAL, *PIECES))


def named(tokenizer, text):
    """The pieces of a text by their names in `PIECES`."""
    return [(*SPECIAL, *PIECES)[i] for i in ids_of(tokenizer, text)]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("abcd", ["abc", "##d"]),  # not ab ##cd
        ("acd", ["a", "##cd"]),
        ("acb", ["a", "##c", "##b"]),
        ("bab", ["b", "##a", "##b"]),
        ("ba.", ["b", "##a", "##."]),
        ("", []),
    ],
)
def test_longest_pieces_first(by_hand, text, pieces):
    assert named(by_hand, text) == pieces
    assert round_trip(by_hand.source, text) == text


@pytest.mark.parametrize("word", ["x", "abx", "😀", "d"])
def test_a_word_with_an_unknown_character_is_one_unknown_token(by_hand, word):
    assert named(by_hand, f"ab {word} c") == ["ab", "<unk>", "c"]


@pytest.mark.parametrize("blank", [" ", "\r\n", "\u00a0", "\u2028", "\x00"])
def test_blanks_and_control_characters_separate_words(by_hand, blank):
    assert named(by_hand, f"{blank}a{blank}{blank}b{blank}") == ["a", "b"]
    assert round_trip(by_hand.source, f"{blank}a{blank}{blank}b{blank}") == "a b"


@pytest.mark.parametrize("text", [*SPECIAL, "##b", "##"])
def test_text_is_never_a_special_piece(by_hand, text):
    assert ids_of(by_hand, f"a {text} b") == [4, UNK_ID, 11]


def test_word_pieces_join_without_special_ids(by_hand):
    rows = [
        [BOS_ID, 11, 13, EOS_ID, PAD_ID],
        [EOS_ID, *[PAD_ID] * 4],
        [4, UNK_ID, 5, 7, EOS_ID],
        [13, 4, 13, EOS_ID, PAD_ID],  # a model may begin with the end of a word
    ]
    texts = by_hand.source.detokenize(tf.constant(rows)).numpy().tolist()
    assert texts == [b"ba", b"", b"a <unk> abb", b"a aa"]


def test_save_and_load_word_pieces(by_hand, tmp_path):
    by_hand.save(tmp_path / "t.model")
    loaded = Tokenizer.load(tmp_path / "t.model")
    assert isinstance(loaded, WordPieceTokenizer)
    assert loaded.fingerprint == by_hand.fingerprint
    assert named(loaded, "abcd") == ["abc", "##d"]
    assert (tmp_path / "t.model").read_text().split("\n")[:6] == ["# word-pieces", *SPECIAL, "a"]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (word_pieces(*SPECIAL[1:], *PIECES), "must start with '# word-pieces' and the pieces <pad"),
        (word_pieces(*SPECIAL, header="# word-pieces 2"), "must start with"),
        (word_pieces(*SPECIAL, header="# word-pieces {a}"), "is damaged"),
        (word_pieces(*SPECIAL, "a", "<s>"), "must not hold a piece twice"),
        (word_pieces(*SPECIAL) + b"\xff\n", "is damaged"),
    ],
)
def test_wrong_word_pieces(model, message, tmp_path):
    path = tmp_path / "t.model"
    path.write_bytes(model)
    with pytest.raises(InputError, match=f"^{re.escape(str(path))}: The tokenizer {message}"):
        Tokenizer.load(path)


# CORPUS has 20 characters, each in two forms, and there are 4 special ids: 44.
@pytest.mark.parametrize("vocab_size", [45, 71])
def test_trained_word_pieces(vocab_size):
    tokenizer = WordPieceTokenizer.train(CORPUS, vocab_size)
    pieces = tokenizer.model.decode().split("\n")[1:-1]
    assert tokenizer.vocab_size == len(pieces) == vocab_size
    assert set("".join(CORPUS)) - {" "} <= set(pieces)
    assert {f"##{character}" for character in "".join(CORPUS) if character != " "} <= set(pieces)
    assert vocab_size < 71 or len(ids_of(tokenizer, "the")) == 1  # a frequent word
    for text in (*CORPUS, "dog öl rebü"):
        assert UNK_ID not in ids_of(tokenizer, text)
        assert round_trip(tokenizer.source, text) == text


@pytest.mark.parametrize("vocab_size", [25, 44])
def test_too_few_word_pieces_for_the_characters(vocab_size):
    message = f"^`vocab_size` must be more than 44, .* Received: vocab_size={vocab_size}$"
    with pytest.raises(InputError, match=message):
        WordPieceTokenizer.train(CORPUS, vocab_size)


@pytest.mark.parametrize("blank", ["\u00a0", "\x07"])
def test_word_pieces_are_learned_from_text_as_it_is_read(blank):
    """French has a space that does not break before its punctuation."""
    texts = [text.replace(" ", blank) for text in CORPUS]
    assert WordPieceTokenizer.train(texts, 71).model == WordPieceTokenizer.train(CORPUS, 71).model


def test_word_pieces_of_both_sides():
    texts, targets = ["ab ab", "abba"], ["cd"]
    tokenizer = train_tokenizer("wordpiece", texts, 19, targets=targets)
    for text in (*texts, *targets):
        assert round_trip(tokenizer.source, text) == text
    assert tokenizer.shares_pieces


# Both kinds.


@pytest.fixture(scope="module")
def tokenizer():
    return SentencePieceTokenizer.train(CORPUS, VOCAB_SIZE)


@pytest.mark.parametrize("kind", ["tokenizer", "by_hand"])
def test_graph_is_eager(kind, request):
    tokenizer = request.getfixturevalue(kind)
    texts = tf.constant(["the red dog", "", "😀 中文", b"\xff", "ab\tab " * 31])
    graph = tf.function(
        lambda texts: tokenizer.encode(texts, 13),
        input_signature=[tf.TensorSpec([None], tf.string)],
        autograph=False,
    )
    found = zip(graph(texts)[:3], tokenizer.encode(texts, 13)[:3], strict=True)
    for actual, expected in found:
        assert actual.numpy().tolist() == expected.numpy().tolist()


@pytest.mark.parametrize("kind", [SentencePieceTokenizer, WordPieceTokenizer])
@pytest.mark.parametrize("texts", [[], [" ", "\t\n", "\u3000"]])
def test_corpus_without_text(texts, kind):
    with pytest.raises(InputError, match="The corpus holds no text to train a tokenizer from"):
        kind.train(iter(texts), 300)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), InputError("a.txt, line 3: not UTF-8")])
@pytest.mark.parametrize("kind", [SentencePieceTokenizer, WordPieceTokenizer])
def test_what_ends_the_text_ends_the_training(kind, error):
    def texts():
        yield from CORPUS
        raise error

    with pytest.raises(type(error)) as caught:
        kind.train(texts(), VOCAB_SIZE)
    assert caught.value is error
