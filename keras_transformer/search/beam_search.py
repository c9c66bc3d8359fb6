"""Beam search in a graph-mode loop (section 6.1; length penalty of Wu et al., 2016).

A search calls a function that returns the logits of the next token. It knows no model. A
*hypothesis* is a sequence that ends with its first `EOS_ID`, or that is cut at its row's maximum
length. Its score is log P / `length_divisor` in nats. The length includes `EOS_ID`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from keras_transformer.config import BOS_ID, EOS_ID, DecodingOptions, LengthPenaltyKind
from keras_transformer.errors import InputError

# (newest ids int32 [B, K], position int32 [], cache, row_state)
# -> (logits of the next token float32 [B, K, V], cache, row_state)
#
# `cache` and `row_state` are nests of tensors: `cache` has leading dimensions B, K and is gathered
# when hypotheses change places; `row_state` has a leading dimension of B. A dimension that grows
# with the steps has size 0 at first. The search drops rows when they end, so the function must not
# keep tensors of rows elsewhere.
StepFunction = Callable[[tf.Tensor, tf.Tensor, Any, Any], tuple[tf.Tensor, Any, Any]]


class Step(Protocol):
    """The step function of a model, and its state before the first step."""

    def initial_state(self, source_ids: tf.Tensor, beam_size: int) -> tuple[Any, Any]:
        """Encodes sources, int32 [B, S], and returns the `cache` and the `row_state`."""

    def __call__(
        self, ids: tf.Tensor, position: tf.Tensor, cache: Any, row_state: Any, /
    ) -> tuple[tf.Tensor, Any, Any]:
        """Is the `StepFunction`."""


PADDED_TO = 64  # a multiple of it has good divisors
NUM_SUPPRESSED = 3  # no translation contains the ids below: `PAD_ID`, `UNK_ID` and `BOS_ID`
MIN_SHARE_TO_DROP = 0.2  # ended rows are dropped when they are more than this share of the rows


class Hypotheses(NamedTuple):
    """The result of a search, best hypothesis first.

    Where a row has fewer than K hypotheses, the score is -inf and the ids are padding.
    """

    ids: tf.Tensor  # int32 [B, K, T], padded after `EOS_ID`
    scores: tf.Tensor  # float32 [B, K], log probability in nats over the length penalty


class BeamState(NamedTuple):
    """State of the beam search between two steps."""

    step: tf.Tensor  # int32 [], tokens of each live sequence
    live_log_probs: tf.Tensor  # float32 [B, K], best first; -inf where there is no sequence
    finished_scores: tf.Tensor  # float32 [B, K], best first; -inf where there is no hypothesis
    ids: tf.Tensor  # int32 [B, 2K, T], of the live sequences, then of the hypotheses
    newest: tf.Tensor  # int32 [B, K], the last tokens of the live sequences
    cache: Any  # the step function's state of the live sequences
    row_state: Any  # the step function's state of the rows


def length_divisor(
    length: tf.Tensor, length_penalty: float, kind: LengthPenaltyKind = "gnmt"
) -> tf.Tensor:
    """Computes what divides the log probability of `length` tokens, EOS included.

    It is ((5 + length) / 6)^`length_penalty` for the `kind` "gnmt" (Wu et al., 2016), and
    length^`length_penalty` for "marian".
    """
    length = tf.cast(length, tf.float32)
    return ((5.0 + length) / 6.0 if kind == "gnmt" else length) ** length_penalty


def beam_search(
    step_fn: StepFunction,
    cache: Any,
    max_lengths: tf.Tensor,
    options: DecodingOptions,
    row_state: Any = (),
    num_best: int | tf.Tensor | None = None,
) -> Hypotheses:
    """Keeps the K likeliest sequences at every step, and the K best hypotheses of all steps.

    The search of a row ends when more steps cannot change its result, because no continuation of a
    live sequence scores above log P / penalty(max_length), or early, when it has K hypotheses. With
    one beam it is a greedy search, which ends with its first hypothesis.

    Args:
        step_fn: a `StepFunction`, of the newest tokens, their position, `cache` and `row_state`.
        cache: the state of the hypotheses before the first step, leading dimensions B, K.
        max_lengths: int32 [B], maximum length of each row's hypotheses, at least 1.
        options: the number of beams, K, the length penalty and its kind, and `early_stopping`; the
            other options have no effect.
        row_state: the state of the rows before the first step, leading dimension B.
        num_best: number of hypotheses of a row that are needed, an int or int32 []; None for all K.
            The search of a row ends as soon as these are final.

    Returns:
        K hypotheses for each row, best first.

    Raises:
        InputError: if `num_best` is out of range.

    Example:
        >>> import numpy as np
        >>> import tensorflow as tf
        >>> from keras_transformer import DecodingOptions, beam_search
        >>> after = np.full((6, 6), 1e-9, np.float32)  # probabilities after a token; 3 is the end
        >>> after[2, [4, 5]] = 0.6, 0.4  # greedy search begins with 4
        >>> after[4, [3, 4]] = 0.55, 0.45
        >>> after[5, 3] = 1.0
        >>> def step_fn(ids, position, cache, row_state):
        ...     return tf.gather(np.log(after), ids), cache, row_state
        >>> options = DecodingOptions(beam_size=2, length_penalty=0.0)
        >>> result = beam_search(step_fn, (), tf.constant([7]), options)
        >>> print(result.ids[0].numpy(), np.exp(result.scores[0]).round(2))
        [[5 3]
         [4 3]] [0.4  0.33]
    """
    beam_size = options.beam_size
    if isinstance(num_best, int) and not 1 <= num_best <= beam_size:
        raise InputError(
            "`num_best` must be at least 1 and at most `beam_size`. "
            f"Received: num_best={num_best}, beam_size={beam_size}"
        )
    num_needed = beam_size if num_best is None else num_best
    batch_size = tf.shape(max_lengths)[0]
    only_first = tf.where(tf.range(beam_size) == 0, 0.0, -float("inf"))  # [K]
    initial = BeamState(
        step=tf.constant(0),
        live_log_probs=tf.tile(only_first[None], [batch_size, 1]),
        finished_scores=tf.fill([batch_size, beam_size], -float("inf")),
        ids=tf.zeros([batch_size, 2 * beam_size, 0], tf.int32),
        newest=tf.fill([batch_size, beam_size], BOS_ID),
        cache=cache,
        row_state=row_state,
    )
    # `reduce_max` of an empty tensor is the smallest int32.
    longest = tf.maximum(tf.reduce_max(max_lengths), 0)
    divisors = length_divisor(
        tf.range(longest + 1), options.length_penalty, options.length_penalty_kind
    )

    def steps_of(max_lengths: tf.Tensor) -> _Steps:
        return _Steps(step_fn, options, max_lengths, divisors, num_needed)

    return _search_rows(initial, max_lengths, steps_of)


class _Steps:
    """The steps of a beam search for a fixed set of rows."""

    def __init__(
        self,
        step_fn: StepFunction,
        options: DecodingOptions,
        max_lengths: tf.Tensor,  # [B]
        divisors: tf.Tensor,  # float32 [T + 1], of all lengths
        num_needed: int | tf.Tensor,
    ) -> None:
        self.step_fn = step_fn
        self.beam_size = options.beam_size
        self.ends_early = options.beam_size == 1 or options.early_stopping == "first"
        self.divisors = divisors
        self.num_needed = num_needed
        self.limits = max_lengths[:, None]  # [B, 1]
        self.largest_divisors = tf.gather(divisors, max_lengths)  # [B]
        self.zeros = tf.zeros_like(self.limits)

    def running(self, state: BeamState) -> tf.Tensor:
        """Returns whether the search of each row goes on, bool [B]."""
        best = state.live_log_probs[:, 0]  # [B]
        if self.ends_early:
            return best > -float("inf")
        worst_needed = state.finished_scores[:, self.num_needed - 1]
        return worst_needed < best / self.largest_divisors

    def advance(self, state: BeamState) -> BeamState:
        """Extends every live sequence by its likeliest tokens, and every hypothesis by padding."""
        # The candidates are one list, for the same gathers: `per_beam` tokens for each of the K
        # live sequences, then `per_beam` padding tokens for each of the K hypotheses.
        beam_size = self.beam_size
        logits, cache, row_state = self.step_fn(
            state.newest, state.step, state.cache, state.row_state
        )
        step = state.step + 1
        # At most K of the best 2K candidates end in EOS, so at least K stay live. Of a single
        # sequence, at most K + 1 are needed: EOS, and K that stay live.
        log_probs, tokens = _top_tokens(logits, beam_size + 1)  # [B, K, n]
        per_beam = tokens.shape[2]
        log_probs = _merge_beams(log_probs + tf.expand_dims(state.live_log_probs, 2))  # [B, K * n]
        log_probs, candidates = tf.math.top_k(log_probs, 2 * beam_size)  # [B, 2K]
        tokens = tf.pad(_merge_beams(tokens), [[0, 0], [0, beam_size * per_beam]])  # [B, 2K * n]

        is_final = tf.gather(tokens, candidates, batch_dims=1) == EOS_ID
        is_final |= step >= self.limits
        # Only the K best candidates may become hypotheses.
        scores = log_probs[:, :beam_size] / tf.gather(self.divisors, step)
        scores = tf.where(is_final[:, :beam_size], scores, -float("inf"))
        # top_k takes the first of equal scores: an earlier hypothesis.
        all_scores = tf.concat([state.finished_scores, scores], axis=1)  # [B, 2K]
        finished_scores, finished = tf.math.top_k(all_scores, beam_size)  # [B, K]
        live_log_probs = tf.where(is_final, -float("inf"), log_probs)  # [B, 2K]
        live_log_probs, live = tf.math.top_k(live_log_probs, beam_size)  # [B, K]
        if self.ends_early:  # a row with K hypotheses finds no more
            has_all = finished_scores[:, -1:] > -float("inf")
            live_log_probs = tf.where(has_all, -float("inf"), live_log_probs)

        hypotheses = np.arange(beam_size, 2 * beam_size) * per_beam  # [K]
        places = tf.concat([self.zeros + hypotheses, candidates], axis=1)  # [B, 3K]
        chosen = tf.concat([live + beam_size, finished], axis=1)  # [B, 2K]
        chosen = tf.gather(places, chosen, batch_dims=1)  # [B, 2K]
        parents = chosen // per_beam  # [B, 2K]
        tokens = tf.gather(tokens, chosen, batch_dims=1)  # [B, 2K]
        ids = tf.gather(state.ids, parents, batch_dims=1)  # [B, 2K, T]
        parents = parents[:, :beam_size]
        return BeamState(
            step=step,
            live_log_probs=live_log_probs,
            finished_scores=finished_scores,
            ids=tf.concat([ids, tf.expand_dims(tokens, 2)], axis=2),  # [B, 2K, T + 1]
            newest=tokens[:, :beam_size],
            cache=tf.nest.map_structure(
                lambda tensor: tf.gather(tensor, parents, batch_dims=1), cache
            ),
            row_state=row_state,
        )


def _top_tokens(logits: tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the log probabilities and ids of the best tokens, [B, K, V] -> [B, K, n].

    There are enough that `count` may follow; suppressed ones have -inf. The softmax is over all.
    """
    num_beams, vocab_size = logits.shape[1:]
    rows = tf.reshape(logits, [-1, vocab_size])  # [B * K, V]
    count = min(count + NUM_SUPPRESSED, vocab_size)
    values, tokens = _top(rows, count)  # [B * K, n]
    # softmax(logit) = exp(logit - log_normalizer)
    best = tf.gather(tf.nn.softmax(rows), tokens[:, :1], batch_dims=1)  # [B * K, 1]
    log_probs = values - (values[:, :1] - tf.math.log(best))
    log_probs = tf.where(tokens < NUM_SUPPRESSED, -float("inf"), log_probs)
    shape = [-1, num_beams, count]
    return tf.reshape(log_probs, shape), tf.reshape(tokens, shape)


