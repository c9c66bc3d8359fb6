"""Subword tokens by SentencePiece: the same TF.Text op in training and in the exported graph.

Shapes (the package's glossary): B batch, S length in tokens.
"""

import hashlib
import io
import itertools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple, Self

import sentencepiece
import tensorflow as tf
import tensorflow_text as tf_text

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.errors import InputError

NUM_FIXED_IDS = 4 + 256  # the special ids and the bytes
# SentencePiece holds its training sentences in memory; more than this teach it little.
MAX_TRAINING_SENTENCES = 4_000_000


class VocabularyTooLargeError(InputError):
    """The corpus does not support a vocabulary of the size asked for.

    Args:
        vocab_size: the size asked for.
        limit: the largest possible size.
    """

    def __init__(self, vocab_size: int, limit: int) -> None:
        super().__init__(
            "The vocabulary is larger than the corpus supports: `vocab_size` must be at most "
            f"{limit}. Received: vocab_size={vocab_size}"
        )
        self.limit = limit


class EncodedTexts(NamedTuple):
    """A batch of texts as token ids.

    Attributes:
        ids: int32 [B, S], each row's tokens, then `EOS_ID`, then padding.
        lengths: int32 [B], tokens without `EOS_ID`; 0 for a text that has none.
        truncated: bool [B], True where a text was longer than allowed and was cut.
    """

    ids: tf.Tensor
    lengths: tf.Tensor
    truncated: tf.Tensor


class Tokenizer:
    """Splits texts of both languages into subwords and joins them again.

    `detokenize(tokenize(x))` gives x back up to normalisation: control characters, zero-width
    characters, the meta symbol U+2581 and bytes that are not UTF-8 read as white space; then
    SentencePiece's "nmt_nfkc", which is Unicode NFKC with every run of white space as one space
    and none at the ends. Characters outside the vocabulary become their UTF-8 bytes, so none is
    ever unknown.

    Ids: pad 0, unk 1, bos 2, eos 3, then 256 bytes, then subwords.

    Args:
        model: a serialized SentencePiece model with these ids.

    Raises:
        InputError: if `model` is not such a model.
    """

    def __init__(self, model: bytes) -> None:
        self.model = model
        try:
            processor = sentencepiece.SentencePieceProcessor(model_proto=model)
            special_ids = (
                processor.pad_id(),
                processor.unk_id(),
                processor.bos_id(),
                processor.eos_id(),
            )
        except RuntimeError as error:
            raise InputError("The tokenizer is not a SentencePiece model") from error
        if special_ids != (PAD_ID, UNK_ID, BOS_ID, EOS_ID):
            raise InputError(
                "The tokenizer's ids for pad, unk, bos, eos must be 0, 1, 2, 3. "
                f"Received: {', '.join(map(str, special_ids))}"
            )
        self.vocab_size: int = processor.vocab_size()

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        vocab_size: int,
        model_type: Literal["bpe", "unigram"] = "bpe",
    ) -> Self:
        """Learns subwords from texts of both languages.

        Args:
            texts: sentences; at most `MAX_TRAINING_SENTENCES` are read.
            vocab_size: number of ids, the 260 fixed ones included.
            model_type: SentencePiece's algorithm.

        Raises:
            InputError: if the texts do not support a vocabulary of this size.
        """
        if vocab_size <= NUM_FIXED_IDS:
            raise InputError(
                f"`vocab_size` must be at least {NUM_FIXED_IDS + 1}, as {NUM_FIXED_IDS} ids are "
                f"fixed. Received: vocab_size={vocab_size}"
            )
        model = io.BytesIO()
        # SentencePiece itself drops lines of more than 4,192 bytes from training.
        sentences = (text for text in texts if text.strip())
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=itertools.islice(sentences, MAX_TRAINING_SENTENCES),
                model_writer=model,
                model_type=model_type,
                vocab_size=vocab_size,
                byte_fallback=True,
                pad_id=PAD_ID,
                unk_id=UNK_ID,
                bos_id=BOS_ID,
                eos_id=EOS_ID,
                minloglevel=2,
            )
        except (RuntimeError, StopIteration) as error:
            raise _training_error(str(error), vocab_size) from error
        return cls(model.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Reads what `save` wrote.

        Raises:
            InputError: if the file is missing or is not a SentencePiece model.
        """
        try:
            return cls(Path(path).read_bytes())
        except OSError as error:
            raise InputError(f"Cannot read the tokenizer {path}: {error.strerror}") from error
        except InputError as error:
            raise InputError(f"{path}: {error}") from error

    def save(self, path: str | Path) -> None:
        """Writes a SentencePiece model file, readable by any SentencePiece."""
        Path(path).write_bytes(self.model)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the model; equal for tokenizers that give equal ids."""
        return hashlib.sha256(self.model).hexdigest()

    @property
    def op(self) -> tf_text.SentencepieceTokenizer:
        """The TF.Text op, made anew for the current graph.

        A kept op would lose its model whenever TensorFlow clears its kernels, as setting the
        random seed does.
        """
        return tf_text.SentencepieceTokenizer(model=self.model, out_type=tf.int32)

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Splits texts, string [B], into ids, int32 [B, (tokens)], without bos and eos."""
        utf8 = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
        return self.op.tokenize(tf.strings.regex_replace(utf8, r"\p{Cc}", " "))

    def encode(self, texts: tf.Tensor, max_length: int) -> EncodedTexts:
        """Prepares texts for the encoder.

        Args:
            texts: string [B].
            max_length: most tokens of a text, `EOS_ID` included; the rest is cut off.
        """
        tokens = self.tokenize(texts)  # [B, (tokens)]
        num_tokens = tokens.row_lengths()
        tokens = tokens[:, : max_length - 1]
        end = tf.fill([tokens.nrows(), 1], EOS_ID)  # [B, 1]
        return EncodedTexts(
            ids=tf.concat([tokens, end], axis=1).to_tensor(PAD_ID),  # [B, S]
            lengths=tf.cast(tokens.row_lengths(), tf.int32),
            truncated=num_tokens >= max_length,
        )

    def detokenize(self, ids: tf.Tensor) -> tf.Tensor:
        """Joins ids, int32 [B, S], into texts, string [B]; pad, bos and eos leave no trace."""
        return self.op.detokenize(ids)


def _training_error(message: str, vocab_size: int) -> InputError:
    """SentencePiece's message in our words, its own where we have none."""
    if limit := re.search(r"Vocabulary size too high .*<= (\d+)", message):
        return VocabularyTooLargeError(vocab_size, int(limit[1]))
    if minimum := re.search(r"smaller than required_chars. \d+ vs (\d+)", message):
        return InputError(
            "`vocab_size` must be at least the fixed ids and the corpus's characters, "
            f"{minimum[1]}. Received: vocab_size={vocab_size}"
        )
    if "sentences_.empty" in message or not message:
        return InputError("The corpus holds no text to train a tokenizer from")
    return InputError(f"SentencePiece cannot train a vocabulary of {vocab_size}: {message}")
