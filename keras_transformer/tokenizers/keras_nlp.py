"""Tokenizers of KerasNLP (KerasHub) as tokenizers of this package."""

import keras

from keras_transformer.errors import InputError
from keras_transformer.tokenizers import (
    SPECIAL_PIECES,
    SentencePieceTokenizer,
    Tokenizer,
    WordPieceTokenizer,
)
from keras_transformer.tokenizers.learning import (
    SPECIAL_IDS,
    parse_sentencepiece,
    replace_pieces,
    special_pieces,
)


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
    pieces, special = list(model.pieces), special_pieces(model)
    for name, new_id in SPECIAL_IDS.items():
        index = getattr(model.trainer_spec, f"{name}_id")
        if 0 <= index < len(pieces):
            special[new_id] = pieces[index]
    rest = [piece for piece in pieces if all(piece is not other for other in special)]
    replace_pieces(model, [*special, *rest])
    return model.SerializeToString()
