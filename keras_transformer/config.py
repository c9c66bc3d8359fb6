"""The sizes of the model, the presets of the paper, how to search, and the special token ids."""

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import Field

from keras_transformer.errors import InputError, require
from keras_transformer.records import checked_dataclass, setting

PAD_ID, UNK_ID, BOS_ID, EOS_ID = 0, 1, 2, 3

LengthPenaltyKind = Literal["gnmt", "marian"]
EarlyStopping = Literal["exact", "first"]
CheckpointName = Literal["averaged", "best", "last"]

Rate = Annotated[float, Field(ge=0, lt=1)]
Size = Annotated[int, Field(ge=1, lt=2**20)]

LAYER_NORM_EPSILON = 1e-6  # tensor2tensor's, the paper's own code; Keras's default is 1e-3

PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        # Wu et al., ACL 2021, for the 29,000 pairs of Multi30k.
        "tiny": {
            "d_model": 128,
            "d_ff": 256,
            "num_heads": 4,
            "num_encoder_layers": 4,
            "num_decoder_layers": 4,
        },
        # Table 3, row "base".
        "base": {},
        # Table 3, row "big".
        "big": {"d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout_rate": 0.3},
    }
)

# Sizes for a student: the time of a search is mostly the decoder's (Kasai et al., ICLR 2021).
FAST: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "tiny-fast": {**PRESETS["tiny"], "num_encoder_layers": 6, "num_decoder_layers": 1},
        "base-fast": {"num_encoder_layers": 12, "num_decoder_layers": 1},
    }
)

# Table 3 of the paper: each row as its changes to base. Two more rows (D) change only the recipe:
# label_smoothing = 0.0 and 0.2.
TABLE_3: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "base": {},
        "A-1-head": {"num_heads": 1},  # d_k = d_v = 512
        "A-4-heads": {"num_heads": 4},  # 128
        "A-16-heads": {"num_heads": 16},  # 32
        "A-32-heads": {"num_heads": 32},  # 16
        "B-d_k-16": {"d_k": 16},
        "B-d_k-32": {"d_k": 32},
        "C-2-layers": {"num_encoder_layers": 2, "num_decoder_layers": 2},
        "C-4-layers": {"num_encoder_layers": 4, "num_decoder_layers": 4},
        "C-8-layers": {"num_encoder_layers": 8, "num_decoder_layers": 8},
        "C-d_model-256": {"d_model": 256},  # d_k = d_v = 32
        "C-d_model-1024": {"d_model": 1024},  # d_k = d_v = 128
        "C-d_ff-1024": {"d_ff": 1024},
        "C-d_ff-4096": {"d_ff": 4096},
        "D-dropout-0.0": {"dropout_rate": 0.0},
        "D-dropout-0.2": {"dropout_rate": 0.2},
        "E-learned-positions": {"position_encoding": "learned"},
        "big": PRESETS["big"],
    }
)


