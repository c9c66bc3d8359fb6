"""How to train, as a record and as readable files: a recipe is a TOML file of these settings."""

import dataclasses
import json
import math
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Self

from keras_transformer.config import TransformerConfig
from keras_transformer.errors import InputError

# (name, least, below); infinity is no value of any setting.
_RANGES: tuple[tuple[str, float, float], ...] = (
    ("steps", 1, 2**31),
    ("tokens_per_batch", 1, 2**31),
    ("warmup_steps", 1, 2**31),
    ("cooldown", 0, 1),
    ("steps_per_validation", 1, 2**31),
    ("steps_per_save", 1, 2**31),
    ("accumulate", 1, 2**16),
    ("vocab_size", 1, 2**31),
    ("keep_checkpoints", 1, 2**31),
    ("average_last", 0, 2**31),
    ("patience", 1, 2**31),
    ("bleu_sentences", 0, 2**31),
    ("beam_size", 1, 1_001),
    ("alpha", 0, 1_000),
    ("seed", 0, 2**32),
    ("label_smoothing", 0, 1),
    ("ema_decay", 0, 1),
    ("r_drop", 0, math.inf),
    ("max_length_ratio", 1, math.inf),
)
_POSITIVE = ("peak_rate", "clip_norm", "max_hours", "minutes_per_save")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """How to train; a recipe names some of it, and the run directory records all of it.

    Attributes:
        data: "bundled", "tfds:NAME[/CONFIG]", a folder of files `{language}.{split}.txt`, or a
            folder that `prepare` wrote.
        source: source language.
        target: target language.
        tokenizer: "bpe" or "unigram" (SentencePiece), or "wordpiece".
        vocab_size: number of subwords of both languages; None for 8,000, or as many as the
            corpus supports.
        lowercase: whether the tokenizer reads capitals as small letters, so that translations
            have none, and validation BLEU ignores case; not for "wordpiece".
        max_length: pairs with a side of more tokens, the end symbol included, are dropped.
        max_length_ratio: pairs with a side of more than so many times the other's tokens are
            dropped; None drops none. (9 is Moses's.)
        drop_duplicates: whether to drop all but the first of equal pairs.
        source_script: Unicode script, such as "Latin"; pairs whose source has more letters of
            other scripts than of this one are dropped; None drops none.
        target_script: likewise.
        preset: sizes of the model: "tiny", "base", "big", or a row of the paper's Table 3.
        model: attributes of `TransformerConfig` that differ from the preset's.
        steps: most updates.
        max_hours: training ends at the first validation after so many hours of training in all;
            None for no limit.
        seed: of weights, dropout and batches.
        tokens_per_batch: most tokens of each side of a batch, padding included, over all replicas
            (section 5.1: about 25,000 without padding, which 30,000 with it are).
        accumulate: parts that each replica splits its share of a batch into, and adds up, to fit
            large batches into its memory; the result is that of 1, but that dropout drops other
            places.
        warmup_steps: step of the highest learning rate (4,000: section 5.3).
        peak_rate: the highest learning rate; None for the paper's.
        cooldown: share of `steps`, the last ones, over which the learning rate falls linearly to
            nothing, so that `steps` cannot change later; 0 for the paper's schedule alone.
        label_smoothing: 0.1: section 5.4.
        r_drop: weight of the divergence between two passes with different dropout (alpha of
            Liang et al. 2021, R-Drop); 0 for one pass.
        clip_norm: most that the gradients' global norm may be; None for no limit.
        ema_decay: of a moving average of the weights, which is validated and saved in their
            place; None for none.
        steps_per_validation: updates between validations and checkpoints; None for an epoch, or
            for 1,000 in a long one.
        bleu_sentences: validation sentences to translate, greedily, at each validation.
        steps_per_save: updates between saves of what resuming needs, beside those at validations;
            None for none.
        minutes_per_save: likewise, in minutes.
        patience: validations without a better BLEU, or loss if no sentences are translated, that
            end the training, which needs a validation split; None for no such end.
        keep_checkpoints: newest checkpoints that are kept.
        average_last: at the end, newest checkpoints to average; 0 for none (5 for base, 20 for
            big: section 6.1).
        beam_size: beams in evaluation (4: section 6.1).
        alpha: strength of the length penalty in evaluation (0.6: section 6.1).
        strategy: "one" device, "mirrored" over this machine's GPUs, or "multiworker", over many
            machines'; None for mirrored where there are several GPUs, else one.
        precision: "float32", "mixed_bfloat16" or "mixed_float16".
        jit: whether XLA compiles the gradients; every bucket of lengths compiles once.

    Raises:
        InputError: if a value is of the wrong type or out of range.
    """

    data: str
    source: str = "en"
    target: str = "de"
    tokenizer: Literal["bpe", "unigram", "wordpiece"] = "bpe"
    vocab_size: int | None = None
    lowercase: bool = False
    max_length: int = 256
    max_length_ratio: float | None = 9.0
    drop_duplicates: bool = False
    source_script: str | None = None
    target_script: str | None = None
    preset: str = "tiny"
    model: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    steps: int = 10_000
    max_hours: float | None = None
    seed: int = 1
    tokens_per_batch: int = 4096
    warmup_steps: int = 4000
    peak_rate: float | None = None
    cooldown: float = 0.0
    label_smoothing: float = 0.1
    r_drop: float = 0.0
    accumulate: int = 1
    clip_norm: float | None = None
    ema_decay: float | None = None
    steps_per_validation: int | None = None
    bleu_sentences: int = 0
    steps_per_save: int | None = None
    minutes_per_save: float | None = 10.0
    patience: int | None = None
    keep_checkpoints: int = 1
    average_last: int = 0
    beam_size: int = 4
    alpha: float = 0.6
    strategy: Literal["one", "mirrored", "multiworker"] | None = None
    precision: Literal["float32", "mixed_bfloat16", "mixed_float16"] = "float32"
    jit: bool = False

    def __post_init__(self) -> None:
        for name, expected in typing.get_type_hints(type(self)).items():
            _check_type(name, getattr(self, name), expected)
        for name, least, below in _RANGES:
            value = getattr(self, name)
            if value is not None and not least <= value < below:
                upper = "finite" if below == math.inf else f"below {_written(below)}"
                raise InputError(
                    f"`{name}` must be at least {least} and {upper}. Received: {name}={value}"
                )
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"`{name}` must be positive and finite. Received: {name}={value}")
        if not 2 <= self.max_length <= self.tokens_per_batch:
            raise InputError(
                "`max_length` must be at least 2 and at most `tokens_per_batch`. Received: "
                f"max_length={self.max_length}, tokens_per_batch={self.tokens_per_batch}"
            )
        if self.lowercase and self.tokenizer == "wordpiece":
            raise InputError(
                '`lowercase` needs the tokenizer "bpe" or "unigram". Received: '
                'tokenizer="wordpiece", lowercase=True'
            )
        if self.cooldown and (self.patience, self.max_hours) != (None, None):
            raise InputError(
                "With a `cooldown`, which ends with `steps`, `patience` and `max_hours` must be "
                f"none. Received: patience={self.patience}, max_hours={self.max_hours}"
            )
        if self.average_last > self.keep_checkpoints:
            raise InputError(
                "`average_last` must be at most `keep_checkpoints`. Received: "
                f"average_last={self.average_last}, keep_checkpoints={self.keep_checkpoints}"
            )
        config = self.config(vocab_size=8)  # says what is wrong with `preset` and `model`
        if config.position_encoding == "learned" and self.max_length > config.max_length:
            raise InputError(
                f"`max_length` must be at most the model's {config.max_length} learned "
                f"positions. Received: max_length={self.max_length}"
            )

    def config(self, vocab_size: int) -> TransformerConfig:
        """Returns the sizes of the model.

        Raises:
            InputError: if `model` holds what is a setting of its own, or a size is wrong.
        """
        for name in ("vocab_size", "preset"):
            if name in self.model:
                raise InputError(f"`{name}` is a setting of its own, and none of `model`")
        return TransformerConfig.from_preset(self.preset, vocab_size=vocab_size, **self.model)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Makes settings of plain values.

        Raises:
            InputError: if a key is unknown, a type is wrong, or a value is out of range.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        if unknown := sorted(set(values) - set(known)):
            sizes = {field.name for field in dataclasses.fields(TransformerConfig)}
            if unknown[0] in sizes:
                name = unknown[0]
                raise InputError(f"Unknown setting {name}: it is the model's, model.{name}")
            raise InputError(f"Unknown setting {', '.join(unknown)}. There are: {', '.join(known)}")
        if "data" not in values:
            raise InputError("The setting `data` is missing")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Returns the settings as plain values."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**values, "model": dict(self.model)}


