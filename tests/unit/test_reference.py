"""The reference itself, against arithmetic by hand and against PyTorch."""

import math

import numpy as np
import pytest
import reference
import torch_twins

B, N, D, S, T, V = 3, 2, 10, 7, 11, 19


@pytest.fixture
def rng():
    return np.random.default_rng(23)


def assert_close(actual, expected):
    assert np.asarray(actual).dtype == np.float64
    np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-12)
    assert np.shape(actual) == np.shape(expected)


# By hand.


def test_multi_head_attention_masked_entirely_is_the_output_bias(rng):
    shapes = [(D, D), (D,)] * 4
    weights = torch_twins.attention_weights([rng.normal(size=shape) for shape in shapes])
    x = rng.normal(size=(B, S, D))
    output, scores = reference.multi_head_attention(
        x, x, x, weights, N, mask=np.zeros((B, S, S), dtype=bool)
    )
    assert_close(scores, np.zeros((B, N, S, S)))
    assert_close(output, np.broadcast_to(weights["output"][1], (B, S, D)))


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
    ("length", "length_penalty", "expected"),
    [(1, 0.6, 1.0), (7, 1.0, 2.0), (19, 0.5, 2.0), (19, 0.0, 1.0)],  # 6/6, 12/6, 24/6
)
def test_length_penalty(length, length_penalty, expected):
    assert reference.gnmt_penalty(length, length_penalty) == pytest.approx(expected)


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
    ("length_penalty", "expected"),
    [
        (0.0, [((3, 1), math.log(0.27)), ((1,), math.log(0.2)), ((2, 2), math.log(0.19))]),
        (1.0, [((3, 1), -1.1223), ((2, 2), -1.4235), ((2, 3), -1.5188), ((1,), -1.6094)]),
    ],
)
def test_exhaustive_search(length_penalty, expected):
    actual = reference.exhaustive_search(
        log_prob_fn, EOS, [1, 2, 3], max_length=2, length_penalty=length_penalty, k=len(expected)
    )
    assert [tokens for tokens, _ in actual] == [tokens for tokens, _ in expected]
    assert [score for _, score in actual] == pytest.approx([s for _, s in expected], abs=1e-4)


def test_exhaustive_search_covers_every_hypothesis_once():
    # 1 + 2 + 4 that end in EOS at length 1, 2, 3 and 8 that are cut, with total probability 1.
    found = reference.exhaustive_search(
        log_prob_fn, EOS, [1, 2, 3], max_length=3, length_penalty=0, k=100
    )
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


# Against PyTorch.


def test_multi_head_attention_agrees_with_torch():
    twin = torch_twins.load("attention")
    output, scores = reference.multi_head_attention(
        twin["query"],
        twin["value"],
        twin["key"],
        torch_twins.attention_weights(twin["weights"]),
        N,
    )
    assert_close(output, twin["output"])
    assert_close(scores, twin["scores"])


def test_encoder_layer_agrees_with_torch():
    twin = torch_twins.load("encoder_layer")
    weights = torch_twins.layer_weights(twin["weights"], ["self_attention"])
    assert_close(reference.encoder_layer(twin["x"], weights, N, twin["mask"]), twin["output"])


def test_decoder_layer_agrees_with_torch():
    twin = torch_twins.load("decoder_layer")
    weights = torch_twins.layer_weights(twin["weights"], ["self_attention", "cross_attention"])
    inputs, masks = (twin["x"], twin["encoder_output"]), (twin["self_mask"], twin["cross_mask"])
    assert_close(reference.decoder_layer(*inputs, weights, N, *masks), twin["output"])


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_label_smoothing_agrees_with_torch(smoothing):
    twin = torch_twins.load("label_smoothing")
    actual = reference.label_smoothed_cross_entropy(twin["logits"], twin["targets"], smoothing)
    assert_close(actual, twin[f"loss_{smoothing}"])
