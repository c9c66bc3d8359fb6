"""Tokenizers by SentencePiece and by word-pieces.

Shapes (the package's glossary): B batch, S length in tokens.
"""

import json
import unicodedata
from collections.abc import Iterable
from typing import Literal, Self

import regex
import sentencepiece
import tensorflow as tf
import tensorflow_text as tf_text

from keras_transformer.base_tokenizer import SPECIAL_PIECES, Tokenizer
from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.errors import InputError
from keras_transformer.subwords import train_sentencepiece

# Marks a SentencePiece model that reads lower-cased text. Protobuf: "lowercase" in field 200, which
# SentencePiece leaves to extensions.
LOWERCASE_MARK = b"\xc2\x0c\x09lowercase"
WORD_PIECE_HEADER = "# word-pieces"
MAX_WORD_BYTES = 2**20  # TF.Text's default is 100; a longer word is unknown


class SentencePieceTokenizer(Tokenizer):
    """Subwords by SentencePiece.

    To a model of `train`, no text is unknown: characters outside the vocabulary become their UTF-8
    bytes, ids 4 to 259. `detokenize(tokenize(x))` returns x in SentencePiece's normal form
    "nmt_nfkc", which is Unicode NFKC with single spaces. Control characters, zero-width characters
    and the meta symbol U+2581 become spaces; invalid UTF-8 becomes U+FFFD. A model of
    `from_keras_nlp` keeps its own rules.

    Args:
        model: a serialized SentencePiece model with the ids pad 0, unk 1, bos 2 and eos 3.
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
        self._is_marked = model.endswith(LOWERCASE_MARK)
        # A model of `from_keras_nlp` may fold case by itself.
        self.lowercase = self._is_marked or "A" not in processor.normalize("A")

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
            texts: sentences. If there are more than 4 million, SentencePiece takes a sample.
            vocab_size: maximum number of ids, the 260 fixed ones included. The tokenizer has fewer
                if the texts do not support as many.
            model_type: SentencePiece's algorithm.
            lowercase: whether to lower-case all text, here and in `tokenize`.
        """
        if lowercase:
            texts = (unicodedata.normalize("NFKC", text).lower() for text in texts)
        model = train_sentencepiece(texts, vocab_size, model_type=model_type, byte_fallback=True)
        return cls(model + LOWERCASE_MARK if lowercase else model)

    def sentencepiece_models(self) -> tuple[bytes, bytes]:
        """Returns the model twice; see `Tokenizer`."""
        if self._is_marked:
            raise InputError("Other engines need a tokenizer that does not lower-case text")
        return self.model, self.model

    @property
    def op(self) -> tf_text.SentencepieceTokenizer:
        """The TF.Text op, made anew: a kept one loses its model when the random seed is set."""
        return tf_text.SentencepieceTokenizer(model=self.model, out_type=tf.int32)

    def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        if self._is_marked:  # NFKC first: it turns the trade mark sign into TM
            texts = tf.strings.lower(tf_text.normalize_utf8(texts, "NFKC"), encoding="utf-8")
        return self.op.tokenize(texts)

    def detokenize(self, ids: tf.Tensor) -> tf.Tensor:
        """Joins ids, int32 [B, S], into texts, string [B]; drops pad, bos and eos."""
        return self.op.detokenize(ids)

    def pieces(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the pieces of ids, int32 of any shape, as strings of the same shape."""
        return self.op.id_to_string(ids)


class WordPieceTokenizer(Tokenizer):
    """Word-pieces: splits each word from its start, longest piece first (Schuster et al. 2012).

    White space separates words, and punctuation is part of them. So `detokenize(tokenize(x))`
    returns x with single spaces. A word with a character outside the vocabulary becomes one unknown
    token. A piece that continues a word starts with "##".

    A tokenizer of `from_keras_nlp` splits words at punctuation too, as KerasNLP does.

    Args:
        model: a header, then one piece a line. The four special pieces come first.
    """

    header = WORD_PIECE_HEADER.encode()

    def __init__(self, model: bytes) -> None:
        self.model = model
        try:
            header, *self._pieces = model.decode().removesuffix("\n").split("\n")
            header, _, options = header.partition(" {")
            self._split_options = json.loads(f"{{{options}") if options else {}
        except ValueError as error:
            raise InputError("The tokenizer is damaged") from error
        if header != WORD_PIECE_HEADER or self._pieces[:4] != list(SPECIAL_PIECES):
            raise InputError(
                f"The tokenizer must start with {WORD_PIECE_HEADER!r} and the pieces "
                f"{', '.join(SPECIAL_PIECES)}. Received: {', '.join([header, *self._pieces[:4]])}"
            )
        if len(set(self._pieces)) < len(self._pieces):
            raise InputError("The tokenizer must not hold a piece twice")
        self.vocab_size = len(self._pieces)
        self.lowercase = self._split_options.get("lowercase", False)
        # No word holds a space, so a text such as "</s>" does not become a special piece.
        self._op_pieces = [
            f" {piece}" if i in (PAD_ID, BOS_ID, EOS_ID) or piece.startswith("##") else piece
            for i, piece in enumerate(self._pieces)
        ]

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> Self:
        """Learns word-pieces from texts of both languages.

        The pieces are those of SentencePiece's BPE, and every character in two forms: at the start
        of a word and inside.

        Args:
            texts: sentences, as for `SentencePieceTokenizer.train`.
            vocab_size: maximum number of ids, more than two for each character.
        """
        # Words are separated as in `tokenize`, and not normalized.
        model = train_sentencepiece(
            (regex.sub(r"[\p{Cc}\p{Z}]", " ", text) for text in texts),
            vocab_size,
            model_type="bpe",
            normalization_rule_name="identity",
            character_coverage=0.99999,  # a word with an unknown character is unknown
        )
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        found = [processor.id_to_piece(i) for i in range(4, processor.vocab_size())]
        characters = sorted(set("".join(found)) - {"\u2581"})
        forms = [form for character in characters for form in (character, f"##{character}")]
        num_required = len(SPECIAL_PIECES) + len(forms)
        if vocab_size <= num_required:
            raise InputError(
                f"`vocab_size` must be more than {num_required}, the ids that special pieces and "
                f"the corpus's characters take. Received: vocab_size={vocab_size}"
            )
        # U+2581 marks the start of a word. The best pieces come first.
        pieces = [
            piece[1:] if piece.startswith("\u2581") else f"##{piece}"
            for piece in found
            if piece != "\u2581"
        ]
        unique = dict.fromkeys([*SPECIAL_PIECES, *forms, *pieces])
        return cls.from_pieces(list(unique)[:vocab_size], {})

    @classmethod
    def from_pieces(cls, pieces: Iterable[str], split_options: dict[str, bool]) -> Self:
        """Makes a tokenizer of pieces.

        Args:
            pieces: in the order of their ids, the four special ones first.
            split_options: how KerasNLP's function splits a text into words; {} for white space.
        """
        options = f" {json.dumps(split_options)}" if split_options else ""
        lines = [f"{WORD_PIECE_HEADER}{options}", *pieces]
        return cls("".join(f"{line}\n" for line in lines).encode())

    def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        if self._split_options:
            # KerasNLP's layer would pin the graph of an export to the CPU.
            from keras_hub.src.tokenizers.word_piece_tokenizer import pretokenize

            words = pretokenize(texts, **self._split_options)
        else:
            words = tf.strings.split(tf.strings.regex_replace(texts, r"\p{Z}", " "))
        return self._op.tokenize(words).merge_dims(1, 2)

    def detokenize(self, ids: tf.Tensor) -> tf.Tensor:
        """Joins ids, int32 [B, S], into texts, string [B]; drops pad, bos and eos."""
        is_special = (ids == PAD_ID) | (ids == BOS_ID) | (ids == EOS_ID)  # [B, S]
        texts = self._op.detokenize(tf.ragged.boolean_mask(ids, ~is_special))
        return tf.strings.regex_replace(texts, "^ ##", "")  # the first piece may continue a word

    def pieces(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the pieces of ids, int32 of any shape, as strings of the same shape."""
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
