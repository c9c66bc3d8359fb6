"""The reference itself, against arithmetic by hand and against PyTorch."""

import math

import numpy as np
import pytest
import reference

LN3 = math.log(3)
B, N, H, D, S, T, F, V = 3, 2, 5, 10, 7, 11, 17, 19


@pytest.fixture
def rng():
    return np.random.default_rng(23)


def assert_close(actual, expected):
    assert np.asarray(actual).dtype == np.float64
    np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-12)
    assert np.shape(actual) == np.shape(expected)


# By hand.


def test_softmax():
    # The exponentials are in the ratios 1 to 3 and 1 to 1.
    assert_close(
        reference.softmax(np.array([[0.0, LN3], [1000.0, 1000.0]])), [[0.25, 0.75], [0.5, 0.5]]
    )
    assert_close(reference.softmax(np.array([[0.0], [LN3]]), axis=0), [[0.25], [0.75]])


def test_masked_softmax():
    scores = np.array([[0.0, 50.0, LN3], [1.0, 2.0, 3.0]])
    mask = np.array([[True, False, True], [False, False, False]])
    assert_close(reference.masked_softmax(scores, mask), [[0.25, 0.0, 0.75], [0.0, 0.0, 0.0]])


def test_layer_norm():
    # Mean 2, variance ((-1)^2 + 1^2) / 2, i.e. 1. With epsilon 3 the divisor is sqrt(1 + 3), i.e.
    # 2, so the normalised vector is -1/2, 1/2; times gamma -1, 1.5; plus beta 9, 21.5.
    actual = reference.layer_norm(
        np.array([[1.0, 3.0]]), np.array([2.0, 3.0]), np.array([10.0, 20.0]), epsilon=3.0
    )
    assert_close(actual, [[9.0, 21.5]])


