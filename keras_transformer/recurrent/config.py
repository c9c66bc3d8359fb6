"""The sizes and rates of the recurrent model."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from keras_transformer.config import ModelConfig, Rate, Size
from keras_transformer.records import checked_dataclass

PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        # About as many parameters as the Transformer's "tiny" with a vocabulary of 10,000.
        "tiny": {"d_model": 128, "units": 200},
        # Usual for Nematus (Sennrich et al., 2017).
        "base": {},
    }
)


@checked_dataclass
class RecurrentConfig(ModelConfig):
    """Sizes and rates of a `Recurrent`; the default sizes are usual for Nematus.

    Raises:
        InputError: if a value is of the wrong type or out of range, or there is no such preset.

    Example:
        >>> from keras_transformer import RecurrentConfig
        >>> config = RecurrentConfig.from_preset("tiny", vocab_size=10_000, cell="lstm")
        >>> config.d_model, config.units
        (128, 200)
    """

    architecture = "recurrent"
    presets = PRESETS

    vocab_size: Size  # number of token ids, V
    target_vocab_size: Size | None = None  # of the target, if it has its own vocabulary
    d_model: Size = 512  # width of the embeddings and of the output, D
    units: Size = 1024  # of a recurrent state, U: of one direction of the encoder, and the decoder
    num_encoder_layers: Size = 1  # of both directions
    num_decoder_layers: Size = 2  # attention is between the first one and the others
    # "gru" (Cho et al., 2014) or "lstm" (Hochreiter and Schmidhuber, 1997).
    cell: Literal["gru", "lstm"] = "gru"
    # The scores of attention: "luong" for products (Luong et al., 2015, "general"), or "additive"
    # for a feed-forward network (Bahdanau et al., 2015).
    attention: Literal["luong", "additive"] = "luong"
    scale_attention: bool = True  # whether the scores of "luong" are divided by sqrt(units)
    # On the input of recurrent layers, on the encoder's output, and before the output projection.
    dropout_rate: Rate = 0.2
    share_embeddings: bool = True  # one matrix for source, target and output; False for three
