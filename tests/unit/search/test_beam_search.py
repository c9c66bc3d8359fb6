"""Search over toy languages, of which every hypothesis can be listed."""

import math

import numpy as np
import pytest
import reference
import tensorflow as tf

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID, DecodingOptions
from keras_transformer.errors import InputError
from keras_transformer.search import beam_search as decoding
from keras_transformer.search.beam_search import beam_search

A, B, C = WORDS = 4, 5, 6  # the words of the toy languages
V = 7
NUM_STATES = 101


# Random languages: the logits depend on all tokens so far, by way of a state.


def random_tables(seed, rows, scale=2.0):
    """Logits of every state, float32 [rows, NUM_STATES, V]."""
    rng = np.random.default_rng(seed)
    return rng.normal(scale=scale, size=(rows, NUM_STATES, V)).astype("float32")


def next_state(state, token):
    return (state * V + token) % NUM_STATES


def table_step(tables):
    """The step function of a language. Its cache holds states, its row_state the rows' numbers."""

    def step(ids, position, states, rows):
        states = next_state(states, ids)  # [B, K]
        return tf.gather(tf.gather(tables, rows), states, batch_dims=1), states, rows

    return step


def table_log_probs(table, suppress=()):
    """The same language for the reference: prefix -> log probabilities, float64 [V]."""

    def log_probs(prefix):
        state = 0
        for token in (BOS_ID, *prefix):
            state = next_state(state, token)
        values = np.log(reference.softmax(table[state]))
        values[list(suppress)] = -np.inf
        return values

    return log_probs


def start(rows, beam_size):
    return tf.zeros([rows, beam_size], tf.int32)


def beams_of(tables, max_lengths, beam_size, length_penalty, **options):
    return beam_search(
        table_step(tables),
        start(len(tables), beam_size),
        tf.constant(max_lengths, tf.int32),
        DecodingOptions(beam_size=beam_size, length_penalty=length_penalty, **options),
        tf.range(len(tables)),
    )


def hypotheses_of(result, row):
    """A row's hypotheses as the reference has them: (tokens without padding, score)."""
    return [
        (tuple(int(token) for token in ids if token != PAD_ID), float(score))
        for ids, score in zip(result.ids.numpy()[row], result.scores.numpy()[row], strict=True)
        if score > -math.inf
    ]


def assert_same(actual, expected):
    """The same hypotheses; padding may be of different length."""
    length = max(actual.ids.shape[2], expected.ids.shape[2])
    padded = [
        np.pad(result.ids, [(0, 0), (0, 0), (0, length - result.ids.shape[2])])
        for result in (actual, expected)
    ]
    np.testing.assert_array_equal(*padded)
    np.testing.assert_allclose(actual.scores, expected.scores, rtol=1e-5)


# Drawn languages: the probability of every edge is given, so that scores can be had by hand.


def lattice_step(edges, calls=None):
    """A step function from {prefix: {token: probability}}; its cache holds the prefixes.

    What follows an unlisted prefix does not matter.
    """

    def step(ids, position, prefixes, row_state):
        if calls is not None:
            calls.append(int(position))
        prefixes = tf.concat([prefixes, ids[..., None]], axis=2)  # [1, K, T]
        probabilities = np.zeros((*ids.shape, V))
        for beam, prefix in enumerate(prefixes.numpy()[0]):
            assert prefix[0] == BOS_ID
            for token, probability in edges.get(tuple(prefix[1:]), {EOS_ID: 1.0}).items():
                probabilities[0, beam, token] = probability
        with np.errstate(divide="ignore"):
            logits = np.log(probabilities).astype("float32")
        return tf.constant(logits), prefixes, row_state

    return step


def search_lattice(edges, beam_size, length_penalty, limit, calls=None, **options):
    """The hypotheses of one row."""
    step, prefixes = lattice_step(edges, calls), tf.zeros([1, beam_size, 0], tf.int32)
    options = DecodingOptions(beam_size=beam_size, length_penalty=length_penalty, **options)
    return hypotheses_of(beam_search(step, prefixes, tf.constant([limit]), options), 0)


@pytest.fixture
def no_stopping(monkeypatch):
    """Searches go on as long as a sequence is live."""
    monkeypatch.setattr(
        decoding._Steps, "running", lambda steps, state: state.live_log_probs[:, 0] > -math.inf
    )


def assert_hypotheses(actual, expected):
    assert [tokens for tokens, _ in actual] == [tokens for tokens, _ in expected]
    assert [score for _, score in actual] == pytest.approx(
        [score for _, score in expected], rel=1e-5
    )


