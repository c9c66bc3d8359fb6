"""The tokenizer of an imported Marian model."""

import base64
import itertools
import json
import re
from collections.abc import Sequence
from typing import Any, Self

import sentencepiece
import tensorflow as tf
import tensorflow_text as tf_text

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.errors import InputError
from keras_transformer.languages import LANGUAGE_TAG
from keras_transformer.tokenizers.base import Tokenizer
from keras_transformer.tokenizers.languages import TAG
from keras_transformer.tokenizers.sides import SPECIAL_PIECES, Side, index_pieces, sentencepiece_op

HEADER = b"# marian\n"  # of its file


class MarianSide(Side):
    """Subwords by a SentencePiece model, and their ids by a vocabulary."""

    kind = "Marian"

    def __init__(self, model: bytes, pieces: Sequence[str], vocab_size: int) -> None:
        sentencepiece.SentencePieceProcessor(model_proto=model)  # raises errors
        self.model, self.vocab_size = model, vocab_size
        self._pieces = [*pieces, *[SPECIAL_PIECES[PAD_ID]] * (vocab_size - len(pieces))]
        self.look_up = index_pieces(pieces[4:], first_id=4, unknown_id=UNK_ID)

    def sentencepiece_model(self) -> bytes:
        return self.model

    def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return tf.ragged.map_flat_values(self.look_up, self._op.tokenize(texts))

    def detokenize(self, ids: tf.Tensor) -> tf.Tensor:
        is_special = (ids == PAD_ID) | (ids == BOS_ID) | (ids == EOS_ID)  # [B, S]
        return self._op.detokenize(tf.ragged.boolean_mask(self.pieces(ids), ~is_special))

    def pieces(self, ids: tf.Tensor) -> tf.Tensor:
        return tf.gather(tf.constant(self._pieces), ids)

    @property
    def _op(self) -> tf_text.SentencepieceTokenizer:
        return sentencepiece_op(self.model, tf.string)


class MarianSource(MarianSide):
    """The side of sources, which may begin with the tag of a target language."""

    def __init__(
        self,
        model: bytes,
        pieces: Sequence[str],
        vocab_size: int,
        substitutions: Sequence[tuple[str, str]],
        cuts_tag: bool,
    ) -> None:
        super().__init__(model, pieces, vocab_size)
        self._substitutions, self.cuts_tag = substitutions, cuts_tag
        is_tag = [re.fullmatch(f"▁?{LANGUAGE_TAG}", piece) is not None for piece in pieces]
        self.tag_ids = [*itertools.compress(itertools.count(), is_tag)]
        self.tags = {pieces[i]: i for i in self.tag_ids if pieces[i].startswith(">>")}

    def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        for pattern, replacement in self._substitutions:
            texts = tf.strings.regex_replace(texts, pattern, replacement)
        if self.tags:  # a tag alone is no text
            texts = tf.strings.regex_replace(texts, rf"{TAG}[\s\p{{Z}}]*$", "")
        if not (self.tags and self.cuts_tag):
            return super()._tokenize(texts)
        pieces = self._op.tokenize(tf.strings.regex_replace(texts, TAG, ""))
        # A row of tags has one at most.
        is_tagged = tf.strings.regex_full_match(texts, f"{TAG}.*")  # [B]
        tags = tf.strings.regex_replace(texts, f"{TAG}.*", r"\1")
        tags = tf.ragged.boolean_mask(tags[:, None], is_tagged[:, None])
        return tf.ragged.map_flat_values(self.look_up, tf.concat([tags, pieces], axis=1))


class MarianTokenizer(Tokenizer):
    """Subwords by the SentencePiece models of a Marian model, and their ids by its vocabularies.

    A source may begin with the tag of a target language, such as ">>deu<<", if the vocabulary holds
    tags.

    Args:
        model: made by `from_files`.

    Attributes:
        sees_tag: whether its SentencePiece model reads the tag as part of the text.

    Raises:
        InputError: if `model` has another form.
    """

    def __init__(self, model: bytes) -> None:
        try:
            content = json.loads(model.removeprefix(HEADER))
            models = [base64.b64decode(encoded) for encoded in content["sentencepiece"]]
            vocabularies = content["vocabularies"]
            vocab_size = max(map(len, vocabularies))
            rest: tuple[Any, Any] = content["substitutions"], content["cuts_tag"]
            source = MarianSource(models[0], vocabularies[0], vocab_size, *rest)
            source.delimiters = tuple(content.get("delimiters", source.delimiters))
            target = MarianSide(models[1], vocabularies[-1], vocab_size)
        except (ValueError, KeyError, IndexError, TypeError, RuntimeError) as error:
            raise InputError("The tokenizer is damaged") from error
        super().__init__(model, source, target)
        self.sees_tag = bool(source.tags) and not source.cuts_tag

    @classmethod
    def from_files(
        cls,
        sentencepiece_models: Sequence[bytes],
        vocabularies: Sequence[Sequence[str]],
        substitutions: Sequence[tuple[str, str]] = (),
        cuts_tag: bool = True,
        delimiters: tuple[bool, bool] = (False, True),
    ) -> Self:
        """Makes a tokenizer.

        Args:
            sentencepiece_models: of the source and of the target.
            vocabularies: the pieces by id, the four special ones first; one for both, or two.
            substitutions: regular expressions and what replaces them in a source.
            cuts_tag: whether a target's tag is a token that SentencePiece does not see.
            delimiters: whether sources begin with `BOS_ID`, and whether they end with `EOS_ID`.
        """
        content = {
            "sentencepiece": [base64.b64encode(model).decode() for model in sentencepiece_models],
            "vocabularies": vocabularies,
            "substitutions": substitutions,
            "cuts_tag": cuts_tag,
            "delimiters": delimiters,
        }
        return cls(HEADER + json.dumps(content).encode())
