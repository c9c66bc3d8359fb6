"""Texts in, translations out: the object that users hold."""

import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import tensorflow as tf

from keras_transformer.decoding import check_num_best, check_number
from keras_transformer.errors import InputError
from keras_transformer.model import Transformer
from keras_transformer.run import CheckpointName, Run
from keras_transformer.tokenizer import EncodedTexts, Tokenizer
from keras_transformer.translation import (
    DecodingOptions,
    best_ids,
    most_source_tokens,
    most_target_tokens,
    shifted,
    translate_texts,
)

MAX_GRAPHS = 32  # of a translator; each set of options has its own


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


class Attention(NamedTuple):
    """What every head of every layer attends to, for a text and its translation.

    An array's rows are queries, its columns keys; the weights of a row add up to 1. Row t of
    `decoder` and `cross` belongs to the choice of `target_pieces[t]`, which the decoder makes from
    `decoder_pieces[: t + 1]`: the target shifted right (Figure 1 of the paper).

    Attributes:
        source_pieces: the source's S tokens, its end included.
        target_pieces: the translation's T tokens, its end included.
        decoder_pieces: the T tokens that the decoder reads, the start symbol first.
        encoder: float32 [L, N, S, S].
        decoder: float32 [L, N, T, T].
        cross: float32 [L, N, T, S].
    """

    source_pieces: tuple[str, ...]
    target_pieces: tuple[str, ...]
    decoder_pieces: tuple[str, ...]
    encoder: np.ndarray
    decoder: np.ndarray
    cross: np.ndarray