def test_attention():
    # Head size 4, so the products 2 ln 3 and 0 are halved: the weights are 3/4 and 1/4.
    # The third key is masked for the first query; all keys are masked for the second.
    query = np.array([[LN3, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    key = np.array([[2.0, 0.0, 0.0, 0.0], [0.0, 5.0, 0.0, 0.0], [9.0, 9.0, 9.0, 9.0]])
    value = np.array([[4.0, 0.0], [8.0, -4.0], [100.0, 100.0]])
    mask = np.array([[True, True, False], [False, False, False]])
    output, weights = reference.attention(query, key, value, mask)
    assert_close(weights, [[0.75, 0.25, 0.0], [0.0, 0.0, 0.0]])
    assert_close(output, [[5.0, -1.0], [0.0, 0.0]])  # 3 + 2 and 0 - 1


def test_multi_head_attention_splits_columns_into_heads():
    # One position, two heads of one key column and two value columns. Head 0 scores the two keys
    # 1 * ln 3 and 0, hence 3/4 and 1/4; head 1 scores them 0 and ln 3, hence 1/4 and 3/4.
    weights = {
        "query": (np.zeros((2, 2)), np.ones(2)),
        "key": (np.eye(2) * LN3, np.zeros(2)),
        "value": (np.array([[4.0, 8.0, 40.0, 80.0], [0.0, 0.0, 0.0, 0.0]]), np.zeros(4)),
        "output": (np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]), np.array([7.0, 0])),
    }
    source = np.eye(2)[np.newaxis]  # [1, 2, 2]
    output, scores = reference.multi_head_attention(
        np.zeros((1, 1, 2)), source, source, weights, num_heads=2
    )
    assert_close(scores, [[[[0.75, 0.25]], [[0.25, 0.75]]]])
    # The second value is zero. Head 0 gives 3, 6 and head 1 gives 10, 20; the output map sums
    # the two columns of each head and adds 7 to the first sum.
    assert_close(output, [[[16.0, 30.0]]])


def test_multi_head_attention_masked_entirely_is_the_output_bias(rng):
    weights = attention_weights(rng)
    x = rng.normal(size=(B, S, D))
    output, scores = reference.multi_head_attention(
        x, x, x, weights, N, mask=np.zeros((B, S, S), dtype=bool)
    )
    assert_close(scores, np.zeros((B, N, S, S)))
    assert_close(output, np.broadcast_to(weights["output"][1], (B, S, D)))


def test_feed_forward():
    # Hidden: 1 + 2 + 0, -1 - 2 + 0, 4 - 1, hence 3, -3, 3 and after ReLU 3, 0, 3.
    # The output is 3 + 300 + 0.5 by the first column, 6 + 15 - 1 by the second.
    actual = reference.feed_forward(
        np.array([[1.0, 2.0]]),
        np.array([[1.0, -1.0, 0.0], [1.0, -1.0, 2.0]]),
        np.array([0.0, 0.0, -1.0]),
        np.array([[1.0, 2.0], [10.0, 3.0], [100.0, 5.0]]),
        np.array([0.5, -1.0]),
    )
    assert_close(actual, [[303.5, 20.0]])


def test_positional_encoding():
    # The angles of position 1 are 1 and 1 / 10000^(2/4), i.e. 1/100; those of 2 are twice that.
    expected = [
        [0.0, 1.0, 0.0, 1.0],
        [0.841470984808, 0.540302305868, 0.009999833334, 0.999950000417],
        [0.909297426826, -0.416146836547, 0.019998666693, 0.999800006667],
    ]
    np.testing.assert_allclose(reference.positional_encoding(3, 4), expected, atol=1e-12, rtol=0)


def test_positional_encoding_of_odd_d_model():
    # The second angle is x = 10000^(-2/3), 0.002154434690; x^3 is 1e-8,
    # so sin x is x - 1e-8 / 6, 0.002154433023.
    expected = [[0.0, 1.0, 0.0], [0.841470984808, 0.540302305868, 0.002154433023]]
    np.testing.assert_allclose(reference.positional_encoding(2, 3), expected, atol=1e-12, rtol=0)


def test_positional_embedding():
    # The square root of d_model is 2; the encoding of position 0 is 0, 1, 0, 1.
    table = np.arange(12.0).reshape(3, 4)
    actual = reference.positional_embedding(np.array([[2], [0]]), table)
    assert_close(actual, [[[16.0, 19.0, 20.0, 23.0]], [[0.0, 3.0, 4.0, 7.0]]])


def test_positional_embedding_from_a_later_start(rng):
    table = rng.normal(size=(V, D))
    ids = rng.integers(0, V, size=(B, T))
    whole = reference.positional_embedding(ids, table)
    assert_close(reference.positional_embedding(ids[:, 4:], table, start=4), whole[:, 4:])


def test_label_smoothed_cross_entropy():
    # Probabilities 1/5, 3/5, 1/5. Smoothing 0.3 puts 0.1 on each class and 0.7 more on class 1:
    # 0.8 ln(5/3) + 0.2 ln 5 = 0.8 * 0.510825623766 + 0.2 * 1.609437912434 = 0.730548081500.
    logits = np.array([[[0.0, LN3, 0.0], [5.0, 6.0, 7.0]]])
    losses = reference.label_smoothed_cross_entropy(logits, np.array([[1, 0]]), smoothing=0.3)
    np.testing.assert_allclose(losses, [[0.7305480815, 0.0]], atol=1e-11, rtol=0)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (1, 1 / 16),  # 1/2 of 1 * 4^-1.5, i.e. of 1/8
        (4, 1 / 4),  # 1/2 of 4^-0.5: the peak, where the two branches meet
        (16, 1 / 8),  # 1/2 of 16^-0.5, i.e. of 1/4
    ],
)
def test_learning_rate(step, expected):
    assert reference.learning_rate(step, d_model=4, warmup_steps=4) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("length", "alpha", "expected"),
    [(1, 0.6, 1.0), (7, 1.0, 2.0), (19, 0.5, 2.0), (19, 0.0, 1.0)],  # 6/6, 12/6, 24/6
)
def test_length_penalty(length, alpha, expected):
    assert reference.length_penalty(length, alpha) == pytest.approx(expected)


# Search. The best first token, 2, is the wrong one: after 3, EOS is nearly certain.
#   tokens  probability     log / (7/6)
#   3 1     0.3 * 0.9  = 0.27    -1.1223
#   1       0.2                  -1.6094 (its penalty is 1)
#   2 2     0.5 * 0.38 = 0.19    -1.4235
#   2 3     0.5 * 0.34 = 0.17    -1.5188
#   2 1     0.5 * 0.28 = 0.14    -1.6852
EOS = 1
PROBABILITIES = {  # of EOS, 2 and 3; padding, 0, is impossible
    (): (0.2, 0.5, 0.3),
    (2,): (0.28, 0.38, 0.34),
    (3,): (0.9, 0.06, 0.04),
}


