"""Options that several commands share."""

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from keras_transformer.config import CheckpointName, DecodingOptions, EarlyStopping
from keras_transformer.registry import PROTECTED_SETS, TASKS
from keras_transformer.trainers.recipes import recipe_names
from keras_transformer.trainers.settings import TrainSettings

RunDirectory = Annotated[Path, Argument(metavar="RUN", help="A run directory.")]
Checkpoint = Annotated[
    CheckpointName | None,
    Option(help="The checkpoint to use. [default: averaged, unless best validates clearly better]"),
]
BeamSize = Annotated[
    int | None, Option(help="Number of beams; 1 is greedy search. [default: the run's, or 4]")
]
LengthPenalty = Annotated[
    float | None,
    Option(
        help="Exponent of the length penalty; a larger one prefers longer translations. "
        "[default: the run's, or 0.6]"
    ),
]
EarlyStop = Annotated[
    EarlyStopping | None,
    Option(
        help="When a search ends. exact: no better translation can come; first: as many "
        "translations as beams are complete. [default: the run's, or exact]"
    ),
]
NoRepeat = Annotated[
    int | None,
    Option(
        "--no-repeat-ngram",
        metavar="COUNT",
        help="Never repeat a sequence of so many tokens; 0 for no such rule. "
        "[default: the run's, or 0]",
    ),
]
SampleFrom = Annotated[
    int | None,
    Option(
        "--sample",
        metavar="COUNT",
        help="Draw each token at random from this number of likely ones, instead of searching "
        "for the best translation.",
    ),
]
Temperature = Annotated[
    float | None,
    Option(help="With --sample, a lower one draws likelier tokens. [default: 1]"),
]
SampleSeed = Annotated[
    int | None,
    Option(help="With --sample, another seed gives other translations. [default: 0]"),
]
Json = Annotated[bool, Option("--json", help="Print the result as a JSON object.")]

_TEXT = (
    "The corpus: bundled, tfds:NAME[/CONFIG], a folder of files LANGUAGE.SPLIT.txt with one "
    "sentence per line (en.train.txt, de.train.txt, en.val.txt, ...), a .tsv or .csv file whose "
    "first line names the languages, a .po, .mo, .xlf, .xliff or .tmx file, or a folder of such "
    "files; files also as .gz. Several together are one corpus: repeat the option"
)
Data = Annotated[list[str] | None, Option(help=f"{_TEXT}. [default: the recipe's]")]
PreparedData = Annotated[
    list[str] | None, Option(help=f"{_TEXT}; or one that prepare wrote. [default: the recipe's]")
]
Task = Annotated[
    str | None,
    Option(
        help="translation; or parsing, from sentences to constituency trees, with a folder of Penn "
        "files as data. [default: translation]",
        autocompletion=lambda: list(TASKS),
    ),
]
Recipe = Annotated[
    str | None,
    Option(
        metavar="NAME|FILE|RUN",
        help="Settings to start from, which the other options change: a TOML file, a run "
        f"directory, or one of {', '.join(recipe_names())}.",
        autocompletion=recipe_names,
    ),
]
Changes = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="KEY=VALUE",
        help="A setting, such as warmup_steps=400 or model.dropout_rate=0.2. May be repeated. "
        "`train --list-settings` prints all of them.",
        autocompletion=lambda: [f"{field.name}=" for field in fields(TrainSettings)],
    ),
]
Source = Annotated[str | None, Option(help="Source language. [default: en]")]
Target = Annotated[str | None, Option(help="Target language. [default: de]")]
Monolingual = Annotated[
    str | None,
    Option(
        metavar="FILE",
        help="Sentences of the target language, to train on with sources that --back-translator "
        "writes: --set monolingual_share=0.3 makes them 30 % of all pairs. [default share: 0.5]",
    ),
]
BackTranslator = Annotated[
    str | None,
    Option(metavar="RUN", help="A run from the target language to the source language."),
]
Protect = Annotated[
    list[str] | None,
    Option(
        metavar="SETS|REGEX",
        help="What translations must keep as it is, separated by commas: "
        f"{'; '.join(f'{name}, {what}' for name, what in PROTECTED_SETS.items())}; or a regular "
        "expression. May be repeated. [default: nothing]",
        autocompletion=lambda: list(PROTECTED_SETS),
    ),
]
ProtectFree = Annotated[
    bool | None,
    Option("--protect-free", help="The model may leave protected strings out, and repeat them."),
]
VocabSize = Annotated[
    int | None,
    Option(help="Maximum number of subwords, for both languages together. [default: 8000]"),
]


def one_or_all(values: list[str] | None) -> str | list[str] | None:
    """Returns the value of an option that was given once, a list of several, or None."""
    return values[0] if values and len(values) == 1 else values or None


def search_of(context: typer.Context) -> dict[str, Any]:
    """Returns the options of the search that a command was given."""
    given = {field.name: context.params.get(field.name) for field in fields(DecodingOptions)}
    return {name: value for name, value in given.items() if value is not None}