#        .6         .4
#   BOS ────► a ───────► EOS            a      .6 x .4      = .24   what greedy search finds
#    │        ├──.3──► b ──1.──► EOS    a b    .6 x .3 x 1. = .18
#    │        └──.3──► c ──1.──► EOS    a c    .6 x .3 x 1. = .18
#    │   .4         .9
#    └──────► b ───────► EOS            b      .4 x .9      = .36   the best
#             └──.1──► c ──1.──► EOS    b c    .4 x .1 x 1. = .04
GARDEN_PATH = {
    (): {A: 0.6, B: 0.4},
    (A,): {EOS_ID: 0.4, B: 0.3, C: 0.3},
    (B,): {EOS_ID: 0.9, C: 0.1},
    (A, B): {EOS_ID: 1.0},
    (A, C): {EOS_ID: 1.0},
    (B, C): {EOS_ID: 1.0},
}


def test_beam_of_two_wins_where_greedy_loses():
    greedy = search_lattice(GARDEN_PATH, beam_size=1, length_penalty=0.0, limit=5)
    assert_hypotheses(greedy, [((A, EOS_ID), math.log(0.24))])
    beam = search_lattice(GARDEN_PATH, beam_size=2, length_penalty=0.0, limit=5)
    assert_hypotheses(beam, [((B, EOS_ID), math.log(0.36)), ((A, EOS_ID), math.log(0.24))])


def test_early_stopping_saves_a_step(request):
    # After two steps the best live sequence has .18, the worse hypothesis .24.
    search_lattice(GARDEN_PATH, 2, 0.0, limit=5, calls=(calls := []))
    assert calls == [0, 1]
    request.getfixturevalue("no_stopping")
    search_lattice(GARDEN_PATH, 2, 0.0, limit=5, calls=(calls := []))
    assert calls == [0, 1, 2]


#        .4
#   BOS ────► EOS                                 (empty)   .4                 length 1
#    │   .6         .6
#    └──────► a ───────► EOS                      a         .6 x .6      = .36  length 2
#             └──.4──► a ──1.──► EOS              a a       .6 x .4 x 1. = .24  length 3
LENGTHS = {(): {EOS_ID: 0.4, A: 0.6}, (A,): {EOS_ID: 0.6, A: 0.4}, (A, A): {EOS_ID: 1.0}}


@pytest.mark.parametrize(
    ("length_penalty", "expected"),
    [
        # No penalty: .4 > .36 > .24.
        (0.0, [((EOS_ID,), math.log(0.4)), ((A, EOS_ID), math.log(0.36))]),
        # Penalties 6/6, 7/6, 8/6: -0.916, -0.876, -1.070.
        (1.0, [((A, EOS_ID), math.log(0.36) * 6 / 7), ((EOS_ID,), math.log(0.4))]),
        # Penalties 1, (7/6)^3, (8/6)^3: -0.916, -0.643, -0.602.
        (
            3.0,
            [
                ((A, A, EOS_ID), math.log(0.24) * (6 / 8) ** 3),
                ((A, EOS_ID), math.log(0.36) * (6 / 7) ** 3),
            ],
        ),
    ],
)
def test_length_penalty_changes_the_winner(length_penalty, expected):
    assert_hypotheses(
        search_lattice(LENGTHS, beam_size=2, length_penalty=length_penalty, limit=5), expected
    )


@pytest.mark.parametrize("beam_size", [1, 2])
def test_suppressed_tokens_count_in_the_normalizer(beam_size):
    # Padding, unknown and start are likelier than any word, and yet never chosen.
    edges = {(): {PAD_ID: 0.3, UNK_ID: 0.25, BOS_ID: 0.25, A: 0.15, EOS_ID: 0.05}}
    hypotheses = search_lattice(edges, beam_size, length_penalty=0.0, limit=1)
    expected = [((A,), math.log(0.15)), ((EOS_ID,), math.log(0.05))]
    assert_hypotheses(hypotheses, expected[:beam_size])


@pytest.mark.parametrize(("seed", "length_penalty"), [(1, 0.0), (2, 0.6), (3, 1.0)])
def test_wide_beam_is_exhaustive(seed, length_penalty):
    max_lengths = [3, 1, 4]
    beam_size = 127  # 121 hypotheses of at most 4 tokens over three words
    tables = random_tables(seed, rows=len(max_lengths))
    result = beams_of(tables, max_lengths, beam_size, length_penalty)
    for row, limit in enumerate(max_lengths):
        expected = reference.exhaustive_search(
            table_log_probs(tables[row]), EOS_ID, (EOS_ID, *WORDS), limit, length_penalty, beam_size
        )
        actual = hypotheses_of(result, row)
        # By tokens, since float32 may swap two that are almost equal.
        assert dict(actual) == pytest.approx(dict(expected), rel=1e-5)
        assert [score for _, score in actual] == sorted(dict(actual).values(), reverse=True)
        assert actual[0][0] == expected[0][0]