def log_prob_fn(prefix):
    return np.array([-math.inf, *map(math.log, PROBABILITIES.get(prefix, (0.2, 0.3, 0.5)))])


@pytest.mark.parametrize(
    ("alpha", "expected"),
    [
        (0.0, [((3, 1), math.log(0.27)), ((1,), math.log(0.2)), ((2, 2), math.log(0.19))]),
        (1.0, [((3, 1), -1.1223), ((2, 2), -1.4235), ((2, 3), -1.5188), ((1,), -1.6094)]),
    ],
)
def test_exhaustive_search(alpha, expected):
    actual = reference.exhaustive_search(
        log_prob_fn, EOS, [1, 2, 3], max_length=2, alpha=alpha, k=len(expected)
    )
    assert [tokens for tokens, _ in actual] == [tokens for tokens, _ in expected]
    assert [score for _, score in actual] == pytest.approx([s for _, s in expected], abs=1e-4)


def test_exhaustive_search_covers_every_hypothesis_once():
    # 1 + 2 + 4 that end in EOS at length 1, 2, 3 and 8 that are cut, with total probability 1.
    found = reference.exhaustive_search(log_prob_fn, EOS, [1, 2, 3], max_length=3, alpha=0, k=100)
    assert len({tokens for tokens, _ in found}) == len(found) == 15
    assert all(len(tokens) == 3 for tokens, _ in found if EOS not in tokens)
    assert all(EOS not in tokens[:-1] for tokens, _ in found)
    assert sum(math.exp(score) for _, score in found) == pytest.approx(1.0)


@pytest.mark.parametrize(("max_length", "expected"), [(1, (2,)), (2, (2, 2)), (3, (2, 2, 3))])
def test_greedy_search(max_length, expected):
    tokens, log_prob = reference.greedy_search(log_prob_fn, EOS, max_length)
    assert tokens == expected
    assert math.exp(log_prob) == pytest.approx(math.prod((0.5, 0.38, 0.5)[:max_length]))


def test_greedy_search_stops_at_eos():
    def three_tokens_then_eos(prefix):
        return np.array([-9.0, -0.5, -2.0, -1.0]) if len(prefix) == 3 else -np.arange(4.0)[::-1]

    tokens, log_prob = reference.greedy_search(three_tokens_then_eos, EOS, max_length=7)
    assert tokens == (3, 3, 3, 1)
    assert log_prob == -0.5


def test_float32_inputs_are_computed_in_float64(rng):
    weights = layer_weights(rng, "self_attention", "cross_attention")
    arrays = rng.normal(size=(B, T, D)), rng.normal(size=(B, S, D)), weights

    def cast(x, dtype):
        if isinstance(x, dict):
            return {name: cast(entry, dtype) for name, entry in x.items()}
        return tuple(cast(y, dtype) for y in x) if isinstance(x, tuple) else x.astype(dtype)

    low = cast(arrays, np.float32)
    expected = reference.decoder_layer(*cast(low, np.float64), N)
    assert_close(reference.decoder_layer(*low, N), expected)


# Against PyTorch, whose parameters are made here and copied there.


def attention_weights(rng):
    shapes = dict.fromkeys(("query", "key", "value"), ((D, N * H), (N * H,)))
    shapes["output"] = ((N * H, D), (D,))
    return {
        name: (rng.normal(size=kernel), rng.normal(size=bias))
        for name, (kernel, bias) in shapes.items()
    }


def layer_weights(rng, *attentions):
    shapes = ((D, F), (F,), (F, D), (D,))
    weights = {"feed_forward": tuple(rng.normal(size=shape) for shape in shapes)}
    for name in attentions:
        weights[name] = attention_weights(rng)
    for name in (*attentions, "feed_forward"):
        weights[f"{name}_norm"] = (rng.normal(size=D), rng.normal(size=D))
    return weights


def random_mask(rng, *shape):
    mask = rng.random(shape) < 0.6
    mask[..., 0] = True  # PyTorch gives NaN for a row that is masked entirely
    return mask


def attention_state(weights):
    """The parameters of our attention, [in, out] and [out], under PyTorch's names, [out, in]."""
    projections = [weights[name] for name in ("query", "key", "value")]
    kernel, bias = weights["output"]
    return {
        "in_proj_weight": np.concatenate([kernel.T for kernel, _ in projections]),
        "in_proj_bias": np.concatenate([bias for _, bias in projections]),
        "out_proj.weight": kernel.T,
        "out_proj.bias": bias,
    }


