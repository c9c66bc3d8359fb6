"""The training loss (section 5.4) and metrics, per token and without padding.

Shapes (the package's glossary): B batch, T target length, V vocabulary.
"""

from typing import Any

import keras
from keras import ops

from keras_transformer.config import PAD_ID


def cross_entropy(logits: Any, target_ids: Any, label_smoothing: float = 0.0) -> Any:
    """Cross-entropy against labels smoothed over the vocabulary, in closed form.

    With q = (1 - eps) onehot(y) + eps / V, the cross-entropy of logits z is

        logsumexp(z) - (1 - eps) z_y - eps mean(z)

    which needs no one-hot of [B, T, V].

    Args:
        logits: float [B, T, V].
        target_ids: int [B, T].
        label_smoothing: eps, 0 to 1 (0.1: section 5.4).

    Returns:
        float32 [B, T], in nats.
    """
    index = ops.cast(target_ids, "int32")[..., None]  # [B, T, 1]

    # The gradient of the whole, softmax(z) - q, takes fewer passes over the logits than those of
    # its terms.
    @ops.custom_gradient
    def loss(logits: Any) -> tuple[Any, Any]:
        log_probs = ops.log_softmax(logits)  # [B, T, V]
        value = -(1.0 - label_smoothing) * ops.take_along_axis(log_probs, index, axis=-1)[..., 0]
        if label_smoothing:
            value = value - label_smoothing * ops.mean(log_probs, axis=-1)

        def gradient(*args: Any, upstream: Any = None) -> Any:
            (upstream,) = args or (upstream,)
            smooth = label_smoothing / log_probs.shape[-1]
            scaled = upstream[..., None] * (ops.exp(log_probs) - smooth)  # [B, T, V]
            return _add_at(scaled, index, -(1.0 - label_smoothing) * upstream)

        return value, gradient

    return loss(ops.cast(logits, "float32"))


def _add_at(x: Any, index: Any, values: Any) -> Any:
    """Adds a value, [B, T], to each row of x, [B, T, V], at an index, [B, T, 1]."""
    rows = ops.reshape(x, (-1, x.shape[-1]))  # [B * T, V]
    index = ops.reshape(index, (-1,))  # [B * T]
    places = ops.stack([ops.arange(ops.shape(index)[0], dtype=index.dtype), index], axis=1)
    rows = ops.scatter_update(rows, places, ops.reshape(values, (-1,)), reduction="add")
    return ops.reshape(rows, ops.shape(x))


def symmetric_divergence(logits: Any, others: Any) -> Any:
    """The divergence of two predictions p and q, KL(p || q) + KL(q || p).

    Args:
        logits: of p, float [B, T, V].
        others: of q, float [B, T, V].

    Returns:
        float32 [B, T], in nats.
    """

    # As above: half the passes.
    @ops.custom_gradient
    def divergence(logits: Any, others: Any) -> tuple[Any, Any]:
        log_p, log_q = ops.log_softmax(logits), ops.log_softmax(others)  # [B, T, V]
        p, q = ops.exp(log_p), ops.exp(log_q)
        ratio, difference = log_p - log_q, p - q

        def gradient(*args: Any, upstream: Any = None) -> tuple[Any, Any]:
            (upstream,) = args or (upstream,)
            scale = upstream[..., None]  # [B, T, 1]
            of_p = ops.sum(p * ratio, axis=-1, keepdims=True)  # KL(p || q)
            of_q = ops.sum(q * ratio, axis=-1, keepdims=True)  # -KL(q || p)
            return (
                scale * (p * (ratio - of_p) + difference),
                scale * (q * (of_q - ratio) - difference),
            )

        return ops.sum(difference * ratio, axis=-1), gradient

    return divergence(ops.cast(logits, "float32"), ops.cast(others, "float32"))


