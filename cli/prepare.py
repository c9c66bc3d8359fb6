"""`keras-transformer prepare`."""

import time
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument

from keras_transformer.cli.console import ProgressBar, load_tensorflow, print_json, say, say_next
from keras_transformer.cli.options import (
    Changes,
    Data,
    Json,
    Recipe,
    Source,
    Target,
    Task,
    VocabSize,
)
from keras_transformer.cli.train import make_settings


def prepare_command(
    context: typer.Context,
    folder: Annotated[Path, Argument(metavar="CORPUS", help="New folder for the prepared corpus.")],
    data: Data = None,
    recipe: Recipe = None,
    changes: Changes = None,
    task: Task = None,
    source: Source = None,
    target: Target = None,
    vocab_size: VocabSize = None,
    as_json: Json = False,
) -> None:
    """Clean and tokenize a corpus once, for many runs.

    If the command was interrupted, give it again: it continues.
    """
    settings = make_settings(context)
    load_tensorflow()
    from keras_transformer.trainers.data.preparation import REASONS, prepare
    from keras_transformer.trainers.data.prepared import Manifest

    started = time.monotonic()
    with ProgressBar("Preparing") as progress:
        prepare(settings, folder, progress)
    split = Manifest.read(folder).train
    say(f"Prepared: {split} in {time.monotonic() - started:.1f} s: {folder}")
    for reason, count in split.dropped.items():
        say(f"Dropped {count:,} because {REASONS[reason]}, for example:")
        for pair in split.examples[reason]:
            say(f"  {pair.source}  |  {pair.target}")
    # `train` needs the same settings, and takes the folder as its data.
    options = {
        "--recipe": recipe,
        "--task": task,
        "--source": source,
        "--target": target,
        "--vocab-size": vocab_size,
    }
    words = [word for each in options.items() if each[1] is not None for word in each]
    words += [word for change in changes or () for word in ("--set", change)]
    say_next(["train", *words, "--data", folder, "--run-dir", "RUN"])
    if as_json:
        report = {"kept": split.kept, "dropped": split.dropped, "examples": split.examples}
        print_json({"corpus": str(folder), **report})
