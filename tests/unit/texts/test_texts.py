"""The graphs from strings to strings, each against a slow and obvious twin."""

import itertools
import re

import layer_weights
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import BOS_ID, DecodingOptions
from keras_transformer.model.transformer import Transformer
from keras_transformer.search.beam_search import Hypotheses
from keras_transformer.texts import texts as search_texts
from keras_transformer.texts.documents import Documents
from keras_transformer.texts.texts import TextSearch
from keras_transformer.tokenizers import SPECIAL_PIECES, EncodedTexts, WordPieceTokenizer

OPTIONS = DecodingOptions(beam_size=3, length_penalty=0.7, extra_length=5, max_source_length=23)
GREEDY = DecodingOptions(beam_size=1, max_source_length=23)
TEXTS = ["red dog", "", "one two red dog cat .", "öl", "dog " * 31, " \t\u3000", "one", "two cat ."]


@pytest.fixture(scope="module")
def tokenizer(tiny_translator):
    return tiny_translator.tokenizer


@pytest.fixture(scope="module")
def model(tiny_translator):
    """A model whose hypotheses differ in score by more than rounding."""
    return layer_weights.randomize(Transformer(tiny_translator.model.config))


@pytest.fixture(scope="module")
def run(model, tokenizer):
    """A function that calls a method of `TextSearch` on texts; it traces each graph once."""
    graphs = {}

    def call(function, *texts, options=OPTIONS, **rest):
        sizes = (search_texts.GROUP_ROWS, search_texts.GROUP_TOKENS, search_texts.GROUP_LOGITS)
        key = (function, options, *rest.items(), sizes)
        if key not in graphs:
            graphs[key] = tf.function(
                lambda *tensors: function(TextSearch(model, tokenizer, options), *tensors, **rest),
                input_signature=[tf.TensorSpec([None], tf.string)] * len(texts),
                autograph=False,
            )
        found = graphs[key](*(tf.constant(list(column), tf.string) for column in texts))
        return tf.nest.map_structure(lambda field: None if field is None else field.numpy(), found)

    return call


@pytest.fixture(scope="module")
def one_by_one(run):
    return [run(TextSearch.translate, [text]) for text in TEXTS]


@pytest.fixture
def small_groups(monkeypatch):
    """Two rows of scores to a group, and a few rows of alignments."""
    monkeypatch.setattr(search_texts, "GROUP_LOGITS", 290 * 40)
    monkeypatch.setattr(search_texts, "GROUP_TOKENS", 90)


# Texts.


def assert_close(found, one_by_one):
    assert found.translations.tolist() == [each.translations[0].tolist() for each in one_by_one]
    expected = np.stack([each.scores[0] for each in one_by_one])
    np.testing.assert_allclose(found.scores, expected, atol=1e-4)
    assert found.truncated.tolist() == [bool(each.truncated[0]) for each in one_by_one]


def test_groups_are_one_by_one(run, one_by_one, monkeypatch):
    """Of at most three rows, and of fewer where they are long."""
    monkeypatch.setattr(search_texts, "GROUP_ROWS", 3)
    monkeypatch.setattr(search_texts, "GROUP_TOKENS", 200)
    assert_close(run(TextSearch.translate, TEXTS), one_by_one)
    assert_close(run(TextSearch.translate, TEXTS[::-1]), one_by_one[::-1])


def test_no_tokens_in_a_row_stand_twice(model, tokenizer):
    source = tokenizer.encode(TEXTS)
    repeated, first = [], tokenizer.target.first_byte
    inner_bytes = range(first + 0x80, first + 0xC0)  # may repeat
    for size in (0, 2):
        options = DecodingOptions(beam_size=3, no_repeat_ngram=size)
        ids = TextSearch(model, tokenizer, options).search(source, 3).ids.numpy()
        rows = [np.trim_zeros(row).tolist() for row in ids.reshape(-1, ids.shape[2])]
        pairs = [
            [two for two in itertools.pairwise(row) if two[1] not in inner_bytes] for row in rows
        ]
        repeated.append(sum(len(set(each)) < len(each) for each in pairs))
    assert repeated[0] > 0
    assert repeated[1] == 0


