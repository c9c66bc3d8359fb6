"""The settings of a training, in four groups: data, model, training and search.

A field says what it is for, its type and its range. Commands, the page of settings and recipes take
it from here.
"""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast

import regex
from pydantic import Field

from keras_transformer.config import DecodingOptions, ModelConfig, Rate, TransformerConfig
from keras_transformer.errors import InputError, require
from keras_transformer.records import checked_dataclass, setting, settings_of, unknown_setting
from keras_transformer.registry import ARCHITECTURES, PROTECTED_SETS, TASKS, config_type
from keras_transformer.run import Run
from keras_transformer.trainers.data.augmentation import Change
from keras_transformer.trainers.data.languages import LanguagePair, is_name, pairs_of, split_names
from keras_transformer.trainers.tasks import find_task, task_of

if TYPE_CHECKING:
    from keras_transformer.model.schedules import WarmupSchedule

_Count = Annotated[int, Field(ge=1, lt=2**31)]
_CountOrZero = Annotated[int, Field(ge=0, lt=2**31)]
_Positive = Annotated[float, Field(gt=0)]

Precision = Literal["float32", "mixed_bfloat16", "mixed_float16"]
StrategyName = Literal["one", "mirrored", "multiworker"]


@checked_dataclass
class DataSettings:
    """What a model learns from: all but `data` itself decides what a prepared corpus holds."""

    data: Annotated[str | list[str], setting("option", "path")]
    """The corpus: "bundled", "tfds:NAME[/CONFIG]", a folder of files LANGUAGE.SPLIT.txt with a
    sentence per line (en.train.txt, de.train.txt, en.val.txt, ...), one that `prepare` wrote, a
    .tsv or .csv file whose first line names the languages, a catalogue (.po, .mo, .xlf, .xliff,
    .tmx), or a folder of tables and catalogues; files also as .gz. Several of these are one corpus.
    For parsing, a treebank in Penn format."""
    source: Annotated[str, setting("option", "inherited")] = "en"
    """Source language; several with commas, such as "en,de"."""
    target: Annotated[str, setting("option", "inherited")] = "de"
    """Target language, or several: a model of all pairs of them that the data has
    (docs/howto/several-languages.md); "trees" for parsing."""
    sampling_temperature: Annotated[float, Field(ge=1)] = 1.0
    """Of several pairs of languages, that with a share p of the training pairs is drawn in
    proportion to p ** (1 / temperature): 1 for the data's own shares, 5 is usual for many pairs."""
    task: Annotated[str, setting("option", "decided", choices=TASKS)] = "translation"
    """What the model learns: "translation", or "parsing" from sentences to constituency trees
    (section 6.3). A task has its own defaults."""
    tokenizer: Annotated[Literal["bpe", "unigram", "wordpiece"], setting("decided")] = "bpe"
    """Its kind: "bpe" or "unigram" (SentencePiece), or "wordpiece"."""
    vocab_size: Annotated[_Count | None, setting("option", "decided")] = None
    """Maximum number of subwords, shared by both languages; a small corpus supports fewer. None for
    8,000."""
    lowercase: Annotated[bool, setting("decided")] = False
    """Whether the tokenizer lower-cases all text, so that translations are in lower case and
    validation BLEU ignores case; not for "wordpiece"."""
    protect: Annotated[
        list[str],
        setting("option", "inherited", metavar="SETS|REGEX", choices=PROTECTED_SETS),
    ] = dataclasses.field(default_factory=list)
    """What a translation keeps as it is: any of "tags" (XML, HTML and entities), "urls" (also
    addresses of mail), "placeholders" (such as %s), "options" (such as --help), "symbols" (such as
    emoji) and "foreign" (letters of scripts that the training text does not have), and regular
    expressions of RE2; not for "wordpiece"."""
    protect_free: Annotated[bool, setting("option", "inherited")] = False
    """Whether a translation may leave protected strings out, and repeat them."""
    augment: Mapping[Change, Rate] | Literal["all"] = "all"
    """Pairs to add once more in changed form, a rate for each kind: "lower", "end", "quotes",
    "list", "symbols" and "typing" (docs/howto/noise.md); "all" for the usual rates of all kinds, {}
    for none. A parser has none."""
    max_length: Annotated[int, Field(ge=2)] = 256
    """Training drops pairs with more tokens on a side, end symbol included."""
    max_length_ratio: Annotated[float, Field(ge=1)] | None = 9.0
    """Training drops pairs if one side has more than this many times the tokens of the other (9:
    Moses); none drops none."""
    drop_duplicates: bool = False
    """Whether to keep only the first of equal pairs; copies are not compared."""
    source_script: str | None = None
    """A Unicode script, such as "Latin"; training drops pairs if most letters of the source are of
    other scripts; none drops none."""
    target_script: str | None = None
    """The same for the target."""
    mix: Annotated[str | list[str] | None, setting("option", "path")] = None
    """Data of which training pairs are added to those of `data`, such as the data that `init_from`
    was trained on."""
    mix_share: Rate = 0.2
    """Share of the pairs of `mix` in all training pairs but those of `monolingual`, before pairs
    are dropped."""
    teacher: Annotated[str | None, setting("option", "path", metavar="RUN")] = None
    """A run of the same languages that translates the sources of `data`, repeating no sequence of
    four tokens: the model learns its translations instead of the targets
    (docs/howto/fast-model.md)."""
    monolingual: Annotated[str | None, setting("option", "path", metavar="FILE")] = None
    """A file of sentences of the target language, plain or .gz, or a folder of files LANGUAGE.txt
    of several; their sources are made by `back_translator`, and marked."""
    back_translator: Annotated[str | None, setting("option", "path", metavar="RUN")] = None
    """A run from the target languages to the source languages."""
    monolingual_share: Rate = 0.5
    """Share of the pairs of `monolingual` in all training pairs, before pairs are dropped."""
    monolingual_sample: _Count | None = None
    """Draw the sources of `monolingual` at random from this number of the likeliest tokens; none
    for the search of `back_translator`."""


