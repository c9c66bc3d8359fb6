"""`Translator`: from texts to translations."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import tensorflow as tf

from keras_transformer.config import CheckpointName, DecodingOptions, EarlyStopping
from keras_transformer.errors import InputError, NotFiniteError
from keras_transformer.model.encoder_decoder import EncoderDecoder
from keras_transformer.run import Run
from keras_transformer.texts.texts import TextSearch, TranslatedTexts
from keras_transformer.tokenizers import EncodedTexts, Tokenizer, shifted

MAX_GRAPHS = 32  # graphs to keep, one for each set of options


class Hypothesis(NamedTuple):
    """One of the translations that a search finds.

    Attributes:
        text: the translation.
        score: log probability in nats over the length penalty.
    """

    text: str
    score: float


class Word(NamedTuple):
    """A word of a translation.

    Attributes:
        text: the word, which is what stands between spaces.
        probability: the model's, after what stands before the word.
    """

    text: str
    probability: float


class Translation(NamedTuple):
    """The translation of a text.

    Attributes:
        text: the best translation.
        score: its log probability in nats over the length penalty.
        truncated: whether the source was too long and was truncated.
        hypotheses: the best translations, best first.
        words: the words of `text`, if they were asked for.
    """

    text: str
    score: float
    truncated: bool
    hypotheses: tuple[Hypothesis, ...]
    words: tuple[Word, ...] = ()


class Attention(NamedTuple):
    """The attention weights of all layers and heads, as in `AttentionScores`, of a translation.

    Query t of `decoder` and `cross` predicts `target_pieces[t]` from `decoder_pieces[: t + 1]`.
    A model without self-attention has `cross` only: `encoder` and `decoder` then have L = 0.

    Attributes:
        source_pieces: the S tokens of the source, its end included.
        target_pieces: the T tokens of the translation, its end included.
        decoder_pieces: the T input tokens of the decoder; the first is the start symbol.
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
    """Translates texts with a model and its tokenizer.

    Args:
        model: the model.
        tokenizer: the model's tokenizer.
        defaults: default options of the search.

    Raises:
        InputError: if the vocabularies of model and tokenizer differ in size, or an argument of a
            method has the wrong type or is out of range.

    Example:
        >>> from keras_transformer import Translator
        >>> translator = Translator.load("my-run")  # where train wrote
        >>> (translation,) = translator.translate(["Two dogs play."], beam_size=4, num_best=3)
        >>> len(translation.hypotheses), translation.text == translation.hypotheses[0].text
        (3, True)
    """

    def __init__(
        self, model: EncoderDecoder, tokenizer: Tokenizer, defaults: DecodingOptions | None = None
    ) -> None:
        sizes = model.config.vocab_size, model.config.num_target_ids
        own_sizes = tokenizer.vocab_size, tokenizer.target.vocab_size
        if sizes != own_sizes:
            raise InputError(
                "The vocabularies of `model` and `tokenizer` must have the same sizes, of source "
                f"and target. Received: {sizes} and {own_sizes}"
            )
        self.model = model
        self.tokenizer = tokenizer
        self.defaults = defaults or DecodingOptions()
        self._graph = functools.lru_cache(MAX_GRAPHS)(self._make_graph)

    @classmethod
    def load(
        cls, run_dir: str | Path, checkpoint: CheckpointName | None = None, **search: Any
    ) -> Self:
        """Opens a run directory.

        Args:
            run_dir: the directory.
            checkpoint: the weights to load; None for the one of `Run.choice`.
            **search: changes of the run's `DecodingOptions`; None for no change.
        """
        return cls.of(Run.load(run_dir), checkpoint, **search)

    @classmethod
    def of(cls, run: Run, checkpoint: CheckpointName | None = None, **search: Any) -> Self:
        """Makes a translator from a run.

        Args:
            run: the run.
            checkpoint: the weights to load, as for `load`.
            **search: as for `load`.
        """
        defaults = DecodingOptions.of(run.settings).changed(**search)
        return cls(run.model(checkpoint), run.tokenizer(), defaults)

    def translate(
        self,
        texts: Iterable[str],
        *,
        beam_size: int | None = None,
        length_penalty: float | None = None,
        max_source_length: int | None = None,
        early_stopping: EarlyStopping | None = None,
        no_repeat_ngram: int | None = None,
        sample_from: int | None = None,
        temperature: float | None = None,
        sample_seed: int | None = None,
        num_best: int = 1,
        prefixes: Iterable[str] | None = None,
        words: bool = False,
        sentences: bool = False,
        batch_size: int = 256,
        progress: Callable[[int], None] = lambda texts: None,
    ) -> list[Translation]:
        """Translates texts. Texts of similar length are translated together.

        Args:
            texts: the texts, in any order.
            beam_size: number of beams; 1 is greedy search; None for that of
                `defaults`.
            length_penalty: strength of the length penalty; None for that of `defaults`.
            max_source_length: longer texts are truncated to this many tokens, the end symbol
                included, or to the number of learned positions; None for that of `defaults`.
            early_stopping: "exact" to search on until no better translation can come, or "first" to
                end with the first `beam_size` hypotheses, which is faster; None for that of
                `defaults`.
            no_repeat_ngram: a translation never repeats a sequence of so many tokens; None for the
                rule of `defaults`.
            sample_from: draw each token at random from this number of likely ones, instead of a
                search; see `DecodingOptions`. None for that of `defaults`.
            temperature: of the draws; None for that of `defaults`.
            sample_seed: of the draws; None for that of `defaults`.
            num_best: number of hypotheses to return for each text, at most `beam_size`. There are
                fewer where the search finds the same text in different pieces. A search for
                fewer ends sooner.
            prefixes: the beginning of each translation, which the search continues. The last word
                may go on, unless white space follows it. None if nothing is given.
            words: whether to return `Translation.words`, which takes a little longer.
            sentences: whether to split each text into sentences, and translate one after another.
                Then no text is truncated, and white space between sentences stays. A text of
                several sentences has one hypothesis. Models often leave out all but the first
                sentence of a text. A parser never splits a text.
            batch_size: maximum number of texts to translate at once.
            progress: called after each batch, with its number of texts.

        Returns:
            A translation for each text, in the order of the texts.
        """
        columns = [_encoded("texts", texts)]
        num_texts = len(columns[0])
        if prefixes is not None:
            if sentences:
                raise InputError("Give either `prefixes` or `sentences`: a prefix begins a text")
            columns.append(_encoded("prefixes", prefixes))
            if len(columns[1]) != num_texts:
                raise InputError(
                    "`prefixes` must be as many as `texts`. "
                    f"Received: {len(columns[1])} and {num_texts}"
                )
        for name, value in (("num_best", num_best), ("batch_size", batch_size)):
            if not isinstance(value, int) or value < 1:
                raise InputError(
                    f"`{name}` must be an integer, at least 1. Received: {name}={value!r}"
                )
        options = self.defaults.changed(
            beam_size=beam_size,
            length_penalty=length_penalty,
            max_source_length=max_source_length,
            early_stopping=early_stopping,
            no_repeat_ngram=no_repeat_ngram,
            sample_from=sample_from,
            temperature=temperature,
            sample_seed=sample_seed,
        )
        seed = tf.constant(options.sample_seed, tf.int64)  # an input: a new one needs no new graph
        options = dataclasses.replace(options, sample_seed=0)
        graph = self._graph(options, num_best, prefixes is not None, words, sentences)
        # The longest texts come first, because their batch needs the most memory.
        order = sorted(range(num_texts), key=lambda row: -len(columns[0][row]))
        found: list[Translation] = []
        for start in range(0, num_texts, batch_size):
            rows = order[start : start + batch_size]
            inputs = ([column[row] for row in rows] for column in columns)
            batch = graph(seed, *(tf.constant(each, tf.string) for each in inputs))
            fields = (field.numpy() for field in batch if field is not None)
            found += map(_to_translation, *fields)
            progress(len(rows))
        of_row = dict(zip(order, found, strict=True))  # raises if a translation is missing
        return [of_row[row] for row in range(num_texts)]

    def attention(self, source: str, target: str | None = None) -> Attention:
        """Computes the attention weights of all layers and heads, without dropout.

        Args:
            source: a text. It is truncated to the default `max_source_length`.
            target: a translation of it, which is truncated to the maximum length of a translation;
                None for the model's own translation. That has no end symbol if the search cut it
                at its maximum length.
        """
        for name, text in (("source", source), ("target", "" if target is None else target)):
            if not isinstance(text, str):
                raise InputError(f"`{name}` must be a string. Received: {name}={text!r}")
        tokenizer, search = self.tokenizer, self._search(self.defaults)
        sources, targets = _to_tensor(source), _to_tensor(target or "")
        encoded = tokenizer.encode(sources, search.max_source_tokens)
        # Without a target, this is the end symbol: the translation of a text without tokens.
        _, given = tokenizer.encode_pairs(
            sources, targets, max_target_length=search.max_target_tokens
        )
        target_ids = given.ids
        if target is None and encoded.lengths[0]:
            target_ids = self._best_ids(encoded)  # [1, T]
        decoder_ids = shifted(target_ids)
        encoder, decoder, cross = self._attention_scores(encoded.ids, decoder_ids)
        return Attention(
            source_pieces=_pieces(tokenizer, encoded.ids),
            target_pieces=_pieces(tokenizer.target, target_ids),
            decoder_pieces=_pieces(tokenizer.target, decoder_ids),
            encoder=encoder.numpy(),
            decoder=decoder.numpy(),
            cross=cross.numpy(),
        )

    def _search(self, options: DecodingOptions) -> TextSearch:
        return TextSearch(self.model, self.tokenizer, options)

    def _make_graph(
        self,
        options: DecodingOptions,
        num_best: int,
        has_prefixes: bool,
        with_words: bool,
        sentences: bool,
    ) -> Any:
        """Returns the graph of `TextSearch.translate` or `translate_documents`."""

        def translate(
            seed: tf.Tensor, texts: tf.Tensor, prefixes: tf.Tensor | None = None
        ) -> TranslatedTexts:
            search = TextSearch(self.model, self.tokenizer, options, seed)
            if not sentences or not self.tokenizer.splits_sentences:
                return search.translate(texts, num_best, prefixes, with_words)
            found = search.translate_documents(texts, num_best=num_best, with_words=with_words)
            is_cut = tf.fill([tf.size(texts)], False)
            words = found.words, found.log_probabilities
            return TranslatedTexts(found.translations, found.scores, is_cut, *words)

        strings = [tf.TensorSpec([None], tf.string)] * (1 + has_prefixes)
        return tf.function(translate, [tf.TensorSpec([], tf.int64), *strings], autograph=False)

    @functools.cached_property
    def _best_ids(self) -> Any:
        """The graph from sources to the ids of their best translations, by the default options."""

        def best_ids(source: EncodedTexts) -> tf.Tensor:
            return self._search(self.defaults).search(source).ids[:, 0]

        return tf.function(best_ids, input_signature=[EncodedTexts.spec()], autograph=False)

    @functools.cached_property
    def _attention_scores(self) -> Any:
        """The graph of a single text's attention scores, [L, N, queries, keys] each."""

        def scores_of(source_ids: tf.Tensor, decoder_ids: tf.Tensor) -> tuple[tf.Tensor, ...]:
            scores = self.model.attention_scores(source_ids, decoder_ids)
            none = tf.zeros([0, 1, 0, 0])  # of a model without self-attention
            return tuple(
                tf.cast(tf.stack(kind), tf.float32)[:, 0] if kind else none for kind in scores
            )

        specs = [tf.TensorSpec([1, None], tf.int32)] * 2
        return tf.function(scores_of, input_signature=specs, autograph=False)


