"""Tokenizers by SentencePiece and by word-pieces."""

import itertools
import json
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self

import regex
import sentencepiece
import tensorflow as tf
import tensorflow_text as tf_text
from google.protobuf.message import DecodeError

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.errors import InputError
from keras_transformer.languages import lower_text
from keras_transformer.tokenizers.base import Tokenizer
from keras_transformer.tokenizers.case import lower
from keras_transformer.tokenizers.invisible import visible_text
from keras_transformer.tokenizers.languages import TAG
from keras_transformer.tokenizers.learning import (
    WORD_MARK,
    add_languages,
    compositions,
    parse_sentencepiece,
    tags_of,
    train_by_rules,
    train_sentencepiece,
)
from keras_transformer.tokenizers.sides import SPECIAL_PIECES, Side, sentencepiece_op

HEADER = "# word-pieces"  # of a file of word-pieces
LOWERCASE_MARK = "lowercase"
BYTE_TYPE, OTHER_TYPES = 6, (2, 3, 5)  # of SentencePiece's pieces: unknown, control and unused
MAX_WORD_BYTES = 2**20  # TF.Text's default is 100; a longer word is unknown


class SentencePieceSide(Side):
    """One language of a SentencePiece model, by the normal form of this language."""

    def __init__(self, model: bytes, target_model: bytes, lowercase: bool, is_source: bool) -> None:
        self.model, self._target_model = model, target_model
        self._lowers, self._is_source = lowercase, is_source  # whether by TF.Text
        message = parse_sentencepiece(model)
        self.tags, self.source_languages = tags_of(message), message.source_languages.split()
        self.tag_ids, self.source_tag = [*self.tags.values()], message.source_tag
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.vocab_size = len(message.pieces)
        if message.HasField("delimiters"):
            named = message.delimiters.split()
            self.delimiters = "<s>" in named, "</s>" in named
        # A model of `from_keras_nlp` may fold case by itself.
        self.lowercase = lowercase or "A" not in processor.normalize("A")
        types = [piece.type for piece in message.pieces]
        first = types.index(BYTE_TYPE) if BYTE_TYPE in types else 0
        if types[first : first + 256] == [BYTE_TYPE] * 256:
            self.first_byte = first

    def sentencepiece_model(self) -> bytes:
        if self._lowers:
            raise InputError("Other engines need a tokenizer that does not lower-case text")
        return self.model

    def spellings(self) -> list[bytes]:
        def spelling(piece: Any) -> bytes:
            if piece.type == BYTE_TYPE:  # such as <0xF4>; that of a space begins no word
                return bytes.fromhex(piece.piece[3:5]).strip(b" ")
            is_text = piece.type not in OTHER_TYPES
            return piece.piece.replace(WORD_MARK, " ").encode() if is_text else b""

        return [spelling(piece) for piece in parse_sentencepiece(self.model).pieces]

    def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        if not (self._is_source and self.tags):
            return self._split(texts)
        tag = tf.strings.regex_replace(texts, f"(?s){TAG}.*", r"\1")
        is_tag = tag[:, None] == list(self.tags)  # [B, tags]
        has_tag = tf.reduce_any(is_tag, axis=1)
        texts = tf.where(has_tag, tf.strings.regex_replace(texts, TAG, ""), texts)
        tokens = self._split(texts)
        has_tag &= tokens.row_lengths() > 0  # a tag alone is no text
        ids = tf.gather(self.tag_ids, tf.argmax(is_tag, axis=1))
        head = tf.ragged.boolean_mask(ids[:, None], has_tag[:, None])
        return tf.concat([head, tokens], axis=1)

    def _split(self, texts: tf.Tensor) -> tf.RaggedTensor:
        if self._lowers:
            if self._is_source:
                texts = tf_text.normalize_utf8(texts, "NFKC")  # the trade mark sign becomes TM
            texts = lower(texts, self.language)
        return sentencepiece_op(self.model, tf.int32).tokenize(texts)

    # To join pieces, both sides take the target's model, which is smaller.

    def detokenize(self, ids: tf.Tensor) -> tf.Tensor:
        return sentencepiece_op(self._target_model, tf.int32).detokenize(ids)

    def pieces(self, ids: tf.Tensor) -> tf.Tensor:
        return sentencepiece_op(self._target_model, tf.int32).id_to_string(ids)


