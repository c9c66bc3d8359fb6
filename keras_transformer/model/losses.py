"""The training loss (section 5.4) and metrics, per token and without padding."""

from collections.abc import Callable
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from keras_transformer.config import PAD_ID
from keras_transformer.errors import require
from keras_transformer.model.tensor import Tensor


def cross_entropy(logits: Tensor, target_ids: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Computes the cross-entropy of logits z with labels (1 - eps) onehot(y) + eps / V.

        logsumexp(z) - (1 - eps) z_y - eps mean(z)

    Args:
        logits: float [B, T, V].
        target_ids: int [B, T].
        label_smoothing: eps, 0 to 1 (0.1: section 5.4).

    Returns:
        float32 [B, T], in nats; NaN where an id is not one of the V.
    """
    logits = ops.cast(logits, "float32")
    index, is_id = _index(target_ids, logits.shape[-1])  # [B, T, 1], [B, T]

    # The gradient in closed form, softmax(z) - q, takes fewer passes over the logits than the
    # gradients of the three terms, and `softmax` is faster than `log_softmax`.
    @ops.custom_gradient
    def loss(logits: Tensor) -> tuple[Tensor, Callable[..., Tensor]]:
        probs = ops.softmax(logits)  # [B, T, V]
        # logsumexp(z) = max(z) - log(max(softmax(z))), where the last maximum is at least 1 / V.
        # `initial`: a batch may have no rows.
        highest = ops.max(logits, axis=-1, initial=-np.inf)  # [B, T]
        largest = ops.max(probs, axis=-1, initial=0.0)  # [B, T]
        value = highest - (1.0 - label_smoothing) * _at(logits, index) - ops.log(largest)
        if label_smoothing:
            value = value - label_smoothing * ops.mean(logits, axis=-1)

        # By position on TensorFlow and JAX; by name, and after the inputs, on torch.
        def gradient(*args: Tensor, upstream: Tensor | None = None) -> Tensor:
            upstream = args[0] if upstream is None else upstream
            smooth = label_smoothing / probs.shape[-1]
            scaled = upstream[..., None] * (probs - smooth)  # [B, T, V]
            return _add_at(scaled, index, -(1.0 - label_smoothing) * upstream)

        return value, gradient

    return ops.where(is_id, loss(logits), np.nan)


def _index(ids: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
    """[B, T] -> places in V, int32 [B, T, 1], 0 where an id is not one of them; bool [B, T]."""
    ids = ops.convert_to_tensor(ids)
    index = ops.cast(ids, "int32")  # an id that int32 does not hold turns into another
    is_id = ops.logical_and(index >= 0, index < vocab_size)
    is_id = ops.logical_and(is_id, ops.equal(ops.cast(index, ids.dtype), ids))  # [B, T]
    # Backends read a place outside of V as that of another token, or fail.
    return ops.where(is_id, index, 0)[..., None], is_id


def _at(x: Tensor, index: Tensor) -> Tensor:
    """Takes a value of each row of x, [B, T, V], at an index, [B, T, 1]: [B, T]."""
    return ops.take_along_axis(x, index, axis=-1)[..., 0]


def _add_at(x: Tensor, index: Tensor, values: Tensor) -> Tensor:
    """Adds a value, [B, T], to each row of x, [B, T, V], at an index, [B, T, 1]."""
    rows = ops.reshape(x, (-1, x.shape[-1]))  # [B * T, V]
    index = ops.reshape(index, (-1,))  # [B * T]
    places = ops.stack([ops.arange(ops.shape(index)[0], dtype=index.dtype), index], axis=1)
    rows = ops.scatter_update(rows, places, ops.reshape(values, (-1,)), reduction="add")
    return ops.reshape(rows, ops.shape(x))


def _is_token(ids: Tensor, ignore_class: int | None) -> Tensor:
    """Returns a bool, False at padding and at the ignored class, of the shape of `ids`."""
    is_token = ops.not_equal(ids, PAD_ID)
    if ignore_class is None:
        return is_token
    return ops.logical_and(is_token, ops.not_equal(ids, ignore_class))


def symmetric_divergence(logits: Tensor, others: Tensor) -> Tensor:
    """Returns KL(p || q) + KL(q || p) in nats, [B, T], of logits of p and of q, [B, T, V]."""

    # log p - log q is the difference of the logits and a constant, which cancels everywhere. The
    # gradient in closed form takes half of the passes over the logits.
    @ops.custom_gradient
    def divergence(
        logits: Tensor, others: Tensor
    ) -> tuple[Tensor, Callable[..., tuple[Tensor, Tensor]]]:
        p, q = ops.softmax(logits), ops.softmax(others)  # [B, T, V]
        gap, difference = logits - others, p - q

        def gradient(*args: Tensor, upstream: Tensor | None = None) -> tuple[Tensor, Tensor]:
            upstream = args[0] if upstream is None else upstream
            scale = upstream[..., None]  # [B, T, 1]
            mean_p = ops.sum(p * gap, axis=-1, keepdims=True)
            mean_q = ops.sum(q * gap, axis=-1, keepdims=True)
            return (
                scale * (p * (gap - mean_p) + difference),
                scale * (q * (mean_q - gap) - difference),
            )

        return ops.sum(difference * gap, axis=-1), gradient

    return divergence(ops.cast(logits, "float32"), ops.cast(others, "float32"))


@keras.saving.register_keras_serializable("keras_transformer")
class LabelSmoothedCrossEntropy(keras.losses.Loss):
    """Label-smoothed cross-entropy (section 5.4) that ignores padding.

    By default the loss is the mean over the tokens of a batch. Under a `tf.distribute` strategy,
    each replica takes the mean over its own tokens, divided by the number of replicas, as with
    Keras's losses. `TrainingModel` normalizes by the tokens of all replicas and needs
    `reduction="sum"`.

    A label that is neither 0 to V - 1 nor `ignore_class` makes the loss NaN.

    Args:
        label_smoothing: eps, at least 0 and below 1 (0.1: section 5.4).
        reduction: "sum_over_batch_size" or "mean" to divide the sum over the tokens by their
            number, "sum", "mean_with_sample_weight" to divide by the sum of the weights, or "none".
        name: as logged.
        ignore_class: a label to ignore besides padding, such as -100, or None.

    Call arguments:
        y_true: int [B, T].
        y_pred: logits, float [B, T, V].
        sample_weight: float [B, T], a weight per token, or [B, 1], a weight per sentence, or None.
            The default reduction divides by the number of tokens and not by the weights.

    Returns:
        float32, a scalar, in nats; [B, T] with `reduction="none"`.

    Raises:
        ValueError: if `label_smoothing` is out of range, or `sample_weight` has another rank.

    Example:
        >>> import numpy as np
        >>> from keras_transformer import LabelSmoothedCrossEntropy
        >>> loss = LabelSmoothedCrossEntropy(label_smoothing=0.1)
        >>> target_ids, logits = np.array([[3, 1, 0]]), np.zeros((1, 3, 4))  # the 0 is padding
        >>> round(float(loss(target_ids, logits)), 4)  # log(4): all tokens are equally likely
        1.3863
    """

    def __init__(
        self,
        label_smoothing: float = 0.1,
        reduction: str | None = "sum_over_batch_size",
        name: str = "label_smoothed_cross_entropy",
        ignore_class: int | None = None,
    ) -> None:
        # Keras casts the targets to this type, and half precision does not hold all ids.
        super().__init__(name=name, reduction=reduction, dtype="float32")
        require(
            0 <= label_smoothing < 1,
            "`label_smoothing` must be at least 0 and below 1",
            label_smoothing=label_smoothing,
        )
        self.label_smoothing = label_smoothing
        self.ignore_class = ignore_class

    def __call__(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> Tensor:
        is_token = ops.cast(_is_token(y_true, self.ignore_class), "float32")  # [B, T]
        weight = is_token
        if sample_weight is not None:
            sample_weight = ops.cast(sample_weight, "float32")
            if len(sample_weight.shape) != len(is_token.shape):
                # Keras turns `class_weight` into weights of shape [B].
                raise ValueError(
                    "`sample_weight` must have shape [B, T] or [B, 1]; `class_weight` is not "
                    f"supported. Received: sample_weight of shape {tuple(sample_weight.shape)}"
                )
            weight = is_token * sample_weight
        if self.reduction in ("sum_over_batch_size", "mean"):
            # Keras divides by B * T; the factor turns this into the number of tokens.
            size = ops.cast(ops.size(is_token), "float32")
            weight = weight * (size / ops.maximum(ops.sum(is_token), 1.0))
        if getattr(y_pred, "_keras_mask", None) is not None:
            y_pred = ops.copy(y_pred)  # without the mask, by which Keras would scale once more
        return super().__call__(y_true, y_pred, weight)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Returns the loss of each token, float32 [B, T], 0 at padding."""
        losses = cross_entropy(y_pred, y_true, self.label_smoothing)
        return ops.where(_is_token(y_true, self.ignore_class), losses, 0.0)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "label_smoothing": self.label_smoothing,
            "ignore_class": self.ignore_class,
        }


