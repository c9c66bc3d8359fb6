"""`keras-transformer train`."""

import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Option

from keras_transformer.cli import options
from keras_transformer.cli.console import (
    ProgressBar,
    evaluation_of,
    load_tensorflow,
    print_json,
    say,
    say_next,
)
from keras_transformer.cli.settings_table import list_settings
from keras_transformer.config import TransformerConfig
from keras_transformer.errors import InputError
from keras_transformer.records import settings_of
from keras_transformer.registry import ARCHITECTURES, PROTECTED_SETS
from keras_transformer.run import Run
from keras_transformer.trainers.data.corpora import is_prepared
from keras_transformer.trainers.recipes import Layer, load_recipe, resolve
from keras_transformer.trainers.settings import Precision, StrategyName, TrainSettings


def train_command(
    context: typer.Context,
    run_dir: Annotated[Path, Option(help="New run directory, or one to --resume.")],
    data: options.PreparedData = None,
    recipe: options.Recipe = None,
    changes: options.Changes = None,
    task: options.Task = None,
    source: options.Source = None,
    target: options.Target = None,
    init_from: Annotated[
        str | None,
        Option(metavar="RUN", help="A run to start from: its tokenizer, sizes and weights."),
    ] = None,
    mix: Annotated[
        list[str] | None,
        Option(
            help="Old data to add: --set mix_share=0.3 makes it 30 % of all pairs. May be repeated."
        ),
    ] = None,
    monolingual: options.Monolingual = None,
    back_translator: options.BackTranslator = None,
    freeze: Annotated[
        Literal["embeddings", "encoder"] | None,
        Option(help="Layers that keep the weights of --init-from. [default: none]"),
    ] = None,
    architecture: Annotated[
        str | None,
        Option(
            help="transformer; recurrent, GRUs with attention; or for parsing next_word, whose "
            "decoder reads the next word too. [default: transformer, or next_word for parsing]",
            autocompletion=lambda: list(ARCHITECTURES),
        ),
    ] = None,
    preset: Annotated[
        str | None,
        Option(
            help="Size of the model: tiny, base, big, or a row of the paper's Table 3, such as "
            "A-16-heads; recurrent models have tiny and base. [default: tiny]",
            autocompletion=lambda: list(TransformerConfig.presets),
        ),
    ] = None,
    vocab_size: options.VocabSize = None,
    protect: options.Protect = None,
    protect_free: options.ProtectFree = None,
    steps: Annotated[int | None, Option(help="Number of updates. [default: 10000]")] = None,
    seed: Annotated[
        int | None, Option(help="Seed of weights, dropout and batches. [default: 1]")
    ] = None,
    metric: Annotated[
        str | None,
        Option(
            help="Validation score that chooses the best checkpoint: bleu, chrf or loss; for "
            "parsing, f1 or loss. [default: bleu or f1 if it is computed, else loss]"
        ),
    ] = None,
    strategy: Annotated[
        StrategyName | None,
        Option(
            help="one: a single device; mirrored: all GPUs of this machine; multiworker: all "
            "machines that TF_CONFIG or SLURM names. [default: mirrored with several GPUs, "
            "else one]"
        ),
    ] = None,
    accumulate: Annotated[
        int | None,
        Option(help="Micro-batches per update; more of them need less memory. [default: 1]"),
    ] = None,
    precision: Annotated[
        Precision | None,
        Option(help="Number format of the computation; weights stay float32. [default: float32]"),
    ] = None,
    jit: Annotated[bool | None, Option("--jit", help="Compile the training step with XLA.")] = None,
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
    settings = make_settings(context)
    load_tensorflow()
    from keras_transformer.cli.summary import still_improves, summarize, summary_table

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
    """Trains with a progress bar; the arguments are those of `train`."""
    from keras_transformer.cli.progress import TrainingDisplay
    from keras_transformer.trainers.fitting.host_memory import keep_freed_memory
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


def make_settings(context: typer.Context) -> TrainSettings:
    """Makes settings of a command's options: a recipe, changed by options, then by `--set`.

    Without a recipe, a run to resume has its own settings. Those of a prepared corpus, if the data
    is one, are stronger than the recipe's.
    """
    given = {name: value for name, value in context.params.items() if value not in (None, ())}
    for name in {"data", "mix"} & given.keys():
        given[name] = options.one_or_all(given[name])
    if given.get("resume") and (given["run_dir"] / "run.json").is_file():
        given.setdefault("recipe", given["run_dir"].absolute())  # a recipe may have its name
    options_given = {name: given[name] for name in settings_of(TrainSettings) if name in given}
    if "protect" in given:
        options_given["protect"] = [part for text in given["protect"] for part in _sets_of(text)]
    layers = [Layer("the command line", options_given)]
    changes = given.get("changes", ())
    if "recipe" in given:
        layers.append(Layer(f"the recipe {given['recipe']}", load_recipe(given["recipe"])))
    chosen = resolve(layers, changes)
    data = chosen.get("data")
    if is_prepared(data or ""):
        load_tensorflow()
        from keras_transformer.trainers.data.prepared import Manifest

        corpus = Manifest.read(data).settings(chosen.get("init_from"))
        for layer in layers[1:]:
            if others := {
                name: corpus[name]
                for name in corpus.keys() & layer.values.keys()
                if corpus[name] != layer.values[name]
            }:
                listed = ", ".join(f"{name}={value!r}" for name, value in others.items())
                say(f"The corpus has other settings than {layer.origin}, and keeps them: {listed}")
        chosen = resolve([layers[0], Layer("the corpus", corpus), *layers[1:]], changes)
    if "data" not in chosen:
        raise InputError("The setting `data` is missing: give --data, or a --recipe that has it")
    return TrainSettings.from_dict(chosen)
