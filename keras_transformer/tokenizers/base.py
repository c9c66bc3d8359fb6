"""`Tokenizer`: two sides, each ids and text, and what wraps them."""

import copy
import functools
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import tensorflow as tf

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.errors import InputError, require
from keras_transformer.files import read_failure
from keras_transformer.languages import Languages, find_language
from keras_transformer.registry import TOKENIZERS, load
from keras_transformer.search.constraints import Constraint
from keras_transformer.tokenizers.case import Case
from keras_transformer.tokenizers.invisible import without
from keras_transformer.tokenizers.languages import LanguageTag
from keras_transformer.tokenizers.sides import SharedSide, Side, utf8
from keras_transformer.tokenizers.wrappers import Nested, Visible, Wrapper


def with_end(tokens: tf.RaggedTensor) -> tf.RaggedTensor:
    """Adds `EOS_ID` to the end of rows, int32 [B, (tokens)]."""
    return tf.concat([tokens, tf.fill([tokens.nrows(), 1], EOS_ID)], axis=1)


class EncodedTexts(NamedTuple):
    """A batch of texts as token ids."""

    ids: tf.Tensor  # int32 [B, S], each row's tokens with their delimiters, then padding
    lengths: tf.Tensor  # int32 [B], number of tokens without delimiters
    truncated: tf.Tensor  # bool [B], whether a text was cut to the maximum length
    context: Any = ()  # what `Tokenizer.write` needs of the texts, a nest of tensors [B, ...]

    @classmethod
    def of(
        cls,
        tokens: tf.RaggedTensor,
        context: Any = (),
        max_length: int | None = None,
        delimit: Callable[[tf.RaggedTensor], tf.RaggedTensor] = with_end,
        num_delimiters: int = 1,
    ) -> Self:
        """Delimits and pads rows, int32 [B, (tokens)], cut to `max_length` ids in all."""
        longest = tf.int32.max if max_length is None else max_length - num_delimiters
        if longest < 0:
            raise InputError(
                f"`max_length` must be at least {num_delimiters}. Received: max_length={max_length}"
            )
        left = tokens[:, :longest]
        lengths = tf.cast(left.row_lengths(), tf.int32)
        ids = delimit(left).to_tensor(PAD_ID)
        return cls(ids, lengths, tokens.row_lengths() > longest, context)


