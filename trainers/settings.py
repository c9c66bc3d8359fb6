"""The settings of a training, and recipes: TOML files of settings."""

import dataclasses
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from keras_transformer.config import (
    CONFIGS,
    Architecture,
    BeamSize,
    DecodingOptions,
    EarlyStopping,
    ExtraLength,
    LengthPenalty,
    LengthPenaltyKind,
    ModelConfig,
    Rate,
    checked_dataclass,
)
from keras_transformer.errors import InputError, one_line

_FOLDER = Path(__file__).with_name("recipes")

_Count = Annotated[int, Field(ge=1, lt=2**31)]
_CountOrZero = Annotated[int, Field(ge=0, lt=2**31)]
_Positive = Annotated[float, Field(gt=0)]

Metric = Literal["bleu", "chrf", "f1", "loss"]
Precision = Literal["float32", "mixed_bfloat16", "mixed_float16"]
StrategyName = Literal["one", "mirrored", "multiworker"]
Task = Literal["translation", "parsing"]

# What differs for parsing where nothing else is given: section 6.3's, and `next_word_input`, which
# the paper does not have.
PARSING: Mapping[str, Any] = MappingProxyType(
    {
        "target": "trees",
        "next_word_input": True,
        "beam_size": 21,
        "length_penalty": 0.3,
        "extra_length": 300,
    }
)


