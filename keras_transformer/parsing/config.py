"""The sizes and rates of a parser whose decoder reads the next word too."""

from typing import Annotated

from pydantic import Field

from keras_transformer.config import EOS_ID, Size, TransformerConfig
from keras_transformer.records import checked_dataclass


@checked_dataclass
class NextWordConfig(TransformerConfig):
    """Sizes and rates of a `NextWordTransformer`."""

    architecture = "next_word"
    of_tokenizer = (*TransformerConfig.of_tokenizer, "word_id_ends")
    task = "parsing"

    # A source id from 4 to below the first number begins a word; a target id from 4 to below the
    # second one is the tag of a word.
    word_id_ends: Annotated[tuple[Size, Size], Field(strict=False)] = (EOS_ID + 1, EOS_ID + 1)
