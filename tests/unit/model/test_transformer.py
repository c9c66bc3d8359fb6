import functools
import subprocess
import sys

import keras
import layer_weights
import numpy as np
import pytest
import reference
import tensorflow as tf
import torch_twins
from layer_weights import VARIANTS, V, make_model, reference_logits

from keras_transformer import (
    DecodingOptions,
    InputError,
    LabelSmoothedCrossEntropy,
    TokenLoss,
    Transformer,
    WarmupSchedule,
)

assert_close = functools.partial(layer_weights.assert_close, rtol=1e-4, atol=1e-4)
B, S, T = 3, 7, 11


@pytest.fixture(scope="module", params=VARIANTS)
def model(request):
    return make_model(**VARIANTS[request.param])


@pytest.fixture(scope="module")
def inputs():
    """Ids of 7, 4 and 2 source tokens, and of 11, 5 and 8 target tokens."""
    rng = np.random.default_rng(29)
    source_ids, target_ids = rng.integers(1, V, (B, S)), rng.integers(1, V, (B, T))
    source_ids[1, 4:] = source_ids[2, 2:] = 0
    target_ids[1, 5:] = target_ids[2, 8:] = 0
    return {"source_ids": source_ids.astype("int32"), "target_ids": target_ids.astype("int32")}


@pytest.fixture
def set_policy():
    """A function that sets the global dtype policy, until the end of the test."""
    before = keras.config.dtype_policy()
    yield keras.config.set_dtype_policy
    keras.config.set_dtype_policy(before)


# The logits.


def test_logits_are_the_oracles(model, inputs):
    logits = model(inputs)
    assert logits.dtype == "float32"
    assert_close(logits, reference_logits(model, **inputs))


def test_attention_scores_are_the_oracles(model, inputs, monkeypatch):
    recorded, attend = [], reference.multi_head_attention

    def recording(*args):
        output, scores = attend(*args)
        recorded.append(scores)
        return output, scores

    monkeypatch.setattr(reference, "multi_head_attention", recording)
    reference_logits(model, **inputs)
    scores = model.attention_scores(**inputs)
    (*encoder, self_0, cross_0, self_1, cross_1, self_2, cross_2) = recorded
    for actual, expected in (
        (scores.encoder, encoder),
        (scores.decoder, [self_0, self_1, self_2]),
        (scores.cross, [cross_0, cross_1, cross_2]),
    ):
        for one, other in zip(actual, expected, strict=True):
            assert_close(one, other)


def test_attention_scores_have_no_dropout(inputs):
    model = make_model(dropout_rate=0.5, attention_dropout_rate=0.5)
    once, twice = (model.attention_scores(**inputs) for _ in range(2))
    for one, other in zip(tf.nest.flatten(once), tf.nest.flatten(twice), strict=True):
        assert_close(one, other, rtol=0, atol=0)


def test_source_and_target_share_one_embedding_only_when_tied():
    tied, untied = make_model(), make_model(share_embeddings=False)
    assert tied.source_embedding is tied.target_embedding
    assert tied.output_dense is None
    matrices = [weight for weight in untied.weights if V in weight.shape]
    assert [tuple(weight.shape) for weight in matrices] == [(V, 10), (V, 10), (10, V)]


def test_gradients_reach_every_weight(model, inputs):
    with tf.GradientTape() as tape:
        loss = LabelSmoothedCrossEntropy()(inputs["target_ids"], model(inputs))
    gradients = tape.gradient(loss, model.trainable_weights)
    for weight, gradient in zip(model.trainable_weights, gradients, strict=True):
        # A key's bias adds the same to all scores of a query, which the softmax ignores.
        largest = np.abs(tf.convert_to_tensor(gradient)).max()
        assert (largest > 1e-5) != weight.path.endswith("key/bias"), weight.path


def test_pre_norm_is_torchs():
    """`nn.Transformer(norm_first=True, activation="gelu")` in float64."""
    twin = torch_twins.load("pre_norm")
    model = make_model(**VARIANTS["pre-norm"])
    assert [weight.path for weight in model.weights if weight.path.count("/") == 1] == [
        "encoder_norm/gamma",
        "encoder_norm/beta",
        "decoder_norm/gamma",
        "decoder_norm/beta",
    ]
    model.set_weights(twin["weights"])
    ids = {name: twin[name].astype("int32") for name in ("source_ids", "target_ids")}
    assert_close(model(ids), twin["logits"], rtol=1e-5, atol=1e-5)


# Dropout and precision.

