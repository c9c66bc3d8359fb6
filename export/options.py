"""Options of an export: how it stores weights, which requests it merges, how large one may be."""

from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from keras_transformer.errors import InputError
from keras_transformer.records import checked_dataclass

NO_SCORE = -1e9  # instead of -inf and NaN, which JSON does not have
DEFAULT_SIGNATURE = "serving_default"


class Signature(NamedTuple):
    """What a signature of an export takes, and what it returns for each text."""

    inputs: tuple[str, ...]
    outputs: set[str]
    merges: bool = False  # concurrent requests, with `ExportOptions.batching`
    needs: Literal["", "complete", "languages"] = ""  # `ExportOptions.complete`, or several


TRANSLATION = {"translation", "score", "truncated"}
PIECES = {"source_pieces", "target_pieces", "source_lengths", "target_lengths"}
SIGNATURES = {
    "serving_default": Signature(("text",), TRANSLATION, merges=True),
    "greedy": Signature(("text",), TRANSLATION, merges=True),
    "nbest": Signature(("text",), {"translations", "scores", "truncated"}, merges=True),
    # The outputs are as wide as the longest text of a batch.
    "attention": Signature(("text",), {*PIECES, "attention", "log_probabilities"}),
    "score": Signature(("text", "target"), {"log_probability", "score", "truncated"}, merges=True),
    # One request may be as much work as a full batch.
    "document": Signature(("text",), {"translation", "score", "sentences"}),
    "complete": Signature(("text", "prefix"), TRANSLATION, needs="complete"),
    "translate": Signature(
        ("text", "source", "target"), TRANSLATION, merges=True, needs="languages"
    ),
    "languages": Signature(
        ("text",), {"source", "target", "sources", "targets"}, needs="languages"
    ),
}

# The maximum number of texts in a batch. Every export takes as many in a request (`max_texts`).
BATCH_ROWS = 64
# The maximum of the texts of a batch times the bytes of the longest: 64 ordinary sentences are one
# batch, and a page of text is a batch of its own.
BATCH_BYTES = BATCH_ROWS * 512

# The maximum of the texts of a request times the bytes of its longest text. Even with a token for
# each byte, a request to `document` keeps to the default of `max_document_tokens`.
REQUEST_BYTES = 2**13

# Types to store weights in: those of an export, and those of CTranslate2.
WeightsType = Literal["float32", "float16", "bfloat16"]
ComputeType = Literal["float32", "bfloat16"]
Quantization = Literal[
    "float32",
    "float16",
    "bfloat16",
    "int16",
    "int8",
    "int8_float32",
    "int8_float16",
    "int8_bfloat16",
]

BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}  # as Linux names them; the last is Arm's


def max_size_of(signature: str) -> int:
    """Returns the maximum of the texts of a batch times the bytes of its longest text."""
    return REQUEST_BYTES if signature == "document" else BATCH_BYTES


def computes_bfloat16() -> bool:
    """Returns whether the processor has instructions for bfloat16, or Linux does not say."""
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return True
    return not BFLOAT16_FLAGS.isdisjoint(flags.split())


@checked_dataclass
class ExportOptions:
    """How an export stores its weights, and which requests its graph takes and merges.

    With `batching`, the graph merges concurrent requests to `serving_default`, `greedy`, `nbest`
    and `score`. The graph checks each request first, so a bad request fails alone.

    Raises:
        InputError: if a value has the wrong type or is out of range.
    """

    weights: WeightsType = "float32"
    """Type of the stored weights. The command prints what a smaller one costs in BLEU."""
    compute: ComputeType = "float32"
    """Type of matmuls. bfloat16 needs a processor with AVX512-BF16 or AMX; the command prints what
    it costs in BLEU."""
    attention_layer: int = -1
    """Decoder layer that the signature `attention` shows, from 0; -1 is the last."""
    complete: bool = False
    """Add the signature `complete`, which continues the beginning of a translation."""
    batching: bool = True
    """Merge concurrent requests in the graph."""
    max_batch_size: Annotated[int, Field(ge=1, le=1_024)] = 256
    """Maximum number of texts in a merged batch; larger requests are split."""
    batch_timeout_micros: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """Microseconds that a batch waits for more requests. With 0, a request waits only while all
    threads are busy."""
    num_batch_threads: Annotated[int, Field(ge=1, le=1_024)] = 2
    """Number of batches that each signature computes at a time."""
    max_texts: Annotated[int, Field(ge=BATCH_ROWS, le=2**20)] = 1_024
    """Maximum number of texts in a request; at least 64, the batch of `translate`."""
    max_document_tokens: Annotated[int, Field(ge=1, le=2**26)] = 8_192
    """Maximum number of tokens in a `document` request, all its texts together. One of more than 16
    times as many bytes is refused before it is split."""

    def __post_init__(self) -> None:
        for name in ("max_batch_size", "batch_timeout_micros", "num_batch_threads"):
            value = getattr(self, name)
            if not self.batching and value != getattr(ExportOptions, name):
                raise InputError(f"`{name}` needs `batching`. Received: {name}={value}")
