"""Greedy and beam search in a graph-mode loop (section 6.1; length penalty of Wu et al., 2016).

The search knows no model: it receives a function that gives the next token's logits.
A *hypothesis* is a sequence that ends in its first `EOS_ID`, or that was cut at its row's limit;
its score is log P / ((5 + length) / 6)^alpha in nats, `EOS_ID` counted in the length.

Shapes (the package's glossary): B batch, K beams, V vocabulary, T tokens so far.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.errors import InputError

# (ids [B, K], position [], cache) -> (logits float32 [B, K, V], cache). `ids` are the newest
# tokens. `cache` is any nest of tensors with a leading dimension of B * K; a dimension that
# grows with the steps has size 0 at first.
StepFunction = Callable[[tf.Tensor, tf.Tensor, Any], tuple[tf.Tensor, Any]]

# A translation holds none of these; its characters all have tokens of their own.
SUPPRESSED_IDS = (PAD_ID, UNK_ID, BOS_ID)


class Hypotheses(NamedTuple):
    """What a search found, best first.

    Attributes:
        ids: int32 [B, K, T], after `EOS_ID` padding.
        scores: float32 [B, K], log probability in nats over the length penalty; -inf, with ids
            of padding, where a row has fewer than K hypotheses.
    """

    ids: tf.Tensor
    scores: tf.Tensor


class BeamState(NamedTuple):
    """State of the beam search between two steps.

    Attributes:
        step: int32 [], tokens of each live sequence.
        live_ids: int32 [B, K, T], the best unfinished sequences.
        live_log_probs: float32 [B, K], their log probabilities; -inf for none.
        finished_ids: int32 [B, K, T], the best hypotheses so far, best first.
        finished_scores: float32 [B, K]; -inf for none.
        cache: of the step function, for the live sequences.
    """

    step: tf.Tensor
    live_ids: tf.Tensor
    live_log_probs: tf.Tensor
    finished_ids: tf.Tensor
    finished_scores: tf.Tensor
    cache: Any


class GreedyState(NamedTuple):
    """State of the greedy search between two steps.

    Attributes:
        step: int32 [], tokens of each sequence.
        ids: int32 [B, T].
        log_probs: float32 [B].
        finished: bool [B].
        cache: of the step function.
    """

    step: tf.Tensor
    ids: tf.Tensor
    log_probs: tf.Tensor
    finished: tf.Tensor
    cache: Any


def length_penalty(length: tf.Tensor, alpha: float) -> tf.Tensor:
    """Computes ((5 + length) / 6)^alpha, by which a hypothesis's log probability is divided.

    Args:
        length: int, any shape, in tokens, `EOS_ID` included.
        alpha: strength of the penalty; 0 for none.

    Returns:
        float32, of the shape of `length`.
    """
    return ((5.0 + tf.cast(length, tf.float32)) / 6.0) ** alpha


def search(
    step_fn: StepFunction, cache: Any, limits: tf.Tensor, beam_size: int, alpha: float
) -> Hypotheses:
    """Searches with a beam, or greedily where `beam_size` is 1.

    Args:
        step_fn: gives the next token's logits, see `StepFunction`.
        cache: its cache before the first step, leading dimension B * K.
        limits: int32 [B], most tokens of each row's hypotheses, at least 1.
        beam_size: K.
        alpha: strength of the length penalty (0.6: section 6.1).

    Raises:
        InputError: if `beam_size` is below 1 or `alpha` negative.
    """
    if beam_size < 1:
        raise InputError(f"`beam_size` must be at least 1. Received: beam_size={beam_size}")
    if alpha < 0:
        raise InputError(f"`alpha` must be at least 0. Received: alpha={alpha}")
    if beam_size == 1:
        return greedy_search(step_fn, cache, limits, alpha)
    return beam_search(step_fn, cache, limits, beam_size, alpha)


def greedy_search(
    step_fn: StepFunction, cache: Any, limits: tf.Tensor, alpha: float = 0.6
) -> Hypotheses:
    """Takes the likeliest token at every step, until `EOS_ID` or a row's limit.

    Args:
        step_fn: gives the next token's logits, see `StepFunction`; K = 1.
        cache: its cache before the first step, leading dimension B.
        limits: int32 [B], most tokens of each row.
        alpha: strength of the length penalty of the score; it does not change the choice.

    Returns:
        One hypothesis a row.
    """
    batch_size = tf.shape(limits)[0]
    initial = GreedyState(
        step=tf.constant(0),
        ids=tf.zeros([batch_size, 0], tf.int32),
        log_probs=tf.zeros([batch_size]),
        finished=tf.zeros([batch_size], tf.bool),
        cache=cache,
    )

    def running(state: GreedyState) -> tf.Tensor:
        return tf.reduce_any(~state.finished)

    def advance(state: GreedyState) -> tuple[GreedyState]:
        logits, cache = step_fn(_newest(state.ids)[:, None], state.step, state.cache)
        values, tokens, log_normalizer = _top_tokens(logits[:, 0], 1)  # [B, 1]
        step = state.step + 1
        log_probs = state.log_probs + (values - log_normalizer)[:, 0]
        tokens = tf.where(state.finished, PAD_ID, tokens[:, 0])
        return (
            GreedyState(
                step=step,
                ids=tf.concat([state.ids, tokens[:, None]], axis=1),
                log_probs=tf.where(state.finished, state.log_probs, log_probs),
                finished=state.finished | (tokens == EOS_ID) | (step >= limits),
                cache=cache,
            ),
        )

    (final,) = _loop(running, advance, initial)
    lengths = tf.reduce_sum(tf.cast(final.ids != PAD_ID, tf.int32), axis=1)
    scores = final.log_probs / length_penalty(lengths, alpha)
    return Hypotheses(final.ids[:, None], scores[:, None])


def beam_search(
    step_fn: StepFunction,
    cache: Any,
    limits: tf.Tensor,
    beam_size: int,
    alpha: float = 0.6,
    early_stop: bool = True,
) -> Hypotheses:
    """Keeps the K likeliest sequences at every step, and the K best hypotheses of all steps.

    Args:
        step_fn: gives the next token's logits, see `StepFunction`.
        cache: its cache before the first step, leading dimension B * K.
        limits: int32 [B], most tokens of each row's hypotheses.
        beam_size: K.
        alpha: strength of the length penalty (0.6: section 6.1).
        early_stop: whether to stop as soon as more steps can change nothing. A live sequence's
            log probability only falls, and the penalty is largest at the limit, so no
            descendant scores above log P / penalty(limit); once no row's worst finished
            hypothesis is below that, the result is final.

    Returns:
        K hypotheses a row, best first.

    Example:
        >>> import numpy as np
        >>> import tensorflow as tf
        >>> from keras_transformer import beam_search
        >>> after = np.full((6, 6), 1e-9, np.float32)  # what follows a token, of which 3 is the end
        >>> after[2, [4, 5]] = 0.6, 0.4  # greedy search begins with 4
        >>> after[4, [3, 4]] = 0.55, 0.45
        >>> after[5, 3] = 1.0
        >>> def step_fn(ids, position, cache):
        ...     return tf.gather(np.log(after), ids), cache
        >>> found = beam_search(step_fn, (), limits=tf.constant([7]), beam_size=2, alpha=0.0)
        >>> print(found.ids[0].numpy(), np.exp(found.scores[0]).round(2))
        [[5 3]
         [4 3]] [0.4  0.33]
    """
    batch_size = tf.shape(limits)[0]
    only_first = tf.where(tf.range(beam_size) == 0, 0.0, -float("inf"))  # [K]
    initial = BeamState(
        step=tf.constant(0),
        live_ids=tf.zeros([batch_size, beam_size, 0], tf.int32),
        live_log_probs=tf.tile(only_first[None], [batch_size, 1]),
        finished_ids=tf.zeros([batch_size, beam_size, 0], tf.int32),
        finished_scores=tf.fill([batch_size, beam_size], -float("inf")),
        cache=cache,
    )
    penalty_at_limit = length_penalty(limits, alpha)  # [B]

    def running(state: BeamState) -> tf.Tensor:
        alive = state.live_log_probs[:, 0] > -float("inf")  # [B]
        if early_stop:
            bound = state.live_log_probs[:, 0] / penalty_at_limit
            alive &= state.finished_scores[:, -1] < bound
        return tf.reduce_any(alive)

    def advance(state: BeamState) -> tuple[BeamState]:
        logits, cache = step_fn(_newest(state.live_ids), state.step, state.cache)
        return (_advance_beams(state, logits, cache, limits, alpha),)

    (final,) = _loop(running, advance, initial)
    return Hypotheses(final.finished_ids, final.finished_scores)


def _advance_beams(
    state: BeamState, logits: tf.Tensor, cache: Any, limits: tf.Tensor, alpha: float
) -> BeamState:
    """Extends every live sequence by its likeliest tokens and sorts out what is finished."""
    beam_size = state.live_ids.shape[1]
    step = state.step + 1

    # At most K of the best 2K candidates end in EOS, so K are left to live on.
    num_candidates = 2 * beam_size
    per_beam = min(num_candidates, logits.shape[-1])
    values, tokens, log_normalizer = _top_tokens(logits, per_beam)  # [B, K, 2K]
    log_probs = state.live_log_probs[..., None] + values - log_normalizer
    log_probs, choice = tf.math.top_k(_merge_beams(log_probs), num_candidates)  # [B, 2K]
    tokens = tf.gather(_merge_beams(tokens), choice, batch_dims=1)  # [B, 2K]
    beams = choice // per_beam  # [B, 2K]
    ids = tf.gather(state.live_ids, beams, batch_dims=1)  # [B, 2K, T]
    ids = tf.concat([ids, tokens[..., None]], axis=2)  # [B, 2K, T + 1]

    # A candidate is a hypothesis only if it is within the beam, that is among the K best.
    is_eos = tokens == EOS_ID
    at_limit = (step >= limits)[:, None]  # [B, 1]
    is_final = (is_eos | at_limit)[:, :beam_size]  # [B, K]
    scores = log_probs[:, :beam_size] / length_penalty(step, alpha)
    scores = tf.where(is_final, scores, -float("inf"))
    # Earlier entries come first: top_k prefers them where scores are equal, so that places
    # without a hypothesis keep their padding.
    all_scores = tf.concat([state.finished_scores, scores], axis=1)  # [B, 2K]
    padded_ids = tf.pad(state.finished_ids, [[0, 0], [0, 0], [0, 1]], constant_values=PAD_ID)
    all_ids = tf.concat([padded_ids, ids[:, :beam_size]], axis=1)  # [B, 2K, T + 1]
    finished_scores, best = tf.math.top_k(all_scores, beam_size)  # [B, K]
    finished_ids = tf.gather(all_ids, best, batch_dims=1)  # [B, K, T + 1]

    live_log_probs = tf.where(is_eos | at_limit, -float("inf"), log_probs)
    live_log_probs, best = tf.math.top_k(live_log_probs, beam_size)  # [B, K]
    beams = tf.gather(beams, best, batch_dims=1)  # [B, K]
    rows = tf.reshape(tf.range(tf.shape(beams)[0])[:, None] * beam_size + beams, [-1])  # [B * K]
    return BeamState(
        step=step,
        live_ids=tf.gather(ids, best, batch_dims=1),  # [B, K, T + 1]
        live_log_probs=live_log_probs,
        finished_ids=finished_ids,
        finished_scores=finished_scores,
        cache=tf.nest.map_structure(lambda tensor: tf.gather(tensor, rows), cache),
    )


def _top_tokens(logits: tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The `count` best logits [..., count], their tokens, and the log normaliser [..., 1].

    Normalising the candidates alone saves a pass over the vocabulary. Suppressed tokens count in
    the normaliser: scores are the model's own log probabilities.
    """
    log_normalizer = tf.reduce_logsumexp(logits, axis=-1, keepdims=True)
    is_suppressed = tf.reduce_any(
        tf.range(logits.shape[-1])[:, None] == tf.constant(SUPPRESSED_IDS), axis=1
    )
    values, tokens = tf.math.top_k(tf.where(is_suppressed, -float("inf"), logits), count)
    return values, tokens, log_normalizer


def _merge_beams(x: tf.Tensor) -> tf.Tensor:
    """[B, K, n] -> [B, K * n]."""
    return tf.reshape(x, [tf.shape(x)[0], x.shape[1] * x.shape[2]])


def _newest(ids: tf.Tensor) -> tf.Tensor:
    """The last token of each sequence, [..., T] -> [...]; `BOS_ID` before the first."""
    started = tf.pad(ids, [[0, 0]] * (len(ids.shape) - 1) + [[1, 0]], constant_values=BOS_ID)
    return started[..., -1]


def _loop(running: Any, advance: Any, initial: Any) -> Any:
    """`tf.while_loop` over a state whose dimensions of size 0 grow."""

    def invariant(tensor: tf.Tensor) -> tf.TensorShape:
        return tf.TensorShape([size or None for size in tensor.shape])

    return tf.while_loop(
        running,
        advance,
        [initial],
        shape_invariants=[tf.nest.map_structure(invariant, initial)],
        parallel_iterations=1,
    )
