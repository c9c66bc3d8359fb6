"""Counts of operations, medians, ratios and exponents: plain functions of plain numbers."""

import math
import statistics
from collections.abc import Sequence

from keras_transformer.config import TransformerConfig


def decoding_flops(
    sizes: TransformerConfig, sources: Sequence[int], target: int, beam: int
) -> float:
    """Operations of the matrix products that decoding needs, two for each multiplication.

    Args:
        sizes: of the model.
        sources: tokens of each source.
        target: steps.
        beam: hypotheses a source.
    """
    d, layers = sizes.d_model, sizes.num_decoder_layers
    # Query and output of both attentions, keys and values of one, feed-forward; output projection.
    a_token = layers * (6 * d * d + 2 * d * sizes.d_ff) + d * sizes.vocab_size
    flops = 0.0
    for source in sources:
        attended = target * (target + 1) / 2 + target * source  # keys seen, over all steps
        hypotheses = beam * (target * a_token + layers * 2 * d * attended)
        flops += 2 * (_encoder_products(sizes, source) + hypotheses)
    return flops


def training_flops(sizes: TransformerConfig, pairs: Sequence[tuple[int, int]]) -> float:
    """Operations of an update's matrix products: a forward pass, and twice that backward.

    Args:
        sizes: of the model.
        pairs: tokens of source and target.
    """
    d, layers = sizes.d_model, sizes.num_decoder_layers
    a_token = layers * (6 * d * d + 2 * d * sizes.d_ff) + d * sizes.vocab_size
    products = 0.0
    for source, target in pairs:
        attended = target * (target + 1) / 2 + target * source
        products += _encoder_products(sizes, source) + target * a_token
        products += layers * 2 * d * attended
    return 3 * 2 * products


def _encoder_products(sizes: TransformerConfig, source: int) -> float:
    """Multiplications of encoding a source, and of projecting it for the decoder's layers."""
    d = sizes.d_model
    a_layer = source * (4 * d * d + 2 * d * sizes.d_ff) + 2 * d * source * source
    return sizes.num_encoder_layers * a_layer + sizes.num_decoder_layers * source * 2 * d * d


def fit_exponent(xs: Sequence[float], ys: Sequence[float]) -> float:
    """The p of y = c x^p, by least squares of the logarithms.

    Raises:
        ValueError: if there are not two different xs, or a number is not positive.
    """
    if len(set(xs)) < 2:
        raise ValueError(f"It takes two different sizes to fit an exponent. Received: {list(xs)}")
    return statistics.linear_regression([math.log(x) for x in xs], [math.log(y) for y in ys]).slope


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """How much faster we are: the median over the rounds of their seconds / ours.

    Both were measured in the same rounds, so that what slowed a round slowed both.
    """
    return statistics.median(b / a for a, b in zip(ours, theirs, strict=False))
