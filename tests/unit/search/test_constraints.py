"""What a search must keep to, against all sequences of a small vocabulary."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, DecodingOptions
from keras_transformer.protection.counts import CountConstraint, Counts
from keras_transformer.search.beam_search import beam_search
from keras_transformer.search.constraints import (
    FirstToken,
    PrefixConstraint,
    RepeatConstraint,
    constrained,
)

WORD, OPEN, CLOSE, OTHER = 4, 5, 6, 7  # the last three ids are counted
VOCAB_SIZE = 8
LEAST = [[1, 1, 0], [0, 0, 2], [0, 0, 0], [2, 1, 1]]
MAX_LENGTHS = [4, 4, 3, 4]
GREEDY = DecodingOptions(beam_size=1, length_penalty=0.0)


def logits_of(seed):
    """Random logits of the id after another."""
    return 2 * np.random.default_rng(seed).normal(size=[VOCAB_SIZE] * 2).astype(np.float32)


def constraint(least, most=None, is_ordered=True):
    """`OPEN` opens what `CLOSE` closes."""
    least = np.array(least, np.int32)
    opening, closing = np.zeros([2, len(least), 3, 3], np.float32)
    if is_ordered:
        opening[:, 1, 0] = closing[:, 1, 1] = 1
    most = least if most is None else np.array(most, np.int32)
    ids = [np.repeat(np.arange(3), row) for row in least]  # in the order of their numbers
    ranks = [np.concatenate([np.arange(n) for n in row]) for row in least]
    order, ranks = (
        tf.ragged.constant([row.tolist() for row in rows], tf.int32).to_tensor(-1)
        for rows in (ids, ranks)
    )
    no_rows = tf.zeros(len(least), tf.bool)
    counts = Counts(
        *map(tf.constant, (least, most, opening, closing)),
        order=order,
        ranks=ranks,
        spaced=order < -1,
        is_last=no_rows,
        longest=tf.where(no_rows, 0, 99),
    )
    return CountConstraint(counts, -1, tf.zeros(VOCAB_SIZE, tf.bool))


def search(logits, constraints, max_lengths, beam_size):
    """Searches the rows in the reverse order."""

    def step_fn(ids, position, cache, row_state):
        return tf.gather(logits, ids), cache, row_state

    rows = tf.range(len(max_lengths))[::-1]
    limits = tf.gather(tf.constant(max_lengths), rows)
    step, cache, row_state = constrained(step_fn, (), (), constraints, rows, limits, beam_size)
    options = DecodingOptions(beam_size=beam_size, length_penalty=0.3)
    found = beam_search(step, cache, limits, options, row_state)
    return found.ids.numpy()[::-1], found.scores.numpy()[::-1]


def is_allowed(ids, least, logits):
    """Whether a sequence has what it must, and `CLOSE` follows `OPEN` while there is one.

    Where the end is likeliest, only what is missing follows, and then the end.
    """
    if [ids.count(each) for each in (OPEN, CLOSE, OTHER)] != least:
        return False
    ends = False
    for place, each in enumerate(ids):
        before = ids[:place]
        left = [n - before.count(i) for i, n in zip((OPEN, CLOSE, OTHER), least, strict=True)]
        likeliest = logits[before[-1] if before else BOS_ID, EOS_ID:].argmax() + EOS_ID
        ends |= any(left) and likeliest == EOS_ID
        wanted = [i for i, n in zip((OPEN, CLOSE, OTHER), left, strict=True) if n] + [EOS_ID]
        if ends and each != wanted[0]:
            return False
        is_closed = before.count(OPEN) <= before.count(CLOSE)
        if each == CLOSE and is_closed and before.count(OPEN) < least[0]:
            return False
    return True


def all_sequences(max_length):
    """All that a search can find: sequences that end, and those that it cuts."""
    words = (WORD, OPEN, CLOSE, OTHER)
    for length in range(max_length):
        yield from ((*ids, EOS_ID) for ids in itertools.product(words, repeat=length))
    yield from itertools.product(words, repeat=max_length)


def score(ids, logits):
    """Of the model alone: what is forbidden keeps its probability."""
    log_probs = logits - np.log(np.exp(logits.astype(float)).sum(axis=1, keepdims=True))
    total = sum(log_probs[pair] for pair in itertools.pairwise((BOS_ID, *ids)))
    return total / ((5 + len(ids)) / 6) ** 0.3


@pytest.mark.parametrize("seed", range(2))
def test_a_wide_beam_finds_the_best_of_all_sequences_with_the_counts(seed):
    logits = logits_of(seed)
    found, scores = search(logits, [constraint(LEAST)], MAX_LENGTHS, 90)
    for row, (least, max_length) in enumerate(zip(LEAST, MAX_LENGTHS, strict=True)):
        allowed = {ids for ids in all_sequences(max_length) if is_allowed(list(ids), least, logits)}
        best = max(allowed, key=lambda ids: score(ids, logits))
        kept = [tuple(ids[ids != PAD_ID].tolist()) for ids in found[row]]
        is_found = np.isfinite(scores[row])
        assert kept[0] == best
        np.testing.assert_allclose(scores[row, 0], score(best, logits), rtol=1e-5)
        assert set(np.array(kept, object)[is_found]) == allowed
        assert is_found.sum() == len(allowed)


def test_at_least_and_at_most():
    """Without a minimum, the best sequence of all that have no other than the allowed ids."""
    logits = logits_of(7)
    free = constraint([[0, 0, 0]], most=[[2, 0, 2**31 - 1]], is_ordered=False)
    found, scores = search(logits, [free], [4], 300)
    allowed = [ids for ids in all_sequences(4) if ids.count(OPEN) <= 2 and CLOSE not in ids]
    assert np.isfinite(scores).sum() == len(allowed)
    best = max(allowed, key=lambda ids: score(ids, logits))
    assert tuple(found[0, 0][found[0, 0] != PAD_ID]) == best


def test_greedy_search_fits_all_in_at_the_maximum_length():
    logits = np.zeros([VOCAB_SIZE] * 2, np.float32)
    logits[:, WORD] = 9
    least = [[2, 2, 1], [0, 0, 0]]
    found, _ = search(logits, [constraint(least)], [7, 7], 1)
    assert found[0, 0].tolist()[:2] == [WORD, WORD]
    assert is_allowed(found[0, 0].tolist(), least[0], logits)
    assert found[1, 0].tolist() == [WORD] * 7
    assert constraint(least).min_tokens.numpy().tolist() == [5, 0]


SPELLINGS = [b""] * 4 + [b" a", b"ab", b"b", b" ab"]
A, AB, B, WORD_AB = range(4, 8)


def begins(ids, head, text):
    """Whether a sequence begins with ids, and then with the bytes of a text."""
    written = b"".join(SPELLINGS[each] for each in ids[len(head) :])
    return ids[: len(head)] == head and written.startswith(text)


@pytest.mark.parametrize(("seed", "has_other"), [(0, False), (1, True)])
def test_a_wide_beam_finds_the_best_of_all_sequences_that_begin_so(seed, has_other):
    """The other constraint counts the last ids; the fourth prefix is at odds with it."""
    logits = logits_of(seed)
    logits[:, EOS_ID] -= 9  # so that no sequence would rather end
    prefixes = [[A, B], [WORD_AB, A], [B, B, B, B, B], [B, B], []]
    is_word_over = [False, True, False, False, False]
    divided = [((), b" ab"), ((WORD_AB, A), b" "), ((B,), b"bbbb"), ((), b"bb"), ((), b"")]
    least = np.array([[0, 0, 1], [0, 0, 1], [1, 0, 0], [0, 1, 0], [0, 2, 0]], np.int32)
    other = constraint(least, is_ordered=False)
    prefix = PrefixConstraint.of(
        tf.ragged.constant(prefixes, tf.int32), tf.constant(is_word_over), SPELLINGS
    )
    num_forced = [len(head) + len(text) for head, text in divided]
    np.testing.assert_array_equal(prefix.min_tokens, num_forced)
    rest = least.sum(axis=1) + 1 if has_other else np.ones(5, int)
    limits = (num_forced + rest).astype(np.int32)
    found, scores = search(logits, [other, prefix] if has_other else [prefix], limits, 90)
    for row, (head, text) in enumerate(divided):
        allowed = {ids for ids in all_sequences(limits[row]) if begins(ids, head, text)}
        if has_other:
            allowed = {ids for ids in allowed if is_enough(ids, head, text, least[row])}
        best = max(allowed, key=lambda ids: score(ids, logits))
        assert tuple(found[row, 0][found[row, 0] != PAD_ID].tolist()) == best, row
        np.testing.assert_allclose(scores[row, 0], score(best, logits), rtol=1e-5)
        assert np.isfinite(scores[row]).sum() == min(len(allowed), 90)


def is_enough(ids, head, text, least):
    """Whether the rest has what is missing in the prefix, and nothing that is too much."""
    length = next(n for n in range(len(ids) + 1) if begins(ids[:n], head, text))
    counted = (AB, B, WORD_AB)
    in_prefix, in_all = ([part.count(each) for each in counted] for part in (ids[:length], ids))
    return (in_all == np.maximum(in_prefix, least)).all()


@pytest.mark.parametrize("has_prefix", [False, True])
def test_the_first_token_costs_nothing(has_prefix):
    logits, first = logits_of(2), [WORD_AB, B, EOS_ID]
    logits[:, EOS_ID] -= 3
    prefix = PrefixConstraint.of(
        tf.ragged.constant([[A, B], [B], []], tf.int32), tf.fill([3], False), SPELLINGS, 1
    )
    text = [b" ab", b"b", b""] if has_prefix else [b""] * 3
    constraints = [prefix, FirstToken(first)] if has_prefix else [FirstToken(first)]
    limits = [5, 4, 3]
    found, scores = search(logits, constraints, limits, 90)
    for row, start in enumerate(first):
        allowed = [ids for ids in all_sequences(limits[row]) if begins(ids, (start,), text[row])]
        assert np.isfinite(scores[row]).sum() == min(len(allowed), 90)
        free = logits.copy()  # as if no other token could come first
        free[BOS_ID] = np.where(np.arange(VOCAB_SIZE) == start, 0.0, -99.0)
        best = max(allowed, key=lambda ids: score(ids, free))
        assert tuple(found[row, 0][found[row, 0] != PAD_ID].tolist()) == best
        np.testing.assert_allclose(scores[row, 0], score(best, free), rtol=1e-5)


# No repetition.


def repeats(ids, size):
    """Whether some ids in a row stand twice in a sequence, its start included."""
    ids = (BOS_ID, *ids)
    parts = [ids[i : i + size] for i in range(len(ids) - size + 1)]
    return len(set(parts)) < len(parts)


@pytest.mark.parametrize(("seed", "size"), [(1, 1), (2, 2), (3, 3)])
def test_a_wide_beam_finds_the_best_sequence_without_repetition(seed, size):
    logits, max_length = logits_of(seed) + 4 * np.eye(VOCAB_SIZE, dtype=np.float32), 5
    logits[:, EOS_ID] -= 6
    found, scores = search(logits, [RepeatConstraint(size)], [max_length], 300)
    allowed = {ids for ids in all_sequences(max_length) if not repeats(ids, size)}
    best = max(allowed, key=lambda ids: score(ids, logits))
    assert tuple(found[0, 0][found[0, 0] != PAD_ID]) == best
    np.testing.assert_allclose(scores[0, 0], score(best, logits), rtol=1e-4)
    assert repeats(max(all_sequences(max_length), key=lambda ids: score(ids, logits)), size)


def test_the_guard_cuts_no_character():
    first_byte = 4
    text = "\U0001f600\U0001f601\U0001f600"  # in UTF-8 F0 9F 98, then 80 or 81
    path = [first_byte + byte for byte in text.encode()]

    def step_fn(ids, position, cache, row_state):
        following = tf.constant([*path, EOS_ID])[position]
        return tf.broadcast_to(9 * tf.one_hot(following, 260), [*ids.shape, 260]), cache, row_state

    def found(constraint):
        limits = tf.constant([20])
        step, cache, rows = constrained(step_fn, (), (), [constraint], tf.range(1), limits, 1)
        ids = beam_search(step, cache, limits, GREEDY, rows, 1).ids.numpy()[0, 0]
        return ids[ids != PAD_ID].tolist()

    assert found(RepeatConstraint(3, first_byte))[: len(path)] == path
    assert found(RepeatConstraint(3))[:7] != path[:7]  # F0 9F 98 again
    assert found(RepeatConstraint(1, first_byte))[4] != path[4]


def path_of(path, constraints, limit=30):
    """What a greedy search finds for a model that wants to write a path, and then the end."""

    def step_fn(ids, position, cache, row_state):
        following = tf.gather([*path, *[EOS_ID] * limit], position)
        logits = tf.broadcast_to(9 * tf.one_hot(following, VOCAB_SIZE), [*ids.shape, VOCAB_SIZE])
        return logits, cache, row_state

    limits = tf.constant([limit])
    step, cache, rows = constrained(step_fn, (), (), constraints, tf.range(1), limits, 1)
    ids = beam_search(step, cache, limits, GREEDY, rows, 1).ids.numpy()[0, 0]
    return ids[(ids != PAD_ID) & (ids != EOS_ID)].tolist()


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_counted_ids_and_the_spaces_before_them_may_repeat(size):
    space = 4
    guard = RepeatConstraint(size, spared=(OPEN, space))
    lists = [space, CLOSE] * 6, [OPEN, space, CLOSE, CLOSE, space, OPEN]
    for path, least in zip(lists, ([0, 6, 0], [2, 2, 0]), strict=True):
        assert path_of(path, [constraint([least], is_ordered=False), guard]) == path
    free = constraint([[0, 0, 0]], most=[[9, 9, 9]], is_ordered=False)
    assert path_of([space] * 6, [free, guard])[: size + 1] != [space] * (size + 1)
    words = [OPEN, CLOSE, OPEN, CLOSE, OPEN, CLOSE]
    assert path_of(words, [free, RepeatConstraint(size, spared=(OTHER, -1))]) != words


def test_what_another_constraint_needs_is_repeated():
    other = constraint([[0, 0, 6]], is_ordered=False)
    found, _ = search(logits_of(0), [other, RepeatConstraint(2)], [7], 3)
    assert found[0, 0].tolist().count(OTHER) == 6


def test_rows_repeat_apart():
    logits = logits_of(1)
    together, _ = search(logits, [constraint(LEAST), RepeatConstraint(2)], MAX_LENGTHS, 3)
    for row, max_length in enumerate(MAX_LENGTHS):
        of_row = constraint(LEAST[row : row + 1])
        alone, _ = search(logits, [of_row, RepeatConstraint(2)], [max_length], 3)
        np.testing.assert_array_equal(together[row, :, : alone.shape[2]], alone[0])
