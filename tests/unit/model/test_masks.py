import keras
import numpy as np
import pytest

from keras_transformer.model import masks

IDS = np.array([[5, 3, 0, 0, 0], [5, 0, 7, 2, 0], [0, 0, 0, 0, 0]])  # B = 3, T = 5
VISIBLE = [[1, 1, 0, 0, 0], [1, 0, 1, 1, 0], [0, 0, 0, 0, 0]]
TRIANGLE = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]


def assert_mask(actual, expected):
    actual = keras.ops.convert_to_numpy(actual)
    assert actual.dtype == bool
    np.testing.assert_array_equal(actual, np.array(expected, dtype=bool), strict=True)


def test_padding_mask_hides_padding():
    assert_mask(masks.padding_mask(IDS), np.reshape(VISIBLE, (3, 1, 1, 5)))


def test_causal_mask_hides_the_future_and_no_padding():
    assert_mask(masks.causal_mask(IDS), [[TRIANGLE]] * 3)


def test_decoder_mask_hides_the_future_and_padding():
    expected = [[np.array(TRIANGLE) * row] for row in VISIBLE]  # [B, 1, T, T]
    assert_mask(masks.decoder_mask(IDS), expected)


def test_masks_of_small_integers():
    ids = np.ones((1, 300), "uint8")
    assert_mask(masks.causal_mask(ids), np.tri(300)[None, None])


@pytest.mark.parametrize(
    ("mask", "shape"),
    [
        (masks.padding_mask, (None, 1, 1, None)),
        (masks.causal_mask, (None, 1, None, None)),
        (masks.decoder_mask, (None, 1, None, None)),
    ],
)
def test_masks_of_unknown_length(mask, shape):
    ids = keras.Input((None,), dtype="int32")
    symbolic = mask(ids)
    assert (symbolic.shape, symbolic.dtype) == (shape, "bool")
    assert_mask(keras.Model(ids, symbolic)(IDS), keras.ops.convert_to_numpy(mask(IDS)))
