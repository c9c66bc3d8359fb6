"""The base class of the tokenizers: the same TF.Text ops in training and in the exported graph.

Shapes (the package's glossary): B batch, S length in tokens, K beams, T target length.
"""

import abc
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import tensorflow as tf

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.errors import InputError
from keras_transformer.registry import TOKENIZERS, load
from keras_transformer.search.constraints import Constraint
from keras_transformer.tokenizers.case import as_sentences, in_small_letters, upper
from keras_transformer.tokenizers.invisible import visible, without

SPECIAL_PIECES = ("<pad>", "<unk>", "<s>", "</s>")


class EncodedTexts(NamedTuple):
    """A batch of texts as token ids.

    Attributes:
        ids: int32 [B, S], each row's tokens, then `EOS_ID`, then padding.
        lengths: int32 [B], number of tokens without `EOS_ID`.
        truncated: bool [B], True where a text was cut to the maximum length.
        kept: string [B, S], what a translation keeps as it is: the string that an id stands for,
            "" for all ids of usual tokenizers.
        capitals: bool [B], whether a text is in capitals. Such a text is read as a sentence, in
            small letters, and its translation is written in capitals.
    """

    ids: tf.Tensor
    lengths: tf.Tensor
    truncated: tf.Tensor
    kept: tf.Tensor
    capitals: tf.Tensor

    @classmethod
    def spec(cls) -> Self:
        """Returns the types of its tensors, for the signature of a graph."""
        return cls(
            ids=tf.TensorSpec([None, None], tf.int32),
            lengths=tf.TensorSpec([None], tf.int32),
            truncated=tf.TensorSpec([None], tf.bool),
            kept=tf.TensorSpec([None, None], tf.string),
            capitals=tf.TensorSpec([None], tf.bool),
        )

    @classmethod
    def of(
        cls,
        tokens: tf.RaggedTensor,
        kept: tf.RaggedTensor | None = None,
        capitals: tf.Tensor | None = None,
        max_length: int | None = None,
    ) -> Self:
        """Ends and pads rows.

        Args:
            tokens: int32 [B, (tokens)].
            kept: string [B, (tokens)], or None where all are "".
            capitals: bool [B], or None where all are False.
            max_length: maximum number of tokens of a row, `EOS_ID` included; None cuts nothing.
        """
        max_length = tf.int32.max if max_length is None else max_length
        if max_length < 1:
            raise InputError(f"`max_length` must be at least 1. Received: max_length={max_length}")
        ids, lengths = with_end(tokens[:, : max_length - 1])
        if kept is None:
            strings = tf.fill(tf.shape(ids), "")
        else:
            end = tf.fill([kept.nrows(), 1], "")
            strings = tf.concat([kept[:, : max_length - 1], end], axis=1).to_tensor("")
        if capitals is None:
            capitals = tf.zeros_like(lengths, tf.bool)
        return cls(ids, lengths, tokens.row_lengths() >= max_length, strings, capitals)


class TokenizedTexts(NamedTuple):
    """Sources as tokens; see `EncodedTexts`.

    Attributes:
        tokens: int32 [B, (tokens)], without bos and eos.
        kept: string [B, (tokens)], or None where all are "".
        capitals: bool [B].
    """

    tokens: tf.RaggedTensor
    kept: tf.RaggedTensor | None
    capitals: tf.Tensor


class TokenizedPairs(NamedTuple):
    """Pairs of texts as tokens, without bos and eos.

    Attributes:
        source: int32 [B, (tokens)].
        target: int32 [B, (tokens)].
        agree: bool [B], whether both sides keep the same strings; True for usual tokenizers.
        capitals: bool [B], whether both sides are in capitals, and are read in small letters.
    """

    source: tf.RaggedTensor
    target: tf.RaggedTensor
    agree: tf.Tensor
    capitals: tf.Tensor