def layer_state(weights, attentions):
    """The same for a layer; `attentions` maps our names to PyTorch's, in the layer's order."""
    kernel1, bias1, kernel2, bias2 = weights["feed_forward"]
    state = {
        "linear1.weight": kernel1.T,
        "linear1.bias": bias1,
        "linear2.weight": kernel2.T,
        "linear2.bias": bias2,
    }
    for ours, theirs in attentions.items():
        for name, parameter in attention_state(weights[ours]).items():
            state[f"{theirs}.{name}"] = parameter
    for number, name in enumerate((*attentions, "feed_forward"), start=1):
        gamma, beta = weights[f"{name}_norm"]
        state[f"norm{number}.weight"] = gamma
        state[f"norm{number}.bias"] = beta
    return state


def load(torch, module, state):
    module.load_state_dict({name: torch.tensor(array) for name, array in state.items()})


def hidden_from_heads(torch, mask):
    """[B, T, S], True to attend -> [B*N, T, S], True to hide."""
    return torch.tensor(~np.repeat(mask, N, axis=0))


@pytest.mark.parametrize("masked", [False, True])
def test_multi_head_attention_agrees_with_torch(rng, masked):
    torch = pytest.importorskip("torch")
    weights = attention_weights(rng)
    query, value, key = (rng.normal(size=(B, length, D)) for length in (T, S, S))
    mask = random_mask(rng, B, T, S) if masked else None

    module = torch.nn.MultiheadAttention(D, N, batch_first=True, dtype=torch.float64)
    load(torch, module, attention_state(weights))
    expected_output, expected_scores = module(
        torch.tensor(query),
        torch.tensor(key),
        torch.tensor(value),
        attn_mask=hidden_from_heads(torch, mask) if masked else None,
        average_attn_weights=False,
    )

    output, scores = reference.multi_head_attention(query, value, key, weights, N, mask)
    assert_close(output, expected_output.detach().numpy())
    assert_close(scores, expected_scores.detach().numpy())


def torch_layer(torch, name):
    return getattr(torch.nn, name)(
        D, N, F, dropout=0.0, layer_norm_eps=1e-6, batch_first=True, dtype=torch.float64
    )


def test_encoder_layer_agrees_with_torch(rng):
    torch = pytest.importorskip("torch")
    weights = layer_weights(rng, "self_attention")
    x = rng.normal(size=(B, S, D))
    mask = random_mask(rng, B, S, S)

    module = torch_layer(torch, "TransformerEncoderLayer")
    load(torch, module, layer_state(weights, {"self_attention": "self_attn"}))
    expected = module(torch.tensor(x), src_mask=hidden_from_heads(torch, mask))

    assert_close(reference.encoder_layer(x, weights, N, mask), expected.detach().numpy())


def test_decoder_layer_agrees_with_torch(rng):
    torch = pytest.importorskip("torch")
    weights = layer_weights(rng, "self_attention", "cross_attention")
    x, encoder_output = rng.normal(size=(B, T, D)), rng.normal(size=(B, S, D))
    self_mask = random_mask(rng, B, T, T) & np.tri(T, dtype=bool)
    cross_mask = random_mask(rng, B, T, S)

    module = torch_layer(torch, "TransformerDecoderLayer")
    attentions = {"self_attention": "self_attn", "cross_attention": "multihead_attn"}
    load(torch, module, layer_state(weights, attentions))
    expected = module(
        torch.tensor(x),
        torch.tensor(encoder_output),
        tgt_mask=hidden_from_heads(torch, self_mask),
        memory_mask=hidden_from_heads(torch, cross_mask),
    )

    actual = reference.decoder_layer(x, encoder_output, weights, N, self_mask, cross_mask)
    assert_close(actual, expected.detach().numpy())


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_label_smoothing_agrees_with_torch(rng, smoothing):
    torch = pytest.importorskip("torch")
    logits = 5 * rng.normal(size=(B, T, V))
    targets = rng.integers(1, V, size=(B, T))
    targets[:, 8:] = 0
    expected = torch.nn.functional.cross_entropy(
        torch.tensor(logits.transpose(0, 2, 1)),  # [B, T, V] -> [B, V, T]
        torch.tensor(targets),
        ignore_index=0,
        reduction="none",
        label_smoothing=smoothing,
    )
    actual = reference.label_smoothed_cross_entropy(logits, targets, smoothing)
    assert_close(actual, expected.numpy())
