"""What is measured: cases, each with the systems that take turns in it.

A case is a dictionary that JSON can hold. Its `id` is a path, so that a part of all is named by how
it begins: `decoding/base`, `training/tiny/wmt`.
"""

from collections.abc import Iterator
from typing import Any

from keras_transformer.config import PRESETS, TransformerConfig

Case = dict[str, Any]

SESSION, PROCESS = "session", "process"
MEMORY = "memory"  # PROCESS, anew for each case: its peak is what it needs
CT2, CT2_INT8, MARIAN, HUB = "ctranslate2", "ctranslate2-int8", "marian", "keras-hub"
DECODERS = (SESSION, PROCESS, CT2, CT2_INT8, MARIAN, HUB)
FIT, FIT_XLA, HUB_FIT, HUB_FIT_XLA = "fit", "fit-xla", "keras-hub-fit", "keras-hub-fit-xla"
TORCH, MARIAN_FIT = "torch-transformer", "marian-training"
TRAINERS = (FIT, FIT_XLA, HUB_FIT, HUB_FIT_XLA, TORCH, MARIAN_FIT)
CEILINGS = ("product-torch", "product-tensorflow")
OURS = (SESSION, PROCESS, FIT, FIT_XLA)

LAYERS = ("num_encoder_layers", "num_decoder_layers")
SIZES: dict[str, dict[str, Any]] = {
    "base": {**PRESETS["base"], "vocab_size": 32_000},
    "tiny": {**PRESETS["tiny"], "vocab_size": 10_000},
    "small": {"d_model": 256, "d_ff": 1024, "num_heads": 4, "vocab_size": 8_000}
    | dict.fromkeys(LAYERS, 3),
    # To see that everything runs.
    "micro": {"d_model": 16, "d_ff": 24, "num_heads": 2, "vocab_size": 300}
    | dict.fromkeys(LAYERS, 1),
}

LIMITS = {"forced": 30, "natural": 75}  # most tokens of a translation
EXTRA_LENGTH = 50  # that a translation of real text may have beyond its source's tokens
ALPHA = 0.6

# What grows, and from where: the sizes of the middle.
MIDDLE = {"size": "small", "batch": 8, "source": 25, "target": 32, "beam": 4}
GROWTH: dict[str, tuple[int, ...]] = {
    "batch": (1, 4, 16, 64),
    "source": (16, 64, 256, 500),
    "target": (16, 32, 64, 128, 256),
    "beam": (1, 2, 4, 8, 16),
    "vocabulary": (1_000, 4_000, 16_000, 64_000),
    "layers": (1, 2, 4, 8),
}


def sizes_of(name: str) -> TransformerConfig:
    """Sizes by name: one of `SIZES`, or with changes, such as "small-V2000" or "small-L6"."""
    kind, *changes = name.split("-")
    values = dict(SIZES[kind])
    for change in changes:
        letter, number = change[0], int(change[1:])
        values |= dict.fromkeys(["vocab_size"] if letter == "V" else LAYERS, number)
    return TransformerConfig.from_dict(values)


def decoding(size: str, stop: str, source: int, batch: int, beam: int) -> Case:
    """Decodes with random weights.

    Args:
        size: of the model, see `sizes_of`.
        stop: "forced", all hypotheses are of one length, or "natural": they end unevenly.
        source: tokens of a source, their mean if "natural".
        batch: sources.
        beam: hypotheses a source.
    """
    return {
        "id": f"decoding/{size}/{stop}/S{source}/B{batch}/K{beam}",
        "kind": "decoding",
        "size": size,
        "model": f"{size}-{stop}",
        "target": LIMITS[stop] if stop == "forced" else None,
        "limit": LIMITS[stop],
        "source": source,
        "batch": batch,
        "beam": beam,
        "systems": DECODERS,
    }


def multi30k(beam: int) -> Case:
    """Translates test2016, from text to text, with a trained model."""
    return {
        "id": f"multi30k/K{beam}",
        "kind": "multi30k",
        "model": "multi30k",
        "target": None,
        "limit": None,
        "batch": 64,
        "beam": beam,
        "systems": (SESSION, PROCESS, CT2, CT2_INT8, MARIAN),
    }


def training(size: str, lengths: str) -> Case:
    """Trains on some batches of an epoch, the middle one of each quarter of its tokens.

    Args:
        size: of the model.
        lengths: "multi30k" or "wmt", whose pairs' lengths are as real ones; "full", no padding.
    """
    return {
        "id": f"training/{size}/{lengths}",
        "kind": "training",
        "size": size,
        "lengths": lengths,
        "tokens_per_batch": {"base": 1024, "tiny": 2048, "micro": 512}[size],
        "batches": 1 if lengths == "full" else 4,
        "systems": TRAINERS,
    }


def growth(axis: str, value: int, size: str = "small") -> Case:
    """Decodes in process to a forced length, with one size changed."""
    shape = {**MIDDLE, "size": size}
    if axis in shape:
        shape[axis] = value
    else:
        shape["size"] = f"{size}-{axis[0].upper()}{value}"
    return {
        "id": f"growth-{size}/{axis}/{value:05d}",
        "kind": "growth",
        "axis": axis,
        "value": value,
        "model": f"{shape['size']}-forced",
        "systems": (PROCESS, MEMORY),
        "limit": shape["target"],
        **shape,
    }


def start(size: str) -> Case:
    """Starts a process, loads a model and translates a sentence."""
    return {**decoding(size, "forced", 25, 1, 4), "id": f"start/{size}", "kind": "start"} | {
        "systems": (SESSION, PROCESS, CT2, MARIAN)
    }


def pipeline() -> Case:
    """Reads batches of 25,000 tokens in training order, without a model."""
    return {"id": "pipeline", "kind": "pipeline", "systems": ("pipeline",)}


def smoke_cases() -> Iterator[Case]:
    """Yields a case of each kind, of a model so small that all is done in little time."""
    yield decoding("micro", "forced", 9, 3, 4)
    yield decoding("micro", "natural", 9, 3, 1)
    yield multi30k(4)
    yield training("micro", "multi30k")
    yield growth("target", 8, "micro")
    yield growth("target", 16, "micro")
    yield growth("layers", 2, "micro")
    yield pipeline()
    yield start("micro")


def all_cases() -> Iterator[Case]:
    """Yields all cases; those that share a model come together."""
    for size in ("base", "tiny"):
        for stop in ("forced", "natural"):
            for source in (25, 100):
                for batch in (32, 16, 1):
                    for beam in (4, 1):
                        yield decoding(size, stop, source, batch, beam)
    for beam in (4, 1):
        yield multi30k(beam)
    for size in ("tiny", "base"):
        for lengths in ("multi30k", "wmt", "full"):
            yield training(size, lengths)
    for target in (32, 256):
        yield growth("target", target, "base")
    for axis, values in GROWTH.items():
        for value in values:
            yield growth(axis, value)
    yield pipeline()
    for size in ("base", "tiny"):
        yield start(size)
