"""`keras-transformer prepare`."""

import time
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument

from keras_transformer.cli import options
from keras_transformer.cli.console import ProgressBar, load_tensorflow, print_json, say, say_next
from keras_transformer.cli.train import make_settings
from keras_transformer.trainers.settings import OF_CORPUS


def prepare_command(
    context: typer.Context,
    folder: Annotated[Path, Argument(metavar="CORPUS", help="New folder for the prepared corpus.")],
    data: options.Data = None,
    recipe: options.Recipe = None,
    changes: options.Changes = None,
    task: options.Task = None,
    source: options.Source = None,
    target: options.Target = None,
    vocab_size: options.VocabSize = None,
    monolingual: options.Monolingual = None,
    back_translator: options.BackTranslator = None,
    protect: options.Protect = None,
    protect_free: options.ProtectFree = None,
    as_json: options.Json = False,
) -> None:
    """Clean and tokenize a corpus once, for many runs.

    If the command was interrupted, give it again: it continues.
    """
    settings = make_settings(context)
    load_tensorflow()
    from keras_transformer.trainers.data.cleaning import REASONS
    from keras_transformer.trainers.data.preparation import prepare
    from keras_transformer.trainers.data.prepared import Manifest

    started = time.monotonic()
    with ProgressBar("Preparing") as progress:
        prepare(settings, folder, progress)
    split = Manifest.read(folder).train
    say(f"Prepared: {split} in {time.monotonic() - started:.1f} s: {folder}")
    for reason, count in split.dropped.items():
        say(f"Dropped {count:,} because {REASONS[reason]}, for example:")
        for source_text, target_text in split.examples[reason]:
            say(f"  {source_text}  |  {target_text}")
    words = [] if recipe is None else ["--recipe", recipe]
    for change in changes or ():  # the corpus has its own settings
        if change.split("=")[0].strip().split(".")[0] not in ("data", *OF_CORPUS):
            words += ["--set", change]
    say_next(["train", *words, "--data", folder, "--run-dir", "RUN"])
    if as_json:
        found = {"kept": split.kept, "copies": split.copies}
        found |= {"dropped": split.dropped, "examples": split.examples}
        print_json({"corpus": str(folder), **found})
