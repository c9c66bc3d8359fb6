"""`Translator`: from texts to translations."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, Self

import tensorflow as tf

from keras_transformer.attention_reader import Attention, AttentionReader
from keras_transformer.config import CheckpointName, DecodingOptions
from keras_transformer.errors import InputError, NotFiniteError, require
from keras_transformer.languages import Asked
from keras_transformer.model.encoder_decoder import EncoderDecoder
from keras_transformer.run import Run
from keras_transformer.texts.texts import TextSearch, TranslatedTexts
from keras_transformer.tokenizers import Tokenizer

MAX_GRAPHS = 32  # graphs to keep, one for each set of options


class Hypothesis(NamedTuple):
    """One of the translations that a search finds."""

    text: str  # the translation
    score: float  # log probability in nats over the length penalty


class Word(NamedTuple):
    """A word of a translation."""

    text: str  # what stands between spaces
    probability: float  # the model's, after what stands before the word


class Translation(NamedTuple):
    """The translation of a text."""

    text: str  # the best translation
    score: float  # its log probability in nats over the length penalty
    truncated: bool  # whether the source was too long and was truncated
    hypotheses: tuple[Hypothesis, ...]  # the best translations, best first
    words: tuple[Word, ...] = ()  # the words of `text`, if they were asked for


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
        own_sizes = tokenizer.source.vocab_size, tokenizer.target.vocab_size
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
        """Makes a translator from a `run`; the other arguments are those of `load`."""
        defaults = DecodingOptions.of(run.settings).changed(**search)
        return cls(run.model(checkpoint), run.tokenizer(), defaults)

    def translate(
        self,
        texts: Iterable[str],
        *,
        source: Asked = None,
        target: Asked = None,
        num_best: int = 1,
        prefixes: Iterable[str] | None = None,
        words: bool = False,
        sentences: bool = False,
        batch_size: int = 256,
        progress: Callable[[int], None] = lambda texts: None,
        **search: Any,
    ) -> list[Translation]:
        """Translates texts. Texts of similar length are translated together.

        Args:
            texts: the texts, in any order.
            source: the language of the texts, or a list with that of each, by a name that the model
                knows or a common code; None for what the text's tag says, or the run's own.
            target: the same of the translations.
            num_best: number of hypotheses to return for each text, at most `beam_size`; fewer where
                the search finds a text in different pieces. A search for fewer ends sooner.
            prefixes: the beginning of each translation, which the search continues. The last word
                may go on, unless white space follows it. None if nothing is given.
            words: whether to return `Translation.words`, which takes a little longer.
            sentences: whether to split each text into sentences, and translate one after another.
                Then no text is truncated, and white space between sentences stays. A text of
                several sentences has one hypothesis. Models often leave out all but the first
                sentence of a text. A parser never splits a text.
            batch_size: maximum number of texts to translate at once.
            progress: called after each batch, with its number of texts.
            **search: options of the search that differ from `defaults`, by their names in
                `DecodingOptions`; None for no change.

        Returns:
            A translation for each text, in the order of the texts.
        """
        known = self.tokenizer.known_languages
        columns = _columns(known.tagged(_strings("texts", texts), source, target), prefixes)
        if prefixes is not None and sentences:
            raise InputError("Give either `prefixes` or `sentences`: a prefix begins a text")
        for name, value in (("num_best", num_best), ("batch_size", batch_size)):
            is_count = isinstance(value, int) and value > 0
            require(is_count, f"`{name}` must be an integer, at least 1", **{name: value})
        options = self.defaults.changed(**search)
        seed = tf.constant(options.sample_seed, tf.int64)  # an input: a new one needs no new graph
        options = dataclasses.replace(options, sample_seed=0)
        graph = self._graph(options, num_best, prefixes is not None, words, sentences)
        # The longest texts come first, because their batch needs the most memory.
        order = sorted(range(len(columns[0])), key=lambda row: -len(columns[0][row]))
        translations: dict[int, Translation] = {}
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            inputs = ([column[row] for row in rows] for column in columns)
            batch = graph(seed, *(tf.constant(column, tf.string) for column in inputs))
            fields = [field.numpy() for field in batch if field is not None]
            translations |= zip(rows, map(_to_translation, *fields), strict=True)
            progress(len(rows))
        return [translations[row] for row in range(len(order))]

    def attention(self, source: str, target: str | None = None) -> Attention:
        """Computes the attention weights of all layers and heads, without dropout.

        Args:
            source: a text. It is truncated to the default `max_source_length`.
            target: a translation of it, which is truncated to the maximum length of a translation;
                None for the model's own translation. That has no end symbol if the search cut it
                at its maximum length.
        """
        return self._attention.read(source, target)

    @functools.cached_property
    def _attention(self) -> AttentionReader:
        return AttentionReader(self.model, self.tokenizer, self.defaults)

    def _make_graph(
        self,
        options: DecodingOptions,
        num_best: int,
        has_prefixes: bool,
        with_words: bool,
        sentences: bool,
    ) -> Any:
        def translate(
            seed: tf.Tensor, texts: tf.Tensor, prefixes: tf.Tensor | None = None
        ) -> TranslatedTexts:
            search = TextSearch(self.model, self.tokenizer, options, seed)
            if sentences and self.tokenizer.splits_sentences:
                return search.translate_documents(texts, None, num_best, with_words)[0]
            return search.translate(texts, num_best, prefixes, with_words)

        strings = [tf.TensorSpec([None], tf.string)] * (1 + has_prefixes)
        return tf.function(translate, [tf.TensorSpec([], tf.int64), *strings], autograph=False)


def _columns(texts: list[str], prefixes: Iterable[str] | None) -> list[list[bytes]]:
    """Returns the texts, and perhaps the prefixes, in UTF-8."""
    columns = [texts] if prefixes is None else [texts, _strings("prefixes", prefixes)]
    if len(columns[0]) != len(columns[-1]):
        raise InputError(
            "`prefixes` must be as many as `texts`. "
            f"Received: {len(columns[1])} and {len(columns[0])}"
        )
    return [[text.encode("utf-8", errors="replace") for text in column] for column in columns]


def _strings(name: str, texts: Iterable[str]) -> list[str]:
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise InputError(f"`{name}` must be a list of strings. Received: {texts!r}")
    texts = list(texts)
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"`{name}` must be strings. Received, in row {row}: {text!r}")
    return texts


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
    all_words = tuple(
        Word(word.decode().strip(), math.exp(log_prob))
        for word, log_prob in zip(words, log_probs, strict=True)
        if word
    )
    return Translation(*hypotheses[0], bool(truncated), hypotheses, all_words)