class ModelConfig:
    """The sizes and rates of a model: what all architectures have in common."""

    architecture: ClassVar[str]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]]  # published sizes, as changes to defaults
    of_tokenizer: ClassVar[Sequence[str]] = ("vocab_size", "target_vocab_size")  # it decides these
    task: ClassVar[str | None] = None  # that it is for; None for any
    max_positions: int | None = None  # longest sequence in tokens; None for no maximum

    vocab_size: int
    target_vocab_size: int | None  # None for one vocabulary
    share_embeddings: bool  # whether source, target and output share one matrix
    d_model: int  # width of the embeddings, D, which scales the learning rate

    @classmethod
    def from_preset(cls, /, preset: str, *, vocab_size: int, **overrides: Any) -> Self:
        """Returns the sizes of a preset, changed by `overrides`.

        Args:
            preset: a name in `presets`: "tiny", "base", and for the Transformer also "big", one
                of `FAST` or a row of `TABLE_3`.
            vocab_size: number of token ids.
            **overrides: other attributes of this class.
        """
        if preset not in cls.presets:
            raise InputError(
                f"`preset` must be one of {', '.join(cls.presets)} for the architecture "
                f"{cls.architecture}. Received: preset={preset!r}"
            )
        return cls(**{**cls.presets[preset], **overrides, "vocab_size": vocab_size})

    @property
    def num_target_ids(self) -> int:
        """Number of token ids of the target."""
        return self.target_vocab_size or self.vocab_size

    def to_dict(self) -> dict[str, Any]:
        """Returns the attributes as a dictionary that JSON can hold."""
        return dataclasses.asdict(cast(Any, self))

    def __post_init__(self) -> None:
        """Raises `InputError` if two vocabularies would share one matrix."""
        require(
            self.target_vocab_size is None or not self.share_embeddings,
            "`target_vocab_size` needs embeddings that are not shared",
            target_vocab_size=self.target_vocab_size,
            share_embeddings=self.share_embeddings,
        )


def check_heads(d_model: int, num_heads: int, d_k: int | None, d_v: int | None) -> None:
    """Raises `InputError` unless the heads share `d_model`, or their sizes are given."""
    require(
        None not in (d_k, d_v) or d_model % num_heads == 0,
        "`d_model` must be a multiple of `num_heads`, or `d_k` and `d_v` must be given",
        d_model=d_model,
        num_heads=num_heads,
    )


def check_marian_width(d_model: int) -> None:
    """Raises `InputError` unless Marian's positions have this width."""
    require(
        d_model % 2 == 0 and d_model >= 4,
        "`d_model` must be an even number of at least 4 for Marian's positions",
        d_model=d_model,
    )


