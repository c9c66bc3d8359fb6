# ---
# jupyter:
#   jupytext:
#     cell_metadata_filter: tags,-all
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Inside attention
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/OWNER/keras3-transformer/blob/main/colab/inside_attention.ipynb)
#
# What attention may attend to, what it costs, and what a trained model does with it, in the order
# of ["Attention Is All You Need"](https://arxiv.org/abs/1706.03762). The numbers in the headings
# are the paper's sections.
#
# On Colab, set `REPOSITORY` in the next cell to the address of the package's repository, and run
# the cell. It installs the package with its version of TensorFlow, and then asks you to **restart
# the runtime** (*Runtime > Restart session*). After that, run all cells. Elsewhere the cell does
# nothing: install the package yourself, with Python 3.11 to 3.13.

# %%
import subprocess
import sys
from importlib import metadata

REPOSITORY = "https://HOST/OWNER/keras3-transformer"  # the address of the package's repository
PACKAGES = [f"keras3-transformer[plots] @ git+{REPOSITORY}"]
PACKAGES += ["tensorflow==2.21.0", "tensorflow-text==2.21.1", "keras==3.15.1"]


def versions():
    return {package.name: package.version for package in metadata.distributions()}


if "google.colab" in sys.modules:
    before = versions()
    pip = [sys.executable, "-m", "pip", "install", "--quiet", *PACKAGES]
    done = subprocess.run(pip, capture_output=True, text=True)
    if done.returncode:
        print(done.stderr)
        raise SystemExit(
            f"Cannot install from {REPOSITORY}: set REPOSITORY, then run this cell again"
        )
    if versions() != before:
        raise SystemExit("Installed. Now Runtime > Restart session, and then run all cells")

# %% [markdown]
# The parameters. The model is that of `train_and_translate`. If `RUN_DIR` holds no finished run,
# the notebook trains it below, which takes about three minutes on a CPU. `SENTENCE` can be any
# sentence of the words that the model knows.

# %% tags=["parameters"]
SENTENCE = "Every tall student said that a tall neighbour followed him."
RUN_DIR = "run"
STEPS = 600  # updates, if there is no run
LENGTHS = (128, 256, 512, 1024, 2048, 4096)  # of Table 1, in positions
WIDTH = 512  # of Table 1's layers, d: the paper's base
REPEATS = 5  # of each measurement

# %%
import os

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"  # on a CPU, its allocator counts bytes

from keras_transformer.cli.console import load_tensorflow

load_tensorflow()  # without its start-up messages

import statistics
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from IPython.display import display
from matplotlib.figure import Figure

from keras_transformer import (
    FeedForward,
    MultiHeadAttention,
    Run,
    Transformer,
    Translator,
    WarmupSchedule,
    plots,
)
from keras_transformer.model.embedding import sinusoidal_encoding
from keras_transformer.model.masks import causal_mask, decoder_mask, padding_mask
from keras_transformer.trainers.fitting.training import train
from keras_transformer.trainers.recipes import load_recipe
from keras_transformer.trainers.settings import TrainSettings

# %matplotlib inline

# %% [markdown]
# ## 3.2.3 What masking does
#
# A mask says which positions (columns) a position (row) may attend to. Two kinds are needed: no
# position may attend to padding, and no position of the decoder to later positions. The upper row
# of pictures shows the masks of a sequence of five tokens and two of padding. The lower row shows
# the weights of an untrained layer with each mask. Every row of weights still adds up to 1: masking
# moves weight to the other positions.

# %%
ids = np.array([[11, 12, 13, 14, 3, 0, 0]])  # 0 is padding
masks = {
    "No mask": np.ones((1, 1, 7, 7), bool),
    "Padding mask\n(encoder)": np.tile(padding_mask(ids), (1, 1, 7, 1)),
    "Causal mask": np.asarray(causal_mask(ids)),
    "Both\n(decoder)": np.asarray(decoder_mask(ids)),
}
keras.utils.set_random_seed(1)
layer = MultiHeadAttention(d_model=16, num_heads=1)
x = keras.random.normal((1, 7, 16), seed=2)

figure = Figure(figsize=(9, 4.8), layout="constrained")
panels = figure.subplots(2, len(masks), sharex=True, sharey=True)
for (name, mask), (above, below) in zip(masks.items(), panels.T, strict=True):
    _, weights = layer(x, x, attention_mask=mask, return_attention_scores=True)
    above.imshow(mask[0, 0], cmap="Blues", vmin=0, vmax=1)
    image = below.imshow(weights[0, 0], cmap="Blues", vmin=0, vmax=1)
    above.set_title(name, fontsize=10)
panels[0, 0].set_ylabel("May attend")
panels[1, 0].set_ylabel("Weights")
figure.colorbar(image, ax=panels, label="Weight", pad=0.01)
figure

# %% [markdown]
# Without the causal mask, the decoder could read in training the token that it must predict. The
# next cell changes one token of the target, and prints at which positions the output changes: only
# at this position and later. Padding a source changes nothing.

# %%
model = Transformer.from_preset("tiny", vocab_size=100)
source = np.array([[21, 22, 23, 24, 3]])
target = np.array([[2, 31, 32, 33, 34, 35, 36, 37]])
changed = target.copy()
changed[0, 5] = 99