RATES = ["dropout_rate", "attention_dropout_rate", "feed_forward_dropout_rate"]


@pytest.mark.parametrize("rate", RATES)
def test_dropout_acts_only_in_training(inputs, rate):
    none = dict.fromkeys(RATES, 0.0)
    model, expected = make_model(**none | {rate: 0.5}), make_model(**none)(inputs, training=True)
    for training in (None, False):
        assert_close(model(inputs, training=training), expected, rtol=0, atol=0)
    assert np.abs(model(inputs, training=True) - expected).max() > 0.1


def test_config_of_another_architecture_is_refused():
    with pytest.raises(InputError, match="`config`"):
        Transformer(DecodingOptions())


def test_quantizing_is_refused():
    with pytest.raises(InputError, match="quantized"):
        make_model().quantize("int8")


@pytest.mark.parametrize(
    ("policy", "tolerance", "variant"),
    [
        ("mixed_float16", 0.02, "tied"),
        ("mixed_float16", 0.02, "pre-norm"),
        ("mixed_bfloat16", 0.2, "untied learned"),
        ("mixed_bfloat16", 0.2, "pre-norm"),
    ],
)
def test_mixed_precision(inputs, set_policy, policy, tolerance, variant):
    set_policy(policy)
    model = make_model(**VARIANTS[variant])
    assert {weight.dtype for weight in model.weights} == {"float32"}
    assert model.encode(inputs["source_ids"]).dtype == policy.removeprefix("mixed_")
    logits = model(inputs)
    assert logits.dtype == "float32"
    expected = reference_logits(model, **inputs)
    error = np.abs(logits - expected)[inputs["target_ids"] != 0]
    assert error.mean() < tolerance
    assert LabelSmoothedCrossEntropy()(inputs["target_ids"], logits).dtype == "float32"


# Configuration and files.


def test_saved_and_loaded_outputs_are_equal(model, inputs, tmp_path):
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert isinstance(loaded, Transformer)
    assert loaded.config == model.config
    assert_close(loaded(inputs), model(inputs), rtol=0, atol=0)


def test_clone_has_weights_of_its_own(model, inputs):
    clone = keras.models.clone_model(model)
    assert clone.count_params() == model.count_params()
    other = layer_weights.randomize(Transformer(model.config), seed=31)
    clone.set_weights(other.get_weights())  # the clone uses them, and none of the first model's
    assert_close(clone(inputs), other(inputs), rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["frozen", "mixed_float16"])
def test_reloaded_model_has_no_optimizer_state(inputs, set_policy, tmp_path, kind):
    """As the docstring of `Transformer` says."""
    if kind == "mixed_float16":
        set_policy(kind)
    model = make_model(num_encoder_layers=1, num_decoder_layers=1)
    model.source_embedding.trainable = kind != "frozen"
    model.compile("adam", LabelSmoothedCrossEntropy(), run_eagerly=True)
    model.train_on_batch(inputs, inputs["target_ids"])
    model.save(tmp_path / "model.keras")
    set_policy("float32")
    with pytest.warns(UserWarning, match="Skipping variable loading for optimizer"):
        loaded = keras.models.load_model(tmp_path / "model.keras")
    assert (int(model.optimizer.iterations), int(loaded.optimizer.iterations)) == (1, 0)
    for weight, expected in zip(loaded.weights, model.weights, strict=True):
        np.testing.assert_array_equal(weight, expected)


def test_another_process_loads_compiled_models(inputs, tmp_path):
    model = make_model()
    model.compile(
        keras.optimizers.Adam(WarmupSchedule(model.config.d_model, 7)),
        LabelSmoothedCrossEntropy(0.1),
        metrics=[TokenLoss()],
    )
    paths = [str(tmp_path / f"model.{suffix}") for suffix in ("keras", "h5")]
    for path in paths:
        model.save(path)
    np.savez(tmp_path / "inputs.npz", **inputs)
    code = (
        "import sys, numpy, keras_transformer, keras\n"
        "assert 'keras_transformer.model.layers' not in sys.modules\n"
        "for path in sys.argv[1:]:\n"
        "    model = keras.models.load_model(path)\n"
        "    assert type(model) is keras_transformer.Transformer and model.loss.name, model\n"
        "    numpy.save(path + '.npy', model(dict(numpy.load('inputs.npz'))))"
    )
    subprocess.run([sys.executable, "-c", code, *paths], check=True, cwd=tmp_path)
    for path in paths:
        assert_close(np.load(f"{path}.npy"), model(inputs), rtol=1e-5, atol=1e-5)