def test_word_pieces_have_the_guard_too(model):
    words = [*SPECIAL_PIECES, *(f"w{number}" for number in range(model.config.vocab_size - 4))]
    tokenizer = WordPieceTokenizer.from_pieces(words, {})
    search = TextSearch(model, tokenizer, DecodingOptions(beam_size=1, no_repeat_ngram=1))
    ids = search.search(tokenizer.encode(["w5 w6 w7"])).ids.numpy()[0, 0]
    ids = ids[ids > 3]
    assert 0 < len(ids) == len(set(ids))


def test_equal_texts_are_one_hypothesis(model, tokenizer):
    """The second is "red" in other pieces, and the third differs."""
    rows = [
        [id_of(tokenizer, piece) for piece in pieces]
        for pieces in (["▁", "r", "e", "d"], ["▁", "r", "<0x65>", "d"], ["▁", "r"], ["▁", "r"])
    ]
    ids = tf.ragged.constant([rows, rows[::-1]], dtype=tf.int32).to_tensor(0)
    scores = tf.constant([[-1.0, -2.0, -3.0, -float("inf")], [-1.0, -2.0, -3.0, -4.0]])

    class Found(TextSearch):
        def search(self, source, num_best=1, prefixes=None):
            return Hypotheses(ids, scores)

    found = Found(model, tokenizer, OPTIONS).translate(tf.constant(["red", "dog"]), 4)
    assert found.translations.numpy().tolist() == [
        [b"red", b"r", b"", b""],
        [b"r", b"red", b"", b""],
    ]
    never = -float("inf")
    assert found.scores.numpy().tolist() == [[-1, -3, never, never], [-1, -3, never, never]]


# Documents.


def test_document_is_its_sentences(run):
    document = "One two. Red dog!\n\nTwo cat? \u00d6l"
    sentences = ["One two.", "Red dog!", "Two cat?", "\u00d6l"]
    alone = run(TextSearch.translate, sentences)
    one, two, three, four = (text.decode() for text in alone.translations[:, 0])
    found, num_sentences = run(TextSearch.translate_documents, ["red", document, "", " \n "])
    assert found.translations[1, 0].decode() == f"{one} {two}\n\n{three} {four}"
    assert found.scores[1, 0] == pytest.approx(alone.scores[:, 0].sum(), abs=1e-3)
    assert num_sentences.tolist() == [1, 4, 0, 0]
    assert found.translations[2:, 0].tolist() == [b"", b" \n "]
    assert found.scores[2:, 0].tolist() == [0, 0]


def test_texts_without_spaces_get_none(tokenizer):
    """The third text is cut into three parts."""
    texts = ["\u4f60\u597d\u3002\u518d\u89c1", "One. Two!  Red", "x" * 30]
    documents = Documents(tokenizer, tf.constant(texts), 12)
    for parts, joined in (
        (
            ["\u300c\u306f\u3044\u3002\u300d", "A", "\u4e00\uff01", "\u4e8c\uff01", "\u7ea2"]
            + ["\u6771", "\u4eac", "a"],
            [
                "\u300c\u306f\u3044\u3002\u300dA",
                "\u4e00\uff01\u4e8c\uff01  \u7ea2",
                "\u6771\u4eac a",
            ],
        ),
        (["Hi.", "Bye.", *"123456"], ["Hi. Bye.", "1 2  3", "4 5 6"]),
        (
            [*"12345", "\u6771\u4eac\u3001", "\u300c\u3048\u3002\u300d", "\u6771"],
            ["1 2", "3 4  5", "\u6771\u4eac\u3001\u300c\u3048\u3002\u300d\u6771"],
        ),
    ):
        written = documents.join(tf.constant(parts)).numpy()
        assert [text.decode() for text in written] == joined


def test_nothing_of_a_long_sentence_is_lost(run, model, tokenizer):
    text = ("red dog cat " * 31).rstrip()
    ids = tokenizer.source.tokenize(tf.constant([text])).to_list()[0]
    size = OPTIONS.max_source_length - 1
    parts = [ids[start : start + size] for start in range(0, len(ids), size)]
    assert len(parts) > 2
    texts = tokenizer.source.detokenize(tf.ragged.constant(parts, tf.int32).to_tensor(0)).numpy()
    assert b" ".join(texts).replace(b" ", b"") == text.replace(" ", "").encode()

    @tf.function(autograph=False)
    def translate_parts():
        source = EncodedTexts.of(tf.ragged.constant(parts, tf.int32))
        return TextSearch(model, tokenizer, OPTIONS).search(source).ids[:, 0]

    expected = b" ".join(tokenizer.source.detokenize(translate_parts()).numpy())
    expected = expected.decode().replace("\ufffd", "").encode()
    assert run(TextSearch.translate_documents, [text])[0].translations.tolist() == [[expected]]