def _encoded(name: str, texts: Iterable[str]) -> list[bytes]:
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise InputError(f"`{name}` must be a list of strings. Received: {texts!r}")
    texts = list(texts)
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"`{name}` must be strings. Received, in row {row}: {text!r}")
    return [text.encode("utf-8", errors="replace") for text in texts]


def _to_tensor(text: str) -> tf.Tensor:
    return tf.constant([text.encode("utf-8", errors="replace")], tf.string)


def _pieces(tokenizer: Tokenizer, ids: tf.Tensor) -> tuple[str, ...]:
    return tuple(piece.decode() for piece in tokenizer.pieces(ids)[0].numpy())


def _to_translation(
    texts: Any, scores: Any, truncated: Any, words: Any = (), log_probs: Any = ()
) -> Translation:
    hypotheses = tuple(
        Hypothesis(text.decode(), float(score))
        for text, score in zip(texts, scores, strict=True)
        if score > -float("inf")
    )
    if not hypotheses:
        raise NotFiniteError("The model's scores are not finite: its training has diverged")
    found = tuple(
        Word(word.decode().strip(), math.exp(log_prob))
        for word, log_prob in zip(words, log_probs, strict=True)
        if word
    )
    return Translation(*hypotheses[0], bool(truncated), hypotheses, found)
