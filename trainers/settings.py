"""The settings of a run, and recipes: TOML files of settings."""

import dataclasses
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast

from pydantic import Field

from keras_transformer.config import (
    BeamSize,
    DecodingOptions,
    EarlyStopping,
    ExtraLength,
    LengthPenalty,
    LengthPenaltyKind,
    ModelConfig,
    NoRepeatNgram,
    Rate,
)
from keras_transformer.errors import InputError, one_line, require
from keras_transformer.records import checked_dataclass, unknown_setting
from keras_transformer.registry import ARCHITECTURES, config_type
from keras_transformer.run import Run
from keras_transformer.trainers.data.augmentation import DEFAULT_RATES, Change
from keras_transformer.trainers.tasks import find_task, task_of

if TYPE_CHECKING:
    from keras_transformer.model.schedules import WarmupSchedule

_FOLDER = Path(__file__).with_name("recipes")

_Count = Annotated[int, Field(ge=1, lt=2**31)]
_CountOrZero = Annotated[int, Field(ge=0, lt=2**31)]
_Positive = Annotated[float, Field(gt=0)]

Precision = Literal["float32", "mixed_bfloat16", "mixed_float16"]
StrategyName = Literal["one", "mirrored", "multiworker"]


@checked_dataclass
class TrainSettings:
    """How to train. A recipe holds some of the settings; the run directory records all of them.

    Attributes:
        data: "bundled", "tfds:NAME[/CONFIG]", a folder of files `{language}.{split}.txt` or one
            that `prepare` wrote, a table (.tsv, .csv), a catalogue of translators (.po, .mo,
            .xlf, .xliff, .tmx), or a folder of tables and catalogues; or a list of these, which is
            one corpus. For parsing, a treebank in Penn format.
        source: source language.
        target: target language; "trees" for parsing.
        task: what the model learns: "translation", or "parsing" for constituency parsing
            (section 6.3). `from_dict` gives a task its own defaults.
        tokenizer: "bpe" or "unigram" (SentencePiece), or "wordpiece".
        vocab_size: maximum number of subwords, shared by both languages; a small corpus supports
            fewer. None for 8,000.
        lowercase: whether the tokenizer lower-cases all text, so that translations are in lower
            case and validation BLEU ignores case; not for "wordpiece".
        protect: what a translation must keep as it is: any of "tags", "urls", "placeholders",
            "options", "symbols" and "foreign" (letters of scripts that the training text does not
            have), and regular expressions of RE2; not for "wordpiece".
        protect_free: whether a translation may leave protected strings out, and repeat them.
        augment: pairs to add once more in changed form, a rate for each kind: "lower", "end",
            "quotes", "list", "symbols" and "typing" (docs/howto/noise.md); "all" for the usual
            rates of all kinds, {} for none. A parser has none.
        max_length: training drops pairs with more tokens on a side, end symbol included.
        max_length_ratio: training drops pairs if one side has more than this many times the tokens
            of the other (9: Moses); None drops none.
        drop_duplicates: whether to keep only the first of equal pairs; copies are not compared.
        source_script: a Unicode script, such as "Latin"; training drops pairs if most letters of
            the source are of other scripts; None drops none.
        target_script: the same for the target.
        init_from: a run to start from: the training takes its tokenizer, sizes, and averaged
            or best weights. It decides `task`, `architecture`, `preset`, `tokenizer`, `vocab_size`
            and `lowercase`, and `model` may change dropout only. None for a new model.
        freeze: what keeps the weights of `init_from`: "embeddings", or the layers of the "encoder";
            None for nothing.
        mix: data, or a list, of which training pairs are added to those of `data`, such as the data
            that `init_from` was trained on; None for none.
        mix_share: share of the pairs of `mix` in all training pairs but those of `monolingual`,
            before pairs are dropped; at least 0 and below 1.
        monolingual: a file of sentences of the target language, plain or .gz; their sources are
            made by `back_translator`, and marked. None for none.
        back_translator: a run from the target language to the source language.
        monolingual_share: share of these pairs in all training pairs, before pairs are dropped.
        monolingual_sample: draw their sources at random from this number of the likeliest tokens;
            None for the search of `back_translator`.
        architecture: "transformer"; "recurrent" for the model that it replaces, `Recurrent`; or
            "next_word" for a parser whose decoder also reads the encoder's output at the next word.
        preset: sizes of the model: "tiny", "base", "big", or a row of the paper's Table 3; of a
            recurrent model, "tiny" or "base".
        model: attributes of the model's configuration that differ from the preset's.
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
        no_repeat_ngram: a result never repeats a sequence of so many tokens; 0 for no such rule.
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

    data: str | list[str]
    source: str = "en"
    target: str = "de"
    task: str = "translation"
    tokenizer: Literal["bpe", "unigram", "wordpiece"] = "bpe"
    vocab_size: _Count | None = None
    lowercase: bool = False
    protect: list[str] = dataclasses.field(default_factory=list)
    protect_free: bool = False
    augment: Mapping[Change, Rate] | Literal["all"] = "all"
    max_length: Annotated[int, Field(ge=2)] = 256
    max_length_ratio: Annotated[float, Field(ge=1)] | None = 9.0
    drop_duplicates: bool = False
    source_script: str | None = None
    target_script: str | None = None
    init_from: str | None = None
    freeze: Literal["embeddings", "encoder"] | None = None
    mix: str | list[str] | None = None
    mix_share: Rate = 0.2
    monolingual: str | None = None
    back_translator: str | None = None
    monolingual_share: Rate = 0.5
    monolingual_sample: _Count | None = None
    architecture: str = "transformer"
    preset: str = "tiny"
    model: Mapping[str, Any] = dataclasses.field(default_factory=dict)
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
    metric: str | None = None
    steps_per_save: _Count | None = None
    minutes_per_save: _Positive | None = 10.0
    patience: _Count | None = None
    keep_checkpoints: _Count = 1
    average_last: _CountOrZero = 0
    beam_size: BeamSize = 4
    length_penalty: LengthPenalty = 0.6
    length_penalty_kind: LengthPenaltyKind = "gnmt"
    early_stopping: EarlyStopping = "exact"
    no_repeat_ngram: NoRepeatNgram = 0
    extra_length: ExtraLength = 50
    strategy: StrategyName | None = None
    precision: Precision = "float32"
    jit: bool = False

    def __post_init__(self) -> None:
        task = find_task(self.task)
        config = self.config()  # checks `architecture`, `preset` and `model`
        require(
            self.max_length <= self.tokens_per_batch,
            "`max_length` must be at most `tokens_per_batch`",
            max_length=self.max_length,
            tokens_per_batch=self.tokens_per_batch,
        )
        require(
            config.max_positions is None or self.max_length <= config.max_positions,
            f"`max_length` must be at most the model's {config.max_positions} learned positions",
            max_length=self.max_length,
        )
        require(
            not self.lowercase or self.tokenizer != "wordpiece",
            "`lowercase` needs the `tokenizer` bpe or unigram",
            tokenizer=self.tokenizer,
        )
        require(
            not self.protect or self.tokenizer != "wordpiece",
            "`protect` needs the `tokenizer` bpe or unigram",
            tokenizer=self.tokenizer,
        )
        require(
            not self.protect_free or len(self.protect) > 0,
            "`protect_free` needs `protect`",
            protect=self.protect,
        )
        require(
            not self.cooldown or (self.patience is None and self.max_hours is None),
            "`cooldown` fixes the last step: `patience` and `max_hours` must be none",
            cooldown=self.cooldown,
            patience=self.patience,
            max_hours=self.max_hours,
        )
        require(
            self.metric in (None, *task.metrics, "loss"),
            f"`metric` must be {', '.join(task.metrics)} or loss for the `task` {self.task}",
            metric=self.metric,
        )
        require(
            self.metric in (None, "loss") or self.bleu_sentences > 0,
            "`metric` needs `bleu_sentences` to score",
            metric=self.metric,
            bleu_sentences=self.bleu_sentences,
        )
        for name in PATHS[1:]:
            require(getattr(self, name) != "", f"`{name}` must not be empty", **{name: ""})
        require(
            (self.monolingual is None) == (self.back_translator is None),
            "`monolingual` and `back_translator` need each other",
            monolingual=self.monolingual,
            back_translator=self.back_translator,
        )
        require(
            self.freeze is None or self.init_from is not None,
            "`freeze` needs `init_from`",
            freeze=self.freeze,
            init_from=self.init_from,
        )
        require(
            self.average_last <= self.keep_checkpoints,
            "`average_last` must be at most `keep_checkpoints`",
            average_last=self.average_last,
            keep_checkpoints=self.keep_checkpoints,
        )
        task.check(self, config)

    def config(self, sizes: Mapping[str, Any] | None = None) -> ModelConfig:
        """Returns the sizes of the model.

        Args:
            sizes: `Tokenizer.sizes`, of which it takes those that the architecture has; None to
                check the settings before there is a tokenizer.
        """
        kind = config_type(self.architecture)
        for name in ("vocab_size", "preset"):
            if name in self.model:
                raise InputError(f"`{name}` must not be in `model`: it is a setting of its own")
        for name in kind.of_tokenizer:
            if name in self.model:
                raise InputError(f"`{name}` must not be in `model`: the tokenizer decides it")
        fields = {field.name for field in dataclasses.fields(cast(Any, kind))}
        decided = {name: x for name, x in (sizes or {"vocab_size": 8}).items() if name in fields}
        return kind.from_preset(self.preset, **{**self.model, **decided})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Makes settings of plain values; those that are missing are the defaults of the task."""
        known = [field.name for field in dataclasses.fields(cls)]
        if unknown := [name for name in values if name not in known]:
            kinds = [config_type(name) for name in ARCHITECTURES]
            of_models = {
                field.name for kind in kinds for field in dataclasses.fields(cast(Any, kind))
            }
            for name in of_models.intersection(unknown):
                raise InputError(f"Unknown setting {name}: it is the model's, model.{name}")
            raise unknown_setting(unknown, [*known, *sorted(f"model.{x}" for x in of_models)])
        return cls(**{**task_of(values).defaults, **values})

    @classmethod
    def of(cls, run: Run) -> Self:
        """Returns the settings of a run; those that are newer than the run are the defaults."""
        return cls.from_dict({"data": "", "target": run.target, **WITHOUT_COPIES, **run.settings})

    def schedule(self, d_model: int) -> "WarmupSchedule":
        """Returns the learning rate by update, of a model of this width."""
        from keras_transformer.model.schedules import WarmupSchedule  # imports Keras

        return WarmupSchedule(
            d_model,
            self.warmup_steps,
            self.peak_rate,
            cooldown=self.cooldown,
            total_steps=self.steps,
        )

    def with_absolute_paths(self) -> Self:
        """Returns the settings with absolute paths, which hold in any current directory."""

        def absolute(path: Any) -> Any:
            if isinstance(path, list):
                return [absolute(each) for each in path]
            is_path = path and path != "bundled" and not path.startswith("tfds:")
            return str(Path(path).resolve()) if is_path else path

        paths = {name: absolute(getattr(self, name)) for name in PATHS}
        return dataclasses.replace(self, **paths)

    def to_dict(self) -> dict[str, Any]:
        """Returns the settings as plain values."""
        return dataclasses.asdict(self)


