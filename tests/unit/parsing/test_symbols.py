"""Tests of the symbols of trees, and of the constraint of a search to trees."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import BOS_ID, EOS_ID, DecodingOptions
from keras_transformer.errors import InputError
from keras_transformer.parsing import symbols as tree_symbols
from keras_transformer.parsing.symbols import TreeConstraint, TreeSymbols
from keras_transformer.parsing.tokenizer import TreeTokenizer
from keras_transformer.search.beam_search import beam_search
from keras_transformer.search.constraints import constrained
from keras_transformer.tokenizers import Tokenizer, with_end

SYMBOLS = TreeSymbols(tags=("N",), labels=("A", "B"))
N, A, B, END_A, END_B = range(4, 9)  # ids
GREEDY = DecodingOptions(beam_size=1)
PAIRS = [
    ("the dog barks .", "S NP DT NN /NP VP VBZ /VP . /S"),
    ("dogs -LRB- two -RRB- bark", "S NP NNS PRN -LRB- CD -RRB- /PRN /NP VP VBP /VP /S"),
]


def constituents(num_words, length):
    """Returns all constituents of so many words and ids, by all ways to split their children."""
    for (label, closing), children in itertools.product(
        ((A, END_A), (B, END_B)), sequences(num_words, length - 2)
    ):
        yield (label, *children, closing)


def sequences(num_words, length):
    """Returns all sequences of at least one word or constituent."""
    if (num_words, length) == (1, 1):
        yield (N,)
    for words, size in itertools.product(range(1, num_words + 1), range(1, length + 1)):
        firsts = [(N,)] if (words, size) == (1, 1) else []
        if size > 2:
            firsts += constituents(words, size)
        rests = list(sequences(num_words - words, length - size)) if words < num_words else []
        if (words, size) == (num_words, length) and size > 2:
            yield from firsts
        yield from ((*first, *rest) for first in firsts for rest in rests)


def all_trees(num_words, max_length):
    """Returns all trees of at most `max_length` ids, the end included."""
    found = [
        (*tree, EOS_ID)
        for length in range(3, max_length)
        for tree in constituents(num_words, length)
    ]
    assert len(set(found)) == len(found)
    return found


def next_ids(trees):
    """Returns what may follow each prefix of trees."""
    following = {}
    for tree in trees:
        for place, symbol in enumerate(tree):
            following.setdefault(tree[:place], set()).add(symbol)
    return following


def logits_of(seed):
    """Returns random logits of the id after another, [9, 9]."""
    return np.random.default_rng(seed).normal(size=(9, 9)).astype(np.float32) * 2


def restricted(logits, allowed):
    """Returns the probabilities of allowed ids; each group keeps that of all its ids."""
    found = {}
    for group in (range(4), (N,), (A, B), (END_A, END_B)):
        inside = [i for i in group if i in allowed]
        share = np.exp(logits[list(group)].astype(float)).sum()
        found |= {i: np.exp(float(logits[i])) * share for i in inside}
        rest = sum(np.exp(float(logits[i])) for i in inside)
        found |= {i: found[i] / rest for i in inside}
    return {i: each / sum(found.values()) for i, each in found.items()}


def step_of(logits, num_words, max_lengths, beam_size):
    def step_fn(ids, position, cache, row_state):
        return tf.gather(logits, ids), cache, row_state

    # The constraint has the rows in the reverse order, and the last is another's.
    rows = tf.range(len(num_words))[::-1]
    words = tf.zeros([len(num_words) + 1, 3], tf.int32)
    of_rows = tf.constant([*num_words[::-1], 99])
    constraint = TreeConstraint(SYMBOLS, tf.constant([[True]]), words, of_rows)
    limits = tf.constant(max_lengths)
    return constrained(step_fn, (), (), [constraint], rows, limits, beam_size)


def test_allowed_symbols_have_the_probability_of_their_group():
    symbols = TreeSymbols(tags=("N", "V"), labels=("A",))  # ids 4 to 7
    none = tf.zeros([1, 1], tf.int32)
    constraint = TreeConstraint(symbols, tf.ones([1, 2], tf.bool), none, none[0])
    probabilities = [0.05, 0.05, 0.1, 0.1, 0.125, 0.25, 0.2, 0.125]
    allowed = [False, False, False, False, True, False, True, False]
    found = constraint.share(tf.math.log([[probabilities]]), tf.constant([[allowed]]))
    np.testing.assert_allclose(
        np.exp(found[0, 0]), [0, 0, 0, 0, 0.125 + 0.25, 0, 0.2, 0], rtol=1e-6
    )
    # Another constraint has forbidden the only tag that this one allows.
    forbidden = np.array(np.log(probabilities), np.float32)
    forbidden[4] = -np.inf
    found = constraint.share(tf.constant([[forbidden]]), tf.constant([[allowed]]))
    np.testing.assert_allclose(np.exp(found[0, 0]), [0, 0, 0, 0, 0, 0, 0.2, 0], rtol=1e-6)


def test_a_tree_is_not_deeper_than_the_maximum(monkeypatch):
    monkeypatch.setattr(tree_symbols, "MAX_DEPTH", 2)
    logits = logits_of(1)
    logits[:, [A, B]] += 9  # it opens constituents as long as it may
    step, cache, row_state = step_of(logits, [2], [20], 1)
    found = beam_search(step, cache, tf.constant([20]), GREEDY, row_state)
    ids = found.ids[0, 0].numpy()
    depths = np.cumsum(np.isin(ids, [A, B]) * 1 - np.isin(ids, [END_A, END_B]))
    assert (depths.max(), depths[-1]) == (2, 0)


@pytest.mark.parametrize(("num_words", "max_length"), [(1, 9), (2, 10), (3, 9)])
def test_the_constraint_allows_exactly_what_some_tree_has_next(num_words, max_length):
    following = next_ids(all_trees(num_words, max_length))
    for length in sorted(set(map(len, following))):
        prefixes = [prefix for prefix in following if len(prefix) == length]
        size = len(prefixes)
        step, cache, row_state = step_of(
            np.zeros((9, 9), np.float32), [num_words] * size, [max_length] * size, 1
        )
        for position in range(length + 1):
            newest = [[(BOS_ID, *prefix)[position]] for prefix in prefixes]
            logits, cache, row_state = step(tf.constant(newest), position, cache, row_state)
        for prefix, row in zip(prefixes, np.isfinite(logits[:, 0]), strict=True):
            assert set(np.flatnonzero(row)) == following[prefix], prefix


@pytest.mark.parametrize("seed", range(2))
def test_a_wide_beam_finds_the_best_tree(seed):
    logits, num_words, max_lengths = logits_of(seed), [1, 2], [7, 8]
    step, cache, row_state = step_of(logits, num_words, max_lengths, 60)
    options = DecodingOptions(beam_size=60, length_penalty=0.3)
    found = beam_search(step, cache, tf.constant(max_lengths), options, row_state)
    for row in range(2):
        trees = all_trees(num_words[row], max_lengths[row])
        following = next_ids(trees)

        def score(tree, following=following):
            log_prob = 0.0
            for place, symbol in enumerate(tree):
                newest = tree[place - 1] if place else BOS_ID
                probabilities = restricted(logits[newest], following[tree[:place]])
                log_prob += np.log(probabilities[symbol])
            return log_prob / ((5 + len(tree)) / 6) ** 0.3

        best = max(trees, key=score)
        assert tuple(found.ids[row, 0].numpy()[: len(best)]) == best
        np.testing.assert_allclose(found.scores[row, 0], score(best), rtol=1e-5)
        finite = np.isfinite(found.scores[row])
        assert finite.sum() == min(60, len(trees))
        for ids in found.ids[row].numpy()[finite]:
            assert tuple(ids[: list(ids).index(EOS_ID) + 1]) in trees


def test_greedy_search_ends_with_a_tree_at_the_maximum_length():
    logits = logits_of(2)
    logits[:, [A, B]] += 9  # it opens constituents as long as it may
    step, cache, row_state = step_of(logits, [3], [10], 1)
    found = beam_search(step, cache, tf.constant([10]), GREEDY, row_state)
    ids = tuple(found.ids[0, 0].numpy())
    assert len(ids) == 10
    assert ids in all_trees(3, 10)


def test_symbols_are_sorted_into_tags_and_labels():
    symbols = TreeSymbols.of({"S", "/S", "NN", "NP", "/NP", ",", "/"})
    assert symbols == TreeSymbols(tags=(",", "/", "NN"), labels=("NP", "S"))
    assert symbols.pieces == (",", "/", "NN", "NP", "S", "/NP", "/S")


@pytest.fixture(scope="module")
def tokenizer():
    return TreeTokenizer.train(PAIRS * 5, vocab_size=300)


def test_trees_are_written_with_the_words_of_their_sentences(tokenizer, tmp_path):
    sentences = ["two  dogs ( the\u00a0dog ) .", "the dog barks ."]
    source = tokenizer.encode(tf.constant(sentences))
    trees = ["S NP CD NNS PRN -LRB- DT NN -RRB- /PRN /NP . /S", PAIRS[0][1]]
    ids = with_end(tokenizer.target.tokenize(tf.constant(trees))).to_tensor()  # [2, T]
    written = tokenizer.write(source, tf.stack([ids, ids[:, ::-1]], axis=1))  # [2, 2]
    assert written[0, 0].numpy().decode() == (
        "(S (NP (CD two) (NNS dogs) (PRN (-LRB- -LRB-) (DT the) (NN dog) (-RRB- -RRB-))) (. .))"
    )
    assert written[1, 0].numpy().decode() == "(S (NP (DT the) (NN dog)) (VP (VBZ barks)) (. .))"
    assert tokenizer.constraints(source)[0].num_words.numpy().tolist() == [7, 4]
    tokenizer.save(tmp_path / "tokenizer.model")
    loaded = Tokenizer.load(tmp_path / "tokenizer.model")
    assert isinstance(loaded, TreeTokenizer)
    assert loaded.symbols == tokenizer.symbols
    assert loaded.fingerprint == tokenizer.fingerprint


def test_any_word_is_kept_as_it_is(tokenizer):
    words = ["\u00bdNF-\u03baB", "\u00a8", "x\u2581y", "\U0001f600", "#", "/S", "</s>", "A\u030a"]
    source = tokenizer.encode(tf.constant([" ".join(words)]))
    (split,) = tokenizer._words(source).to_list()
    assert [word.decode() for word in split] == [word.replace("\u2581", "_") for word in words]


def test_sentencepiece_logs_nothing(tokenizer, capfd):
    TreeTokenizer(tokenizer.model).source.tokenize(["Mice sleep"])
    assert "normalizer" not in capfd.readouterr().err


def test_slips_are_not_in_the_dictionary():
    """A word with one strange tag of 1,200, two rare words, and one that is new."""
    pairs = [("a", "S X /S"), *[("a", "S DT /S")] * 1199]
    pairs += [*[("b", "S NN /S")] * 4, ("c", "S RB /S")]
    tokenizer = TreeTokenizer.train(pairs, vocab_size=270)
    (constraint,) = tokenizer.constraints(tokenizer.encode(tf.constant(["a b d"])))
    assert tokenizer.symbols.tags == ("DT", "NN", "RB", "X")
    a, *others = constraint.entries.numpy()[0, :3]
    assert constraint.tags.numpy()[a].tolist() == [True, False, False, False]
    for entry in others:
        assert constraint.tags.numpy()[entry].tolist() == [False, True, True, False]


def test_frequent_words_have_their_tags_only(tokenizer):
    """ "the" is a DT in the treebank, "dogs" an NNS, and "cats" is not in it."""
    constraints = tokenizer.constraints(tokenizer.encode(tf.constant(["cats the dogs"])))

    def step_fn(ids, position, cache, row_state):
        return tf.zeros([1, 1, 4 + len(tokenizer.symbols.pieces)]), cache, row_state

    rows, limits = tf.range(1), tf.constant([20])
    step, cache, row_state = constrained(step_fn, (), (), constraints, rows, limits, 1)
    tree = with_end(tokenizer.target.tokenize(tf.constant(["S CD DT NNS /S"])))[0].numpy()
    tags, newest = [], [BOS_ID, *tree]
    for position, symbol in enumerate(newest[:4]):
        logits, cache, row_state = step(tf.constant([[symbol]]), position, cache, row_state)
        allowed = np.flatnonzero(np.isfinite(logits[0, 0])) - 4
        tags.append([tokenizer.symbols.tags[i] for i in allowed if i < len(tokenizer.symbols.tags)])
    assert tags == [[], list(tokenizer.symbols.tags), ["DT"], ["NNS"]]


def test_a_label_that_is_a_tag_of_another_tree_is_an_error():
    pairs = [("a b", "S NN VB /S"), ("a b", "NN VB VB /NN")]
    with pytest.raises(InputError, match=r"No label .* also be a tag\. Received: .*S NN VB /S"):
        TreeTokenizer.train(pairs, vocab_size=300)


def test_tagged_words_are_no_treebank():
    with pytest.raises(InputError, match=r"must have constituents\. It has tagged words only"):
        TreeTokenizer.train([("a", "NN")], vocab_size=270)


def test_unknown_symbols_have_the_unknown_id(tokenizer):
    assert tokenizer.target.tokenize(tf.constant(["S NNX /S"]))[0, 1] == 1


def test_a_damaged_file_is_an_error():
    with pytest.raises(InputError, match="damaged"):
        TreeTokenizer(b"# trees\n{}")


def test_each_word_begins_with_one_of_the_first_ids(tokenizer):
    sentences = [
        "naïve 😀 dogs",
        "  a \u00a0 dog\tsees\u2003 ( two )cats .",
        "\u2581 un\u2581known",
        " ",
    ]
    ids = tokenizer.encode(tf.constant(sentences)).ids.numpy()
    begins = (ids > EOS_ID) & (ids < tokenizer.sizes["word_id_ends"][0])
    expected = [["naïve", "😀", "dogs"], ["a", "dog", "sees", "-LRB-", "two", "-RRB-cats", "."]]
    expected += [["_", "un_known"], []]
    assert begins.sum(axis=1).tolist() == [len(words) for words in expected]
    parts = tf.ragged.constant(np.split(ids[0], np.flatnonzero(begins[0]))[1:])
    assert tokenizer.source.decode(parts.to_tensor()) == expected[0]


def test_the_ids_of_tags_end_where_the_labels_begin(tokenizer):
    tags, others = tokenizer.symbols.tags, tokenizer.symbols.pieces[len(tokenizer.symbols.tags) :]
    end = tokenizer.sizes["word_id_ends"][1]
    ids = tokenizer.target.tokenize(tf.constant([" ".join(tags), " ".join(others)]))
    assert (ids[0] < end).numpy().all()
    assert (ids[1] >= end).numpy().all()
