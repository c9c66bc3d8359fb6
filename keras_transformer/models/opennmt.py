"""The tokenizer of an imported OpenNMT-tf model."""

import itertools
from collections.abc import Sequence

from keras_transformer.models.marian import MarianTokenizer
from keras_transformer.tokenizers import SPECIAL_PIECES, SentencePieceTokenizer, Tokenizer
from keras_transformer.tokenizers.learning import (
    CONTROL,
    UNKNOWN,
    UNUSED,
    parse_sentencepiece,
    replace_pieces,
    special_pieces,
)


def make_tokenizer(
    models: Sequence[bytes], vocabularies: Sequence[Sequence[str]], delimiters: tuple[bool, bool]
) -> Tokenizer:
    """Makes a tokenizer of SentencePiece models and vocabularies, each of source and target.

    Its ids are the four special ones, then the tokens of the vocabularies but their first three. If
    both languages have the same pieces, all of them in the vocabulary, it is a
    `SentencePieceTokenizer`.

    Args:
        models: the SentencePiece models.
        vocabularies: tokens by id.
        delimiters: whether a source begins with `BOS_ID`, and whether it ends with `EOS_ID`.
    """
    model, tokens = models[0], vocabularies[0][3:]
    message = parse_sentencepiece(model)
    pieces = {
        piece.piece: piece for piece in message.pieces if piece.type not in (UNKNOWN, CONTROL)
    }
    is_shared = model == models[-1] and vocabularies[0] == vocabularies[-1]
    if not (is_shared and pieces.keys() <= set(tokens) and set(tokens).isdisjoint(SPECIAL_PIECES)):
        named = [[*SPECIAL_PIECES, *tokens[3:]] for tokens in vocabularies]
        return MarianTokenizer.from_files(models, named, cuts_tag=False, delimiters=delimiters)
    make = type(message.pieces[0])
    rest = [pieces.get(token) or make(piece=token, type=UNUSED) for token in tokens]
    replace_pieces(message, [*special_pieces(message), *rest])
    message.delimiters = " ".join(itertools.compress(("<s>", "</s>"), delimiters))
    return SentencePieceTokenizer(message.SerializeToString())
