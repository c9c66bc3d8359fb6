"""A recurrent encoder-decoder with attention in plain NumPy: float64, and loops over positions.

An oracle for the tests, written from the papers: Cho et al. (arXiv 1406.1078) in cuDNN's form,
Hochreiter and Schmidhuber (1997) with forget gates, Bahdanau et al. (arXiv 1409.0473) and Luong et
al. (arXiv 1508.04025). One sentence at a time, without padding: S source length, T target length,
U units. The weights of a cell are `kernel`, `recurrent_kernel` and `bias`, as Keras orders them.
"""

import numpy as np
from reference import float64, softmax


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gru_step(x, state, weights):
    """Gates z, r, and the candidate; a bias for the input and another for the state."""
    kernel, recurrent_kernel, (input_bias, state_bias) = map(float64, weights)
    (h,) = state
    x_z, x_r, x_h = np.split(x @ kernel + input_bias, 3)
    h_z, h_r, h_h = np.split(h @ recurrent_kernel + state_bias, 3)
    z, r = sigmoid(x_z + h_z), sigmoid(x_r + h_r)
    return (z * h + (1 - z) * np.tanh(x_h + r * h_h),)


def lstm_step(x, state, weights):
    """Gates i, f, the candidate, and gate o."""
    kernel, recurrent_kernel, bias = map(float64, weights)
    h, c = state
    i, f, candidate, o = np.split(x @ kernel + h @ recurrent_kernel + bias, 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(candidate)
    return sigmoid(o) * np.tanh(c), c


STEPS = {"gru": gru_step, "lstm": lstm_step}


def run(step, inputs, state, weights):
    """The outputs of a layer, [T, U], for inputs of T rows."""
    outputs = []
    for x in float64(inputs):
        state = step(x, state, weights)
        outputs.append(state[0])
    return np.array(outputs)


def encode(step, num_states, inputs, layers):
    """Layers of (forward weights, backward weights) -> [S, 2U]."""
    for forward, backward in layers:
        zeros = [np.zeros(len(forward[1]))] * num_states
        left_to_right = run(step, inputs, zeros, forward)
        right_to_left = run(step, inputs[::-1], zeros, backward)[::-1]
        inputs = np.concatenate([left_to_right, right_to_left], axis=1)
    return inputs


def luong_score(h, s, weights):
    """s^T W h."""
    return float64(s) @ (float64(h) @ weights["key"])


def additive_score(h, s, weights):
    """v^T tanh(W_1 h + W_2 s)."""
    hidden = np.tanh(float64(h) @ weights["key"] + float64(s) @ weights["query"])
    return hidden @ float64(weights["v"])


SCORES = {"luong": luong_score, "additive": additive_score}


def attend(score, encoded, outputs, weights):
    """Encoded [S, 2U], outputs [T, U] -> what they attend to, [T, 2U], and the weights, [T, S]."""
    attended, distributions = [], []
    for s in outputs:
        distribution = softmax(np.array([score(h, s, weights) for h in encoded]))
        attended.append(sum(share * h for share, h in zip(distribution, encoded, strict=True)))
        distributions.append(distribution)
    return np.array(attended), np.array(distributions)


def combine(attended, outputs, kernel, bias):
    """tanh(W [a; s] + b), [T, D]."""
    return np.tanh(np.concatenate([attended, outputs], axis=1) @ float64(kernel) + bias)