@checked_dataclass
class ModelSettings:
    """What is trained. A recipe's section `[model]` also holds what differs from the preset."""

    init_from: Annotated[str | None, setting("option", "path", metavar="RUN")] = None
    """A run to start from: the training takes its tokenizer, sizes, and averaged or best weights.
    It decides `task`, `architecture`, `preset`, `tokenizer`, `vocab_size` and `lowercase`, and
    `model` may change dropout only. None for a new model."""
    freeze: Annotated[Literal["embeddings", "encoder"] | None, setting("option")] = None
    """What keeps the weights of `init_from`: "embeddings", or the layers of the "encoder"."""
    architecture: Annotated[str, setting("option", "decided", choices=ARCHITECTURES)] = (
        "transformer"
    )
    """The model: "transformer"; "recurrent" for what it replaces, GRUs with attention; or
    "next_word" for a parser whose decoder also reads the next word."""
    preset: Annotated[str, setting("option", "decided", choices=TransformerConfig.presets)] = "tiny"
    """Sizes of the model: "tiny", "base", "big", "tiny-fast" and "base-fast" with one decoder layer
    (docs/howto/fast-model.md), or a row of the paper's Table 3, such as "A-16-heads"; of a
    recurrent model, "tiny" or "base"."""
    model: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Attributes of the model's configuration that differ from the preset's."""


@checked_dataclass
class TrainingSettings:
    """How to train, and what to save."""

    steps: Annotated[_Count, setting("option", "resumable")] = 10_000
    """Maximum number of updates."""
    max_hours: Annotated[_Positive | None, setting("resumable")] = None
    """Training ends at the first validation after this many hours, resumed parts included."""
    seed: Annotated[int, Field(ge=0, lt=2**32), setting("option")] = 1
    """Seed of weights, dropout and batches."""
    tokens_per_batch: _Count = 4096
    """Maximum number of tokens on each side of a batch, padding included, over all replicas.
    Section 5.1 has about 25,000 without padding, which is about 30,000 with."""
    accumulate: Annotated[int, Field(ge=1, lt=2**16), setting("option", "resumable")] = 1
    """Number of micro-batches into which each replica splits its batch; more of them need less
    memory. The result is the same, except for dropout."""
    warmup_steps: _Count = 4000
    """Step of the highest learning rate (4,000: section 5.3)."""
    peak_rate: _Positive | None = None
    """The highest learning rate; none for the paper's."""
    cooldown: Rate = 0.0
    """The learning rate falls linearly to zero over this last fraction of `steps`, which cannot
    change later; 0 for the paper's schedule."""
    label_smoothing: Rate = 0.1
    """Label smoothing (0.1: section 5.4)."""
    r_drop: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the divergence between two passes with different dropout (alpha of Liang et al.
    2021, R-Drop); 0 for one pass."""
    clip_norm: _Positive | None = None
    """Maximum global norm of the gradients."""
    ema_decay: Rate | None = None
    """Decay of a moving average of the weights, which is validated and saved instead of the
    weights."""
    steps_per_validation: _Count | None = None
    """Updates between validations, each of which writes a checkpoint; none for an epoch, but at
    most 1,000."""
    bleu_sentences: _CountOrZero = 0
    """Number of validation sentences, of each pair of languages, that each validation translates
    greedily, or parses."""
    metric: Annotated[str | None, setting("option")] = None
    """What chooses the best checkpoint, and what `patience` waits for: "bleu" or "chrf" of the
    translated validation sentences, "f1" of the parsed ones, or "loss"; none for BLEU or F1 if
    `bleu_sentences` is not 0, otherwise the loss. Where scores are equal, the loss decides."""
    steps_per_save: Annotated[_Count | None, setting("resumable")] = None
    """Updates between additional saves of the training state."""
    minutes_per_save: Annotated[_Positive | None, setting("resumable")] = 10.0
    """Minutes between additional saves of the training state."""
    patience: Annotated[_Count | None, setting("resumable")] = None
    """Training ends after this many validations without a better `metric`; it needs a validation
    split."""
    keep_checkpoints: Annotated[_Count, setting("resumable")] = 1
    """Number of newest checkpoints to keep."""
    average_last: Annotated[_CountOrZero, setting("resumable")] = 0
    """Number of newest checkpoints to average at the end; 0 for none (5 for base, 20 for big:
    section 6.1)."""
    strategy: Annotated[StrategyName | None, setting("option", "resumable")] = None
    """Where to train: "one" device, "mirrored" over the GPUs of this machine, or "multiworker" over
    the machines that TF_CONFIG or SLURM names; none for mirrored if there are several GPUs, else
    one."""
    precision: Annotated[Precision, setting("option")] = "float32"
    """Number format of the computation; weights stay float32."""
    jit: Annotated[bool, setting("option")] = False
    """Whether XLA compiles the training step, once for each length of the batches."""


# The sections of a recipe. Their settings have different names, so a section may be left out.
GROUPS: Mapping[str, type] = {
    "data": DataSettings,
    "model": ModelSettings,
    "training": TrainingSettings,
    "search": DecodingOptions,
}


@checked_dataclass
class TrainSettings(DecodingOptions, TrainingSettings, ModelSettings, DataSettings):
    """How to train. A recipe holds some of the settings; the run directory records all of them.

    They are those of `DataSettings`, `ModelSettings`, `TrainingSettings` and `DecodingOptions`.

    Raises:
        InputError: if a value has the wrong type or is out of range, or if settings contradict each
            other.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        config = self.config()  # checks `architecture`, `preset` and `model`
        self._check_data()
        self._check_training()
        self._require(
            config.max_positions is None or self.max_length <= config.max_positions,
            f"`max_length` must be at most the model's {config.max_positions} learned positions",
        )
        self._require(
            self.freeze is None or self.init_from is not None, "`freeze` needs `init_from`"
        )
        find_task(self.task).check(self, config)

    @property
    def pairs(self) -> list[LanguagePair]:
        """The pairs of languages, of which the first is that of a text without a tag."""
        return pairs_of(self.source, self.target) or [(self.source, self.target)]

    def _check_data(self) -> None:
        for name in ("source", "target"):
            names = split_names(getattr(self, name))
            self._require(
                bool(names) and all(map(is_name, names)),
                f"`{name}` must be names of languages without spaces and <>:, separated by commas",
            )
        self._require(
            len(self.pairs) == 1 or self.tokenizer != "wordpiece",
            "Several languages in `source` or `target` need the `tokenizer` bpe or unigram",
        )
        for name in settings_of(TrainSettings, "path").keys() - {"data"}:
            self._require(getattr(self, name) != "", f"`{name}` must not be empty")
        for name in ("source_script", "target_script"):
            try:
                script_letters(getattr(self, name))
            except regex.error:
                self._require(False, f"`{name}` must be a Unicode script, such as Latin")
        for name in ("lowercase", "protect"):
            self._require(
                not getattr(self, name) or self.tokenizer != "wordpiece",
                f"`{name}` needs the `tokenizer` bpe or unigram",
            )
        self._require(
            not self.protect_free or len(self.protect) > 0, "`protect_free` needs `protect`"
        )
        self._require(
            (self.monolingual is None) == (self.back_translator is None),
            "`monolingual` and `back_translator` need each other",
        )
        self._require(
            self.max_length <= self.tokens_per_batch,
            "`max_length` must be at most `tokens_per_batch`",
        )

    def _check_training(self) -> None:
        metrics = find_task(self.task).metrics
        self._require(
            not self.cooldown or (self.patience is None and self.max_hours is None),
            "`cooldown` fixes the last step: `patience` and `max_hours` must be none",
        )
        self._require(
            self.metric in (None, *metrics, "loss"),
            f"`metric` must be {', '.join(metrics)} or loss for the `task` {self.task}",
        )
        self._require(
            self.metric in (None, "loss") or self.bleu_sentences > 0,
            "`metric` needs `bleu_sentences` to score",
        )
        self._require(
            self.average_last <= self.keep_checkpoints,
            "`average_last` must be at most `keep_checkpoints`",
        )

    def _require(self, is_met: bool, rule: str) -> None:
        """Raises an `InputError` with the values of the settings in the rule, unless it is met."""
        require(
            is_met, rule, **{name: getattr(self, name) for name in re.findall(r"`(\w+)`", rule)}
        )

    def config(self, sizes: Mapping[str, Any] | None = None) -> ModelConfig:
        """Returns the model's sizes, those of a `Tokenizer.sizes` among them if it is known."""
        kind = config_type(self.architecture)
        for name in ("preset", *kind.of_tokenizer):
            if name in self.model:
                raise InputError(f"`{name}` must not be in `model`: it is a setting of its own")
        fields = {field.name for field in dataclasses.fields(cast(Any, kind))}
        decided = {name: x for name, x in (sizes or {"vocab_size": 8}).items() if name in fields}
        return kind.from_preset(self.preset, **{**self.model, **decided})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Makes settings of plain values, also in sections; others have the task's defaults."""
        values = flat(values)
        if unknown := [name for name in values if name not in settings_of(cls)]:
            kinds = [cast(Any, config_type(name)) for name in ARCHITECTURES]
            of_models = {field.name for kind in kinds for field in dataclasses.fields(kind)}
            known = [*settings_of(cls), *(f"model.{name}" for name in sorted(of_models))]
            raise unknown_setting(unknown, known)
        return cls(**{**task_of(values).defaults, **values})

    @classmethod
    def of_run(cls, run: Run) -> Self:
        """Returns the settings of a run; one that was trained elsewhere has some of them only."""
        return cls.from_dict(
            {"data": "", "source": run.source, "target": run.target, **run.settings}
        )

    @property
    def search(self) -> DecodingOptions:
        """The options of the search alone."""
        return DecodingOptions.of(self.to_dict())

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
                return [absolute(part) for part in path]
            is_path = path and path != "bundled" and not path.startswith("tfds:")
            return str(Path(path).resolve()) if is_path else path

        paths = {name: absolute(getattr(self, name)) for name in settings_of(type(self), "path")}
        return dataclasses.replace(self, **paths)

    def to_dict(self) -> dict[str, Any]:
        """Returns the settings as plain values."""
        return dataclasses.asdict(self)