class Tokenizer(abc.ABC):
    """Splits texts of both languages into subwords and joins them again.

    Subclasses are `SentencePieceTokenizer`, `WordPieceTokenizer`, and those of optional rooms;
    `Tokenizer.load` reads all of them. The ids begin with pad 0, unk 1, bos 2, eos 3.

    Attributes:
        model: the content of the file that `save` writes.
        vocab_size: number of ids.
        lowercase: whether it lower-cases all text.
        protect: what a translation keeps as it is, by sets and regular expressions.
        first_byte: the id of the byte 0, if 256 ids in a row are bytes.
        first_counted: ids from it on stand in a result as often as in its source; None for none.
        keeps_capitals: whether a text in capitals is read as it is.
        own_target: the tokenizer of the target language, if that is another one.
        languages: the codes of source and target, which decide how capitals are written.
        splits_sentences: whether a text may be searched sentence by sentence.

    Raises:
        InputError: if a file is missing or is not a tokenizer, or a vocabulary is too small.
    """

    model: bytes
    vocab_size: int
    lowercase: bool = False
    protect: Sequence[str] = ()
    first_byte: int | None = None
    first_counted: int | None = None
    keeps_capitals: bool = False
    own_target: "Tokenizer | None" = None
    languages: tuple[str, str] = "", ""
    splits_sentences: bool = True
    _side: Literal[0, 1] = 0  # 1 to read targets

    @classmethod
    def load(cls, path: str | Path, languages: tuple[str, str] = ("", "")) -> "Tokenizer":
        """Reads what `save` wrote.

        Args:
            path: the file.
            languages: the codes of source and target, such as ("en", "tr"), if they are known.
        """
        try:
            model = Path(path).read_bytes()
        except OSError as error:
            raise InputError(f"Cannot read the tokenizer {path}: {error.strerror}") from error
        name = next(name for header, name in TOKENIZERS.items() if model.startswith(header))
        kind: Callable[[bytes], Tokenizer] = load(name)
        try:
            return kind(model).of_languages(languages)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error

    def of_languages(self, languages: tuple[str, str]) -> Self:
        """Sets `languages`, and returns this tokenizer."""
        self.languages = self.target.languages = languages
        return self

    def save(self, path: str | Path) -> None:
        """Writes `model`."""
        Path(path).write_bytes(self.model)

    @property
    def target(self) -> "Tokenizer":
        """The tokenizer of the target language: this one, unless each language has its own."""
        return self.own_target or self

    @property
    def shares_pieces(self) -> bool:
        """Whether an id is the same piece in both languages, so that they can share embeddings."""
        sides = self, self.target
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

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Splits texts, string [B], into ids, int32 [B, (tokens)], without bos and eos."""
        return self._tokenize(tf.strings.regex_replace(_utf8(texts), r"\p{Cc}", " "))

    @abc.abstractmethod
    def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """`tokenize` of valid UTF-8 without control characters."""

    def split_words(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Splits words, string [W], into ids, int32 [W, (tokens)], to count them.

        Args:
            texts: words of a text, without what `_tokenize` adds at the start of a text.
        """
        return self._tokenize(texts)

    def hide(self, texts: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.RaggedTensor], tf.Tensor]]:
        """Prepares texts, string [B], to be split into sentences.

        Returns:
            The texts without what must not be split, and a function from the parts of each,
            string [B, (parts)], to these parts with it, string [P].
        """
        return self._seen(texts), lambda parts: parts.values

    def head_lengths(self, tokens: tf.RaggedTensor) -> tf.Tensor:
        """Returns how many ids at the start of a source each of its parts repeats, int32 [B].

        Args:
            tokens: int32 [B, (tokens)], of `read`.
        """
        return tf.zeros_like(tokens.row_lengths(), tf.int32)

    def read(self, texts: tf.Tensor) -> TokenizedTexts:
        """Splits sources, string [B], into ids, without what `write` puts back."""
        texts, capitals = self._in_small_letters(self._seen(texts))
        return TokenizedTexts(self.tokenize(texts), None, capitals)

    def read_pairs(self, sources: tf.Tensor, targets: tf.Tensor) -> TokenizedPairs:
        """Splits texts and their translations.

        Args:
            sources: string [B].
            targets: string [B].
        """
        sources = self._seen(sources)
        return self._tokenize_pairs(sources, targets, tf.fill([tf.size(sources)], True))

    def _tokenize_pairs(
        self, sources: tf.Tensor, targets: tf.Tensor, agree: tf.Tensor
    ) -> TokenizedPairs:
        """Splits pairs; both sides of a source in capitals become small letters."""
        sources, capitals = self._in_small_letters(sources)
        is_same = capitals & ~tf.strings.regex_full_match(targets, r"(?s).*\p{Ll}.*")
        targets = tf.where(is_same, in_small_letters(targets, self.languages[1]), targets)
        tokens = self.tokenize(sources), self.target.tokenize(targets)
        return TokenizedPairs(*tokens, agree, is_same)

    def _seen(self, texts: tf.Tensor) -> tf.Tensor:
        """Returns valid UTF-8; sources lose invisible characters, targets stay as they are."""
        return _utf8(texts) if self._side else visible(_utf8(texts))

    def _in_small_letters(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns texts, string [B], without capitals, and which of them had only such letters."""
        if self.keeps_capitals or self.lowercase:
            return texts, tf.fill([tf.size(texts)], False)
        return as_sentences(texts, self.split_words, self.languages[self._side])

    def with_prefixes(self, source: EncodedTexts, prefixes: tf.Tensor) -> EncodedTexts:
        """Prepares sources for `write` of results that begin with prefixes.

        Args:
            source: the texts.
            prefixes: string [B].
        """
        del prefixes
        return source

    @abc.abstractmethod
    def detokenize(self, ids: tf.Tensor) -> tf.Tensor:
        """Joins ids, int32 [B, S], into texts, string [B]; drops pad, bos and eos."""

    @abc.abstractmethod
    def pieces(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the pieces of ids, int32 of any shape, as strings of the same shape."""

    def spellings(self) -> Sequence[bytes]:
        """Returns what each id writes; nothing for an id that is not in a prefix.

        An id that begins a word begins with a space.

        Raises:
            InputError: if the text of ids is not what they write, one after another.
        """
        raise InputError(
            "Prefixes and words need a tokenizer of SentencePiece. "
            f"Received: a {type(self).__name__}"
        )

    def constraints(self, source: EncodedTexts) -> list[Constraint]:
        """Returns what the results of a search must keep to.

        Args:
            source: the texts to translate.
        """
        return []

    def write(self, source: EncodedTexts, ids: tf.Tensor) -> tf.Tensor:
        """Writes the results of a search.

        Args:
            source: the texts that were translated.
            ids: int32 [B, K, T], what was found for each text.

        Returns:
            string [B, K].
        """
        shape = tf.shape(ids)
        # T may be 0, so -1 cannot stand for the other dimensions.
        texts = self.target.detokenize(tf.reshape(ids, [shape[0] * shape[1], shape[2]]))
        # U+FFFD stands for bytes that are no character (docs/log.md, text as people type it).
        texts = without(texts, "\ufffd")
        texts = tf.reshape(texts, [shape[0], ids.shape[1] or shape[1]])
        return tf.where(source.capitals[:, None], upper(texts, self.languages[1]), texts)

    def write_words(self, source: EncodedTexts, ids: tf.Tensor) -> tf.Tensor:
        """Writes the words of one result of each text.

        Args:
            source: as for `write`.
            ids: int32 [B, n, T], the words of each result.

        Returns:
            string [B, n].
        """
        return self.write(source, ids)

    def sentencepiece_models(self) -> tuple[bytes, bytes]:
        """Returns the SentencePiece models of source and target, for other engines.

        Raises:
            InputError: if there are none, or if the tokenizer lower-cases texts before them.
        """
        raise InputError(
            f"Other engines need a tokenizer of SentencePiece. Received: a {type(self).__name__}"
        )

    def encode(self, texts: tf.Tensor, max_length: int | None = None) -> EncodedTexts:
        """Prepares texts for the encoder; `tokenizer(texts)` is the same.

        Args:
            texts: string [B].
            max_length: maximum number of tokens of a text, `EOS_ID` included. Longer texts are cut;
                None cuts nothing.
        """
        if isinstance(texts, str | bytes):
            raise InputError(f"`texts` must be a list of strings. Received: {texts!r}")
        return EncodedTexts.of(*self.read(texts), max_length=max_length)

    __call__ = encode

    def encode_pairs(
        self,
        sources: tf.Tensor,
        targets: tf.Tensor,
        max_source_length: int | None = None,
        max_target_length: int | None = None,
    ) -> tuple[EncodedTexts, EncodedTexts]:
        """Prepares texts for the encoder, and their translations as labels; see `encode`.

        Args:
            sources: string [B].
            targets: string [B].
            max_source_length: maximum number of tokens of a source, its end included.
            max_target_length: the same of a target.
        """
        pairs = self.read_pairs(sources, targets)
        return (
            EncodedTexts.of(pairs.source, max_length=max_source_length),
            EncodedTexts.of(pairs.target, max_length=max_target_length),
        )

    def decode(self, ids: tf.Tensor | EncodedTexts) -> list[str]:
        """Returns the texts of ids, int [B, S], or of what `encode` returns, as Python strings.

        Pad, bos and eos are left out.
        """
        ids = tf.cast(ids.ids if isinstance(ids, EncodedTexts) else ids, tf.int32)
        if ids.shape.rank != 2:
            raise InputError(f"`ids` must have the shape [B, S]. Received: shape={ids.shape}")
        texts = self.detokenize(ids).numpy()
        return [text.decode() for text in texts]


def _utf8(texts: tf.Tensor) -> tf.Tensor:
    return tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")


def with_end(tokens: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor]:
    """[B, (tokens)] -> padded ids [B, S] that end with `EOS_ID`, and the lengths before it [B]."""
    end = tf.fill([tokens.nrows(), 1], EOS_ID)  # [B, 1]
    return (
        tf.concat([tokens, end], axis=1).to_tensor(PAD_ID),
        tf.cast(tokens.row_lengths(), tf.int32),
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


def index_pieces(
    pieces: Sequence[str], first_id: int, unknown_id: int
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function that looks up the int32 ids of pieces by their hashes.

    A table of TensorFlow would be a resource that each export must track and initialize. The hashes
    are the same everywhere.
    """

    def hash_of(pieces: Any) -> tf.Tensor:
        return tf.strings.to_hash_bucket_fast(pieces, 2**62)

    hashes = hash_of(pieces).numpy()
    order = hashes.argsort()
    hashes, ids = hashes[order], order.astype(np.int32) + first_id

    def look_up(pieces: tf.Tensor) -> tf.Tensor:
        found = hash_of(pieces)
        places = tf.minimum(tf.searchsorted(hashes, found), len(hashes) - 1)
        return tf.where(tf.gather(hashes, places) == found, tf.gather(ids, places), unknown_id)

    return look_up