class _TokenMean(keras.metrics.Mean):
    """Mean of a value over all tokens of all batches, without padding."""

    default_name: ClassVar[str]

    def __init__(
        self, name: str | None = None, ignore_class: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(name=name or self.default_name, **kwargs)
        self.ignore_class = ignore_class

    def values(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Returns the value of each token, float32 [B, T]."""
        raise NotImplementedError

    def update_state(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> None:
        """Adds a batch: `y_true` int [B, T], `y_pred` float [B, T, V]; weights are ignored."""
        is_token = _is_token(y_true, self.ignore_class)  # [B, T]
        values = ops.where(is_token, self.values(y_true, y_pred), 0.0)
        # For a matrix, Keras would take the mean of each row first.
        super().update_state(ops.reshape(values, (-1,)), ops.reshape(is_token, (-1,)))

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"ignore_class": self.ignore_class}


@keras.saving.register_keras_serializable("keras_transformer")
class TokenLoss(_TokenMean):
    """Mean cross-entropy of the target tokens in nats, without label smoothing.

    Args:
        name: as logged.
        ignore_class: a label to ignore besides padding, or None.
    """

    default_name = "token_loss"

    def values(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return cross_entropy(y_pred, y_true)


@keras.saving.register_keras_serializable("keras_transformer")
class Perplexity(TokenLoss):
    """Exponential of `TokenLoss`.

    Example:
        >>> import numpy as np
        >>> from keras_transformer import Perplexity
        >>> perplexity = Perplexity()
        >>> perplexity.update_state(np.array([[3, 1, 0]]), np.zeros((1, 3, 4)))
        >>> round(float(perplexity.result()), 4)
        4.0
    """

    default_name = "perplexity"

    def result(self) -> Tensor:
        return ops.exp(super().result())


@keras.saving.register_keras_serializable("keras_transformer")
class TokenAccuracy(_TokenMean):
    """Fraction of the target tokens whose logit is the highest; a tie counts as right.

    The arguments are those of `TokenLoss`.
    """

    default_name = "accuracy"

    def values(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        index, is_id = _index(y_true, y_pred.shape[-1])  # [B, T, 1], [B, T]
        # This is eight times as fast as Keras's argmax.
        largest = ops.max(y_pred, axis=-1, initial=-np.inf)  # [B, T]
        is_right = ops.cast(ops.equal(_at(y_pred, index), largest), "float32")
        return ops.where(is_id, is_right, np.nan)