def script_letters(script: str | None) -> "regex.Pattern[str] | None":
    """Returns a pattern of a letter of a Unicode script; `regex.error` if there is none."""
    return script and regex.compile(rf"[\p{{L}}&&\p{{Script={script}}}]", regex.V1)


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings by their names alone, of values that may be in the sections of a recipe."""
    result = dict(values)
    for section, group in GROUPS.items():
        table = values.get(section)
        if not isinstance(table, Mapping):
            continue
        del result[section]
        own = {name: value for name, value in table.items() if name in names_in(section)}
        others = {name: value for name, value in table.items() if name not in own}
        if section == "model":
            if others or not own:
                own["model"] = others
        elif others:
            name = next(iter(others))
            if home := [home for home in GROUPS if name in names_in(home)]:
                raise InputError(f"`{name}` belongs in the section {home[0]}, not in {section}")
            raise unknown_setting([*others], [*settings_of(group)])
        if twice := own.keys() & result.keys():
            raise InputError(f"`{twice.pop()}` stands in the section {section} and outside of it")
        result |= own
    return result


def names_in(section: str) -> list[str]:
    """Returns the settings of a section; in `model`, all others are the model's sizes and rates."""
    return [name for name in settings_of(GROUPS[section]) if (section, name) != ("model", "model")]