@keras.saving.register_keras_serializable("keras_transformer")
class LabelSmoothedCrossEntropy(keras.losses.Loss):
    """Label-smoothed cross-entropy, normalised by tokens and not by rows.

    Without `sample_weight` it is the mean over the batch's tokens that are not padding. With it,
    it is the weighted *sum*: the input pipeline gives each token 1 / (tokens of the global
    batch), so that any number of replicas computes the gradient of the same mean. Keras's
    `reduction` changes nothing.

    Args:
        label_smoothing: eps, 0 to 1 (0.1: section 5.4).
        pad_id: id of the padding token.
        name: as logged.

    Call arguments:
        y_true: int [B, T].
        y_pred: logits, float [B, T, V].
        sample_weight: float [B, T], or None.

    Returns:
        float32, a scalar, in nats.

    Raises:
        ValueError: if `label_smoothing` is out of range.

    Example:
        >>> import numpy as np
        >>> from keras_transformer import LabelSmoothedCrossEntropy
        >>> loss = LabelSmoothedCrossEntropy(label_smoothing=0.1)
        >>> target_ids, logits = np.array([[3, 1, 0]]), np.zeros((1, 3, 4))  # the 0 is padding
        >>> round(float(loss(target_ids, logits)), 4)  # log(4), for no token is likelier
        1.3863
    """

    def __init__(
        self,
        label_smoothing: float = 0.1,
        pad_id: int = PAD_ID,
        name: str = "label_smoothed_cross_entropy",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        if not 0 <= label_smoothing < 1:
            raise ValueError(
                "`label_smoothing` must be at least 0 and below 1. "
                f"Received: label_smoothing={label_smoothing}"
            )
        self.label_smoothing = label_smoothing
        self.pad_id = pad_id

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Reduces `call` to a scalar; see the class."""
        losses = self.call(y_true, y_pred)  # [B, T]
        if sample_weight is not None:
            return ops.sum(losses * ops.cast(sample_weight, "float32"))
        num_tokens = ops.sum(ops.cast(ops.not_equal(y_true, self.pad_id), "float32"))
        return ops.sum(losses) / ops.maximum(num_tokens, 1.0)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Returns the loss of each token, float32 [B, T], 0 at padding."""
        losses = cross_entropy(y_pred, y_true, self.label_smoothing)
        return ops.where(ops.not_equal(y_true, self.pad_id), losses, 0.0)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return super().get_config() | {
            "label_smoothing": self.label_smoothing,
            "pad_id": self.pad_id,
        }


class _TokenMean(keras.metrics.Metric):
    """Mean of a value per token over all batches; padding does not count."""

    def __init__(self, name: str, pad_id: int = PAD_ID, **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.pad_id = pad_id
        self.total = self.add_variable((), "zeros", name="total")
        self.num_tokens = self.add_variable((), "zeros", name="num_tokens")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds a batch: `y_true` int [B, T], `y_pred` float [B, T, V]. Weights do not count."""
        is_token = ops.cast(ops.not_equal(y_true, self.pad_id), "float32")
        self.total.assign_add(ops.sum(self.values(y_true, y_pred) * is_token))
        self.num_tokens.assign_add(ops.sum(is_token))

    def values(self, y_true: Any, y_pred: Any) -> Any:
        """Returns the value of each token, float32 [B, T]."""
        raise NotImplementedError

    def result(self) -> Any:
        """Returns the mean so far, 0 before the first token."""
        return self.total / ops.maximum(self.num_tokens, 1.0)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return super().get_config() | {"pad_id": self.pad_id}


@keras.saving.register_keras_serializable("keras_transformer")
class TokenLoss(_TokenMean):
    """Cross-entropy per target token, in nats, comparable between numbers of replicas.

    Args:
        label_smoothing: eps, 0 to 1.
        name: as logged.
    """

    def __init__(
        self, label_smoothing: float = 0.0, name: str = "token_loss", **kwargs: Any
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.label_smoothing = label_smoothing

    def values(self, y_true: Any, y_pred: Any) -> Any:
        """Returns each token's loss."""
        return cross_entropy(y_pred, y_true, self.label_smoothing)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return super().get_config() | {"label_smoothing": self.label_smoothing}


@keras.saving.register_keras_serializable("keras_transformer")
class Perplexity(_TokenMean):
    """exp of the mean cross-entropy per target token, without label smoothing.

    Args:
        name: as logged.

    Example:
        >>> import numpy as np
        >>> from keras_transformer import Perplexity
        >>> perplexity = Perplexity()
        >>> perplexity.update_state(np.array([[3, 1, 0]]), np.zeros((1, 3, 4)))
        >>> round(float(perplexity.result()), 4)
        4.0
    """

    def __init__(self, name: str = "perplexity", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)

    def values(self, y_true: Any, y_pred: Any) -> Any:
        """Returns each token's loss."""
        return cross_entropy(y_pred, y_true)

    def result(self) -> Any:
        """Returns the perplexity so far."""
        return ops.exp(super().result())


@keras.saving.register_keras_serializable("keras_transformer")
class TokenAccuracy(_TokenMean):
    """Share of target tokens that have the highest logit, alone or with others.

    Logits that are computed in bfloat16 are equal now and then.

    Args:
        name: as logged.
    """

    def __init__(self, name: str = "accuracy", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)

    def values(self, y_true: Any, y_pred: Any) -> Any:
        """Returns 1.0 where the prediction is right."""
        # Keras's argmax takes eight times as long as this, for the sake of negative zeros.
        index = ops.cast(y_true, "int32")[..., None]  # [B, T, 1]
        of_target = ops.take_along_axis(y_pred, index, axis=-1)[..., 0]  # [B, T]
        return ops.cast(ops.equal(of_target, ops.max(y_pred, axis=-1)), "float32")
