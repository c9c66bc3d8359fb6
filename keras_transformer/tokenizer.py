"""Subword tokens: the same TF.Text ops in training and in the exported graph.

Shapes (the package's glossary): B batch, S length in tokens.
"""

import abc
import base64
import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import regex
import sentencepiece
import tensorflow as tf
import tensorflow_text as tf_text

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.errors import InputError
from keras_transformer.subwords import train_sentencepiece
from keras_transformer.tree_symbols import TreeConstraint, TreeSymbols

SPECIAL_PIECES = ("<pad>", "<unk>", "<s>", "</s>")
# Marks a SentencePiece model that reads lower-cased text. Protobuf: "lowercase" in field 200, which
# SentencePiece leaves to extensions.
LOWERCASE_MARK = b"\xc2\x0c\x09lowercase"
WORD_PIECE_HEADER = "# word-pieces"
MARIAN_HEADER = b"# marian\n"
TREE_HEADER = b"# trees\n"
LANGUAGE_TAG = r">>[^\s<>]+<<"  # ">>deu<<" asks a model of several languages for German
MAX_WORD_BYTES = 2**20  # TF.Text's default is 100; a longer word is unknown


class EncodedTexts(NamedTuple):
    """A batch of texts as token ids.

    Attributes:
        ids: int32 [B, S], each row's tokens, then `EOS_ID`, then padding.
        lengths: int32 [B], number of tokens without `EOS_ID`.
        truncated: bool [B], True where a text was cut to the maximum length.
    """

    ids: tf.Tensor
    lengths: tf.Tensor
    truncated: tf.Tensor


