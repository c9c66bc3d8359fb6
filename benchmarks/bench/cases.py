"""What is measured: cases, each with the systems that take turns in it.

A case is a dictionary. Its `id` is a path, so that a prefix such as `decoding/base` selects several
cases.
"""

import itertools
from collections.abc import Iterator
from typing import Any

from keras_transformer.config import FAST, PRESETS, DecodingOptions, TransformerConfig

Case = dict[str, Any]

SESSIONS = ("session", "session-bfloat16")
CTRANSLATE2 = ("ctranslate2", "ctranslate2-split", "ctranslate2-int8", "ctranslate2-int8-split")
DECODERS = (*SESSIONS, "process", *CTRANSLATE2, "marian", "keras-hub")
FIRST = ("process-first",)  # ends a beam search as CTranslate2 does
TRAINERS = ("fit", "fit-xla", "keras-hub-fit", "keras-hub-fit-xla")
TRAINERS += ("torch-transformer", "marian-training")
CEILINGS = ("product-torch", "product-tensorflow")

LAYERS = ("num_encoder_layers", "num_decoder_layers")
SMALL = {"d_model": 256, "d_ff": 1024, "num_heads": 4, "vocab_size": 8_000}
SMALL |= dict.fromkeys(LAYERS, 3)
SIZES: dict[str, dict[str, Any]] = {
    "base": {**PRESETS["base"], "vocab_size": 32_000},
    "tiny": {**PRESETS["tiny"], "vocab_size": 10_000},
    "small": SMALL,
    "base-fast": {**FAST["base-fast"], "vocab_size": 32_000},
    "big": {**PRESETS["big"], "vocab_size": 37_000},
}
MAX_TOKENS = {"forced": 30, "natural": 75}  # of a translation
SHAPES = {  # tokens of a source, sentences in a batch, beams
    "forced": ((25, 32, 4), (25, 32, 1), (25, 1, 4), (25, 1, 1), (100, 32, 4)),
    "natural": ((25, 16, 4), (25, 1, 4)),
}
EXTRA_LENGTH = (
    DecodingOptions.extra_length
)  # max tokens of a translation of real text beyond those of its source
LENGTH_PENALTY = DecodingOptions.length_penalty
GROWTH: dict[str, tuple[int, ...]] = {
    "batch": (1, 4, 16, 64),
    "source": (16, 64, 256, 500),
    "target": (16, 32, 64, 128, 256),
    "beam": (1, 2, 4, 8, 16),
    "vocabulary": (1_000, 4_000, 16_000, 64_000),
    "layers": (1, 2, 4, 8),
}
# A part of the cases, with changes, for a run of three minutes.
QUICK: dict[str, dict[str, Any]] = {
    "decoding/tiny/forced/S25/B32/K4": {"systems": ("session", "ctranslate2")},
    "decoding/base/forced/S25/B32/K4": {"systems": ("session", "ctranslate2")},
    "multi30k/K4": {"systems": ("session", "ctranslate2"), "captions": 200},
    "training/tiny/multi30k": {"systems": ("fit", "torch-transformer")},
    "growth-small/target/00032": {},
    "growth-small/target/00128": {},
    "pipeline": {"pairs": 20_000},
}


def sizes_of(name: str) -> TransformerConfig:
    """Sizes by name: one of `SIZES`, or with changes, such as "small-V2000" or "small-L6"."""
    kind, *changes = [name] if name in SIZES else name.split("-")
    values = dict(SIZES[kind])
    for change in changes:
        names = ["vocab_size"] if change[0] == "V" else LAYERS
        values |= dict.fromkeys(names, int(change[1:]))
    return TransformerConfig(**values)


def decoding(size: str, stop: str, source: int, batch: int, beam: int) -> Case:
    """Decodes with random weights; by `stop`, to a "forced" length or to a "natural" end."""
    return {
        "id": f"decoding/{size}/{stop}/S{source}/B{batch}/K{beam}",
        "kind": "decoding",
        "size": size,
        "model": f"{size}-{stop}",
        "target": MAX_TOKENS[stop] if stop == "forced" else None,
        "max_tokens": MAX_TOKENS[stop],
        "source": source,  # tokens, on average if "natural"
        "batch": batch,
        "beam": beam,
        "systems": DECODERS + FIRST * (stop == "natural" and beam > 1),
    }


def multi30k(beam: int) -> Case:
    """Translates test2016, from text to text, with a trained model."""
    return {
        "id": f"multi30k/K{beam}",
        "kind": "multi30k",
        "model": "multi30k",
        "captions": None,
        "target": None,
        "max_tokens": None,
        "batch": 64,
        "beam": beam,
        "systems": DECODERS[:-1] + FIRST * (beam > 1),
    }


def training(size: str, lengths: str) -> Case:
    """Trains on batches with the lengths of "multi30k", of "wmt", or without padding, "full"."""
    return {
        "id": f"training/{size}/{lengths}",
        "kind": "training",
        "size": size,
        "lengths": lengths,
        "tokens_per_batch": {"base": 1024, "tiny": 2048}[size],
        "num_batches": 1 if lengths == "full" else 4,
        "systems": TRAINERS,
    }


def growth(axis: str, value: int, size: str = "small") -> Case:
    """Decodes in process to a forced length, with one size changed."""
    case = {
        "id": f"growth-{size}/{axis}/{value:05d}",
        "kind": "growth",
        "size": size,
        "axis": axis if size == "small" else f"{axis}, {size}",
        "value": value,
        "batch": 8,
        "source": 25,
        "target": 32,
        "beam": 4,
        "systems": ("process", "memory"),
    }
    case |= {axis: value} if axis in case else {"size": f"{size}-{axis[0].upper()}{value}"}
    return {**case, "model": f"{case['size']}-forced", "max_tokens": case["target"]}


def start(size: str) -> Case:
    """Starts a process, loads a model and translates a sentence."""
    case = decoding(size, "forced", 25, 1, 4)
    return case | {
        "id": f"start/{size}",
        "kind": "start",
        "systems": (*SESSIONS, "process", "ctranslate2", "ctranslate2-int8"),
    }


def serving(size: str, clients: int) -> Case:
    """Answers clients that each send single sentences, one after another."""
    case = decoding(size, "forced", 25, 128, 4)  # the same work for all
    changes = {"id": f"serving/{size}/{clients:02d}", "kind": "serving", "clients": clients}
    return case | changes | {"systems": (*SESSIONS, *CTRANSLATE2)}


def all_cases() -> Iterator[Case]:
    """Yields all cases; those that share a model come together."""
    sizes = ("base", "tiny")
    for size, (stop, shapes) in itertools.product(sizes, SHAPES.items()):
        for shape in shapes:
            yield decoding(size, stop, *shape)
    yield from (decoding("base-fast", "forced", 25, batch, 4) for batch in (32, 1))
    yield from map(multi30k, (4, 1))
    yield from (serving("tiny", clients) for clients in (1, 8, 32))
    batches = itertools.product(sizes[::-1], ("multi30k", "wmt", "full"))
    yield from itertools.starmap(training, batches)
    yield from (growth("target", target, "base") for target in (32, 256))
    yield from (growth(axis, value) for axis, values in GROWTH.items() for value in values)
    yield {
        "id": "pipeline",
        "kind": "pipeline",
        "pairs": 300_000,
        "tokens_per_batch": 25_000,
        "systems": ("pipeline",),
    }
    yield from map(start, (*sizes, "base-fast"))