@pytest.mark.parametrize("length_penalty", [0.6, 1.3])
def test_length_penalty_of_marian(length_penalty):
    tables = random_tables(seed=4, rows=1)
    found = hypotheses_of(
        beams_of(tables, [4], 127, length_penalty, length_penalty_kind="marian"), 0
    )
    log_probs = reference.exhaustive_search(
        table_log_probs(tables[0]), EOS_ID, (EOS_ID, *WORDS), 4, 0.0, 127
    )
    expected = {tokens: value / len(tokens) ** length_penalty for tokens, value in log_probs}
    assert dict(found) == pytest.approx(expected, rel=1e-5)
    assert found[0][0] == max(expected, key=expected.get)


@pytest.mark.parametrize("beam_size", [2, 5])
@pytest.mark.parametrize(("seed", "length_penalty"), [(1, 0.0), (2, 0.6), (3, 1.0)])
def test_exact_early_stopping_changes_nothing(seed, length_penalty, beam_size, request):
    tables = random_tables(seed, rows=1)
    exact = beams_of(tables, [11], beam_size, length_penalty)
    request.getfixturevalue("no_stopping")
    assert_same(exact, beams_of(tables, [11], beam_size, length_penalty))


#        .3
#   BOS ────► EOS                                 (empty)   .3                    length 1
#    │   .6         .45
#    ├──────► a ───────► EOS                      a         .6 x .45     = .27    length 2
#    │        └──.55─► a ──1.──► EOS              a a       .6 x .55 x 1 = .33    length 3
#    └──.1──► b ──1.──► EOS                       b         .1 x 1.      = .1     length 2
FIRST = {
    (): {EOS_ID: 0.3, A: 0.6, B: 0.1},
    (A,): {EOS_ID: 0.45, A: 0.55},
    (B,): {EOS_ID: 1.0},
    (A, A): {EOS_ID: 1.0},
}


def test_first_hypotheses_end_the_search():
    # After two steps there are two hypotheses, of .3 and .27. The live sequence has .33.
    calls = []
    found = search_lattice(FIRST, 2, 0.0, limit=5, calls=calls, early_stopping="first")
    assert calls == [0, 1]
    assert_hypotheses(found, [((EOS_ID,), math.log(0.3)), ((A, EOS_ID), math.log(0.27))])
    found = search_lattice(FIRST, 2, 0.0, limit=5)
    assert_hypotheses(found, [((A, A, EOS_ID), math.log(0.33)), ((EOS_ID,), math.log(0.3))])


@pytest.mark.parametrize("early_stopping", ["exact", "first"])
@pytest.mark.parametrize("beam_size", [1, 3])
def test_rows_are_independent(beam_size, early_stopping):
    max_lengths = [7, 1, 11, 5, 2, 9, 8, 10]
    tables = random_tables(seed=8, rows=len(max_lengths))
    # The first row alone ends early, so it stays for more steps, and would find more.
    tables[0, :, EOS_ID] += 2.0
    tables[1:, :, EOS_ID] -= 3.0

    together = beams_of(tables, max_lengths, beam_size, 0.6, early_stopping=early_stopping)
    for row, limit in enumerate(max_lengths):
        table = tables[row : row + 1]
        alone = beams_of(table, [limit], beam_size, 0.6, early_stopping=early_stopping)
        assert_same(alone, decoding.Hypotheses(*(field[row : row + 1] for field in together)))


@pytest.mark.parametrize("length_penalty", [0.0, 0.6])
def test_greedy_is_the_plain_loop(length_penalty):
    max_lengths = [11, 1, 7, 5, 13]
    tables = random_tables(seed=8, rows=len(max_lengths))
    result = beams_of(tables, max_lengths, 1, length_penalty)
    ends = set()
    for row, limit in enumerate(max_lengths):
        log_probs = table_log_probs(tables[row], suppress=(PAD_ID, UNK_ID, BOS_ID))
        tokens, log_prob = reference.greedy_search(log_probs, EOS_ID, limit)
        score = log_prob / reference.gnmt_penalty(len(tokens), length_penalty)
        assert_hypotheses(hypotheses_of(result, row), [(tokens, score)])
        ends.add(tokens[-1] == EOS_ID)
    assert ends == {True, False}  # some were cut, some were not


def test_missing_hypotheses_have_no_score_and_no_tokens():
    result = beams_of(
        random_tables(seed=10, rows=2), max_lengths=[1, 3], beam_size=5, length_penalty=0.6
    )
    # EOS and three words are all that one token can say.
    assert np.isfinite(result.scores).tolist() == [[True] * 4 + [False], [True] * 5]
    assert result.scores.numpy()[0, 4] == -math.inf
    assert result.ids.numpy()[0, 4].tolist() == [PAD_ID] * 3
    assert (np.diff(result.scores.numpy()[1]) <= 0).all()