class Tokenizer(abc.ABC):
    """Splits texts of both languages into subwords and joins them again.

    There are four kinds, `SentencePieceTokenizer`, `WordPieceTokenizer`, `MarianTokenizer` and
    `TreeTokenizer`; `Tokenizer.load` reads all of them. The ids begin with pad 0, unk 1, bos 2,
    eos 3.

    Attributes:
        model: the content of the file that `save` writes.
        vocab_size: number of ids.
        lowercase: whether it lower-cases all text.
        own_target: the tokenizer of the target language, if that is another one.

    Raises:
        InputError: if a file is missing or is not a tokenizer, or a vocabulary is too small.
    """

    model: bytes
    vocab_size: int
    lowercase: bool = False
    own_target: "Tokenizer | None" = None

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Reads what `save` wrote."""
        try:
            model = Path(path).read_bytes()
        except OSError as error:
            raise InputError(f"Cannot read the tokenizer {path}: {error.strerror}") from error
        kinds: dict[bytes, Callable[[bytes], Tokenizer]] = {
            WORD_PIECE_HEADER.encode(): WordPieceTokenizer,
            MARIAN_HEADER: MarianTokenizer,
            TREE_HEADER: TreeTokenizer,
        }
        found = (kind for header, kind in kinds.items() if model.startswith(header))
        kind = next(found, SentencePieceTokenizer)
        try:
            return kind(model)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error

    def save(self, path: str | Path) -> None:
        """Writes a SentencePiece model, a file with one word-piece a line, or tables."""
        Path(path).write_bytes(self.model)

    @property
    def target(self) -> "Tokenizer":
        """The tokenizer of the target language: this one, unless each language has its own."""
        return self.own_target or self

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the model."""
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
        """Joins ids, int32 [B, S], into texts, string [B]; drops pad, bos and eos."""

    @abc.abstractmethod
    def pieces(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the pieces of ids, int32 of any shape, as strings of the same shape."""

    def constraint(self, source_ids: tf.Tensor) -> TreeConstraint | None:
        """Returns what the results of a search must keep to; None for nothing.

        Args:
            source_ids: int32 [B, S].
        """
        return None

    def write(self, source_ids: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        """Writes the results of a search.

        Args:
            source_ids: int32 [B, S].
            ids: int32 [B, K, T], what was found for each source.

        Returns:
            string [B, K].
        """
        shape = tf.shape(ids)
        # T may be 0, so -1 cannot stand for the other dimensions.
        texts = self.target.detokenize(tf.reshape(ids, [shape[0] * shape[1], shape[2]]))
        return tf.reshape(texts, [shape[0], ids.shape[1] or shape[1]])

    def sentencepiece_models(self) -> tuple[bytes, bytes]:
        """Returns the SentencePiece models of source and target, for other engines.

        Raises:
            InputError: if there are none, or if they do not prepare a text alone.
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
        tokens = self.tokenize(texts)  # [B, (tokens)]
        max_length = max_length or tf.int32.max
        return EncodedTexts(
            *with_end(tokens[:, : max_length - 1]), truncated=tokens.row_lengths() >= max_length
        )

    __call__ = encode

    def decode(self, ids: tf.Tensor | EncodedTexts) -> list[str]:
        """Returns the texts of ids, int [B, S], or of what `encode` returns, as Python strings.

        Pad, bos and eos are left out.
        """
        ids = tf.cast(ids.ids if isinstance(ids, EncodedTexts) else ids, tf.int32)
        if ids.shape.rank != 2:
            raise InputError(f"`ids` must have the shape [B, S]. Received: shape={ids.shape}")
        texts = self.detokenize(ids).numpy()
        return [text.decode() for text in texts]


def with_end(tokens: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor]:
    """[B, (tokens)] -> padded ids [B, S] that end with `EOS_ID`, and the lengths before it [B]."""
    end = tf.fill([tokens.nrows(), 1], EOS_ID)  # [B, 1]
    return (
        tf.concat([tokens, end], axis=1).to_tensor(PAD_ID),
        tf.cast(tokens.row_lengths(), tf.int32),
    )


class SentencePieceTokenizer(Tokenizer):
    """Subwords by SentencePiece.

    No text is unknown: characters outside the vocabulary become their UTF-8 bytes, ids 4 to 259.
    `detokenize(tokenize(x))` returns x in SentencePiece's normal form "nmt_nfkc", which is Unicode
    NFKC with single spaces. Control characters, zero-width characters and the meta symbol U+2581
    become spaces; invalid UTF-8 becomes U+FFFD.

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
                "`vocab_size` must be more than the corpus's characters need, "
                f"{num_required}. Received: vocab_size={vocab_size}"
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


class MarianTokenizer(Tokenizer):
    """Subwords by the SentencePiece models of a Marian model, and their ids by its vocabularies.

    It tokenizes the source, and its `target` tokenizes the target. A source may begin with the tag
    of a target language, such as ">>deu<<", if the vocabulary holds tags.

    Args:
        model: made by `from_files`.
        side: 0 for the source, 1 for the target.

    Raises:
        InputError: if `model` has another form.
    """

    def __init__(self, model: bytes, side: Literal[0, 1] = 0) -> None:
        self.model, self._side = model, side
        self.own_target = None if side else MarianTokenizer(model, side=1)
        try:
            content = json.loads(model.removeprefix(MARIAN_HEADER))
            source, target = map(base64.b64decode, content["sentencepiece"])
            self._models = source, target
            sentencepiece.SentencePieceProcessor(model_proto=self._models[side])  # raises errors
            vocabularies = content["vocabularies"]
            self._substitutions = content["substitutions"]
        except (ValueError, KeyError, IndexError, TypeError, RuntimeError) as error:
            raise InputError("The tokenizer is damaged") from error
        self.vocab_size = max(map(len, vocabularies))
        pieces = vocabularies[-side]  # there may be one vocabulary for both sides
        self._pieces = pieces + [SPECIAL_PIECES[PAD_ID]] * (self.vocab_size - len(pieces))
        self._has_tags = any(re.fullmatch(LANGUAGE_TAG, piece) for piece in pieces)
        hashes = _hash(pieces[4:]).numpy()  # no text becomes a special piece
        order = hashes.argsort()
        self._hashes, self._ids = hashes[order], order.astype(np.int32) + 4

    @classmethod
    def from_files(
        cls,
        sentencepiece_models: Sequence[bytes],
        vocabularies: Sequence[Sequence[str]],
        substitutions: Sequence[tuple[str, str]] = (),
    ) -> Self:
        """Makes a tokenizer.

        Args:
            sentencepiece_models: of the source and of the target.
            vocabularies: the pieces in the order of their ids, the four special ones first; one for
                both languages, or one for each.
            substitutions: regular expressions and what replaces them in a source.
        """
        encoded = [base64.b64encode(model).decode() for model in sentencepiece_models]
        content = {
            "sentencepiece": encoded,
            "vocabularies": vocabularies,
            "substitutions": substitutions,
        }
        return cls(MARIAN_HEADER + json.dumps(content).encode())

    def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        if self._side == 0:
            for pattern, replacement in self._substitutions:
                texts = tf.strings.regex_replace(texts, pattern, replacement)
        op = tf_text.SentencepieceTokenizer(model=self._models[self._side], out_type=tf.string)
        tag = rf"^\s*({LANGUAGE_TAG})"
        if self._side or not self._has_tags:
            return tf.ragged.map_flat_values(self._look_up, op.tokenize(texts))
        pieces = op.tokenize(tf.strings.regex_replace(texts, tag, ""))
        # A row of tags has one at most.
        is_tagged = tf.strings.regex_full_match(texts, f"{tag}.*")  # [B]
        tags = tf.strings.regex_replace(texts, f"{tag}.*", r"\1")
        tags = tf.ragged.boolean_mask(tags[:, None], is_tagged[:, None])
        return tf.ragged.map_flat_values(self._look_up, tf.concat([tags, pieces], axis=1))

    def sentencepiece_models(self) -> tuple[bytes, bytes]:
        """Returns the models of source and target; see `Tokenizer`."""
        return self._models

    def _look_up(self, pieces: tf.Tensor) -> tf.Tensor:
        """Returns the ids of pieces, by a search for their hashes: a table would need a file."""
        hashes = _hash(pieces)
        places = tf.minimum(tf.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        is_known = tf.gather(self._hashes, places) == hashes
        return tf.where(is_known, tf.gather(self._ids, places), UNK_ID)

    def detokenize(self, ids: tf.Tensor) -> tf.Tensor:
        """Joins ids, int32 [B, S], into texts, string [B]; drops pad, bos and eos."""
        is_special = (ids == PAD_ID) | (ids == BOS_ID) | (ids == EOS_ID)  # [B, S]
        op = tf_text.SentencepieceTokenizer(model=self._models[self._side], out_type=tf.string)
        return op.detokenize(tf.ragged.boolean_mask(self.pieces(ids), ~is_special))

    def pieces(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the pieces of ids, int32 of any shape, as strings of the same shape."""
        return tf.gather(tf.constant(self._pieces), ids)


class TreeTokenizer(Tokenizer):
    """Subwords of sentences, and the symbols of their trees (section 6.3).

    It tokenizes sentences whose words are separated by spaces, as in a treebank. A parenthesis
    becomes -LRB- or -RRB-. Its `target` tokenizes linearized trees, of symbols separated by spaces.
    A search with it finds well-formed trees only, and `write` writes them in brackets.

    Args:
        model: a header, then JSON.
    """

    def __init__(self, model: bytes) -> None:
        self.model = model
        try:
            content = json.loads(model.removeprefix(TREE_HEADER))
            self._words = SentencePieceTokenizer(base64.b64decode(content["sentencepiece"]))
            self.symbols = TreeSymbols(tuple(content["tags"]), tuple(content["labels"]))
            pieces = [*SPECIAL_PIECES, *self.symbols.pieces]
            self.own_target = WordPieceTokenizer.from_pieces(pieces, {})
        except (ValueError, KeyError, TypeError) as error:
            raise InputError("The tokenizer is damaged") from error
        self.vocab_size = self._words.vocab_size

    @classmethod
    def train(
        cls,
        pairs: Iterable[tuple[str, str]],
        vocab_size: int,
        model_type: Literal["bpe", "unigram"] = "bpe",
    ) -> Self:
        """Learns subwords from sentences, and takes the symbols from their trees.

        Args:
            pairs: sentences and linearized trees.
            vocab_size: as for `SentencePieceTokenizer.train`.
            model_type: SentencePiece's algorithm.
        """
        symbols: set[str] = set()

        def sentences() -> Iterator[str]:
            for sentence, tree in pairs:
                symbols.update(tree.split())
                yield sentence

        model = train_sentencepiece(
            sentences(),
            vocab_size,
            model_type=model_type,
            byte_fallback=True,
            normalization_rule_name="identity",  # `write` returns the words as they are
        )
        content = {
            "sentencepiece": base64.b64encode(model).decode(),
            **TreeSymbols.of(symbols)._asdict(),
        }
        return cls(TREE_HEADER + json.dumps(content).encode())

    def constraint(self, source_ids: tf.Tensor) -> TreeConstraint:
        """Returns the constraint of trees with the words of sources; see `Tokenizer`."""
        num_words = tf.cast(self._split(source_ids).row_lengths(), tf.int32)
        return TreeConstraint(self.symbols, num_words)

    def write(self, source_ids: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        """Writes trees in brackets, with the words of their sources; see `Tokenizer`."""
        return self.symbols.write(self._split(source_ids), ids)

    def _split(self, source_ids: tf.Tensor) -> tf.RaggedTensor:
        """Returns the words of sources, string [B, (words)]."""
        return tf.strings.split(self.detokenize(source_ids))

    def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        # U+2581 is SentencePiece's mark of a word.
        for pattern, replacement in (
            (r"\p{Z}", " "),
            ("\u2581", "_"),
            (r"\(", "-LRB-"),
            (r"\)", "-RRB-"),
        ):
            texts = tf.strings.regex_replace(texts, pattern, replacement)
        return self._words.tokenize(texts)

    def detokenize(self, ids: tf.Tensor) -> tf.Tensor:
        """Joins ids, int32 [B, S], into sentences, string [B]; drops pad, bos and eos."""
        return self._words.detokenize(ids)

    def pieces(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the pieces of ids, int32 of any shape, as strings of the same shape."""
        return self._words.pieces(ids)


def _hash(pieces: Any) -> tf.Tensor:
    """Returns hashes that are the same everywhere, int64."""
    return tf.strings.to_hash_bucket_fast(pieces, 2**62)


def train_tokenizer(
    kind: Literal["bpe", "unigram", "wordpiece"],
    texts: Iterable[str],
    vocab_size: int,
    lowercase: bool = False,
) -> Tokenizer:
    """Learns a tokenizer; see the `train` methods of the classes.

    Args:
        kind: SentencePiece's algorithm, or "wordpiece".
        texts: sentences of both languages.
        vocab_size: maximum number of ids.
        lowercase: whether to lower-case all text; word-pieces do not.
    """
    if kind == "wordpiece":
        return WordPieceTokenizer.train(texts, vocab_size)
    return SentencePieceTokenizer.train(texts, vocab_size, kind, lowercase)