def logits(source, target):
    return np.asarray(model({"source_ids": source, "target_ids": target}))


difference = np.abs(logits(source, changed) - logits(source, target)).max(axis=2)[0]  # [T]
print("Token 5 of the target changed; change of the output by position:")
print(np.array2string(difference, precision=2, suppress_small=True))

padded = np.pad(source, [(0, 0), (0, 4)])
difference = np.abs(logits(padded, target) - logits(source, target)).max()
print(f"Source padded by 4; largest change of the output: {difference:.0e}, which is rounding")

# %% [markdown]
# ## 3.3 The feed-forward network is two convolutions
#
# The feed-forward network maps each position by itself, and all positions by the same two matrices.
# So it is two convolutions with a kernel of size 1, as the paper says. The next cell gives its
# weights to Keras's `Conv1D`, and compares the outputs.

# %%
feed_forward = FeedForward(d_model=16, d_ff=64)
convolutions = keras.Sequential(
    [keras.layers.Conv1D(64, kernel_size=1, activation="relu"), keras.layers.Conv1D(16, 1)]
)
for network in (feed_forward, convolutions):
    network.build((1, 7, 16))

random = np.random.default_rng(3)
weights = [random.normal(size=weight.shape) for weight in feed_forward.get_weights()]
feed_forward.set_weights(weights)
kernel_1, bias_1, kernel_2, bias_2 = weights
# A kernel of `Conv1D` has one more axis, its size: [1, D, F] and [1, F, D].
convolutions.set_weights([kernel_1[None], bias_1, kernel_2[None], bias_2])

outputs = np.asarray(feed_forward(x)), np.asarray(convolutions(x))
difference = np.abs(outputs[0] - outputs[1]).max() / np.abs(outputs[0]).max()
print(f"Largest difference of both networks, over the largest output: {difference:.0e}")

# %% [markdown]
# ## 3.5 Positional encoding
#
# Attention does not depend on the order of positions, so the encoding of its position is added to
# each embedding. The wavelengths of the sines and cosines grow from 2 pi at the left to 10,000
# times as much at the right.

# %%
plots.positional_encoding(sinusoidal_encoding(np.arange(100), d_model=128))

# %% [markdown]
# ## 4 Why self-attention: Table 1, measured
#
# The paper compares three kinds of layers that map n positions of width d to as many:
#
# | layer | operations | one after the other |
# |---|---|---|
# | self-attention | O(n^2 d) | O(1) |
# | recurrent | O(n d^2) | O(n) |
# | convolutional | O(k n d^2) | O(1) |
#
# The next cell measures `MultiHeadAttention` with 8 heads, Keras's `LSTM`, and Keras's `Conv1D`
# with a kernel of 3, all of the same width. It runs a forward pass of one sequence, compiled by
# `tf.function`. The time is the median of several passes. The memory is the most that TensorFlow's
# allocator gives out during a pass, without input and weights. On a CPU it counts only blocks of
# 256 kB and more, so the LSTM's single states are missing, which take as much memory as its output.
# Table 1 has no memory. That of self-attention is O(n^2), for the weights of every pair of
# positions.


# %%
def table_1_layers():
    """Layers by name, with the exponent of the length in Table 1."""
    return {
        "Self-attention": (MultiHeadAttention(WIDTH, num_heads=8), 2),
        "Recurrent (LSTM)": (keras.layers.LSTM(WIDTH, return_sequences=True), 1),
        "Convolutional (k = 3)": (keras.layers.Conv1D(WIDTH, 3, padding="same"), 1),
    }


def measure(layer, length, device):
    """Returns the median time of a forward pass, in ms, and its memory, in MB, if counted."""
    x = tf.random.normal((1, length, WIDTH))
    attends = isinstance(layer, MultiHeadAttention)
    forward = tf.function(lambda x: layer(x, x) if attends else layer(x), autograph=False)
    forward(x)  # compiles
    seconds = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        forward(x).numpy()  # waits for the result
        seconds.append(time.perf_counter() - started)
    tf.config.experimental.reset_memory_stats(device)
    before = tf.config.experimental.get_memory_info(device)["current"]
    forward(x).numpy()
    peak = tf.config.experimental.get_memory_info(device)["peak"]
    return 1e3 * statistics.median(seconds), (peak - before) / 1e6 or np.nan


device = "GPU:0" if tf.config.list_physical_devices("GPU") else "CPU:0"
measured = {
    name: np.array([measure(layer, length, device) for length in LENGTHS])  # [lengths, 2]
    for name, (layer, _) in table_1_layers().items()
}

# %% [markdown]
# The dashed lines have the slopes of Table 1, and go through the last points. At short lengths
# self-attention lies above its line: up to n = 2 d, most of its work is in its four projections,
# O(n d^2), which the table leaves out. The LSTM is as steep as the convolution. It needs 8 / 3
# times as many multiplications. It is slower than that because its n steps run one after another.

