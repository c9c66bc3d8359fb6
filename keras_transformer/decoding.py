"""Greedy and beam search in a graph-mode loop (section 6.1; length penalty of Wu et al., 2016).

The search knows no model: it receives a function that gives the next token's logits.
A *hypothesis* is a sequence that ends in its first `EOS_ID`, or that was cut at its row's limit;
its score is log P / ((5 + length) / 6)^alpha in nats, `EOS_ID` counted in the length.

Shapes (the package's glossary): B batch, K beams, V vocabulary, T tokens so far.
"""

from collections.abc import Callable
from numbers import Integral
from typing import Any, NamedTuple

import tensorflow as tf

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.errors import InputError

# (ids [B, K], position [], cache, memory) -> (logits float32 [B, K, V], cache, memory). `ids` are
# the newest tokens. `cache` and `memory` are any nests of tensors: `cache` with a leading dimension
# of B * K, what belongs to a hypothesis and is copied with it; `memory` with one of B, what belongs
# to a row. A dimension that grows with the steps has size 0 at first. What else a function knows
# must not depend on the rows: those whose search has ended are left out.
StepFunction = Callable[[tf.Tensor, tf.Tensor, Any, Any], tuple[tf.Tensor, Any, Any]]

# A translation holds none of these; its characters all have tokens of their own.
SUPPRESSED_IDS = (PAD_ID, UNK_ID, BOS_ID)

