"""One language of a tokenizer: the same TF.Text ops in training and in the exported graph."""

import abc
import zlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from keras_transformer.config import PAD_ID
from keras_transformer.errors import InputError

SPECIAL_PIECES = ("<pad>", "<unk>", "<s>", "</s>")


class Side(abc.ABC):
    """Splits texts of one language into subwords, and joins them again.

    The ids begin with pad 0, unk 1, bos 2, eos 3.
    """

    kind: str = "SentencePiece"  # for messages
    vocab_size: int
    language: str = ""  # its code, which decides how capitals are written
    lowercase: bool = False  # whether it lower-cases all text
    first_byte: int | None = None  # the id of the byte 0, if 256 ids in a row are bytes
    delimiters: tuple[bool, bool] = (False, True)  # whether sources have `BOS_ID`, and `EOS_ID`
    # Of a model of several languages: the pieces that ask for targets, and the names of sources.
    tags: Mapping[str, int] = MappingProxyType({})
    tag_ids: Sequence[int] = ()  # of these pieces, as they stand at the start of a source
    source_languages: Sequence[str] = ()
    source_tag: str = "target"

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Splits texts, string [B], into ids, int32 [B, (tokens)], without bos and eos."""
        return self._tokenize(tf.strings.regex_replace(utf8(texts), r"\p{Cc}", " "))

    @abc.abstractmethod
    def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """`tokenize` of valid UTF-8 without control characters."""

    def head_lengths(self, tokens: tf.RaggedTensor) -> tf.Tensor:
        """Counts the tokens of a tag at the start of texts, of [B, (tokens)] -> int32 [B]."""
        first = tokens[:, :2].to_tensor(PAD_ID, shape=[None, 2])  # SentencePiece may add a space
        is_tag = tf.reduce_any(first[:, :, None] == tf.constant(self.tag_ids, tf.int32), axis=2)
        return tf.where(is_tag[:, 0], 1, tf.where(is_tag[:, 1], 2, 0))

    @abc.abstractmethod
    def detokenize(self, ids: tf.Tensor) -> tf.Tensor:
        """Joins ids, int32 [B, S], into texts, string [B]; drops pad, bos and eos."""

    @abc.abstractmethod
    def pieces(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the pieces of ids, int32 of any shape, as strings of the same shape."""

    def decode(self, ids: tf.Tensor) -> list[str]:
        """Returns the texts of ids, int [B, S], as Python strings; drops pad, bos and eos."""
        ids = tf.cast(ids, tf.int32)
        if ids.shape.rank != 2:
            raise InputError(f"`ids` must have the shape [B, S]. Received: shape={ids.shape}")
        return [text.decode() for text in self.detokenize(ids).numpy()]

    def spellings(self) -> Sequence[bytes]:
        """Returns the bytes that each id writes; none for an id that no prefix has.

        An id that begins a word begins with a space.

        Raises:
            InputError: if the text of ids is not what they write, one after another.
        """
        raise InputError(
            f"Prefixes and words need a tokenizer of SentencePiece. Received: one of {self.kind}"
        )

    def sentencepiece_model(self) -> bytes:
        """Returns the SentencePiece model, for other engines.

        Raises:
            InputError: if there is none, or if texts are lower-cased before it.
        """
        raise InputError(
            f"Other engines need a tokenizer of SentencePiece. Received: one of {self.kind}"
        )


class SharedSide:
    """A side whose ops, which hold the tokenizer's complete model, stand once for all graphs."""

    def __init__(self, side: Side) -> None:
        texts, ids = tf.TensorSpec([None], tf.string), tf.TensorSpec([None, None], tf.int32)
        specs = {"tokenize": texts, "detokenize": ids, "pieces": ids}
        self._side = side
        self._graphs: dict[str, Any] = {
            name: tf.function(getattr(side, name), [spec], autograph=False)
            for name, spec in specs.items()
        }

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # of a copy that has nothing yet
            raise AttributeError(name)
        return self._graphs.get(name) or getattr(self._side, name)


def sentencepiece_op(model: bytes, out_type: tf.DType) -> tf_text.SentencepieceTokenizer:
    """The TF.Text op, made anew: a kept one loses its model when the random seed is set.

    It is named after its model, because `tf.saved_model.load` gives ops of one name one model.
    """
    name = f"sentencepiece_{zlib.crc32(model):08x}"
    return tf_text.SentencepieceTokenizer(model=model, out_type=out_type, name=name)


def utf8(texts: tf.Tensor) -> tf.Tensor:
    """Returns texts with U+FFFD in place of bytes that are not UTF-8."""
    return tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")


def index_pieces(
    pieces: Sequence[str], first_id: int, unknown_id: int
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function that looks up the int32 ids of pieces by their hashes."""

    # A table of TensorFlow would be a resource that each export must track and initialize.
    def hash_of(pieces: Any) -> tf.Tensor:
        return tf.strings.to_hash_bucket_fast(pieces, 2**62)

    hashes = hash_of(pieces).numpy()
    order = hashes.argsort()
    hashes, ids = hashes[order], order.astype(np.int32) + first_id

    def look_up(pieces: tf.Tensor) -> tf.Tensor:
        wanted = hash_of(pieces)
        places = tf.minimum(tf.searchsorted(hashes, wanted), len(hashes) - 1)
        return tf.where(tf.gather(hashes, places) == wanted, tf.gather(ids, places), unknown_id)

    return look_up