# The settings that name files, folders or runs.
PATHS = ("data", "mix", "monolingual", "back_translator", "init_from")
# What decides what a prepared corpus holds.
OF_CORPUS = (
    *("task", "source", "target", "tokenizer", "vocab_size", "lowercase", "protect"),
    *("protect_free", "augment", "max_length", "max_length_ratio", "drop_duplicates"),
    *("source_script", "target_script", "mix", "mix_share", "monolingual", "back_translator"),
    *("monolingual_share", "monolingual_sample"),
)
# Runs and corpora that are older than the setting had no changed copies of pairs.
WITHOUT_COPIES: Mapping[str, Any] = {"augment": {}}
# What may change when a run is resumed: updates stay the same, but for dropout.
RESUMABLE = (
    *("steps", "max_hours", "patience", "keep_checkpoints", "average_last"),
    *("steps_per_save", "minutes_per_save", "strategy", "accumulate"),
)
# What the run of `init_from` decides, so that nothing else may be given.
DECIDED = ("task", "architecture", "preset", "tokenizer", "vocab_size", "lowercase")
# What a new run takes from that run, unless it is given.
INHERITED = (
    *("source", "target", "protect", "protect_free"),
    *(field.name for field in dataclasses.fields(DecodingOptions)),
)
# What may differ from that run's model.
RATES = ("dropout_rate", "attention_dropout_rate", "feed_forward_dropout_rate")


