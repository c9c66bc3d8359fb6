"""The Transformer of "Attention Is All You Need" (arXiv 1706.03762) in plain NumPy.

An oracle for the tests: it is written from the paper, in float64, and prefers loops to speed.
Shape letters: B batch, S source length, T target length, D d_model, N heads, H head size
(Hk of queries and keys, Hv of values), F d_ff, V vocabulary, K beams. "..." stands for any
leading axes.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

LogProbFn = Callable[[tuple[int, ...]], np.ndarray]  # prefix -> next-token log probabilities [V]
Hypothesis = tuple[tuple[int, ...], float]  # (tokens, score)


def float64(x: np.ndarray) -> np.ndarray:
    """`x` in float64, so that float32 inputs do not lower the precision here."""
    return np.asarray(x, dtype=np.float64)


def softmax(scores: np.ndarray, axis: int = -1) -> np.ndarray:
    """Section 3.2.1: exponentials that sum to one along `axis`."""
    scores = float64(scores)
    exponentials = np.exp(scores - scores.max(axis=axis, keepdims=True))
    return exponentials / exponentials.sum(axis=axis, keepdims=True)


def masked_softmax(scores: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Section 3.2.3: softmax over the last axis, among the places where `mask` is True.

    The masked places get zero. A row that is masked entirely is all zeros.
    """
    scores, mask = float64(scores), np.asarray(mask, dtype=bool)
    weights = np.zeros(scores.shape)
    for row in np.ndindex(scores.shape[:-1]):
        allowed = mask[row]
        if allowed.any():
            weights[row][allowed] = softmax(scores[row][allowed])
    return weights


def layer_norm(
    x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, epsilon: float = 1e-6
) -> np.ndarray:
    """Section 3.1 (Ba et al., arXiv 1607.06450): normalise each vector of x [..., D] by itself."""
    x = float64(x)
    output = np.zeros(x.shape)
    for row in np.ndindex(x.shape[:-1]):
        mean = x[row].mean()
        variance = ((x[row] - mean) ** 2).mean()  # divides by D, not by D - 1
        output[row] = (x[row] - mean) / math.sqrt(variance + epsilon) * gamma + beta
    return output


def linear(x: np.ndarray, kernel: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """The learned linear map of sections 3.2.2 and 3.3, with a bias."""
    return float64(x) @ float64(kernel) + float64(bias)


def attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Section 3.2.1, equation 1: softmax(Q K^T / sqrt(d_k)) V, one example and one head.

    Query [T, Hk], key [S, Hk], value [S, Hv], mask [T, S] -> output [T, Hv], weights [T, S].
    """
    query, key, value = float64(query), float64(key), float64(value)
    target_length, head_size = query.shape
    source_length, value_size = value.shape

    scores = np.zeros((target_length, source_length))  # [T, S]
    for t in range(target_length):
        for s in range(source_length):
            for h in range(head_size):
                scores[t, s] += query[t, h] * key[s, h]
            scores[t, s] /= math.sqrt(head_size)

    weights = masked_softmax(scores, mask)  # [T, S]

    output = np.zeros((target_length, value_size))  # [T, Hv]
    for t in range(target_length):
        for s in range(source_length):
            output[t] += weights[t, s] * value[s]
    return output, weights


def multi_head_attention(
    query: np.ndarray,
    value: np.ndarray,
    key: np.ndarray,
    weights: dict,
    num_heads: int,
    mask: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Section 3.2.2: project, attend in every head, concatenate the heads, project.

    Query [B, T, D], value and key [B, S, D], mask [B, T, S] or None -> output [B, T, D] and the
    attention weights [B, N, T, S]. The weights are (kernel, bias) under each of "query" and "key"
    ([D, N*Hk], [N*Hk]), "value" ([D, N*Hv], [N*Hv]) and "output" ([N*Hv, D], [D]); head n takes
    the columns n*H .. (n+1)*H.
    """
    batch, target_length, _ = query.shape
    source_length = key.shape[1]
    if mask is None:
        mask = np.ones((batch, target_length, source_length), dtype=bool)  # [B, T, S]

    queries = linear(query, *weights["query"])  # [B, T, N*Hk]
    keys = linear(key, *weights["key"])  # [B, S, N*Hk]
    values = linear(value, *weights["value"])  # [B, S, N*Hv]
    key_size = keys.shape[-1] // num_heads  # Hk
    value_size = values.shape[-1] // num_heads  # Hv

    heads = np.zeros((batch, target_length, num_heads * value_size))  # [B, T, N*Hv]
    scores = np.zeros((batch, num_heads, target_length, source_length))  # [B, N, T, S]
    for b in range(batch):
        for n in range(num_heads):
            key_columns = slice(n * key_size, (n + 1) * key_size)
            value_columns = slice(n * value_size, (n + 1) * value_size)
            heads[b, :, value_columns], scores[b, n] = attention(
                queries[b, :, key_columns],  # [B, T, N*Hk] -> [T, Hk]
                keys[b, :, key_columns],  # [B, S, N*Hk] -> [S, Hk]
                values[b, :, value_columns],  # [B, S, N*Hv] -> [S, Hv]
                mask[b],  # [B, T, S] -> [T, S]
            )
    return linear(heads, *weights["output"]), scores  # [B, T, N*Hv] -> [B, T, D]


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(0.0, x)


def gelu(x: np.ndarray) -> np.ndarray:
    """Hendrycks and Gimpel (arXiv 1606.08415): x times the normal distribution's P(X <= x)."""
    return x * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0))) / 2.0