@checked_dataclass
class TransformerConfig(ModelConfig):
    """Sizes and rates of a `Transformer`; the defaults are Table 3's "base".

    Raises:
        InputError: if a value is of the wrong type or out of range, or there is no such preset.

    Example:
        >>> from keras_transformer import TransformerConfig
        >>> config = TransformerConfig.from_preset("big", vocab_size=37_000, dropout_rate=0.1)
        >>> config.d_model, config.num_heads, config.dropout_rate
        (1024, 16, 0.1)
    """

    architecture = "transformer"
    presets = MappingProxyType({**PRESETS, **FAST, **TABLE_3})

    vocab_size: Size  # number of token ids, V
    target_vocab_size: Size | None = None  # of the target, if it has its own vocabulary
    d_model: Size = 512
    """Width of every sub-layer output, D."""
    d_ff: Size = 2048
    """Inner width of the feed-forward network, F."""
    num_heads: Size = 8
    """Attention heads, N."""
    num_encoder_layers: Size = 6
    """Encoder layers."""
    num_decoder_layers: Size = 6
    """Decoder layers."""
    d_k: Size | None = None
    """Size of a head's queries and keys; none for `d_model / num_heads`."""
    d_v: Size | None = None
    """Size of a head's values; none for `d_model / num_heads`."""
    dropout_rate: Rate = 0.1
    """Dropout on sub-layer outputs and on embedding sums (section 5.4)."""
    attention_dropout_rate: Rate = 0.0
    """Dropout on attention weights; only section 6.3 has it."""
    feed_forward_dropout_rate: Rate = 0.0
    """Dropout inside the feed-forward network; the paper has none."""
    share_embeddings: bool = True
    """One matrix for source, target and output (section 3.4); false for three."""
    scale_embeddings: bool = True
    """Whether embeddings are multiplied by sqrt(d_model) (section 3.4)."""
    scale_attention: bool = True
    """Whether scores are divided by sqrt(d_k) (section 3.2.1)."""
    position_encoding: Literal["sinusoidal", "marian", "learned"] = "sinusoidal"
    """Positions: "sinusoidal" (section 3.5), "marian" for the sinusoids of Marian, or "learned"
    (Table 3, row E)."""
    first_position: Annotated[int, Field(ge=0, lt=2**20)] = 0
    """Position of the first token of a sequence, for sinusoids."""
    max_length: Size = 1024
    """Longest sequence in tokens; only learned positions need it."""
    activation: Literal["relu", "swish", "gelu"] = "relu"
    """Inner activation of the feed-forward network: "relu" (section 3.3), "swish" or "gelu"."""
    output_bias: bool = False
    """Whether the logits have a bias; the paper has none."""
    layer_norm_epsilon: Annotated[float, Field(gt=0, lt=1)] = LAYER_NORM_EPSILON
    """What layer normalization adds to the variance."""
    norm_first: bool = False
    """Whether sub-layers normalize their inputs ("pre-norm") instead of the sums (section 3.1);
    the encoder and the decoder then normalize their outputs, too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_heads(self.d_model, self.num_heads, self.d_k, self.d_v)
        if self.position_encoding == "marian":
            check_marian_width(self.d_model)

    @property
    def max_positions(self) -> int | None:  # type: ignore[override]
        """Longest sequence in tokens; None for no maximum, as sinusoids have."""
        return self.max_length if self.position_encoding == "learned" else None


@checked_dataclass
class DecodingOptions:
    """How to search (section 6.1).

    The settings of a training contain these options, and commands, `Translator` and exports take
    them as they are: a new option needs a field here, and its use in the search.

    Raises:
        InputError: if a value has the wrong type or is out of range.
    """

    beam_size: Annotated[int, Field(ge=1, le=1_000)] = 4
    """Number of beams, K; 1 is greedy search."""
    length_penalty: Annotated[float, Field(ge=0, le=5)] = 0.6
    """Exponent of the length penalty; a larger one prefers longer translations."""
    length_penalty_kind: LengthPenaltyKind = "gnmt"
    """What divides the log probability of n tokens: "gnmt" for ((5 + n) / 6)^alpha (section 6.1),
    or "marian" for n^alpha."""
    early_stopping: EarlyStopping = "exact"
    """When a search ends: "exact" when no better translation can come, or "first" when as many
    translations as beams are complete, as in Hugging Face and CTranslate2."""
    extra_length: Annotated[int, Field(ge=0, le=2**20)] = 50
    """A translation has at most this many tokens more than its source."""
    max_source_length: Annotated[int, Field(ge=2, le=2**20)] = 512
    """Longer sources are cut to this many tokens, end symbol included."""
    no_repeat_ngram: Annotated[int, Field(ge=0, le=100)] = 0
    """Never repeat a sequence of so many tokens; 0 for no such rule."""
    sample_from: Annotated[Size | None, setting(option="--sample")] = None
    """Draw each token at random from this number of likely ones, with one beam, instead of
    searching for the best translation."""
    temperature: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    """Divides the logits of a sample; a lower one draws likelier tokens."""
    sample_seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Another seed gives other samples; the same text and seed give the same one."""

    def __post_init__(self) -> None:
        require(
            self.sample_from is None or self.beam_size == 1,
            "`sample_from` needs a `beam_size` of 1",
            beam_size=self.beam_size,
        )
        require(
            self.sample_from is not None or (self.temperature, self.sample_seed) == (1.0, 0),
            "`temperature` and `sample_seed` need `sample_from`",
            temperature=self.temperature,
            sample_seed=self.sample_seed,
            sample_from=None,
        )

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Returns the options that the settings of a run hold, by name."""
        names = {field.name for field in dataclasses.fields(cls)} & settings.keys()
        return cls(**{name: settings[name] for name in names})

    def changed(self, **changes: Any) -> Self:
        """Returns the options with those changes that are not None; a sample has one beam."""
        given = {name: value for name, value in changes.items() if value is not None}
        if "sample_from" in given:
            given.setdefault("beam_size", 1)
        return dataclasses.replace(self, **given)
