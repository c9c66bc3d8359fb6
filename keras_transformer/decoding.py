"""Greedy and beam search in a graph-mode loop (section 6.1; length penalty of Wu et al., 2016).

A search calls a function that returns the logits of the next token. It knows no model. A
*hypothesis* is a sequence that ends with its first `EOS_ID`, or that is cut at its row's maximum
length. Its score is log P / `length_divisor` in nats, of a length that counts `EOS_ID`.

Shapes (the package's glossary): B batch, K beams, V vocabulary, T tokens so far.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from keras_transformer.config import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    UNK_ID,
    DecodingOptions,
    LengthPenaltyKind,
)
from keras_transformer.errors import InputError

# (newest ids [B, K], position [], cache, row_state) -> (logits [B, K, V], cache, row_state)
#
# `cache` and `row_state` are nests of tensors: `cache` has a leading dimension of B * K and is
# gathered when hypotheses change places; `row_state` has a leading dimension of B. A dimension that
# grows with the steps has size 0 at first. The search drops rows when they end, so the function
# must not keep tensors of rows elsewhere.
StepFunction = Callable[[tf.Tensor, tf.Tensor, Any, Any], tuple[tf.Tensor, Any, Any]]

# No translation contains these tokens.
SUPPRESSED_IDS = (PAD_ID, UNK_ID, BOS_ID)

MIN_SHARE_TO_DROP = 0.2  # ended rows are dropped when they are more than this share of the rows


class Hypotheses(NamedTuple):
    """The result of a search, best hypothesis first.

    Attributes:
        ids: int32 [B, K, T], padded after `EOS_ID`.
        scores: float32 [B, K], log probability in nats over the length penalty. Where a row has
            fewer than K hypotheses, the score is -inf and the ids are padding.
    """

    ids: tf.Tensor
    scores: tf.Tensor


class BeamState(NamedTuple):
    """State of the beam search between two steps."""

    step: tf.Tensor  # int32 [], tokens of each live sequence
    live_ids: tf.Tensor  # int32 [B, K, T], the best unfinished sequences
    live_log_probs: tf.Tensor  # float32 [B, K]; -inf where there is no sequence
    finished_ids: tf.Tensor  # int32 [B, K, T], the best hypotheses so far, best first
    finished_scores: tf.Tensor  # float32 [B, K]; -inf where there is no hypothesis
    cache: Any  # the step function's state of the live sequences
    row_state: Any  # the step function's state of the rows


class GreedyState(NamedTuple):
    """State of the greedy search between two steps."""

    step: tf.Tensor  # int32 [], tokens of each sequence
    ids: tf.Tensor  # int32 [B, T]
    log_probs: tf.Tensor  # float32 [B]
    finished: tf.Tensor  # bool [B]
    cache: Any  # the step function's state of the sequences
    row_state: Any  # the step function's state of the rows


def length_divisor(
    length: tf.Tensor, length_penalty: float, kind: LengthPenaltyKind = "gnmt"
) -> tf.Tensor:
    """Computes the divisor of a log probability: a hypothesis of more tokens has a larger one.

    Args:
        length: int, any shape, in tokens, `EOS_ID` included.
        length_penalty: strength of the penalty; 0 for none.
        kind: "gnmt" for ((5 + length) / 6)^length_penalty (Wu et al., 2016), or "marian" for
            length^length_penalty.

    Returns:
        float32, of the shape of `length`.
    """
    length = tf.cast(length, tf.float32)
    return ((5.0 + length) / 6.0 if kind == "gnmt" else length) ** length_penalty


def search(
    step_fn: StepFunction,
    cache: Any,
    max_lengths: tf.Tensor,
    beam_size: int,
    length_penalty: float,
    row_state: Any = (),
    num_best: int | None = None,
    kind: LengthPenaltyKind = "gnmt",
) -> Hypotheses:
    """Calls `beam_search`, or `greedy_search` if `beam_size` is 1."""
    check_options(beam_size, length_penalty, num_best)
    if beam_size == 1:
        return greedy_search(step_fn, cache, max_lengths, length_penalty, row_state, kind)
    return beam_search(
        step_fn, cache, max_lengths, beam_size, length_penalty, row_state, num_best, kind=kind
    )


def check_options(beam_size: int, length_penalty: float, num_best: int | None = None) -> None:
    """Raises `InputError` if an option of a search is out of range."""
    DecodingOptions(beam_size=beam_size, length_penalty=length_penalty)
    if num_best is not None and not 1 <= num_best <= beam_size:
        raise InputError(
            "`num_best` must be at least 1 and at most `beam_size`. "
            f"Received: num_best={num_best}, beam_size={beam_size}"
        )


def greedy_search(
    step_fn: StepFunction,
    cache: Any,
    max_lengths: tf.Tensor,
    length_penalty: float = 0.6,
    row_state: Any = (),
    kind: LengthPenaltyKind = "gnmt",
) -> Hypotheses:
    """Takes the likeliest token at every step, until `EOS_ID` or a row's maximum length.

    Args:
        step_fn: returns the logits of the next token, as for `beam_search`; K = 1.
        cache: the cache before the first step, leading dimension B.
        max_lengths: int32 [B], maximum length of each row.
        length_penalty: strength of the score's length penalty. It does not change the tokens.
        row_state: the state of the rows before the first step, leading dimension B.
        kind: of the length penalty; see `length_divisor`.

    Returns:
        One hypothesis for each row.
    """
    check_options(1, length_penalty)
    batch_size = tf.shape(max_lengths)[0]
    initial = GreedyState(
        step=tf.constant(0),
        ids=tf.zeros([batch_size, 0], tf.int32),
        log_probs=tf.zeros([batch_size]),
        finished=tf.zeros([batch_size], tf.bool),
        cache=cache,
        row_state=row_state,
    )

    def running(state: GreedyState, max_lengths: tf.Tensor) -> tf.Tensor:
        return ~state.finished

    def advance(state: GreedyState, max_lengths: tf.Tensor) -> GreedyState:
        logits, cache, row_state = step_fn(
            _newest(state.ids)[:, None], state.step, state.cache, state.row_state
        )
        values, tokens, log_normalizer = _top_tokens(logits, 1)  # [B, 1, 1]
        step = state.step + 1
        log_probs = state.log_probs + (values - log_normalizer)[:, 0, 0]
        tokens = tf.where(state.finished, PAD_ID, tokens[:, 0, 0])
        return GreedyState(
            step=step,
            ids=tf.concat([state.ids, tokens[:, None]], axis=1),
            log_probs=tf.where(state.finished, state.log_probs, log_probs),
            finished=state.finished | (tokens == EOS_ID) | (step >= max_lengths),
            cache=cache,
            row_state=row_state,
        )

    def hypotheses(state: GreedyState) -> Hypotheses:
        lengths = tf.reduce_sum(tf.cast(state.ids != PAD_ID, tf.int32), axis=1)
        scores = state.log_probs / length_divisor(lengths, length_penalty, kind)
        return Hypotheses(state.ids[:, None], scores[:, None])

    return _search_rows(initial, max_lengths, 1, running, advance, hypotheses)


def beam_search(
    step_fn: StepFunction,
    cache: Any,
    max_lengths: tf.Tensor,
    beam_size: int,
    length_penalty: float = 0.6,
    row_state: Any = (),
    num_best: int | None = None,
    early_stop: bool = True,
    kind: LengthPenaltyKind = "gnmt",
) -> Hypotheses:
    """Keeps the K likeliest sequences at every step, and the K best hypotheses of all steps.

    Args:
        step_fn: takes the newest tokens, int32 [B, K], their position, int32 [], `cache` and
            `row_state`; returns the logits of the next token, float32 [B, K, V], and the new
            `cache` and `row_state`.
        cache: the state of the hypotheses before the first step, leading dimension B * K.
        max_lengths: int32 [B], maximum length of each row's hypotheses.
        beam_size: K.
        length_penalty: strength of the length penalty (0.6: section 6.1).
        row_state: the state of the rows before the first step, leading dimension B.
        num_best: number of hypotheses of a row that are needed; None for all K. The search of a row
            ends as soon as these are final.
        early_stop: whether to end the search of a row when more steps cannot change its result: no
            continuation of a live sequence scores above log P / penalty(max_length).
        kind: of the length penalty; see `length_divisor`.

    Returns:
        K hypotheses for each row, best first.

    Raises:
        InputError: if `beam_size`, `length_penalty` or `num_best` is out of range.

    Example:
        >>> import numpy as np
        >>> import tensorflow as tf
        >>> from keras_transformer import beam_search
        >>> after = np.full((6, 6), 1e-9, np.float32)  # probabilities after a token; 3 is the end
        >>> after[2, [4, 5]] = 0.6, 0.4  # greedy search begins with 4
        >>> after[4, [3, 4]] = 0.55, 0.45
        >>> after[5, 3] = 1.0
        >>> def step_fn(ids, position, cache, row_state):
        ...     return tf.gather(np.log(after), ids), cache, row_state
        >>> found = beam_search(step_fn, (), tf.constant([7]), beam_size=2, length_penalty=0.0)
        >>> print(found.ids[0].numpy(), np.exp(found.scores[0]).round(2))
        [[5 3]
         [4 3]] [0.4  0.33]
    """
    check_options(beam_size, length_penalty, num_best)
    batch_size = tf.shape(max_lengths)[0]
    only_first = tf.where(tf.range(beam_size) == 0, 0.0, -float("inf"))  # [K]
    initial = BeamState(
        step=tf.constant(0),
        live_ids=tf.zeros([batch_size, beam_size, 0], tf.int32),
        live_log_probs=tf.tile(only_first[None], [batch_size, 1]),
        finished_ids=tf.zeros([batch_size, beam_size, 0], tf.int32),
        finished_scores=tf.fill([batch_size, beam_size], -float("inf")),
        cache=cache,
        row_state=row_state,
    )

    def running(state: BeamState, max_lengths: tf.Tensor) -> tf.Tensor:
        best = state.live_log_probs[:, 0]  # [B]
        if not early_stop:
            return best > -float("inf")
        worst_needed = state.finished_scores[:, (num_best or beam_size) - 1]
        return worst_needed < best / length_divisor(max_lengths, length_penalty, kind)

    def advance(state: BeamState, max_lengths: tf.Tensor) -> BeamState:
        logits, cache, row_state = step_fn(
            _newest(state.live_ids), state.step, state.cache, state.row_state
        )
        state = state._replace(cache=cache, row_state=row_state)
        return _advance_beams(state, logits, max_lengths, length_penalty, kind)

    def hypotheses(state: BeamState) -> Hypotheses:
        return Hypotheses(state.finished_ids, state.finished_scores)

    return _search_rows(initial, max_lengths, beam_size, running, advance, hypotheses)


def _advance_beams(
    state: BeamState,
    logits: tf.Tensor,
    max_lengths: tf.Tensor,
    length_penalty: float,
    kind: LengthPenaltyKind,
) -> BeamState:
    """Extends every live sequence by its likeliest tokens and collects the finished ones."""
    beam_size = state.live_ids.shape[1]
    step = state.step + 1

    # At most K of the best 2K candidates end in EOS, so at least K stay live. Of a single beam, at
    # most K + 1 candidates are needed: EOS, and K that stay live.
    per_beam = min(beam_size + 1, logits.shape[-1])
    num_candidates = min(2 * beam_size, beam_size * per_beam)
    values, tokens, log_normalizer = _top_tokens(logits, per_beam)  # [B, K, K + 1]
    log_probs = state.live_log_probs[..., None] + values - log_normalizer
    log_probs, choice = tf.math.top_k(_merge_beams(log_probs), num_candidates)  # [B, 2K]
    tokens = tf.gather(_merge_beams(tokens), choice, batch_dims=1)  # [B, 2K]
    beams = choice // per_beam  # [B, 2K]
    ids = tf.gather(state.live_ids, beams, batch_dims=1)  # [B, 2K, T]
    ids = tf.concat([ids, tokens[..., None]], axis=2)  # [B, 2K, T + 1]

    # Only the K best candidates may become hypotheses.
    is_eos = tokens == EOS_ID
    is_cut = (step >= max_lengths)[:, None]  # [B, 1]
    is_final = (is_eos | is_cut)[:, :beam_size]  # [B, K]
    scores = log_probs[:, :beam_size] / length_divisor(step, length_penalty, kind)
    scores = tf.where(is_final, scores, -float("inf"))
    # top_k takes the first of equal scores. The earlier hypotheses come first, so that entries of
    # score -inf keep their padding.
    all_scores = tf.concat([state.finished_scores, scores], axis=1)  # [B, 2K]
    padded_ids = tf.pad(state.finished_ids, [[0, 0], [0, 0], [0, 1]], constant_values=PAD_ID)
    all_ids = tf.concat([padded_ids, ids[:, :beam_size]], axis=1)  # [B, 2K, T + 1]
    finished_scores, best = tf.math.top_k(all_scores, beam_size)  # [B, K]
    finished_ids = tf.gather(all_ids, best, batch_dims=1)  # [B, K, T + 1]

    live_log_probs = tf.where(is_eos | is_cut, -float("inf"), log_probs)
    live_log_probs, best = tf.math.top_k(live_log_probs, beam_size)  # [B, K]
    beams = tf.gather(beams, best, batch_dims=1)  # [B, K]
    parents = tf.reshape(tf.range(tf.shape(beams)[0])[:, None] * beam_size + beams, [-1])
    return BeamState(
        step=step,
        live_ids=tf.gather(ids, best, batch_dims=1),  # [B, K, T + 1]
        live_log_probs=live_log_probs,
        finished_ids=finished_ids,
        finished_scores=finished_scores,
        cache=_gather(state.cache, parents),
        row_state=state.row_state,
    )


def _top_tokens(logits: tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the best tokens that are not suppressed; the softmax is over all tokens.

    [B, K, V] -> logits and ids, [B, K, count], and the log of the softmax's normalizer, [B, K, 1].
    """
    num_beams, vocab_size = logits.shape[1:]
    rows = tf.reshape(logits, [-1, vocab_size])  # [B * K, V]
    count_all = min(count + len(SUPPRESSED_IDS), vocab_size)
    values, tokens = _top(rows, count_all)
    # softmax(logit) = exp(logit - log_normalizer)
    probability = tf.gather(tf.nn.softmax(rows), tokens[:, :1], batch_dims=1)  # [B * K, 1]
    log_normalizer = values[:, :1] - tf.math.log(probability)
    is_suppressed = tf.reduce_any(tokens[..., None] == tf.constant(SUPPRESSED_IDS), axis=2)
    values, places = tf.math.top_k(tf.where(is_suppressed, -float("inf"), values), count)
    tokens = tf.gather(tokens, places, batch_dims=1)
    values, tokens, log_normalizer = (
        tf.reshape(x, [-1, num_beams, x.shape[1]]) for x in (values, tokens, log_normalizer)
    )
    return values, tokens, log_normalizer


