"""Tokenizers of KerasNLP (KerasHub) as tokenizers of this package."""

import keras
from google.protobuf.message import Message

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.errors import InputError
from keras_transformer.tokenizers import (
    SPECIAL_PIECES,
    SentencePieceTokenizer,
    Tokenizer,
    WordPieceTokenizer,
)
from keras_transformer.tokenizers.learning import parse_sentencepiece

SPECIAL_IDS = {"pad": PAD_ID, "unk": UNK_ID, "bos": BOS_ID, "eos": EOS_ID}
UNKNOWN_TYPE, CONTROL_TYPE = 2, 3


def from_keras_nlp(tokenizer: keras.layers.Layer) -> Tokenizer:
    """Converts a tokenizer of KerasNLP (KerasHub).

    The ids become pad 0, unk 1, bos 2, eos 3, then the other pieces in their order. Special pieces
    in a text, such as "[PAD]", are read as text.

    Args:
        tokenizer: a `SentencePieceTokenizer`, a `WordPieceTokenizer` with `split=True`, or an
            instance of a subclass.

    Raises:
        InputError: if `tokenizer` is of another kind, or has no vocabulary.

    Example:
        >>> import keras_nlp
        >>> from keras_transformer.tokenizers.keras_nlp import from_keras_nlp
        >>> pieces = ["[PAD]", "[UNK]", "two", "dog", "##s", "."]
        >>> tokenizer = from_keras_nlp(keras_nlp.tokenizers.WordPieceTokenizer(pieces))
        >>> tokenizer.source.tokenize(["two dogs."]).to_list()
        [[5, 6, 7, 8]]
    """
    import keras_nlp

    tokenizers = keras_nlp.tokenizers
    if isinstance(tokenizer, tokenizers.SentencePieceTokenizer) and tokenizer.proto:
        return SentencePieceTokenizer(_with_special_ids(tokenizer.proto))
    if (
        isinstance(tokenizer, tokenizers.WordPieceTokenizer)
        and tokenizer.vocabulary
        and tokenizer.split
    ):
        suffix, unknown = tokenizer.suffix_indicator, tokenizer.oov_token
        pieces = [
            f"##{piece.removeprefix(suffix)}" if piece.startswith(suffix) else piece
            for piece in tokenizer.vocabulary
            if piece != unknown and piece not in SPECIAL_PIECES
        ]
        names = ("lowercase", "strip_accents", "split", "split_on_cjk")
        options = {name: bool(getattr(tokenizer, name)) for name in names}
        return WordPieceTokenizer.from_pieces([*SPECIAL_PIECES, *pieces], options)
    raise InputError(
        "`tokenizer` must be KerasNLP's SentencePieceTokenizer, or its WordPieceTokenizer with "
        f"split=True, and have a vocabulary. Received: {tokenizer!r}"
    )


def _with_special_ids(proto: bytes) -> bytes:
    """Moves the special pieces of a SentencePiece model to the front and adds missing ones."""
    model = parse_sentencepiece(proto)
    spec, pieces = model.trainer_spec, list(model.pieces)
    special: list[Message] = []
    for (name, new_id), text in zip(SPECIAL_IDS.items(), SPECIAL_PIECES, strict=True):
        index = getattr(spec, f"{name}_id")
        if 0 <= index < len(pieces):
            special.append(pieces[index])
        else:
            kind = UNKNOWN_TYPE if name == "unk" else CONTROL_TYPE
            special.append(type(pieces[0])(piece=text, type=kind))
        setattr(spec, f"{name}_id", new_id)
        setattr(spec, f"{name}_piece", special[-1].piece)
    rest = [piece for piece in pieces if all(piece is not other for other in special)]
    del model.pieces[:]
    model.pieces.extend([*special, *rest])
    return model.SerializeToString()
