"""The tokenizer of an imported Marian model.

Shapes (the package's glossary): B batch, S length in tokens.
"""

import base64
import json
import re
from collections.abc import Callable, Sequence
from typing import Literal, Self

import sentencepiece
import tensorflow as tf
import tensorflow_text as tf_text

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.errors import InputError
from keras_transformer.tokenizers.base import SPECIAL_PIECES, Tokenizer, index_pieces

HEADER = b"# marian\n"  # of its file
LANGUAGE_TAG = r">>[^\s<>]+<<"  # ">>deu<<" asks a model of several languages for German
TAG = rf"^\s*({LANGUAGE_TAG})"  # at the start of a text


class MarianTokenizer(Tokenizer):
    """Subwords by the SentencePiece models of a Marian model, and their ids by its vocabularies.

    It tokenizes the source, and its `target` tokenizes the target. A source may begin with the tag
    of a target language, such as ">>deu<<", if the vocabulary holds tags.

    Args:
        model: made by `from_files`.
        side: 0 for the source, 1 for the target.

    Attributes:
        sees_tag: whether its SentencePiece model reads the tag as part of the text.

    Raises:
        InputError: if `model` has another form.
    """

    def __init__(self, model: bytes, side: Literal[0, 1] = 0) -> None:
        self.model, self._side = model, side
        self.own_target = None if side else MarianTokenizer(model, side=1)
        try:
            content = json.loads(model.removeprefix(HEADER))
            source, target = map(base64.b64decode, content["sentencepiece"])
            self._models = source, target
            sentencepiece.SentencePieceProcessor(model_proto=self._models[side])  # raises errors
            vocabularies = content["vocabularies"]
            self._substitutions = content["substitutions"]
            cuts_tag = content.get("cuts_tag", True)
        except (ValueError, KeyError, IndexError, TypeError, RuntimeError) as error:
            raise InputError("The tokenizer is damaged") from error
        self.vocab_size = max(map(len, vocabularies))
        pieces = vocabularies[-1] if side else vocabularies[0]
        self._pieces = pieces + [SPECIAL_PIECES[PAD_ID]] * (self.vocab_size - len(pieces))
        has_tags = any(re.fullmatch(LANGUAGE_TAG, piece) for piece in pieces)
        self._has_tags = has_tags
        self._cuts_tag, self.sees_tag = has_tags and cuts_tag, has_tags and not cuts_tag
        self._look_up = index_pieces(pieces[4:], first_id=4, unknown_id=UNK_ID)

    @classmethod
    def from_files(
        cls,
        sentencepiece_models: Sequence[bytes],
        vocabularies: Sequence[Sequence[str]],
        substitutions: Sequence[tuple[str, str]] = (),
        cuts_tag: bool = True,
    ) -> Self:
        """Makes a tokenizer.

        Args:
            sentencepiece_models: of the source and of the target.
            vocabularies: the pieces in the order of their ids, the four special ones first; one for
                both languages, or one for each.
            substitutions: regular expressions and what replaces them in a source.
            cuts_tag: whether the tag of a target language, if the vocabulary holds tags, is a token
                by itself, and SentencePiece does not see it.
        """
        encoded = [base64.b64encode(model).decode() for model in sentencepiece_models]
        content = {
            "sentencepiece": encoded,
            "vocabularies": vocabularies,
            "substitutions": substitutions,
            "cuts_tag": cuts_tag,
        }
        return cls(HEADER + json.dumps(content).encode())

    def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        if self._side == 0:
            for pattern, replacement in self._substitutions:
                texts = tf.strings.regex_replace(texts, pattern, replacement)
        return self.split_words(texts)

    def split_words(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """`_tokenize` of texts after the substitutions."""
        op = tf_text.SentencepieceTokenizer(model=self._models[self._side], out_type=tf.string)
        if self._side == 0 and self._has_tags:  # a tag alone is no text
            texts = tf.strings.regex_replace(texts, rf"{TAG}[\s\p{{Z}}]*$", "")
        if self._side or not self._cuts_tag:
            return tf.ragged.map_flat_values(self._look_up, op.tokenize(texts))
        pieces = op.tokenize(tf.strings.regex_replace(texts, TAG, ""))
        # A row of tags has one at most.
        is_tagged = tf.strings.regex_full_match(texts, f"{TAG}.*")  # [B]
        tags = tf.strings.regex_replace(texts, f"{TAG}.*", r"\1")
        tags = tf.ragged.boolean_mask(tags[:, None], is_tagged[:, None])
        return tf.ragged.map_flat_values(self._look_up, tf.concat([tags, pieces], axis=1))

    def hide(self, texts: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.RaggedTensor], tf.Tensor]]:
        """Takes the tag of a language off, and puts it before each sentence; see `Tokenizer`."""
        texts, put_nothing = super().hide(texts)
        if not self._has_tags:
            return texts, put_nothing
        is_tagged = tf.strings.regex_full_match(texts, f"(?s){TAG}.*")  # [B]
        tags = tf.strings.regex_replace(texts, f"(?s){TAG}.*", r"\1 ")
        tags = tf.where(is_tagged, tags, "")

        def put_back(parts: tf.RaggedTensor) -> tf.Tensor:
            is_blank = tf.strings.regex_full_match(parts.values, r"[\s\p{Z}]*")
            tag = tf.where(is_blank, "", tf.gather(tags, parts.value_rowids()))
            return tf.strings.join([tag, parts.values])

        return tf.strings.regex_replace(texts, rf"{TAG}\s*", ""), put_back

    def head_lengths(self, tokens: tf.RaggedTensor) -> tf.Tensor:
        """Returns the length of the tag of a language with what is before it; see `Tokenizer`."""
        is_tag = [re.fullmatch(f"▁?{LANGUAGE_TAG}", piece) is not None for piece in self._pieces]
        first = tokens[:, :2].to_tensor(PAD_ID, shape=[None, 2])  # SentencePiece may add a space
        second_is_tag, first_is_tag = (tf.gather(is_tag, first[:, place]) for place in (1, 0))
        return tf.where(first_is_tag, 1, tf.where(second_is_tag, 2, 0))

    def sentencepiece_models(self) -> tuple[bytes, bytes]:
        """Returns the models of source and target; see `Tokenizer`."""
        return self._models

    def detokenize(self, ids: tf.Tensor) -> tf.Tensor:
        """Joins ids, int32 [B, S], into texts, string [B]; drops pad, bos and eos."""
        is_special = (ids == PAD_ID) | (ids == BOS_ID) | (ids == EOS_ID)  # [B, S]
        op = tf_text.SentencepieceTokenizer(model=self._models[self._side], out_type=tf.string)
        return op.detokenize(tf.ragged.boolean_mask(self.pieces(ids), ~is_special))

    def pieces(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the pieces of ids, int32 of any shape, as strings of the same shape."""
        return tf.gather(tf.constant(self._pieces), ids)