def sentencepiece_sides(
    model: bytes, side_type: type[SentencePieceSide] = SentencePieceSide
) -> list[SentencePieceSide]:
    """Returns the sides of a serialized model, one if it has one normal form."""
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        names = ("pad", "unk", "bos", "eos")
        special_ids = tuple(getattr(processor, f"{name}_id")() for name in names)
        message = parse_sentencepiece(model)
    except (RuntimeError, DecodeError) as error:
        raise InputError("The tokenizer is not a SentencePiece model") from error
    if special_ids != (PAD_ID, UNK_ID, BOS_ID, EOS_ID):
        raise InputError(
            "The tokenizer's ids for pad, unk, bos, eos must be 0, 1, 2, 3. "
            f"Received: {', '.join(map(str, special_ids))}"
        )
    lowercase = message.lowercase == LOWERCASE_MARK
    if not message.HasField("target_normalizer_spec"):
        return [side_type(model, model, lowercase, is_source=True)]
    of_target = message.target_normalizer_spec.SerializeToString()
    message.ClearField("target_normalizer_spec")
    source = message.SerializeToString()
    message.normalizer_spec.ParseFromString(of_target)
    target = message.SerializeToString()
    return [
        side_type(source, target, lowercase, is_source=True),
        side_type(target, target, lowercase, is_source=False),
    ]


class SentencePieceTokenizer(Tokenizer):
    """Subwords by SentencePiece.

    To a model of `train`, no text is unknown: characters outside the vocabulary become their UTF-8
    bytes, ids 4 to 259. Both languages share the pieces, and each has its own normal form:

    - It reads a source in SentencePiece's "nmt_nfkc", which is Unicode NFKC with single spaces.
      The joiner U+200C and the meta symbol U+2581 become spaces. Invisible characters are deleted
      before (`invisible`).
    - Its `target` keeps a text as it is, but composes letters and accents, as NFC does, and joins
      runs of ordinary spaces. U+2581 becomes an underscore.

    In both, control characters become spaces, and invalid UTF-8 becomes U+FFFD. A model of another
    origin, such as `from_keras_nlp`, has one normal form, its own, for both languages.

    Args:
        model: a serialized SentencePiece model with the ids pad 0, unk 1, bos 2 and eos 3.
    """

    def __init__(self, model: bytes) -> None:
        super().__init__(model, *sentencepiece_sides(model))

    def with_languages(self, sources: Sequence[str], targets: Sequence[str]) -> Tokenizer:
        if self.target is self.source:  # one normal form
            return super().with_languages(sources, targets)
        return type(self)(add_languages(self.model, sources, targets))

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        vocab_size: int,
        model_type: Literal["bpe", "unigram"] = "bpe",
        lowercase: bool = False,
        targets: Iterable[str] | None = None,
        symbols: Sequence[str] = (),
        languages: tuple[str, str] = ("", ""),
    ) -> Self:
        """Learns subwords from texts of both languages.

        Args:
            texts: sentences of the source language; of both, if `targets` is None. If there are
                more than 4 million, SentencePiece takes a sample.
            vocab_size: maximum number of ids, the 260 fixed ones included. The tokenizer has fewer
                if the texts do not support as many.
            model_type: SentencePiece's algorithm.
            lowercase: whether to lower-case all text, here and later.
            targets: sentences of the target language.
            symbols: characters that are pieces by themselves; they get the last ids.
            languages: the codes of source and target, if they are known.
        """
        sources, targets = ((), texts) if targets is None else (texts, targets)
        normalizer = sentencepiece.SentencePieceNormalizer(
            rule_name="nmt_nfkc",
            add_dummy_prefix=False,
            escape_whitespaces=False,
            remove_extra_whitespaces=True,
        )

        def as_read() -> Iterator[str]:
            # Side by side, so that both may come from one stream of pairs.
            for pair in itertools.zip_longest(sources, targets, fillvalue=""):
                # As `Side.tokenize` does.
                source, target = (regex.sub(r"\p{Cc}", " ", text) for text in pair)
                source = visible_text(source)
                if lowercase:
                    sides = unicodedata.normalize("NFKC", source), target
                    source, target = map(lower_text, sides, languages)
                yield normalizer.normalize(source)
                yield target

        rules = {**compositions(), WORD_MARK: "_"}
        options = {"model_type": model_type, "user_defined_symbols": list(symbols)}
        message = train_by_rules(as_read(), vocab_size, rules, **options)
        ordered = sorted(message.pieces, key=lambda piece: piece.piece in symbols)
        del message.pieces[:]
        message.pieces.extend(ordered)
        message.target_normalizer_spec.CopyFrom(message.normalizer_spec)
        of_source = parse_sentencepiece(normalizer.serialized_model_proto()).normalizer_spec
        for name in ("name", "precompiled_charsmap"):
            setattr(message.normalizer_spec, name, getattr(of_source, name))
        if lowercase:
            message.lowercase = LOWERCASE_MARK
        return cls(message.SerializeToString()).of_languages(languages)