def inherit(values: Mapping[str, Any]) -> dict[str, Any]:
    """Completes settings, as plain values, by those of the run that they start from, if any.

    Raises:
        InputError: if they contradict each other.
    """
    path = values.get("init_from")
    if not isinstance(path, str) or not (Path(path) / "run.json").is_file():
        return dict(values)
    run = Run.load(path)
    inherited = {name: run.settings[name] for name in INHERITED if name in run.settings}
    given = {name: values[name] for name in DECIDED if name in values}
    return {**inherited, **values, **_decided(run, given)}


def completed(settings: TrainSettings, run_dir: Path | None = None) -> TrainSettings:
    """Returns settings in which all that the run `init_from` decides is that run's.

    Args:
        settings: of a run. A setting that has its default value counts as not given.
        run_dir: the directory of a run to resume. If its run began from the same run, it has
            all that is decided, and `init_from` may be gone; a rate that is not given stays.

    Raises:
        InputError: if a setting contradicts the run.
    """
    if settings.init_from is None:
        return settings
    initial = None
    if run_dir is not None and (run_dir / "run.json").is_file():
        resumed = Run.load(run_dir)
        initial = resumed if resumed.settings.get("init_from") == settings.init_from else None
    initial = initial or Run.load(settings.init_from)
    values, defaults = settings.to_dict(), TrainSettings(data="").to_dict()
    given = {name: values[name] for name in DECIDED if values[name] != defaults[name]}
    decided, sizes = _decided(initial, given), initial.config.to_dict()
    changed = {name for name, value in settings.model.items() if value != sizes.get(name)}
    if others := sorted(changed - set(RATES)):
        raise InputError(
            f"With `init_from`, `model` may change {', '.join(RATES)} only. "
            f"Received: {', '.join(others)}"
        )
    kind = config_type(decided["architecture"])
    preset = kind.from_preset(decided["preset"], vocab_size=8).to_dict()
    # `run.json` then says by `preset` and `model` what the model is.
    model = {
        name: value
        for name, value in sizes.items()
        if value != preset[name] and name not in initial.config.of_tokenizer
    }
    return dataclasses.replace(settings, **decided, model={**model, **settings.model})


