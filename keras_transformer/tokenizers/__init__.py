"""The tokenizers, and how they are learned from text."""

import itertools
from collections.abc import Iterable
from typing import Literal

from keras_transformer.tokenizers.base import EncodedTexts as EncodedTexts
from keras_transformer.tokenizers.base import Tokenizer as Tokenizer
from keras_transformer.tokenizers.base import shifted as shifted
from keras_transformer.tokenizers.base import with_end as with_end
from keras_transformer.tokenizers.sides import SPECIAL_PIECES as SPECIAL_PIECES
from keras_transformer.tokenizers.sides import Side as Side
from keras_transformer.tokenizers.subword import SentencePieceTokenizer as SentencePieceTokenizer
from keras_transformer.tokenizers.subword import WordPieceTokenizer as WordPieceTokenizer


def train_tokenizer(
    kind: Literal["bpe", "unigram", "wordpiece"],
    texts: Iterable[str],
    vocab_size: int,
    lowercase: bool = False,
    targets: Iterable[str] | None = None,
    languages: tuple[str, str] = ("", ""),
) -> Tokenizer:
    """Learns a tokenizer; see the `train` methods of the classes.

    Args:
        kind: SentencePiece's algorithm, or "wordpiece".
        texts: sentences of the source language; of both, if `targets` is None.
        vocab_size: maximum number of ids.
        lowercase: whether to lower-case all text; word-pieces do not.
        targets: sentences of the target language.
        languages: the codes of source and target, if they are known.
    """
    if kind == "wordpiece":
        if targets is not None:
            both = itertools.zip_longest(texts, targets, fillvalue="")
            texts = itertools.chain.from_iterable(both)
        return WordPieceTokenizer.train(texts, vocab_size).of_languages(languages)
    return SentencePieceTokenizer.train(
        texts, vocab_size, kind, lowercase, targets, languages=languages
    )