class Tokenizer:
    """Texts of two languages as ids, and results as texts.

    Each language has a `Side`. Wrappers change the texts before, and the results after: a text in
    capitals is read as a sentence, and its translation is written in capitals.

    Subclasses are `SentencePieceTokenizer`, `WordPieceTokenizer`, and those of optional rooms;
    `Tokenizer.load` reads all of them.

    Args:
        model: the content of the file that `save` writes.
        source: the side of the source language.
        target: that of the target language; None for the same.

    Attributes:
        protect: what a translation keeps as it is, by sets and regular expressions.
        languages: the codes of source and target; those of a text that asks for none.
        source_languages: the names of those that a text may name; () for a model of one source.
        target_languages: those that a text may ask for; () for a model of one pair.
        splits_sentences: whether a text may be searched sentence by sentence.

    Raises:
        InputError: if a file is missing or is not a tokenizer, or a vocabulary is too small.
    """

    protect: Sequence[str] = ()
    languages: tuple[str, str] = ("", "")
    source_languages: Sequence[str] = ()
    target_languages: Sequence[str] = ()
    splits_sentences: bool = True

    def __init__(self, model: bytes, source: Side, target: Side | None = None) -> None:
        self.model, self.source, self.target = model, source, target or source
        self.source_languages = source.source_languages
        self.target_languages = [tag[2:-2] for tag in source.tags]

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Reads the file that `save` wrote."""
        with read_failure(f"the tokenizer {path}"):
            model = Path(path).read_bytes()
        name = next(name for header, name in TOKENIZERS.items() if model.startswith(header))
        kind: Callable[[bytes], Tokenizer] = load(name)
        try:
            return kind(model)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error

    def of_languages(self, languages: tuple[str, str]) -> Self:
        """Returns a tokenizer for codes of source and target, such as ("en", "tr")."""
        source, target = copy.copy(self.source), copy.copy(self.target)
        source.language, target.language = languages
        changed = self._with_sides(source, target)
        changed.languages = languages
        return changed

    def with_languages(self, sources: Sequence[str], targets: Sequence[str]) -> "Tokenizer":
        """Returns the tokenizer with tags of these targets too, which may move other ids.

        Raises:
            InputError: if it cannot have more languages than it has.
        """
        known = self.known_languages
        if not known.targets:
            raise InputError("Several languages need a tokenizer of SentencePiece")
        for side, given, names in zip(
            ("source", "target"), (sources, targets), (known.sources, known.targets), strict=True
        ):
            own = ",".join(find_language(name, tuple(names), f"{side} ") for name in given)
            require(
                own == ",".join(given),
                f"`{side}` must be names of the model: {own}",
                **{side: given},
            )
        return self

    def shared(self) -> Self:
        """Returns the tokenizer with sides that all graphs of an export share."""
        return self._with_sides(SharedSide(self.source), SharedSide(self.target))

    def _with_sides(self, source: Any, target: Any) -> Self:
        changed = copy.copy(self)
        vars(changed).pop("wrapper", None)
        changed.source = source
        changed.target = source if self.target is self.source else target
        return changed

    def save(self, path: str | Path) -> None:
        """Writes `model`."""
        Path(path).write_bytes(self.model)

    @functools.cached_property
    def wrapper(self) -> Wrapper:
        """All `wrappers` as one, made once; a copy of the tokenizer makes its own."""
        return functools.reduce(Nested, self.wrappers)

    @property
    def wrappers(self) -> Sequence[Wrapper]:
        """What wraps the sides, the first one outermost."""
        case = [] if self.lowercase else [Case(self.source, self.target, self.known_languages)]
        if not self.target_languages:
            return [Visible(), *case]
        first_ids = self.source.tag_ids if self.num_forced else ()
        return [Visible(), *case, LanguageTag(self.known_languages, first_ids)]

    @property
    def known_languages(self) -> Languages:
        """The languages of the model, where a request asks for some."""
        return Languages.of(self.languages, self.source_languages, self.target_languages)

    @property
    def num_delimiters(self) -> int:
        """Number of ids that `delimit` adds."""
        return sum(self.source.delimiters)

    @property
    def vocab_size(self) -> int:
        """Number of ids of the source."""
        return self.source.vocab_size

    @property
    def lowercase(self) -> bool:
        """Whether all text is lower-cased."""
        return self.source.lowercase

    @property
    def shares_pieces(self) -> bool:
        """Whether an id is the same piece in both languages, so that they can share embeddings."""
        sides = self.source, self.target
        return np.array_equal(*(side.pieces(tf.range(side.vocab_size)).numpy() for side in sides))

    @property
    def sizes(self) -> dict[str, Any]:
        """The attributes of a `ModelConfig` that it decides."""
        if self.shares_pieces:
            return {"vocab_size": self.vocab_size}
        return {
            "vocab_size": self.vocab_size,
            "target_vocab_size": self.target.vocab_size,
            "share_embeddings": False,
        }

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the model."""
        return hashlib.sha256(self.model).hexdigest()

    @property
    def spec(self) -> EncodedTexts:
        """The types of the tensors of `encode`, for the signature of a graph."""
        return EncodedTexts(
            ids=tf.TensorSpec([None, None], tf.int32),
            lengths=tf.TensorSpec([None], tf.int32),
            truncated=tf.TensorSpec([None], tf.bool),
            context=self.wrapper.spec,
        )

    def write(self, source: EncodedTexts, ids: tf.Tensor) -> tf.Tensor:
        """Writes the results of a search for `source`, int32 [B, K, T] -> string [B, K].

        Of results in W words, int32 [B, K, W, T], it writes each word, string [B, K, W].
        """
        words = ids if ids.shape.rank == 4 else ids[:, :, None]  # [B, K, W, T]
        shape = tf.shape(words)
        # T may be 0, so -1 cannot stand for the other dimensions.
        rows = tf.reshape(words, [tf.reduce_prod(shape[:3]), shape[3]])
        # U+FFFD stands for bytes that are no character (docs/log.md, "Text").
        texts = without(self.target.detokenize(rows), "\ufffd")
        sizes = [words.shape[axis] or shape[axis] for axis in (1, 2)]
        texts = tf.reshape(texts, [shape[0], *sizes])
        texts = self.wrapper.write(source.context, texts)
        return texts if ids.shape.rank == 4 else texts[:, :, 0]

    def constraints(self, source: EncodedTexts) -> Sequence[Constraint]:
        """Returns what the results of a search must keep to; ids without a context have nothing."""
        if source.context == ():
            return []
        return self.wrapper.constraints(source.ids, source.lengths, source.context)

    def encode(self, texts: tf.Tensor, max_length: int | None = None) -> EncodedTexts:
        """Prepares texts, string [B], for the encoder; `tokenizer(texts)` is the same.

        Longer texts than `max_length` ids, delimiters included, are cut; None cuts nothing.
        """
        if isinstance(texts, str | bytes):
            raise InputError(f"`texts` must be a list of strings. Received: {texts!r}")
        texts, context = self.wrapper.read(utf8(texts))
        return self.encode_tokens(self.source.tokenize(texts), context, max_length)

    __call__ = encode

    def delimit(self, tokens: tf.RaggedTensor) -> tf.RaggedTensor:
        """Returns the ids of sources, int32 [B, (ids)], at least one each, of [B, (tokens)].

        These are the tokens and then `EOS_ID`; other models may have others.
        """
        if self.source.source_tag == "source at end":
            return tf.concat([with_end(tokens[:, 1:]), tokens[:, :1]], axis=1)
        begins, ends = self.source.delimiters
        if begins:
            tokens = tf.concat([tf.fill([tokens.nrows(), 1], BOS_ID), tokens], axis=1)
        if ends:
            return with_end(tokens)
        is_empty = tokens.row_lengths()[:, None] == 0  # an empty source has an id nevertheless
        return tf.concat(
            [tokens, tf.ragged.boolean_mask(with_end(tokens[:, :0]), is_empty)], axis=1
        )

    @property
    def num_forced(self) -> int:
        """How many tokens at the start of a translation are given: 1 for a language's, or 0."""
        return int(self.source.source_tag != "target")

    def encode_tokens(
        self, tokens: tf.RaggedTensor, context: Any, max_length: int | None = None
    ) -> EncodedTexts:
        """Prepares the tokens, int32 [B, (tokens)], of sources that `wrapper` has read.

        Tokens and context are cut to `max_length` ids.
        """
        if max_length is not None:
            left, rows = tokens[:, : max_length - self.num_delimiters], tf.range(tokens.nrows())
            context = self.wrapper.context_of_parts(context, left, rows)
        return EncodedTexts.of(tokens, context, max_length, self.delimit, self.num_delimiters)

    def encode_pairs(
        self,
        sources: tf.Tensor,
        targets: tf.Tensor,
        max_source_length: int | None = None,
        max_target_length: int | None = None,
    ) -> tuple[EncodedTexts, EncodedTexts]:
        """Prepares texts for the encoder, and their translations as labels, string [B] both.

        Longer ones than the maximum numbers of ids, delimiters included, are cut.
        """
        sources, context = self.wrapper.read(utf8(sources))
        targets, _ = self.wrapper.read_targets(context, utf8(targets))
        source, target = self.source.tokenize(sources), self.target.tokenize(targets)
        return (
            self.encode_tokens(source, context, max_source_length),
            EncodedTexts.of(target, max_length=max_target_length),
        )


def shifted(target_ids: tf.Tensor) -> tf.Tensor:
    """Returns the decoder's input for targets, int [B, T]: the start symbol, and all but the last.

    Example:
        >>> from keras_transformer.tokenizers.base import shifted
        >>> print(shifted([[7, 8, 3], [9, 3, 0]]).numpy())  # 2 starts, 3 ends, 0 is padding
        [[2 7 8]
         [2 9 3]]
    """
    target_ids = tf.convert_to_tensor(target_ids)
    return tf.pad(target_ids[:, :-1], [[0, 0], [1, 0]], constant_values=BOS_ID)
