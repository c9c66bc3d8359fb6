"""Texts in, translations out: the object that users hold, and the graph it shares with exports.

Shapes (the package's glossary): B batch, S source length, T target length, K beams.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import tensorflow as tf

from keras_transformer.decoding import search
from keras_transformer.errors import InputError
from keras_transformer.model import Transformer
from keras_transformer.run import CheckpointName, Run
from keras_transformer.tokenizer import Tokenizer

# Rows times bytes of the longest text: bounds the memory of a batch.
MAX_BATCH_BYTES = 1 << 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodingOptions:
    """How to search (section 6.1).

    Attributes:
        beam_size: beams, K; 1 is greedy search.
        alpha: strength of the length penalty, at least 0.
        extra_length: a translation has at most this many tokens more than its source.
        max_source_length: longer sources are cut to this many tokens, end symbol included.
    """

    beam_size: int = 4
    alpha: float = 0.6
    extra_length: int = 50
    max_source_length: int = 512

    def __post_init__(self) -> None:
        for name, least, most in (
            ("beam_size", 1, 1_000),
            ("alpha", 0, 1_000),
            ("extra_length", 0, 2**20),
            ("max_source_length", 2, 2**20),
        ):
            value = getattr(self, name)
            if not value >= least:
                raise InputError(f"`{name}` must be at least {least}. Received: {name}={value}")
            if value > most:
                raise InputError(f"`{name}` must be at most {most}. Received: {name}={value}")


class TranslatedBatch(NamedTuple):
    """What `translate_batch` returns.

    Attributes:
        translations: string [B, K], valid UTF-8, best first.
        scores: float32 [B, K], nats over the length penalty; -inf, with an empty translation,
            where there are fewer than K.
        truncated: bool [B], True where the source was cut to `max_source_length`.
    """

    translations: tf.Tensor
    scores: tf.Tensor
    truncated: tf.Tensor


def translate_batch(
    model: Transformer, tokenizer: Tokenizer, texts: tf.Tensor, options: DecodingOptions
) -> TranslatedBatch:
    """Translates in the graph, from strings to strings.

    A text without any token, such as one of blanks, has an empty translation of score 0.

    Args:
        model: the model.
        tokenizer: the model's.
        texts: string [B]; bytes that are not UTF-8 read as U+FFFD.
        options: how to search.
    """
    # Learned positions end somewhere; sinusoids do not.
    is_learned = model.config.position_encoding == "learned"
    most = model.config.max_length if is_learned else tf.int32.max
    source = tokenizer.encode(texts, min(options.max_source_length, most))
    is_empty = source.lengths == 0  # [B]
    memory = model.memory(source.ids)
    beam_size = options.beam_size
    hypotheses = search(
        lambda ids, position, cache: model.decode_step(ids, position, cache, memory),
        model.empty_cache(tf.shape(source.ids)[0] * beam_size),
        limits=tf.where(is_empty, 1, tf.minimum(source.lengths + options.extra_length, most)),
        beam_size=beam_size,
        alpha=options.alpha,
    )
    num_texts = tf.shape(source.ids)[0]
    # The last dimension is 0 where there is no text at all, hence no -1.
    ids = tf.reshape(hypotheses.ids, [num_texts * beam_size, tf.shape(hypotheses.ids)[2]])
    translations = tf.reshape(tokenizer.detokenize(ids), [num_texts, beam_size])
    of_empty = tf.where(tf.range(beam_size) == 0, 0.0, -float("inf"))  # [K]
    return TranslatedBatch(
        translations=tf.where(is_empty[:, None], "", translations),
        scores=tf.where(is_empty[:, None], of_empty, hypotheses.scores),
        truncated=source.truncated,
    )


class Hypothesis(NamedTuple):
    """A translation that a search found.

    Attributes:
        text: the translation.
        score: log probability in nats over the length penalty.
    """

    text: str
    score: float


class Translation(NamedTuple):
    """The translation of a text.

    Attributes:
        text: the best translation.
        score: its log probability in nats over the length penalty.
        truncated: whether the source was too long and its end was cut off.
        hypotheses: the best translations, at most one a beam, best first.
    """

    text: str
    score: float
    truncated: bool
    hypotheses: tuple[Hypothesis, ...]


class Translator:
    """A model, its tokenizer, and how to search.

    Args:
        model: the model.
        tokenizer: the model's.
        defaults: how to search where a call does not say.

    Example:
        >>> translator = Translator.load("demo/run")                # doctest: +SKIP
        >>> translator.translate(["Today the man buys a book."])[0].text   # doctest: +SKIP
        'Heute kauft der Mann ein Buch.'
    """

    def __init__(
        self, model: Transformer, tokenizer: Tokenizer, defaults: DecodingOptions | None = None
    ) -> None:
        if model.config.vocab_size != tokenizer.vocab_size:
            raise InputError(
                "The model's and the tokenizer's vocabulary must have one size. "
                f"Received: {model.config.vocab_size} and {tokenizer.vocab_size}"
            )
        self.model = model
        self.tokenizer = tokenizer
        self.defaults = defaults or DecodingOptions()
        self._graphs: dict[DecodingOptions, Any] = {}

    @classmethod
    def load(cls, run_dir: str | Path, checkpoint: CheckpointName | None = None) -> Self:
        """Opens a run directory.

        Args:
            run_dir: the directory.
            checkpoint: which weights to take; None for the averaged ones if there are any, else
                the best.

        Raises:
            InputError: if it is missing, damaged, or something else.
        """
        run = Run.load(run_dir)
        given = {
            name: run.settings[name] for name in ("beam_size", "alpha") if name in run.settings
        }
        return cls(run.model(checkpoint), run.tokenizer(), DecodingOptions(**given))

    def decoding_options(
        self,
        beam_size: int | None = None,
        alpha: float | None = None,
        max_source_length: int | None = None,
    ) -> DecodingOptions:
        """Returns the defaults, changed where a value is given."""
        given = {"beam_size": beam_size, "alpha": alpha, "max_source_length": max_source_length}
        changes = {name: value for name, value in given.items() if value is not None}
        return dataclasses.replace(self.defaults, **changes)  # type: ignore[arg-type]

    def translate(
        self,
        texts: Sequence[str],
        *,
        beam_size: int | None = None,
        alpha: float | None = None,
        max_source_length: int | None = None,
        batch_size: int = 64,
        progress: Callable[[int], None] = lambda texts: None,
    ) -> list[Translation]:
        """Translates texts, those of similar length together.

        Args:
            texts: any number of texts, in any order.
            beam_size: beams; 1 is greedy search; None for the run's, or 4 (section 6.1).
            alpha: strength of the length penalty; None for the run's, or 0.6 (section 6.1).
            max_source_length: longer texts are cut to this many tokens, and marked; None for 512.
            batch_size: most texts to translate at once.
            progress: called with the number of texts translated since the last call.

        Returns:
            A translation for each text, in the texts' order.

        Raises:
            InputError: if an option is out of range, or `texts` is a single string.
        """
        if isinstance(texts, str):
            raise InputError("`texts` must be a list of strings. Received: a string")
        graph = self._graph(self.decoding_options(beam_size, alpha, max_source_length))
        encoded = [text.encode("utf-8", errors="replace") for text in texts]
        translations: list[Translation | None] = [None] * len(encoded)
        for rows in _batches([len(text) for text in encoded], batch_size):
            batch = graph(tf.constant([encoded[row] for row in rows], tf.string))
            for row, *columns in zip(rows, *(field.numpy() for field in batch), strict=True):
                translations[row] = _to_translation(*columns)
            progress(len(rows))
        return [translation for translation in translations if translation is not None]

    def _graph(self, options: DecodingOptions) -> Any:
        """The traced search of these options, made once."""
        if options not in self._graphs:
            self._graphs[options] = tf.function(
                lambda texts: translate_batch(self.model, self.tokenizer, texts, options),
                input_signature=[tf.TensorSpec([None], tf.string)],
            )
        return self._graphs[options]


def _to_translation(texts: Any, scores: Any, truncated: Any) -> Translation:
    hypotheses = tuple(
        Hypothesis(text.decode(), float(score))
        for text, score in zip(texts, scores, strict=True)
        if score > -float("inf")
    )
    if not hypotheses:
        raise InputError("The model's scores are not numbers: its training has diverged")
    return Translation(hypotheses[0].text, hypotheses[0].score, bool(truncated), hypotheses)


def _batches(num_bytes: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Yields row numbers by falling length, so that the largest batch comes first."""
    if batch_size < 1:
        raise InputError(f"`batch_size` must be at least 1. Received: batch_size={batch_size}")
    order = sorted(range(len(num_bytes)), key=lambda row: -num_bytes[row])
    start = 0
    while start < len(order):
        fitting = MAX_BATCH_BYTES // max(num_bytes[order[start]], 1)
        stop = start + max(1, min(batch_size, fitting))
        yield order[start:stop]
        start = stop
