"""`keras-transformer train`."""

import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from keras_transformer.cli import options
from keras_transformer.cli.console import (
    ProgressBar,
    evaluation_of,
    keep_freed_memory,
    load_tensorflow,
    print_json,
    say,
    say_next,
)
from keras_transformer.cli.settings_table import list_settings
from keras_transformer.errors import InputError
from keras_transformer.records import settings_of
from keras_transformer.registry import PROTECTED_SETS
from keras_transformer.run import Run
from keras_transformer.trainers.data.corpora import is_prepared
from keras_transformer.trainers.recipes import Layer, load_recipe, recipe_of_student, resolve
from keras_transformer.trainers.settings import TrainSettings

if TYPE_CHECKING:
    from keras_transformer.trainers.data.prepared import CorpusManifest

TrainOptions = Annotated[
    options.Given, options.Fields(TrainSettings, (*settings_of(TrainSettings, "option"),))
]


def train_command(
    run_dir: Annotated[Path, Option(help="New run directory, or one to --resume.")],
    recipe: options.Recipe = None,
    changes: options.Changes = None,
    given: TrainOptions = options.NONE,
    show_settings: Annotated[
        bool,
        Option(
            "--list-settings",
            callback=list_settings,
            is_eager=True,
            help="Print all settings that --set takes, with their defaults.",
        ),
    ] = False,
    resume: Annotated[
        bool,
        Option("--resume", help="Continue the run, if there is one, by default as it was started."),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Train a model on parallel text.

    Training writes a run directory, which most other commands read.
    """
    if resume and recipe is None and (run_dir / "run.json").is_file():
        recipe = str(run_dir.absolute())  # a recipe may have its name
    settings = make_settings(given, recipe, changes or ())
    load_tensorflow()
    from keras_transformer.cli.progress import still_improves, summarize, summary_table

    started = time.monotonic()
    run = train_with_progress(settings, run_dir, resume)
    seconds = time.monotonic() - started
    summary = summarize(run)
    say(f"Training: {summary['step']:,} updates; this call took {seconds:.1f} s: {run.path}")
    for name, text in summary_table(summary).items():
        say(f"  {name:10}  {text}")
    if still_improves(summary) and not settings.cooldown:
        say("The last validation was the best: --resume with more --steps may go further")
    say_next(evaluation_of(run.path, settings.data))
    if as_json:
        print_json(summary)


def train_with_progress(settings: TrainSettings, run_dir: Path, resume: bool) -> Run:
    from keras_transformer.cli.progress import TrainingDisplay
    from keras_transformer.trainers.fitting.training import train

    keep_freed_memory()
    # Keras prints to standard output, which is for results.
    with ProgressBar("Preparing") as bar, redirect_stdout(sys.stderr):
        shown = TrainingDisplay(bar, run_dir, settings.steps, settings.max_hours)
        return train(settings, run_dir, 0, resume=resume, progress=bar, callbacks=[shown])


def _sets_of(protect: str) -> list[str]:
    """Returns the names of sets in a list with commas, or a regular expression as it is."""
    parts = [part.strip() for part in protect.split(",")]
    known = set(PROTECTED_SETS).intersection(parts)
    if known and not known.issuperset(parts):
        raise InputError(
            f"--protect must be names of {', '.join(PROTECTED_SETS)}, or one regular expression; "
            f"give the option once for each expression. Received: {protect!r}"
        )
    return parts if known else [protect]


def _read_manifest(corpus: str) -> "CorpusManifest":
    load_tensorflow()
    from keras_transformer.trainers.data.prepared import CorpusManifest

    return CorpusManifest.read(corpus)


def make_settings(
    given: Mapping[str, Any], recipe: str | None = None, changes: Iterable[str] = ()
) -> TrainSettings:
    """Makes settings of `--set`, given values, a prepared corpus, and a recipe, by strength."""
    values = dict(given)
    for name in {"data", "mix"} & given.keys():
        values[name] = options.one_or_all(given[name])
    if "protect" in given:
        values["protect"] = [part for text in given["protect"] for part in _sets_of(text)]
    layers = [Layer("the command line", values)]
    if recipe is not None:
        layers.append(Layer(f"the recipe {recipe}", load_recipe(recipe)))
    elif "teacher" in given:
        own = recipe_of_student(given["teacher"])
        if own.get("data") and is_prepared(own["data"]):  # without the teacher's translations
            own["data"] = _read_manifest(own["data"]).made_from["data"]
        layers.append(Layer(f"the teacher {given['teacher']}", own))
    settings = resolve(layers, changes)
    if "data" not in settings:
        raise InputError("The setting `data` is missing: give --data, or a --recipe that has it")
    if is_prepared(settings["data"]):
        own = _read_manifest(settings["data"]).settings(settings.get("init_from"))
        corpus = Layer("the corpus", own)
        for name, value in layers[-1].values.items() if recipe is not None else ():
            if corpus.values.get(name, value) != value:
                say(f"The corpus keeps its own {name}={corpus.values[name]!r}, not the recipe's")
        settings = resolve([layers[0], corpus, *layers[1:]], changes)
    return TrainSettings.from_dict(settings)