class WordPieceSide(Side):
    """Words, split from their start, longest piece first."""

    kind = "word-pieces"

    def __init__(self, pieces: Sequence[str], split_options: Mapping[str, bool]) -> None:
        self._pieces, self._split_options = pieces, split_options
        self.vocab_size = len(pieces)
        self.lowercase = split_options.get("lowercase", False)
        # No word holds a space, so a text such as "</s>" does not become a special piece.
        self._op_pieces = [
            f" {piece}" if i in (PAD_ID, BOS_ID, EOS_ID) or piece.startswith("##") else piece
            for i, piece in enumerate(pieces)
        ]

    def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        if self._split_options:
            # KerasNLP's layer would pin the graph of an export to the CPU.
            from keras_hub.src.tokenizers.word_piece_tokenizer import pretokenize

            words = pretokenize(texts, **self._split_options)
        else:
            words = tf.strings.split(tf.strings.regex_replace(texts, r"\p{Z}", " "))
        return self._op.tokenize(words).merge_dims(1, 2)

    def detokenize(self, ids: tf.Tensor) -> tf.Tensor:
        is_special = (ids == PAD_ID) | (ids == BOS_ID) | (ids == EOS_ID)  # [B, S]
        texts = self._op.detokenize(tf.ragged.boolean_mask(ids, ~is_special))
        return tf.strings.regex_replace(texts, "^ ##", "")  # the first piece may continue a word

    def pieces(self, ids: tf.Tensor) -> tf.Tensor:
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


class WordPieceTokenizer(Tokenizer):
    """Word-pieces: splits each word from its start, longest piece first (Schuster et al. 2012).

    White space separates words, and punctuation is part of them. So a text comes back from its ids
    with single spaces. A word with a character outside the vocabulary becomes one unknown token. A
    piece that continues a word starts with "##".

    A tokenizer of `from_keras_nlp` splits words at punctuation too, as KerasNLP does.

    Args:
        model: a header, then one piece a line. The four special pieces come first.
    """

    def __init__(self, model: bytes) -> None:
        try:
            header, *pieces = model.decode().removesuffix("\n").split("\n")
            header, _, options = header.partition(" {")
            split_options = json.loads(f"{{{options}") if options else {}
        except ValueError as error:
            raise InputError("The tokenizer is damaged") from error
        if header != HEADER or pieces[:4] != list(SPECIAL_PIECES):
            raise InputError(
                f"The tokenizer must start with {HEADER!r} and the pieces "
                f"{', '.join(SPECIAL_PIECES)}. Received: {', '.join([header, *pieces[:4]])}"
            )
        if len(set(pieces)) < len(pieces):
            raise InputError("The tokenizer must not hold a piece twice")
        super().__init__(model, WordPieceSide(pieces, split_options))

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> Self:
        """Learns word-pieces from sentences of both languages.

        The pieces are those of SentencePiece's BPE, and every character in two forms: at the start
        of a word and inside. So `vocab_size`, the maximum, is more than two for each character.
        """
        # Words are separated as a tokenizer separates them, and not normalized.
        model = train_sentencepiece(
            (regex.sub(r"[\p{Cc}\p{Z}]", " ", text) for text in texts),
            vocab_size,
            model_type="bpe",
            normalization_rule_name="identity",
            character_coverage=0.99999,  # a word with an unknown character is unknown
        )
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        learned = [processor.id_to_piece(i) for i in range(4, processor.vocab_size())]
        characters = sorted(set("".join(learned)) - {WORD_MARK})
        forms = [form for character in characters for form in (character, f"##{character}")]
        num_required = len(SPECIAL_PIECES) + len(forms)
        if vocab_size <= num_required:
            raise InputError(
                f"`vocab_size` must be more than {num_required}, the ids that special pieces and "
                f"the corpus's characters take. Received: vocab_size={vocab_size}"
            )
        # The best pieces come first.
        pieces = [
            piece[1:] if piece.startswith(WORD_MARK) else f"##{piece}"
            for piece in learned
            if piece != WORD_MARK
        ]
        unique = dict.fromkeys([*SPECIAL_PIECES, *forms, *pieces])
        return cls.from_pieces(list(unique)[:vocab_size], {})

    @classmethod
    def from_pieces(cls, pieces: Iterable[str], split_options: dict[str, bool]) -> Self:
        """Makes a tokenizer of pieces by id, the four special ones first.

        The options say how KerasNLP's function splits a text into words; {} for white space.
        """
        options = f" {json.dumps(split_options)}" if split_options else ""
        return cls("".join(f"{line}\n" for line in (HEADER + options, *pieces)).encode())