# %%
figure = Figure(figsize=(9.5, 4.2), layout="constrained")
panels = figure.subplots(1, 2)
looks = (  # colours and markers, so that colour is not needed
    {"color": "#0072b2", "marker": "o"},
    {"color": "#d55e00", "marker": "s", "markersize": 9, "fillstyle": "none"},
    {"color": "#009e73", "marker": "x"},
)
for column, (panel, unit) in enumerate(zip(panels, ("Time (ms)", "Memory (MB)"), strict=True)):
    for (name, (_, exponent)), look in zip(table_1_layers().items(), looks, strict=True):
        values = measured[name][:, column]
        line = values[-1] * (np.array(LENGTHS) / LENGTHS[-1]) ** exponent
        panel.loglog(LENGTHS, line, "--", color=look["color"], linewidth=1)
        panel.loglog(LENGTHS, values, **look, label=f"{name}: $n^{exponent}$")
    panel.set_xticks(LENGTHS, [f"{length:,}" for length in LENGTHS], fontsize=8)
    panel.minorticks_off()
    panel.set(xlabel=f"Length n, with d = {WIDTH}", ylabel=f"{unit} on {device}")
    panel.grid(color="#e1e5ec")
panels[0].legend(fontsize=8)
figure

# %%
print(f"{'':22}{'ms':>9}{'MB':>9}   slope of both at the end")
for name, values in measured.items():
    slopes = np.log(values[-1] / values[-2]) / np.log(LENGTHS[-1] / LENGTHS[-2])
    print(f"{name:22}{values[-1, 0]:9.2f}{values[-1, 1]:9.2f}   {slopes[0]:.1f}, {slopes[1]:.1f}")

# %% [markdown]
# ## 5.3 The warm-up schedule
#
# The learning rate grows linearly for `warmup_steps` updates, and then falls with the inverse
# square root of their number. Wider models get lower rates.

# %%
schedules = {
    "base: d_model 512, warm-up 4,000": WarmupSchedule(d_model=512),
    "big: d_model 1,024, warm-up 4,000": WarmupSchedule(d_model=1024),
    "d_model 512, warm-up 8,000": WarmupSchedule(d_model=512, warmup_steps=8_000),
}
plots.learning_rate(schedules, steps=25_000)

# %% [markdown]
# ## Figures 3 to 5: every head of every layer
#
# Now a trained model: the small one of `train_and_translate`, with two layers on each side and four
# heads in each. Its corpus is **synthetic**.

# %%
run = Run.load(RUN_DIR) if Path(RUN_DIR, "run.json").exists() else None
if run is None or run.status != "complete":  # an interrupted one continues with its own settings
    settings = run.settings if run else {**load_recipe("demo"), "steps": STEPS}
    train(TrainSettings.from_dict(settings), RUN_DIR, verbose=2, resume=True)
translator = Translator.load(RUN_DIR)
attention = translator.attention(SENTENCE)  # and of the translation that beam search finds
print(SENTENCE, translator.translate([SENTENCE])[0].text, sep="\n")

# %% [markdown]
# The encoder's self-attention. A row is a position, and its columns are the positions to which it
# attends. `</s>` is the end.

# %%
source = attention.source_pieces
for layer, scores in enumerate(attention.encoder, start=1):
    display(plots.attention_heads(scores, source, source, title=f"Encoder, layer {layer}"))

# %% [markdown]
# The paper draws lines, in a color for each head. They go from a position (left) to those to which
# it attends (right), and are as opaque as the weight is large. The second picture has only the
# lines of the position that attends the most sharply.

# %%
scores = attention.encoder[-1]
sharpest = int(scores.max(axis=2).mean(axis=0).argmax())
display(plots.attention_lines(scores, source, source, title="Encoder, last layer"))
display(plots.attention_lines(scores, source, source, query=sharpest, title=source[sharpest]))

# %% [markdown]
# The decoder's self-attention. Its rows read the translation, shifted right by the start symbol,
# and the causal mask leaves the upper right empty.

# %%
decoder = attention.decoder_pieces
for layer, scores in enumerate(attention.decoder, start=1):
    display(plots.attention_heads(scores, decoder, decoder, title=f"Decoder, layer {layer}"))

# %% [markdown]
# Cross-attention, from the translation to the source. Here a row is labelled by the piece that it
# chooses.

# %%
target = attention.target_pieces
for layer, scores in enumerate(attention.cross, start=1):
    title = f"Decoder, layer {layer}, to the encoder"
    display(plots.attention_heads(scores, target, source, title=title))

# %% [markdown]
# ## Alignment
#
# The training data does not say which word translates which. The mean over the heads of a layer
# shows what the model has learned, including the verbs at the end of German clauses.

# %%
sharpest = max(attention.cross, key=lambda scores: scores.mean(axis=0).max(axis=1).mean())
display(plots.alignment(sharpest, target, source))
for piece, weights in zip(target, sharpest.mean(axis=0), strict=True):
    print(f"{piece:>12} <- {source[weights.argmax()]:12} {weights.max():.2f}")

# %% [markdown]
# Attention is not an explanation: the decoder also reads what it has written, and the encoder's
# output at a position depends on other words too. `Translator.attention(source, target)` takes your
# own translation instead of the model's.