class Translator:
    """A model, its tokenizer, and how to search.

    Args:
        model: the model.
        tokenizer: the model's.
        defaults: how to search where a call does not say.

    Raises:
        InputError: if the vocabularies of model and tokenizer differ in size.

    Example:
        >>> from keras_transformer import Translator
        >>> translator = Translator.load("my-run")  # where train wrote
        >>> (translation,) = translator.translate(["Two dogs play."], beam_size=4, num_best=3)
        >>> len(translation.hypotheses), translation.text == translation.hypotheses[0].text
        (3, True)
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
        self._graphs: dict[Any, Any] = {}
        self._lock = threading.Lock()

    @classmethod
    def load(cls, run_dir: str | Path, checkpoint: CheckpointName | None = None) -> Self:
        """Opens a run directory.

        Args:
            run_dir: the directory.
            checkpoint: which weights to take; None for the averaged, the best or the last, the
                first of these that there are.

        Raises:
            InputError: if it is missing, damaged, or something else.
        """
        return cls.of(Run.load(run_dir), checkpoint)

    @classmethod
    def of(cls, run: Run, checkpoint: CheckpointName | None = None) -> Self:
        """Opens a run directory whose contents have been read.

        Args:
            run: the run as it was when it was loaded; a training that goes on deletes weights.
            checkpoint: as for `load`.

        Raises:
            InputError: if a file is missing or damaged.
        """
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
        """Returns the defaults, changed where a value is given.

        Args:
            beam_size: beams; 1 is greedy search.
            alpha: strength of the length penalty.
            max_source_length: longer texts are cut to this many tokens.

        Raises:
            InputError: if a value is out of range.
        """
        given = {"beam_size": beam_size, "alpha": alpha, "max_source_length": max_source_length}
        changes = {name: value for name, value in given.items() if value is not None}
        return dataclasses.replace(self.defaults, **changes)  # type: ignore[arg-type]

    def translate(
        self,
        texts: Iterable[str],
        *,
        beam_size: int | None = None,
        alpha: float | None = None,
        max_source_length: int | None = None,
        num_best: int = 1,
        batch_size: int = 256,
        progress: Callable[[int], None] = lambda texts: None,
    ) -> list[Translation]:
        """Translates texts, those of similar length together.

        Args:
            texts: any number of texts, in any order.
            beam_size: beams; 1 is greedy search; None for the run's, or 4 (section 6.1).
            alpha: strength of the length penalty; None for the run's, or 0.6 (section 6.1).
            max_source_length: longer texts are cut to this many tokens, the end symbol
                included, and marked; None for 512, or as many as the model has learned positions.
            num_best: how many hypotheses to return for each text, at most the beams; a search for
                fewer ends sooner.
            batch_size: most texts to translate at once.
            progress: called with the number of texts translated since the last call.

        Returns:
            A translation for each text, in the texts' order.

        Raises:
            InputError: if an option is out of range, or `texts` is anything but strings.
        """
        if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
            raise InputError(f"`texts` must be a list of strings. Received: {texts!r}")
        texts = list(texts)
        for row, text in enumerate(texts):
            if not isinstance(text, str):
                raise InputError(f"`texts` must be strings. Received, in row {row}: {text!r}")
        options = self.decoding_options(beam_size, alpha, max_source_length)
        check_num_best(num_best, options.beam_size)
        graph = self._graph(options, num_best)
        encoded = [text.encode("utf-8", errors="replace") for text in texts]
        translations: list[Translation | None] = [None] * len(encoded)
        for rows in _batches([len(text) for text in encoded], batch_size):
            batch = graph(tf.constant([encoded[row] for row in rows], tf.string))
            for row, *columns in zip(rows, *(field.numpy() for field in batch), strict=True):
                translations[row] = _to_translation(*columns)
            progress(len(rows))
        return [translation for translation in translations if translation is not None]

    def attention(self, source: str, target: str | None = None) -> Attention:
        """Computes what every head attends to, as at inference: without dropout.

        Args:
            source: a text; what is more than the defaults' `max_source_length` tokens is cut.
            target: a translation of it, cut to the most tokens that any may have; None for the
                model's own, token by token as the search found it, which has no end where it came
                to the most tokens allowed.

        Raises:
            InputError: if a text is not a string.
        """
        for name, text in (("source", source), ("target", target)):
            if not isinstance(text, str) and (text, name) != (None, "target"):
                raise InputError(f"`{name}` must be a string. Received: {name}={text!r}")
        model, options = self.model, self.defaults
        encoded = self._encode(source, most_source_tokens(model, options))
        if target is not None:
            target_ids = self._encode(target, most_target_tokens(model, options)).ids
        elif encoded.lengths[0]:
            target_ids = self._best_ids_graph(options)(encoded)  # [1, T]
        else:
            target_ids = self._encode("", 2).ids  # the translation of nothing: its end
        decoder_ids = shifted(target_ids)
        encoder, decoder, cross = self._scores_graph()(encoded.ids, decoder_ids)
        return Attention(
            source_pieces=self._pieces(encoded.ids),
            target_pieces=self._pieces(target_ids),
            decoder_pieces=self._pieces(decoder_ids),
            encoder=encoder.numpy(),
            decoder=decoder.numpy(),
            cross=cross.numpy(),
        )

    def _encode(self, text: str, max_length: int) -> EncodedTexts:
        utf8 = text.encode("utf-8", errors="replace")
        return self.tokenizer.encode(tf.constant([utf8], tf.string), max_length)

    def _pieces(self, ids: tf.Tensor) -> tuple[str, ...]:
        return tuple(piece.decode() for piece in self.tokenizer.pieces(ids)[0].numpy())

    def _graph(self, options: DecodingOptions, num_best: int) -> Any:
        """The traced search of these options, made once."""
        return self._traced(
            ("translations", options, num_best),
            lambda texts: translate_texts(self.model, self.tokenizer, texts, options, num_best),
            tf.TensorSpec([None], tf.string),
        )

    def _best_ids_graph(self, options: DecodingOptions) -> Any:
        rows = tf.TensorSpec([None], tf.int32), tf.TensorSpec([None], tf.bool)
        return self._traced(
            ("best ids", options),
            lambda source: best_ids(self.model, source, options),
            EncodedTexts(tf.TensorSpec([None, None], tf.int32), *rows),
        )

    def _scores_graph(self) -> Any:
        """Of a single text, each kind's scores [L, N, queries, keys]."""

        def scores_of(source_ids: tf.Tensor, decoder_ids: tf.Tensor) -> tuple[tf.Tensor, ...]:
            scores = self.model.attention_scores(source_ids, decoder_ids)
            return tuple(tf.cast(tf.stack(kind), tf.float32)[:, 0] for kind in scores)

        ids = tf.TensorSpec([1, None], tf.int32)
        return self._traced("scores", scores_of, ids, ids)

    def _traced(self, key: Any, function: Callable[..., Any], *signature: Any) -> Any:
        with self._lock:
            graph = self._graphs.pop(key, None)
            if graph is None:
                graph = tf.function(function, input_signature=signature, autograph=False)
            self._graphs[key] = graph  # the newest is the last
            if len(self._graphs) > MAX_GRAPHS:
                del self._graphs[next(iter(self._graphs))]
        return graph


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
    check_number("batch_size", batch_size)
    if batch_size < 1:
        raise InputError(f"`batch_size` must be at least 1. Received: batch_size={batch_size}")
    order = sorted(range(len(num_bytes)), key=lambda row: -num_bytes[row])
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]
