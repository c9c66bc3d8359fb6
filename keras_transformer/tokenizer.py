"""Subword tokens: the same TF.Text ops in training and in the exported graph.

Shapes (the package's glossary): B batch, S length in tokens.
"""

import abc
import hashlib
import io
import re
import sys
import tempfile
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import regex
import sentencepiece
import tensorflow as tf
import tensorflow_text as tf_text

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.errors import InputError, one_line

NUM_FIXED_IDS = 4 + 256  # SentencePiece's: the special ids and the bytes
SPECIAL_PIECES = ("<pad>", "<unk>", "<s>", "</s>")
WORD_PIECE_HEADER = "# word-pieces"
NO_LETTERS = regex.compile(r"[\p{Cc}\p{Z}]")
MAX_WORD_BYTES = 2**20  # the op's own limit is 100, beyond which a word is unknown
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


class Tokenizer(abc.ABC):
    """Splits texts of both languages into subwords and joins them again.

    Its kinds are `SentencePieceTokenizer` and `WordPieceTokenizer`; `Tokenizer.load` reads either.
    Ids of all kinds: pad 0, unk 1, bos 2, eos 3, then the rest.

    Attributes:
        model: all that it is made from, as the file that `save` writes.
        vocab_size: number of ids.
        lowercase: whether it reads capitals as small letters, so that none come out.
    """

    model: bytes
    vocab_size: int
    lowercase: bool = False

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Reads what `save` wrote.

        Raises:
            InputError: if the file is missing or is no tokenizer.
        """
        try:
            model = Path(path).read_bytes()
        except OSError as error:
            raise InputError(f"Cannot read the tokenizer {path}: {error.strerror}") from error
        is_word_piece = model.startswith(WORD_PIECE_HEADER.encode())
        try:
            return (WordPieceTokenizer if is_word_piece else SentencePieceTokenizer)(model)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error

    def save(self, path: str | Path) -> None:
        """Writes the model's file: a SentencePiece model, or a word-piece a line."""
        Path(path).write_bytes(self.model)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the model; equal for tokenizers that give equal ids."""
        return hashlib.sha256(self.model).hexdigest()

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Splits texts, string [B], into ids, int32 [B, (tokens)], without bos and eos."""
        utf8 = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
        return self._tokenize(tf.strings.regex_replace(utf8, r"\p{Cc}", " "))

    @abc.abstractmethod
    def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """`tokenize` of valid UTF-8 without control characters."""

    @abc.abstractmethod
    def detokenize(self, ids: tf.Tensor) -> tf.Tensor:
        """Joins ids, int32 [B, S], into texts, string [B]; pad, bos and eos leave no trace."""

    @abc.abstractmethod
    def pieces(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the piece that each id stands for, string of the shape of `ids`, int32."""

    def encode(self, texts: tf.Tensor, max_length: int) -> EncodedTexts:
        """Prepares texts for the encoder.

        Args:
            texts: string [B].
            max_length: most tokens of a text, `EOS_ID` included; the rest is cut off.
        """
        tokens = self.tokenize(texts)  # [B, (tokens)]
        return EncodedTexts(
            *with_end(tokens[:, : max_length - 1]), truncated=tokens.row_lengths() >= max_length
        )


def with_end(tokens: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Puts `EOS_ID` after each row of tokens, int32 [B, (tokens)].

    Returns:
        ids, int32 [B, S], padded, and lengths, int32 [B], without `EOS_ID`.
    """
    end = tf.fill([tokens.nrows(), 1], EOS_ID)  # [B, 1]
    return (
        tf.concat([tokens, end], axis=1).to_tensor(PAD_ID),
        tf.cast(tokens.row_lengths(), tf.int32),
    )


class SentencePieceTokenizer(Tokenizer):
    """Subwords by SentencePiece, with which no text is unknown.

    `detokenize(tokenize(x))` gives x back up to normalisation: control characters, zero-width
    characters, the meta symbol U+2581 and bytes that are not UTF-8 read as white space; then
    SentencePiece's "nmt_nfkc", which is Unicode NFKC with every run of white space as one space
    and none at the ends; then small letters, where it was trained so. Characters outside the
    vocabulary become their UTF-8 bytes: ids 4 to 259.

    Args:
        model: a serialized SentencePiece model with the fixed ids.

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
        self.lowercase = "A" not in processor.normalize("A")

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        vocab_size: int,
        model_type: Literal["bpe", "unigram"] = "bpe",
        lowercase: bool = False,
    ) -> Self:
        """Learns subwords from texts of both languages.

        Args:
            texts: sentences; of more than `MAX_TRAINING_SENTENCES` a random sample is taken.
            vocab_size: number of ids, the 260 fixed ones included.
            model_type: SentencePiece's algorithm.
            lowercase: whether capitals are read as small letters; the model does it by itself,
                wherever it is loaded.

        Raises:
            InputError: if the texts do not support a vocabulary of this size.
        """
        if vocab_size <= NUM_FIXED_IDS:
            raise InputError(
                f"`vocab_size` must be at least {NUM_FIXED_IDS + 1}, as {NUM_FIXED_IDS} ids are "
                f"fixed. Received: vocab_size={vocab_size}"
            )
        options: dict[str, Any] = {"model_type": model_type, "byte_fallback": True}
        if not lowercase:
            return cls(_train_sentencepiece(texts, vocab_size, **options))
        with tempfile.TemporaryDirectory() as folder:
            # The model names the file, by which no two would be equal: slashes, of which any
            # number are one, make the names equally long, and then they are overwritten.
            rules = f"{folder}/".ljust(500, "/") + "lowercase.tsv"
            Path(rules).write_text(_lowercase_rules())
            options["normalization_rule_tsv"] = rules
            model = _train_sentencepiece(texts, vocab_size, **options)
        return cls(model.replace(rules.encode(), b"-" * len(rules.encode())))

    @property
    def op(self) -> tf_text.SentencepieceTokenizer:
        """The TF.Text op, made anew for the current graph.

        A kept op would lose its model whenever TensorFlow clears its kernels, as setting the
        random seed does.
        """
        return tf_text.SentencepieceTokenizer(model=self.model, out_type=tf.int32)

    def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return self.op.tokenize(texts)

    def detokenize(self, ids: tf.Tensor) -> tf.Tensor:
        """Joins ids, int32 [B, S], into texts, string [B]; pad, bos and eos leave no trace."""
        return self.op.detokenize(ids)

    def pieces(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the piece that each id stands for, string of the shape of `ids`, int32."""
        return self.op.id_to_string(ids)


class WordPieceTokenizer(Tokenizer):
    """Word-pieces: each word from its start by the longest pieces (Schuster and Nakajima 2012).

    Words are what white space separates, punctuation included, so that joining gives the text
    back: up to white space, and up to words with a character outside the vocabulary, which are
    unknown as wholes. A piece that continues a word starts with "##".

    Args:
        model: the header, then a piece a line, the four special ones first.

    Raises:
        InputError: if `model` is not of this form.
    """

    def __init__(self, model: bytes) -> None:
        self.model = model
        try:
            header, *self._pieces = model.decode().removesuffix("\n").split("\n")
        except UnicodeDecodeError as error:
            raise InputError("The tokenizer is not valid UTF-8") from error
        if header != WORD_PIECE_HEADER or self._pieces[:4] != list(SPECIAL_PIECES):
            raise InputError(
                f"The tokenizer must start with {WORD_PIECE_HEADER!r} and the pieces "
                f"{', '.join(SPECIAL_PIECES)}. Received: {', '.join([header, *self._pieces[:4]])}"
            )
        if len(set(self._pieces)) < len(self._pieces):
            raise InputError("The tokenizer must not hold a piece twice")
        self.vocab_size = len(self._pieces)
        # No word has a space, so that text which looks like these is text.
        self._op_pieces = [
            f" {piece}" if i in (PAD_ID, BOS_ID, EOS_ID) or piece.startswith("##") else piece
            for i, piece in enumerate(self._pieces)
        ]

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> Self:
        """Learns word-pieces from texts of both languages.

        The pieces are those that SentencePiece's BPE finds, and every character twice: at the
        start of a word and inside.

        Args:
            texts: sentences; of more than `MAX_TRAINING_SENTENCES` a random sample is taken.
            vocab_size: number of ids; there is one less if every character starts a word.

        Raises:
            InputError: if the texts do not support a vocabulary of this size.
        """
        if vocab_size <= len(SPECIAL_PIECES):
            raise InputError(
                f"`vocab_size` must be at least {len(SPECIAL_PIECES) + 1}, as "
                f"{len(SPECIAL_PIECES)} ids are fixed. Received: vocab_size={vocab_size}"
            )
        processor = sentencepiece.SentencePieceProcessor(
            model_proto=_train_sentencepiece(
                (NO_LETTERS.sub(" ", text) for text in texts),  # as `tokenize` reads them
                vocab_size,
                model_type="bpe",
                normalization_rule_name="identity",
                # A word with an unknown character is unknown as a whole.
                character_coverage=0.99999,
            )
        )
        found = [processor.id_to_piece(i) for i in range(len(SPECIAL_PIECES), vocab_size)]
        characters = sorted({character for piece in found for character in piece} - {"\u2581"})
        forms = [form for character in characters for form in (character, f"##{character}")]
        # The meta symbol starts a word; the best pieces come first.
        marked = [
            piece[1:] if piece.startswith("\u2581") else f"##{piece}"
            for piece in found
            if piece != "\u2581"
        ]
        pieces = list(dict.fromkeys([*SPECIAL_PIECES, *forms, *marked]))[:vocab_size]
        if len(pieces) <= len(SPECIAL_PIECES) + len(forms):
            raise InputError(
                "`vocab_size` must be more than the corpus's characters need, "
                f"{len(SPECIAL_PIECES) + len(forms)}. Received: vocab_size={vocab_size}"
            )
        text = "".join(f"{piece}\n" for piece in (WORD_PIECE_HEADER, *pieces))
        return cls(text.encode())

    def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        words = tf.strings.split(tf.strings.regex_replace(texts, r"\p{Z}", " "))
        return self._op.tokenize(words).merge_dims(1, 2)

    def detokenize(self, ids: tf.Tensor) -> tf.Tensor:
        """Joins ids, int32 [B, S], into texts, string [B]; pad, bos and eos leave no trace."""
        is_special = (ids == PAD_ID) | (ids == BOS_ID) | (ids == EOS_ID)  # [B, S]
        texts = self._op.detokenize(tf.ragged.boolean_mask(ids, ~is_special))
        return tf.strings.regex_replace(texts, "^ ##", "")  # of a piece that begins no word

    def pieces(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the piece that each id stands for, string of the shape of `ids`, int32."""
        return tf.gather(tf.constant(self._pieces), ids)

    @property
    def _op(self) -> tf_text.FastWordpieceTokenizer:
        return tf_text.FastWordpieceTokenizer(
            self._op_pieces,
            suffix_indicator=" ##",
            max_bytes_per_word=MAX_WORD_BYTES,
            token_out_type=tf.int32,
            unknown_token=SPECIAL_PIECES[UNK_ID],
            no_pretokenization=True,
            support_detokenization=True,
        )


def train_tokenizer(
    kind: Literal["bpe", "unigram", "wordpiece"],
    texts: Iterable[str],
    vocab_size: int,
    lowercase: bool = False,
) -> Tokenizer:
    """Learns a tokenizer of a kind; see the `train` of the classes.

    Args:
        kind: SentencePiece's algorithm, or "wordpiece".
        texts: sentences of both languages.
        vocab_size: number of ids.
        lowercase: whether capitals are read as small letters; word-pieces keep them.
    """
    if kind == "wordpiece":
        return WordPieceTokenizer.train(texts, vocab_size)
    return SentencePieceTokenizer.train(texts, vocab_size, kind, lowercase)


def _train_sentencepiece(texts: Iterable[str], vocab_size: int, **options: Any) -> bytes:
    """Trains a SentencePiece model with the special ids."""
    model = io.BytesIO()
    failures: list[BaseException] = []

    def sentences() -> Iterator[str]:
        try:
            yield from (text for text in texts if text.strip())
        except (Exception, KeyboardInterrupt) as error:
            failures.append(error)  # SentencePiece would leave no more than its text
            raise

    # SentencePiece itself drops lines of more than 4,192 bytes from training, and takes a random
    # sample of what is too much.
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=sentences(),
            input_sentence_size=MAX_TRAINING_SENTENCES,
            shuffle_input_sentence=True,
            model_writer=model,
            vocab_size=vocab_size,
            pad_id=PAD_ID,
            unk_id=UNK_ID,
            bos_id=BOS_ID,
            eos_id=EOS_ID,
            minloglevel=2,
            **options,
        )
    except (RuntimeError, StopIteration) as error:
        if failures:
            raise failures[0] from None
        raise _training_error(str(error), vocab_size) from error
    return model.getvalue()


def _lowercase_rules() -> str:
    """SentencePiece's "nmt_nfkc" in small letters, as its table of code points.

    Its own "nmt_nfkc_cf" folds case instead, which writes the German ß as ss.
    """
    normalizer = sentencepiece.SentencePieceNormalizer(
        rule_name="nmt_nfkc",
        add_dummy_prefix=False,
        escape_whitespaces=False,
        remove_extra_whitespaces=False,
    )
    rules = {}
    for code in range(1, sys.maxunicode + 1):
        character = chr(code)
        if unicodedata.category(character) == "Cs":  # half of a pair, and no character
            continue
        # A letter and its accents, apart, are one character in NFKC.
        for text in {character, unicodedata.normalize("NFD", character)}:
            small = normalizer.normalize(text).lower()
            if small != text:
                rules[text] = small
    return "".join(
        f"{_code_points(text)}\t{_code_points(small)}\n" for text, small in rules.items()
    )


def _code_points(text: str) -> str:
    return " ".join(f"{ord(character):X}" for character in text)


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
    message = one_line(message)
    return InputError(f"SentencePiece cannot train a vocabulary of {vocab_size}: {message}")