def recipe_names() -> list[str]:
    """Returns the names of the recipes that come with the package."""
    folder = resources.files("keras_transformer.trainers") / "recipes"
    return sorted(
        file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml")
    )


def load_recipe(recipe: str | Path) -> dict[str, Any]:
    """Reads a recipe.

    Args:
        recipe: the name of one that comes with the package (./NAME for a file or directory called
            so), a TOML file of settings, or a run directory, for the settings of its training.

    Raises:
        InputError: if there is none, or it is no TOML.
    """
    manifest = Path(recipe) / "run.json"
    if str(recipe) in recipe_names():
        file = resources.files("keras_transformer.trainers") / "recipes" / f"{recipe}.toml"
        text = file.read_text(encoding="utf-8")
    elif manifest.is_file():
        return _settings_of(manifest)
    else:
        try:
            text = Path(recipe).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not valid UTF-8"
            raise InputError(
                f"Cannot read the recipe {recipe}: {reason}. "
                f"It must be a TOML file, a run directory, or one of: {', '.join(recipe_names())}"
            ) from error
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"The recipe {recipe} is not valid TOML: {error}") from error


def _settings_of(manifest: Path) -> dict[str, Any]:
    """Reads a run's settings; `Run.load` would too, but it loads Keras."""
    try:
        return dict(json.loads(manifest.read_bytes())["settings"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{manifest} is not the manifest of a run") from error


def change_recipe(recipe: Mapping[str, Any], changes: Iterable[str]) -> dict[str, Any]:
    """Returns a recipe with changes of the form "key=value" or "model.key=value".

    Args:
        recipe: settings.
        changes: values are TOML; a bare word is a string, and "none" is None.

    Raises:
        InputError: if a change has another form.
    """
    changed = dict(recipe)
    for change in changes:
        key, equals, text = change.partition("=")
        if not (key.strip() and equals):
            raise InputError(f"A change must have the form key=value. Received: {change!r}")
        *table, name = key.strip().split(".")
        if table not in ([], ["model"]):
            raise InputError(
                f"Unknown setting {key}: only the settings of `model` have a dot in their names"
            )
        value = _parse(text.strip())
        if not table:
            changed[name] = value
            continue
        model = changed.get("model", {})
        _check_type("model", model, Mapping[str, Any])
        changed["model"] = {**model, name: value}
    return changed


def _parse(text: str) -> Any:
    if text == "none":
        return None
    try:
        values = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return values["value"] if len(values) == 1 else text


def _check_type(name: str, value: Any, expected: Any) -> None:
    """Raises `InputError` unless the value is of the type."""
    is_union = isinstance(expected, types.UnionType) or typing.get_origin(expected) is typing.Union
    kinds = typing.get_args(expected) if is_union else (expected,)
    if value is None and type(None) in kinds:
        return
    if typing.get_origin(kinds[0]) is Literal:
        choices = typing.get_args(kinds[0])
        if value not in choices:
            raise InputError(
                f"`{name}` must be one of {', '.join(choices)}. Received: {name}={value!r}"
            )
        return
    kind = typing.get_origin(kinds[0]) or kinds[0]
    described, allowed = {
        str: ("a string", str),
        bool: ("true or false", bool),
        int: ("an integer", int),
        float: ("a number", int | float),
        Mapping: ("a table", Mapping),
    }[kind]
    is_huge = kind is float and isinstance(value, int) and abs(value) >= 2**63
    is_other = isinstance(value, bool) and kind is not bool
    if not isinstance(value, allowed) or is_other or is_huge:
        raise InputError(f"`{name}` must be {described}. Received: {name}={value!r}")


def _written(bound: float) -> str:
    powers = {2**31: "2**31", 2**32: "2**32"}
    return powers.get(int(bound), str(bound))