@checked_dataclass
class TrainSettings:
    """How to train. A recipe holds some of the settings; the run directory records all of them.

    Attributes:
        data: "bundled", "tfds:NAME[/CONFIG]", a folder of files `{language}.{split}.txt`, or one
            that `prepare` wrote; for parsing, a treebank in Penn format.
        source: source language.
        target: target language; "trees" for parsing.
        task: "translation", or "parsing" for constituency parsing (section 6.3), to which
            `from_dict` gives other defaults, `PARSING`.
        tokenizer: "bpe" or "unigram" (SentencePiece), or "wordpiece".
        vocab_size: maximum number of subwords, shared by both languages; a small corpus supports
            fewer. None for 8,000.
        lowercase: whether the tokenizer lower-cases all text, so that translations are in lower
            case and validation BLEU ignores case; not for "wordpiece".
        max_length: training drops pairs with more tokens on a side, end symbol included.
        max_length_ratio: training drops pairs if one side has more than this many times the tokens
            of the other (9: Moses); None drops none.
        drop_duplicates: whether to keep only the first of equal pairs.
        source_script: a Unicode script, such as "Latin"; training drops pairs if most letters of
            the source are of other scripts; None drops none.
        target_script: the same for the target.
        init_from: a run to start from: the training takes its tokenizer, sizes, and averaged
            or best weights. It decides `task`, `architecture`, `preset`, `tokenizer`, `vocab_size`,
            `lowercase` and `next_word_input`, and `model` may change dropout only. None for a new
            model.
        freeze: what keeps the weights of `init_from`: "embeddings", or the layers of the "encoder";
            None for nothing.
        mix: data of which training pairs are added to those of `data`, such as the data that
            `init_from` was trained on; None for none.
        mix_share: share of the pairs of `mix` in all training pairs, at least 0 and below 1.
        architecture: "transformer", or "recurrent" for the model that it replaces, `Recurrent`.
        preset: sizes of the model: "tiny", "base", "big", or a row of the paper's Table 3; of a
            recurrent model, "tiny" or "base".
        model: attributes of `TransformerConfig` or `RecurrentConfig` that differ from the preset's.
        next_word_input: whether the decoder of a parser also reads the encoder's output at the next
            word (`keras_transformer/parsing/next_word.py`); False for the paper's decoder.
        steps: maximum number of updates.
        max_hours: training ends at the first validation after this many hours, resumed parts
            included; None for no limit.
        seed: seed of weights, dropout and batches.
        tokens_per_batch: maximum number of tokens on each side of a batch, padding included, over
            all replicas. Section 5.1 has about 25,000 without padding, which is about 30,000 with.
        accumulate: number of micro-batches into which each replica splits its batch, to fit large
            batches into memory. The result is the same, except for dropout.
        warmup_steps: step of the highest learning rate (4,000: section 5.3).
        peak_rate: the highest learning rate; None for the paper's.
        cooldown: the learning rate falls linearly to zero over this last fraction of `steps`, which
            cannot change later; 0 for the paper's schedule.
        label_smoothing: label smoothing (0.1: section 5.4).
        r_drop: weight of the divergence between two passes with different dropout (alpha of
            Liang et al. 2021, R-Drop); 0 for one pass.
        clip_norm: maximum global norm of the gradients; None for no limit.
        ema_decay: decay of a moving average of the weights, which is validated and saved instead of
            the weights; None for no average.
        steps_per_validation: updates between validations, each of which writes a checkpoint; None
            for an epoch, but at most 1,000.
        bleu_sentences: number of validation sentences that each validation translates greedily, or
            parses.
        metric: what chooses the best checkpoint, and what `patience` waits for: "bleu" or "chrf" of
            the translated validation sentences, "f1" of the parsed ones, or "loss"; None for BLEU
            or F1 if `bleu_sentences` is not 0, otherwise the loss. Where scores are equal, the
            loss decides.
        steps_per_save: updates between additional saves of the training state; None for none.
        minutes_per_save: minutes between additional saves of the training state; None for none.
        patience: training ends after this many validations without a better `metric`; None for no
            early end. It needs a validation split.
        keep_checkpoints: number of newest checkpoints to keep.
        average_last: number of newest checkpoints to average at the end; 0 for none (5 for base, 20
            for big: section 6.1).
        beam_size: number of beams in evaluation (4: section 6.1).
        length_penalty: strength of the length penalty in evaluation (0.6: section 6.1).
        length_penalty_kind: "gnmt" (section 6.1) or "marian"; see `DecodingOptions`.
        early_stopping: when a search ends, "exact" or "first"; see `DecodingOptions`.
        extra_length: a result has at most this many tokens more than its source (50 for translation
            and 300 for parsing: sections 6.1 and 6.3).
        strategy: "one" device, "mirrored" over the GPUs of this machine, or "multiworker" over
            several machines; None for mirrored if there are several GPUs, else one.
        precision: "float32", "mixed_bfloat16" or "mixed_float16".
        jit: whether XLA compiles the training step, once for each length of the batches.

    Raises:
        InputError: if a value has the wrong type or is out of range, or if settings contradict each
            other.
    """

    data: str
    source: str = "en"
    target: str = "de"
    task: Task = "translation"
    tokenizer: Literal["bpe", "unigram", "wordpiece"] = "bpe"
    vocab_size: _Count | None = None
    lowercase: bool = False
    max_length: Annotated[int, Field(ge=2)] = 256
    max_length_ratio: Annotated[float, Field(ge=1)] | None = 9.0
    drop_duplicates: bool = False
    source_script: str | None = None
    target_script: str | None = None
    init_from: str | None = None
    freeze: Literal["embeddings", "encoder"] | None = None
    mix: str | None = None
    mix_share: Rate = 0.2
    architecture: Architecture = "transformer"
    preset: str = "tiny"
    model: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    next_word_input: bool = False
    steps: _Count = 10_000
    max_hours: _Positive | None = None
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 1
    tokens_per_batch: _Count = 4096
    warmup_steps: _Count = 4000
    peak_rate: _Positive | None = None
    cooldown: Rate = 0.0
    label_smoothing: Rate = 0.1
    r_drop: Annotated[float, Field(ge=0)] = 0.0
    accumulate: Annotated[int, Field(ge=1, lt=2**16)] = 1
    clip_norm: _Positive | None = None
    ema_decay: Rate | None = None
    steps_per_validation: _Count | None = None
    bleu_sentences: _CountOrZero = 0
    metric: Metric | None = None
    steps_per_save: _Count | None = None
    minutes_per_save: _Positive | None = 10.0
    patience: _Count | None = None
    keep_checkpoints: _Count = 1
    average_last: _CountOrZero = 0
    beam_size: BeamSize = 4
    length_penalty: LengthPenalty = 0.6
    length_penalty_kind: LengthPenaltyKind = "gnmt"
    early_stopping: EarlyStopping = "exact"
    extra_length: ExtraLength = 50
    strategy: StrategyName | None = None
    precision: Precision = "float32"
    jit: bool = False

    def __post_init__(self) -> None:
        config = self.config(vocab_size=8)  # checks `preset` and `model`
        max_positions = config.max_positions
        is_parsing = self.task == "parsing"
        for rule, is_broken in {
            "`max_length` must be at most `tokens_per_batch`": (
                self.max_length > self.tokens_per_batch
            ),
            f"`max_length` must be at most the model's {max_positions} learned positions": (
                max_positions is not None and self.max_length > max_positions
            ),
            "`lowercase` needs the `tokenizer` bpe or unigram": (
                self.lowercase and self.tokenizer == "wordpiece"
            ),
            "`task` parsing needs the `tokenizer` bpe or unigram": (
                is_parsing and self.tokenizer == "wordpiece"
            ),
            "`task` parsing keeps the words as they are: `lowercase` must be false": (
                is_parsing and self.lowercase
            ),
            "`task` parsing needs positions for any length, not learned ones": (
                is_parsing and max_positions is not None
            ),
            "`task` parsing needs an `extra_length` of at least 3": (
                is_parsing and self.extra_length < 3
            ),
            "`next_word_input` needs `task` parsing and `architecture` transformer": (
                self.next_word_input and not (is_parsing and self.architecture == "transformer")
            ),
            "`cooldown` fixes the last step: `patience` and `max_hours` must be none": (
                self.cooldown and (self.patience or self.max_hours)
            ),
            "`metric` must be bleu, chrf or loss, or for the `task` parsing f1 or loss": (
                self.metric in (("bleu", "chrf") if is_parsing else ("f1",))
            ),
            "`metric` needs `bleu_sentences` to translate": (
                self.metric in ("bleu", "chrf", "f1") and not self.bleu_sentences
            ),
            "`freeze` needs `init_from`": self.freeze and self.init_from is None,
            "`average_last` must be at most `keep_checkpoints`": (
                self.average_last > self.keep_checkpoints
            ),
        }.items():
            if is_broken:
                names = re.findall(r"`(\w+)`", rule)
                received = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
                raise InputError(f"{rule}. Received: {received}")

    def config(
        self,
        vocab_size: int,
        target_vocab_size: int | None = None,
        word_id_ends: tuple[int, int] | None = None,
    ) -> ModelConfig:
        """Returns the sizes of the model.

        Args:
            vocab_size: number of token ids.
            target_vocab_size: number of the target's, if it has a vocabulary of its own.
            word_id_ends: as of a `Tokenizer`, for `next_word_input`.
        """
        for name in ("vocab_size", "preset"):
            if name in self.model:
                raise InputError(f"`{name}` must not be in `model`: it is a setting of its own")
        for name in ("target_vocab_size", "word_id_ends"):
            if name in self.model:
                raise InputError(f"`{name}` must not be in `model`: the tokenizer decides it")
        changes = dict(self.model)
        if target_vocab_size is not None:
            changes |= {"target_vocab_size": target_vocab_size, "share_embeddings": False}
        if self.next_word_input and word_id_ends is not None:
            changes["word_id_ends"] = word_id_ends
        config_type = CONFIGS[self.architecture]
        return config_type.from_preset(self.preset, vocab_size=vocab_size, **changes)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Makes settings of plain values."""
        for name in values:
            of_model = any(hasattr(config_type, name) for config_type in CONFIGS.values())
            if of_model and not hasattr(cls, name):
                raise InputError(f"Unknown setting {name}: it is the model's, model.{name}")
        defaults = dict(PARSING) if values.get("task") == "parsing" else {}
        if values.get("architecture", "transformer") != "transformer":
            defaults.pop("next_word_input", None)
        return cls(**{**defaults, **values})

    def with_absolute_paths(self) -> Self:
        """Returns the settings with absolute paths, which hold in any current directory."""
        paths = {name: getattr(self, name) for name in ("data", "mix", "init_from")}
        absolute: dict[str, Any] = {
            name: str(Path(path).resolve())
            for name, path in paths.items()
            if path and path != "bundled" and not path.startswith("tfds:")
        }
        return dataclasses.replace(self, **absolute)

    def to_dict(self) -> dict[str, Any]:
        """Returns the settings as plain values."""
        return dataclasses.asdict(self)


# What the run of `init_from` decides, so that nothing else may be given.
DECIDED = ["task", "architecture", "next_word_input", "preset"]
DECIDED += ["tokenizer", "vocab_size", "lowercase"]
# What a training takes from that run, unless it is given.
INHERITED = ["source", "target", *(field.name for field in dataclasses.fields(DecodingOptions))]


def inherit(values: Mapping[str, Any]) -> dict[str, Any]:
    """Completes the settings of a training by those of the run that it starts from, if any.

    Raises:
        InputError: if they contradict each other.
    """
    initial_run = values.get("init_from")
    if not isinstance(initial_run, str) or not (Path(initial_run) / "run.json").is_file():
        return dict(values)
    initial = {**TrainSettings(data="").to_dict(), **load_recipe(initial_run)}
    check_decided(initial, {name: values[name] for name in DECIDED if name in values})
    return {**{name: initial[name] for name in (*DECIDED, *INHERITED) if name in initial}, **values}


def check_decided(initial: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raises `InputError` if a given setting is not that of the run of `init_from`."""
    for name, value in given.items():
        if value != initial[name]:
            raise InputError(
                f"`{name}` must be that of `init_from`, {initial[name]!r}. "
                f"Received: {name}={value!r}"
            )