def feed_forward(
    x: np.ndarray,
    kernel1: np.ndarray,
    bias1: np.ndarray,
    kernel2: np.ndarray,
    bias2: np.ndarray,
    activation: Callable[[np.ndarray], np.ndarray] = relu,
) -> np.ndarray:
    """Section 3.3, equation 2: max(0, x W1 + b1) W2 + b2, at every position of x [..., D]."""
    hidden = activation(linear(x, kernel1, bias1))  # [..., D] -> [..., F]
    return linear(hidden, kernel2, bias2)  # [..., F] -> [..., D]


def pre_norm(
    x: np.ndarray, norm: tuple, sublayer: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Xiong et al. (arXiv 2002.04745): x + Sublayer(LayerNorm(x)), [B, T, D]."""
    return x + sublayer(layer_norm(x, *norm))


def pre_norm_layer(
    x: np.ndarray,
    encoder_output: np.ndarray | None,
    weights: dict,
    num_heads: int,
    self_mask: np.ndarray | None = None,
    cross_mask: np.ndarray | None = None,
    activation: Callable[[np.ndarray], np.ndarray] = relu,
) -> np.ndarray:
    """A pre-norm layer of the decoder, or, without an encoder's output, of the encoder.

    The weights are those of `encoder_layer` and `decoder_layer`.
    """

    def attend(name: str, mask: np.ndarray | None) -> Callable[[np.ndarray], np.ndarray]:
        def sublayer(y: np.ndarray) -> np.ndarray:
            value = y if name == "self_attention" else encoder_output
            return multi_head_attention(y, value, value, weights[name], num_heads, mask)[0]

        return sublayer

    x = pre_norm(x, weights["self_attention_norm"], attend("self_attention", self_mask))
    if encoder_output is not None:
        x = pre_norm(x, weights["cross_attention_norm"], attend("cross_attention", cross_mask))
    return pre_norm(
        x,
        weights["feed_forward_norm"],
        lambda y: feed_forward(y, *weights["feed_forward"], activation),
    )


def encoder_layer(
    x: np.ndarray, weights: dict, num_heads: int, mask: np.ndarray | None = None
) -> np.ndarray:
    """Section 3.1, encoder: LayerNorm(x + Sublayer(x)) for two sub-layers, [B, S, D].

    The weights are "self_attention", "feed_forward" (kernel1, bias1, kernel2, bias2), and the norms
    that follow them, "self_attention_norm" and "feed_forward_norm" (gamma, beta).
    """
    attended, _ = multi_head_attention(x, x, x, weights["self_attention"], num_heads, mask)
    x = layer_norm(x + attended, *weights["self_attention_norm"])
    return layer_norm(x + feed_forward(x, *weights["feed_forward"]), *weights["feed_forward_norm"])


def decoder_layer(
    x: np.ndarray,
    encoder_output: np.ndarray,
    weights: dict,
    num_heads: int,
    self_mask: np.ndarray | None = None,
    cross_mask: np.ndarray | None = None,
) -> np.ndarray:
    """Section 3.1, decoder: LayerNorm(x + Sublayer(x)) for three sub-layers, [B, T, D].

    The weights are as in `encoder_layer`, and the "cross_attention" over the encoder's output
    [B, S, D] with its norm. It is the caller who hides the later positions.
    """
    attended, _ = multi_head_attention(x, x, x, weights["self_attention"], num_heads, self_mask)
    x = layer_norm(x + attended, *weights["self_attention_norm"])
    attended, _ = multi_head_attention(
        x, encoder_output, encoder_output, weights["cross_attention"], num_heads, cross_mask
    )
    x = layer_norm(x + attended, *weights["cross_attention_norm"])
    return layer_norm(x + feed_forward(x, *weights["feed_forward"]), *weights["feed_forward_norm"])


def positional_encoding(length: int, d_model: int) -> np.ndarray:
    """Section 3.5: sines at the even dimensions, cosines at the odd ones, [T, D]."""
    encoding = np.zeros((length, d_model))  # [T, D]
    for position in range(length):
        for dimension in range(d_model):
            i = dimension // 2  # dimensions 2i and 2i + 1 share a frequency
            angle = position / 10000 ** (2 * i / d_model)
            encoding[position, dimension] = (
                math.sin(angle) if dimension % 2 == 0 else math.cos(angle)
            )
    return encoding


def positional_embedding(ids: np.ndarray, table: np.ndarray, start: int = 0) -> np.ndarray:
    """Sections 3.4 and 3.5: row of the table [V, D] * sqrt(d_model) + encoding, [B, T, D]."""
    table = float64(table)
    batch, length = ids.shape
    d_model = table.shape[1]
    encoding = positional_encoding(start + length, d_model)  # [start + T, D]
    output = np.zeros((batch, length, d_model))  # [B, T, D]
    for b in range(batch):
        for t in range(length):
            output[b, t] = table[ids[b, t]] * math.sqrt(d_model) + encoding[start + t]
    return output


def next_words(
    encoded: np.ndarray,
    source_ids: np.ndarray,
    target_ids: np.ndarray,
    source_end: int,
    target_end: int,
) -> np.ndarray:
    """The encoder's output [B, S, D] where the first word starts that has no tag yet, [B, T, D].

    Ids from 4 up to `source_end` start a word, target ids from 4 up to `target_end` are tags.
    """
    batch, length = target_ids.shape
    output = np.zeros((batch, length, encoded.shape[2]))
    for b in range(batch):
        starts = [s for s, token in enumerate(source_ids[b]) if token in range(4, source_end)]
        for t in range(length):
            if target_ids[b, t] in range(4, target_end):
                starts = starts[1:]
            if starts:
                output[b, t] = encoded[b, starts[0]]
    return output


def label_smoothed_cross_entropy(
    logits: np.ndarray, targets: np.ndarray, smoothing: float, pad_id: int = 0
) -> np.ndarray:
    """Section 5.4 (Szegedy et al., arXiv 1512.00567): the loss of each token, in nats, [B, T].

    The distribution to match has smoothing / V on each of the V classes, the true one and
    padding among them, and 1 - smoothing more on the true class.
    """
    logits = float64(logits)
    batch, length, vocab_size = logits.shape
    losses = np.zeros((batch, length))  # [B, T]
    for b in range(batch):
        for t in range(length):
            if targets[b, t] == pad_id:
                continue
            expected = np.full(vocab_size, smoothing / vocab_size)  # [V]
            expected[targets[b, t]] += 1 - smoothing
            shifted = logits[b, t] - logits[b, t].max()  # [B, T, V] -> [V]
            log_probs = shifted - math.log(np.exp(shifted).sum())  # log of the softmax
            losses[b, t] = -(expected * log_probs).sum()
    return losses


def learning_rate(step: int, d_model: int, warmup_steps: int) -> float:
    """Section 5.3, equation 3. Steps count from 1."""
    return d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


def gnmt_penalty(length: int, length_penalty: float) -> float:
    """Section 6.1, in the form of Wu et al. (arXiv 1609.08144, equation 14)."""
    return ((5 + length) / 6) ** length_penalty


def exhaustive_search(
    log_prob_fn: LogProbFn,
    eos_id: int,
    vocab_ids: Sequence[int],
    max_length: int,
    length_penalty: float,
    k: int,
) -> list[Hypothesis]:
    """Section 6.1: the k best hypotheses that a beam search without bounds would find, best first.

    A hypothesis is a sequence over `vocab_ids` (which holds `eos_id`) that either ends in its
    first EOS, with at most `max_length` tokens, or is cut: `max_length` tokens without an EOS.
    Its score is log probability / length penalty; the length counts EOS.
    """
    hypotheses: list[Hypothesis] = []

    def extend(prefix: tuple[int, ...], prefix_log_prob: float) -> None:
        log_probs = log_prob_fn(prefix)  # [V]
        for token in vocab_ids:
            tokens = prefix + (token,)
            log_prob = prefix_log_prob + float(log_probs[token])
            if token == eos_id or len(tokens) == max_length:
                hypotheses.append((tokens, log_prob / gnmt_penalty(len(tokens), length_penalty)))
            else:
                extend(tokens, log_prob)

    extend((), 0.0)
    return sorted(hypotheses, key=lambda hypothesis: -hypothesis[1])[:k]  # a stable sort


def greedy_search(log_prob_fn: LogProbFn, eos_id: int, max_length: int) -> Hypothesis:
    """The most probable token at every step, until EOS or `max_length` tokens.

    Returns the tokens with their EOS if any, and their log probability without length penalty.
    """
    tokens: tuple[int, ...] = ()
    total = 0.0
    while len(tokens) < max_length and eos_id not in tokens:
        log_probs = log_prob_fn(tokens)  # [V]
        token = int(np.argmax(log_probs))
        tokens += (token,)
        total += float(log_probs[token])
    return tokens, total