MOST_ENDED = 0.2  # of the rows, before they are left out


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
        memory: of the step function, for the rows.
    """

    step: tf.Tensor
    live_ids: tf.Tensor
    live_log_probs: tf.Tensor
    finished_ids: tf.Tensor
    finished_scores: tf.Tensor
    cache: Any
    memory: Any


class GreedyState(NamedTuple):
    """State of the greedy search between two steps.

    Attributes:
        step: int32 [], tokens of each sequence.
        ids: int32 [B, T].
        log_probs: float32 [B].
        finished: bool [B].
        cache: of the step function.
        memory: of the step function.
    """

    step: tf.Tensor
    ids: tf.Tensor
    log_probs: tf.Tensor
    finished: tf.Tensor
    cache: Any
    memory: Any


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
    step_fn: StepFunction,
    cache: Any,
    limits: tf.Tensor,
    beam_size: int,
    alpha: float,
    memory: Any = (),
    num_best: int | None = None,
) -> Hypotheses:
    """Searches with a beam, or greedily where `beam_size` is 1.

    Args:
        step_fn: gives the next token's logits, as for `beam_search`.
        cache: its cache before the first step, leading dimension B * K.
        limits: int32 [B], most tokens of each row's hypotheses, at least 1.
        beam_size: K.
        alpha: strength of the length penalty (0.6: section 6.1).
        memory: its memory before the first step, leading dimension B.
        num_best: see `beam_search`.

    Raises:
        InputError: if `beam_size` is below 1, `alpha` negative, or `num_best` not in 1 to K.
    """
    if beam_size == 1:
        check_num_best(num_best, beam_size)
        return greedy_search(step_fn, cache, limits, alpha, memory)
    return beam_search(step_fn, cache, limits, beam_size, alpha, memory, num_best)


def check_number(name: str, value: Any, kind: Any = Integral) -> None:
    """Raises `InputError` unless an argument is an integer, or a number of another kind."""
    if not isinstance(value, kind):
        what = "an integer" if kind is Integral else "a number"
        raise InputError(f"`{name}` must be {what}. Received: {name}={value!r}")


def check_num_best(num_best: int | None, beam_size: int) -> None:
    """Raises `InputError` unless a search with K beams can give so many hypotheses; None for K."""
    if num_best is None:
        return
    check_number("num_best", num_best)
    if not 1 <= num_best <= beam_size:
        raise InputError(
            "`num_best` must be at least 1 and at most `beam_size`. Received: "
            f"num_best={num_best}, beam_size={beam_size}"
        )


def _check_alpha(alpha: float) -> None:
    if not alpha >= 0:
        raise InputError(f"`alpha` must be at least 0. Received: alpha={alpha}")


def greedy_search(
    step_fn: StepFunction, cache: Any, limits: tf.Tensor, alpha: float = 0.6, memory: Any = ()
) -> Hypotheses:
    """Takes the likeliest token at every step, until `EOS_ID` or a row's limit.

    Args:
        step_fn: gives the next token's logits, as for `beam_search`; K = 1.
        cache: its cache before the first step, leading dimension B.
        limits: int32 [B], most tokens of each row.
        alpha: strength of the length penalty of the score; it does not change the choice.
        memory: its memory before the first step, leading dimension B.

    Returns:
        One hypothesis a row.

    Raises:
        InputError: if `alpha` is negative.
    """
    _check_alpha(alpha)
    batch_size = tf.shape(limits)[0]
    initial = GreedyState(
        step=tf.constant(0),
        ids=tf.zeros([batch_size, 0], tf.int32),
        log_probs=tf.zeros([batch_size]),
        finished=tf.zeros([batch_size], tf.bool),
        cache=cache,
        memory=memory,
    )

    def running(state: GreedyState, limits: tf.Tensor) -> tf.Tensor:
        return ~state.finished

    def advance(state: GreedyState, limits: tf.Tensor) -> GreedyState:
        logits, cache, memory = step_fn(
            _newest(state.ids)[:, None], state.step, state.cache, state.memory
        )
        values, tokens, log_normalizer = _top_tokens(logits, 1)  # [B, 1, 1]
        step = state.step + 1
        log_probs = state.log_probs + (values - log_normalizer)[:, 0, 0]
        tokens = tf.where(state.finished, PAD_ID, tokens[:, 0, 0])
        return GreedyState(
            step=step,
            ids=tf.concat([state.ids, tokens[:, None]], axis=1),
            log_probs=tf.where(state.finished, state.log_probs, log_probs),
            finished=state.finished | (tokens == EOS_ID) | (step >= limits),
            cache=cache,
            memory=memory,
        )

    def hypotheses(state: GreedyState) -> Hypotheses:
        lengths = tf.reduce_sum(tf.cast(state.ids != PAD_ID, tf.int32), axis=1)
        scores = state.log_probs / length_penalty(lengths, alpha)
        return Hypotheses(state.ids[:, None], scores[:, None])

    return _search_rows(initial, limits, 1, running, advance, hypotheses)


def beam_search(
    step_fn: StepFunction,
    cache: Any,
    limits: tf.Tensor,
    beam_size: int,
    alpha: float = 0.6,
    memory: Any = (),
    num_best: int | None = None,
    early_stop: bool = True,
) -> Hypotheses:
    """Keeps the K likeliest sequences at every step, and the K best hypotheses of all steps.

    Args:
        step_fn: takes the newest tokens, int32 [B, K], their position, int32 [], the cache and the
            memory; returns the logits of what follows, float32 [B, K, V], the new cache and the
            new memory. The cache is copied with its hypothesis, the memory belongs to a row.
        cache: its cache before the first step, leading dimension B * K.
        limits: int32 [B], most tokens of each row's hypotheses.
        beam_size: K.
        alpha: strength of the length penalty (0.6: section 6.1).
        memory: its memory before the first step, leading dimension B.
        num_best: how many of a row's hypotheses are wanted: a row's search may end as soon as
            these are final, whatever would become of the others; None for all K.
        early_stop: whether to stop as soon as more steps can change nothing. A live sequence's
            log probability only falls, and the penalty is largest at the limit, so no
            descendant scores above log P / penalty(limit); once the worst hypothesis that is
            wanted is not below that, the row's result is final.

    Returns:
        K hypotheses a row, best first.

    Raises:
        InputError: if `beam_size` is below 1, `alpha` negative, or `num_best` not in 1 to K.

    Example:
        >>> import numpy as np
        >>> import tensorflow as tf
        >>> from keras_transformer import beam_search
        >>> after = np.full((6, 6), 1e-9, np.float32)  # what follows a token, of which 3 is the end
        >>> after[2, [4, 5]] = 0.6, 0.4  # greedy search begins with 4
        >>> after[4, [3, 4]] = 0.55, 0.45
        >>> after[5, 3] = 1.0
        >>> def step_fn(ids, position, cache, memory):
        ...     return tf.gather(np.log(after), ids), cache, memory
        >>> found = beam_search(step_fn, (), limits=tf.constant([7]), beam_size=2, alpha=0.0)
        >>> print(found.ids[0].numpy(), np.exp(found.scores[0]).round(2))
        [[5 3]
         [4 3]] [0.4  0.33]
    """
    if beam_size < 1:
        raise InputError(f"`beam_size` must be at least 1. Received: beam_size={beam_size}")
    _check_alpha(alpha)
    check_num_best(num_best, beam_size)
    batch_size = tf.shape(limits)[0]
    only_first = tf.where(tf.range(beam_size) == 0, 0.0, -float("inf"))  # [K]
    initial = BeamState(
        step=tf.constant(0),
        live_ids=tf.zeros([batch_size, beam_size, 0], tf.int32),
        live_log_probs=tf.tile(only_first[None], [batch_size, 1]),
        finished_ids=tf.zeros([batch_size, beam_size, 0], tf.int32),
        finished_scores=tf.fill([batch_size, beam_size], -float("inf")),
        cache=cache,
        memory=memory,
    )

    def running(state: BeamState, limits: tf.Tensor) -> tf.Tensor:
        best = state.live_log_probs[:, 0]  # [B]
        if not early_stop:
            return best > -float("inf")
        worst_wanted = state.finished_scores[:, (num_best or beam_size) - 1]
        return worst_wanted < best / length_penalty(limits, alpha)

    def advance(state: BeamState, limits: tf.Tensor) -> BeamState:
        logits, cache, memory = step_fn(
            _newest(state.live_ids), state.step, state.cache, state.memory
        )
        state = state._replace(cache=cache, memory=memory)
        return _advance_beams(state, logits, limits, alpha)

    def hypotheses(state: BeamState) -> Hypotheses:
        return Hypotheses(state.finished_ids, state.finished_scores)

    return _search_rows(initial, limits, beam_size, running, advance, hypotheses)


def _advance_beams(
    state: BeamState, logits: tf.Tensor, limits: tf.Tensor, alpha: float
) -> BeamState:
    """Extends every live sequence by its likeliest tokens and sorts out what is finished."""
    beam_size = state.live_ids.shape[1]
    step = state.step + 1

    # At most K of the best 2K candidates end in EOS, so K are left to live on; of a single beam
    # they are among the best K + 1.
    per_beam = min(beam_size + 1, logits.shape[-1])
    num_candidates = min(2 * beam_size, beam_size * per_beam)
    values, tokens, log_normalizer = _top_tokens(logits, per_beam)  # [B, K, K + 1]
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
    parents = tf.reshape(tf.range(tf.shape(beams)[0])[:, None] * beam_size + beams, [-1])
    return BeamState(
        step=step,
        live_ids=tf.gather(ids, best, batch_dims=1),  # [B, K, T + 1]
        live_log_probs=live_log_probs,
        finished_ids=finished_ids,
        finished_scores=finished_scores,
        cache=_gather(state.cache, parents),
        memory=state.memory,
    )


def _top_tokens(logits: tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The `count` best of logits [B, K, V], their tokens, and the log normaliser [B, K, 1].

    Suppressed tokens count in the normaliser: scores are the model's own log probabilities. Only
    the candidates are normalised, and only the chunks with the largest maxima are searched: what
    passes over all logits is one maximum and one softmax.
    """
    num_beams, vocab_size = logits.shape[1:]
    rows = tf.reshape(logits, [-1, vocab_size])  # [B * K, V]
    count_all = min(count + len(SUPPRESSED_IDS), vocab_size)
    values, tokens = _top(rows, count_all)
    # The softmax of a logit is exp(logit - normaliser).
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
    """`tf.math.top_k` of rows [R, V], but for the order of equal values, in an eighth of the time.

    The largest are in the `count` chunks that have the largest maxima: nothing else is looked at.
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
    """The last token of each sequence, [..., T] -> [...]; `BOS_ID` before the first."""
    started = tf.pad(ids, [[0, 0]] * (len(ids.shape) - 1) + [[1, 0]], constant_values=BOS_ID)
    return started[..., -1]


def _search_rows(
    initial: Any,
    limits: tf.Tensor,
    beam_size: int,
    running: Callable[[Any, tf.Tensor], tf.Tensor],
    advance: Callable[[Any, tf.Tensor], Any],
    hypotheses: Callable[[Any], Hypotheses],
) -> Hypotheses:
    """Advances all rows until none runs. Rows that have ended are left out, some at a time.

    Args:
        initial: a `BeamState` or `GreedyState` of all rows.
        limits: int32 [B].
        beam_size: K.
        running: tells of a state and its rows' limits which rows' search goes on, bool [B].
        advance: makes one step.
        hypotheses: what a state has found, with T = `state.step`.
    """
    num_rows = tf.size(limits)

    def search_some(
        rows: tf.Tensor, state: Any, found: Hypotheses
    ) -> tuple[tf.Tensor, Any, Hypotheses]:
        some_limits = tf.gather(limits, rows)
        enough = (1 - MOST_ENDED) * tf.cast(tf.size(rows), tf.float32)

        def are_enough_running(state: Any) -> tf.Tensor:
            number = tf.math.count_nonzero(running(state, some_limits), dtype=tf.int32)
            return (number > 0) & (tf.cast(number, tf.float32) >= enough)

        (state,) = tf.while_loop(
            are_enough_running,
            lambda state: (advance(state, some_limits),),
            [state],
            shape_invariants=[tf.nest.map_structure(_growing, state)],
            parallel_iterations=1,
        )
        ids, scores = hypotheses(state)
        known = tf.pad(found.ids, [[0, 0], [0, 0], [0, state.step - tf.shape(found.ids)[2]]])
        found = Hypotheses(
            tf.tensor_scatter_nd_update(known, rows[:, None], ids),
            tf.tensor_scatter_nd_update(found.scores, rows[:, None], scores),
        )
        left = tf.cast(tf.where(running(state, some_limits))[:, 0], tf.int32)
        return tf.gather(rows, left), _take(state, left, beam_size), found

    nothing = Hypotheses(
        tf.zeros([num_rows, beam_size, 0], tf.int32), tf.zeros([num_rows, beam_size])
    )
    variables = (tf.range(num_rows), initial, nothing)
    _, _, found = tf.while_loop(
        lambda rows, state, found: tf.size(rows) > 0,
        search_some,
        variables,
        shape_invariants=tf.nest.map_structure(_growing, variables),
        parallel_iterations=1,
    )
    return found


def _take(state: Any, rows: tf.Tensor, beam_size: int) -> Any:
    """The state of some rows, int32 [any]."""
    beams = tf.reshape(rows[:, None] * beam_size + tf.range(beam_size), [-1])
    fields = state._asdict()
    step, cache = fields.pop("step"), fields.pop("cache")
    return type(state)(step=step, cache=_gather(cache, beams), **_gather(fields, rows))


def _gather(nest: Any, rows: tf.Tensor) -> Any:
    return tf.nest.map_structure(lambda tensor: tf.gather(tensor, rows), nest)


def _growing(tensor: tf.Tensor) -> tf.TensorShape:
    """The shape of a loop's variable: rows leave, and dimensions of size 0 grow."""
    return tf.TensorShape([None, *(size or None for size in tensor.shape[1:])][: tensor.shape.rank])