def _decided(initial: Run, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a run decides; `InputError` if other values are given."""
    values = {**TrainSettings(data="").to_dict(), **initial.settings}
    values["architecture"] = initial.config.architecture
    for name, value in given.items():
        require(
            value == values[name],
            f"`{name}` must be that of `init_from`, {values[name]!r}",
            **{name: value},
        )
    return {name: values[name] for name in DECIDED}


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
        if manifest.is_file():
            return {**WITHOUT_COPIES, **Run.load(path).settings}
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        reason = error.strerror
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = f"it is damaged ({one_line(error)})"
    raise InputError(
        f"Cannot read the recipe {recipe}: {reason}. "
        f"It must be a TOML file, a run directory, or one of: {', '.join(names)}"
    )


def change_recipe(recipe: Mapping[str, Any], changes: Iterable[str]) -> dict[str, Any]:
    """Returns a recipe with changes of the form "key=value", "model.key=..." or "augment.key=...".

    Args:
        recipe: settings.
        changes: the values are TOML, except that a bare word is a string, and none is None.

    Raises:
        InputError: if a change has a different form.
    """
    changed = dict(recipe)
    for change in changes:
        match = re.fullmatch(r"\s*(?:(model|augment)\.)?(\w+)\s*=(.*)", change, re.DOTALL)
        if match is None:
            raise InputError(
                "A change must have the form key=value, model.key=value or augment.key=value. "
                f"Received: {change!r}"
            )
        table, name, text = match.groups()
        value = _parse(text.strip())
        if table is None:
            changed[name] = value
            continue
        values = changed.get(table, "all" if table == "augment" else {})
        if values == "all":
            values = DEFAULT_RATES
        if isinstance(values, Mapping):  # `TrainSettings` refuses anything else
            changed[table] = {**values, name: value}
    return changed


def _parse(text: str) -> Any:
    if text == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:  # also of a number that is too long
        return text