@pytest.mark.parametrize("beam_size", [1, 3])
def test_rows_that_have_ended_are_left_out(beam_size):
    max_lengths = [2, 9, 3, 9, 4, 9, 5, 9, 6, 9, 7]
    tables = random_tables(seed=15, rows=len(max_lengths))
    tables[..., EOS_ID] = -50.0  # every search continues to its limit
    sizes = []

    def step(ids, position, states, row_state):
        sizes.append(len(ids))
        assert states.shape == (len(row_state["rows"]), beam_size)
        logits, states, _ = table_step(tables)(ids, position, states, row_state["rows"])
        grown = tf.concat(
            [row_state["grown"], tf.cast(row_state["rows"], tf.int64)[:, None]], axis=1
        )
        assert (grown.numpy() == row_state["rows"].numpy()[:, None]).all()
        return logits, states, {"rows": row_state["rows"], "grown": grown}

    row_state = {"rows": tf.range(11), "grown": tf.zeros([11, 0], tf.int64)}
    options = DecodingOptions(beam_size=beam_size)
    result = beam_search(step, start(11, beam_size), tf.constant(max_lengths), options, row_state)
    # After 4 steps 3 of 11 have ended, which is more than a fifth; after 6, 2 of 8 have.
    assert sizes == [11] * 4 + [8] * 2 + [6] * 3
    for row, limit in enumerate(max_lengths):
        assert [len(tokens) for tokens, _ in hypotheses_of(result, row)] == [limit] * beam_size


@pytest.mark.parametrize("kind", [int, tf.constant])
@pytest.mark.parametrize(("seed", "num_best"), [(1, 1), (2, 2)])
def test_fewer_hypotheses_are_found_sooner(seed, num_best, kind):
    tables, max_lengths, steps = random_tables(seed, rows=6), [13] * 6, []

    def step(*arguments):
        steps.append(len(arguments[0]))
        return table_step(tables)(*arguments)

    options = DecodingOptions(beam_size=5, length_penalty=1.0)
    rows = start(6, 5), tf.constant(max_lengths), options, tf.range(6)
    some = beam_search(step, *rows, num_best=kind(num_best))
    row_steps = sum(steps)
    everything = beam_search(step, *rows)
    assert row_steps < sum(steps) - row_steps
    assert_same(
        decoding.Hypotheses(*(field[:, :num_best] for field in some)),
        decoding.Hypotheses(*(field[:, :num_best] for field in everything)),
    )


@pytest.mark.parametrize("count", [1, 5, 12])
@pytest.mark.parametrize("vocab_size", [13, 101, 96, 1024, 1031])
def test_top_is_that_of_all(vocab_size, count):
    rows = np.random.default_rng(16).normal(size=(7, vocab_size)).astype("float32")
    values, tokens = decoding._top(tf.constant(rows), count)
    expected = tf.math.top_k(rows, count)
    np.testing.assert_array_equal(values, expected.values)
    np.testing.assert_array_equal(tokens, expected.indices)
    # All are equal: any will do, but each once.
    _, tokens = decoding._top(tf.zeros([2, vocab_size]), count)
    assert [len(set(row)) for row in tokens.numpy()] == [count, count]
    # One token is allowed, the last: the others are tokens, too.
    only = tf.where(tf.range(vocab_size) == vocab_size - 1, 0.5, -float("inf"))
    values, tokens = decoding._top(only[None], count)
    assert (values[0, 0], tokens[0, 0]) == (0.5, vocab_size - 1)
    assert tf.reduce_max(tokens) < vocab_size


@pytest.mark.parametrize("beam_size", [1, 3])
def test_graph_is_eager(beam_size):
    def run(tables, max_lengths):
        num_rows = tf.size(max_lengths)
        states = tf.zeros([num_rows, beam_size], tf.int32)
        rows = tf.range(num_rows)
        options = DecodingOptions(beam_size=beam_size)
        return beam_search(table_step(tables), states, max_lengths, options, rows)

    graph = tf.function(
        run,
        input_signature=[
            tf.TensorSpec([None, NUM_STATES, V], tf.float32),
            tf.TensorSpec([None], tf.int32),
        ],
        autograph=False,
    )
    for rows, max_lengths in ((3, [7, 2, 5]), (2, [1, 3]), (0, [])):
        arguments = tf.constant(random_tables(14, rows)), tf.constant(max_lengths, tf.int32)
        assert_same(graph(*arguments), run(*arguments))
    assert (graph(*arguments).ids.dtype, graph(*arguments).scores.dtype) == (tf.int32, tf.float32)


@pytest.mark.parametrize("num_best", [0, 4])
def test_num_best_out_of_range(num_best):
    with pytest.raises(InputError, match=f"`num_best`.*Received: num_best={num_best}"):
        beam_search(
            table_step(random_tables(1, 1)),
            start(1, 3),
            tf.constant([3]),
            DecodingOptions(beam_size=3),
            num_best=num_best,
        )