def _top(rows: tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes `tf.math.top_k` of rows [R, V], faster.

    The `count` largest values are in the `count` chunks with the largest maxima, so only those
    chunks are sorted. The order of equal values may differ.
    """
    vocab_size = rows.shape[1]
    sizes = [size for size in range(1, vocab_size + 1) if vocab_size % size == 0]
    sizes = [size for size in sizes if size % 16 == 0] or sizes  # the width of a vector register
    chunk = min(sizes, key=lambda size: vocab_size // size + count * size)
    num_chunks = vocab_size // chunk
    if count >= num_chunks:
        return tf.math.top_k(rows, count)
    chunked = tf.reshape(rows, [-1, num_chunks, chunk])
    chunks = tf.math.top_k(tf.reduce_max(chunked, axis=2), count).indices  # [R, count]
    found = tf.reshape(tf.gather(chunked, chunks, batch_dims=1), [-1, count * chunk])
    values, places = tf.math.top_k(found, count)
    return values, tf.gather(chunks, places // chunk, batch_dims=1) * chunk + places % chunk


def _merge_beams(x: tf.Tensor) -> tf.Tensor:
    """[B, K, n] -> [B, K * n]."""
    return tf.reshape(x, [-1, x.shape[1] * x.shape[2]])


def _newest(ids: tf.Tensor) -> tf.Tensor:
    """Returns the last token of each sequence, [..., T] -> [...]; `BOS_ID` where T is 0."""
    started = tf.pad(ids, [[0, 0]] * (len(ids.shape) - 1) + [[1, 0]], constant_values=BOS_ID)
    return started[..., -1]


def _search_rows(
    initial: Any,
    max_lengths: tf.Tensor,
    beam_size: int,
    running: Callable[[Any, tf.Tensor], tf.Tensor],
    advance: Callable[[Any, tf.Tensor], Any],
    hypotheses: Callable[[Any], Hypotheses],
) -> Hypotheses:
    """Advances a `BeamState` or `GreedyState` until all rows have ended.

    The loop advances the rows that are left until enough of them have ended, stores what all of
    them have found so far, and drops those that have ended. `running` returns bool [B].
    """

    def advance_and_drop(
        rows: tf.Tensor, state: Any, found: Hypotheses
    ) -> tuple[tf.Tensor, Any, Hypotheses]:
        lengths = tf.gather(max_lengths, rows)
        state = _advance_until_rows_end(state, lengths, running, advance)
        found = _store(found, rows, hypotheses(state))
        left = tf.cast(tf.where(running(state, lengths))[:, 0], tf.int32)
        return tf.gather(rows, left), _take(state, left, beam_size), found

    num_rows = tf.size(max_lengths)
    none_found = Hypotheses(
        tf.zeros([num_rows, beam_size, 0], tf.int32), tf.zeros([num_rows, beam_size])
    )
    variables = (tf.range(num_rows), initial, none_found)
    _, _, found = tf.while_loop(
        lambda rows, state, found: tf.size(rows) > 0,
        advance_and_drop,
        variables,
        shape_invariants=tf.nest.map_structure(_growing, variables),
        parallel_iterations=1,
    )
    return found


def _advance_until_rows_end(
    state: Any,
    max_lengths: tf.Tensor,
    running: Callable[[Any, tf.Tensor], tf.Tensor],
    advance: Callable[[Any, tf.Tensor], Any],
) -> Any:
    """Advances all rows until more than `MIN_SHARE_TO_DROP` of them, or all, have ended."""
    min_running = (1 - MIN_SHARE_TO_DROP) * tf.cast(tf.size(max_lengths), tf.float32)

    def are_enough_running(state: Any) -> tf.Tensor:
        number = tf.math.count_nonzero(running(state, max_lengths), dtype=tf.int32)
        return (number > 0) & (tf.cast(number, tf.float32) >= min_running)

    (state,) = tf.while_loop(
        are_enough_running,
        lambda state: (advance(state, max_lengths),),
        [state],
        shape_invariants=[tf.nest.map_structure(_growing, state)],
        parallel_iterations=1,
    )
    return state


def _store(found: Hypotheses, rows: tf.Tensor, newer: Hypotheses) -> Hypotheses:
    """Replaces the hypotheses of some rows, int32 [any], by newer ones, which may be longer."""
    missing = tf.shape(newer.ids)[2] - tf.shape(found.ids)[2]
    padded = tf.pad(found.ids, [[0, 0], [0, 0], [0, missing]])
    return Hypotheses(
        tf.tensor_scatter_nd_update(padded, rows[:, None], newer.ids),
        tf.tensor_scatter_nd_update(found.scores, rows[:, None], newer.scores),
    )


def _take(state: Any, rows: tf.Tensor, beam_size: int) -> Any:
    """Returns the state of some rows, int32 [any]."""
    beams = tf.reshape(rows[:, None] * beam_size + tf.range(beam_size), [-1])
    fields = state._asdict()
    step, cache = fields.pop("step"), fields.pop("cache")
    return type(state)(step=step, cache=_gather(cache, beams), **_gather(fields, rows))


def _gather(nest: Any, rows: tf.Tensor) -> Any:
    return tf.nest.map_structure(lambda tensor: tf.gather(tensor, rows), nest)


def _growing(tensor: tf.Tensor) -> tf.TensorShape:
    """Returns the shape of a loop variable. Rows are dropped, and dimensions of size 0 grow."""
    return tf.TensorShape([None, *(size or None for size in tensor.shape[1:])][: tensor.shape.rank])