def _top(rows: tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes `tf.math.top_k` of rows [R, V], faster.

    The `count` largest values are in the `count` chunks with the largest maxima, so only those
    chunks are sorted. The order of equal values may differ.
    """
    vocab_size = rows.shape[1]
    sizes = [size for size in range(1, vocab_size + 1) if vocab_size % size == 0]
    sizes = [size for size in sizes if size % 16 == 0] or sizes  # the width of a vector register
    chunk = min(sizes, key=lambda size: vocab_size // size + count * size)
    padding = -vocab_size % PADDED_TO
    # A prime, such as 32,003, has no chunks.
    if padding and vocab_size // chunk + count * chunk > vocab_size // 4:
        padded = tf.pad(rows, [[0, 0], [0, padding]], constant_values=-float("inf"))
        values, tokens = _top(padded, count)
        return values, tf.minimum(tokens, vocab_size - 1)
    num_chunks = vocab_size // chunk
    if count >= num_chunks:
        return tf.math.top_k(rows, count)
    chunked = tf.reshape(rows, [-1, num_chunks, chunk])
    chunks = tf.math.top_k(tf.reduce_max(chunked, axis=2), count).indices  # [R, count]
    candidates = tf.reshape(tf.gather(chunked, chunks, batch_dims=1), [-1, count * chunk])
    values, places = tf.math.top_k(candidates, count)
    return values, tf.gather(chunks, places // chunk, batch_dims=1) * chunk + places % chunk


def _merge_beams(x: tf.Tensor) -> tf.Tensor:
    """[B, K, n] -> [B, K * n]."""
    return tf.reshape(x, [-1, x.shape[1] * x.shape[2]])


def _search_rows(
    initial: BeamState, max_lengths: tf.Tensor, steps_of: Callable[[tf.Tensor], _Steps]
) -> Hypotheses:
    """Advances a state until all rows have ended; drops ended rows now and then.

    `steps_of` takes the indices of the rows that are left, int32 [R].
    """
    num_rows, beam_size = tf.size(max_lengths), initial.newest.shape[1]

    def advance_and_drop(
        rows: tf.Tensor, state: BeamState, results: Hypotheses
    ) -> tuple[tf.Tensor, BeamState, Hypotheses]:
        steps = steps_of(tf.gather(max_lengths, rows))
        state = _advance_until_rows_end(state, tf.size(rows), steps)
        newer = Hypotheses(state.ids[:, beam_size:], state.finished_scores)
        results = _store(results, rows, newer)
        left = tf.cast(tf.where(steps.running(state))[:, 0], tf.int32)
        taken = tf.nest.map_structure(
            lambda tensor: tf.gather(tensor, left), state._replace(step=())
        )
        return tf.gather(rows, left), taken._replace(step=state.step), results

    no_results = Hypotheses(
        tf.zeros([num_rows, beam_size, 0], tf.int32), tf.zeros([num_rows, beam_size])
    )
    variables = (tf.range(num_rows), initial, no_results)
    _, _, results = tf.while_loop(
        lambda rows, state, results: tf.size(rows) > 0,
        advance_and_drop,
        variables,
        shape_invariants=tf.nest.map_structure(_growing, variables),
        parallel_iterations=1,
    )
    return results


def _advance_until_rows_end(state: BeamState, num_rows: tf.Tensor, steps: _Steps) -> BeamState:
    """Advances all rows until more than `MIN_SHARE_TO_DROP` of them, or all, have ended."""
    min_running = tf.math.ceil((1 - MIN_SHARE_TO_DROP) * tf.cast(num_rows, tf.float32))
    min_running = tf.maximum(tf.cast(min_running, tf.int32), 1)

    def are_enough_running(state: BeamState) -> tf.Tensor:
        return tf.reduce_sum(tf.cast(steps.running(state), tf.int32)) >= min_running

    (state,) = tf.while_loop(
        are_enough_running,
        lambda state: (steps.advance(state),),
        [state],
        shape_invariants=[tf.nest.map_structure(_growing, state)],
        parallel_iterations=1,
    )
    return state


def _store(results: Hypotheses, rows: tf.Tensor, newer: Hypotheses) -> Hypotheses:
    """Replaces the hypotheses of some rows, int32 [any], by newer ones, which may be longer."""
    missing = tf.shape(newer.ids)[2] - tf.shape(results.ids)[2]
    padded = tf.pad(results.ids, [[0, 0], [0, 0], [0, missing]])
    return Hypotheses(
        tf.tensor_scatter_nd_update(padded, rows[:, None], newer.ids),
        tf.tensor_scatter_nd_update(results.scores, rows[:, None], newer.scores),
    )


def _growing(tensor: tf.Tensor) -> tf.TensorShape:
    """Returns the shape of a loop variable. Rows are dropped, and dimensions of size 0 grow."""
    return tf.TensorShape([None, *(size or None for size in tensor.shape[1:])][: tensor.shape.rank])