def recipe_names() -> list[str]:
    """Returns the names of the recipes that come with the package."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def load_recipe(recipe: str | Path) -> dict[str, Any]:
    """Reads a recipe.

    Args:
        recipe: the name of a recipe of the package, a TOML file (./NAME if it has such a name), or
            a run directory, for the settings of its training.

    Raises:
        InputError: if the recipe cannot be read.
    """
    names = recipe_names()
    path = _FOLDER / f"{recipe}.toml" if str(recipe) in names else Path(recipe)
    manifest = path / "run.json"
    try:
        if manifest.is_file():  # `Run.load` reads it too, but imports Keras
            return dict(json.loads(manifest.read_bytes())["settings"])
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = f"it is damaged ({one_line(error)})"
    raise InputError(
        f"Cannot read the recipe {recipe}: {reason}. "
        f"It must be a TOML file, a run directory, or one of: {', '.join(names)}"
    )


def change_recipe(recipe: Mapping[str, Any], changes: Iterable[str]) -> dict[str, Any]:
    """Returns a recipe with changes of the form "key=value" or "model.key=value".

    Args:
        recipe: settings.
        changes: the values are TOML, except that a bare word is a string, and none is None.

    Raises:
        InputError: if a change has a different form.
    """
    changed = dict(recipe)
    for change in changes:
        match = re.fullmatch(r"\s*(model\.)?(\w+)\s*=(.*)", change, re.DOTALL)
        if match is None:
            raise InputError(
                f"A change must have the form key=value or model.key=value. Received: {change!r}"
            )
        of_model, name, text = match.groups()
        value = _parse(text.strip())
        sizes = changed.get("model", {})
        if not of_model:
            changed[name] = value
        elif isinstance(sizes, Mapping):  # `TrainSettings` refuses anything else
            changed["model"] = {**sizes, name: value}
    return changed


def _parse(text: str) -> Any:
    if text == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