# Scores of given translations.


def test_scores_are_the_models(run, model, tokenizer, small_groups):
    targets = ["Katze rot", "eins", "", "zwei " * 7, "Hund", "oil", "\u00e9", "."]
    found = run(TextSearch.score, TEXTS, targets)
    for i, (text, target) in enumerate(zip(TEXTS, targets, strict=True)):
        source_ids = tokenizer.encode(tf.constant([text]), 23).ids
        target_ids = tokenizer.encode(tf.constant([target]), 28).ids.numpy()[0]
        shifted = np.array([[BOS_ID, *target_ids[:-1]]], "int32")
        logits = model({"source_ids": source_ids, "target_ids": tf.constant(shifted)}).numpy()[0]
        logits = logits.astype("float64")
        log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        total = sum(log_probs[t, token] for t, token in enumerate(target_ids))
        assert found.log_probs[i] == pytest.approx(total, abs=1e-3)
        penalty = ((5 + len(target_ids)) / 6) ** 0.7
        assert found.scores[i] == pytest.approx(total / penalty, abs=1e-3)
    assert [len(text) > 99 for text in TEXTS].index(True) == 4
    assert found.truncated.tolist() == [False, False, False, True, True, False, False, False]


# Alignments.


def test_alignments_are_the_models(run, model, tokenizer, small_groups):
    best = run(TextSearch.translate, TEXTS, options=GREEDY).translations[:, 0]
    found = run(TextSearch.align, TEXTS, options=GREEDY, layer=0)
    for i, text in enumerate(TEXTS):
        num_sources, num_targets = found.source_lengths[i], found.target_lengths[i]
        source_ids = tokenizer.encode(tf.constant([text]), 23).ids
        assert num_sources == source_ids.shape[1]
        pieces = [piece.decode() for piece in found.target_pieces[i]]
        assert all(pieces[:num_targets])
        assert not any(pieces[num_targets:])
        assert not any(found.source_pieces[i][num_sources:])
        assert not found.attention[i, num_targets:].any()
        assert not found.attention[i, :, num_sources:].any()
        if not text.strip():
            assert num_targets == 0
            continue
        joined = "".join(pieces).removesuffix("</s>").replace("\u2581", " ").strip()
        if not re.search("<0x", joined):
            assert joined.split() == best[i].decode().split()
        ids = [id_of(tokenizer, piece) for piece in pieces[:num_targets]]
        shifted = np.array([[BOS_ID, *ids[:-1]]], "int32")
        scores = model.attention_scores(source_ids, shifted).cross[0].numpy()[0]
        actual = found.attention[i, :num_targets, :num_sources]
        np.testing.assert_allclose(actual, scores.mean(axis=0), atol=1e-5)
        logits = model({"source_ids": source_ids, "target_ids": tf.constant(shifted)}).numpy()[0]
        log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        expected = log_probs[np.arange(len(ids)), ids]
        np.testing.assert_allclose(found.log_probabilities[i, :num_targets], expected, atol=1e-5)
        assert not found.log_probabilities[i, num_targets:].any()


def id_of(tokenizer, piece):
    pieces = tokenizer.source.pieces(tf.range(tokenizer.vocab_size)).numpy().tolist()
    return pieces.index(piece.encode())


@pytest.mark.parametrize("name", ["translate", "score", "align"])
def test_parts_may_run_side_by_side(model, tokenizer, name):
    """TensorFlow computes calls of a stateful function one after another."""
    function = getattr(TextSearch(model, tokenizer, OPTIONS), name)
    specs = [tf.TensorSpec([None], tf.string)] * (2 if name == "score" else 1)
    graph = tf.function(function, specs, autograph=False).get_concrete_function().graph
    ops = {
        node.op
        for each in graph.as_graph_def().library.function
        for node in each.node_def
        if "part_of" in node.attr["f"].func.name
    }
    assert ops == {"PartitionedCall"}
