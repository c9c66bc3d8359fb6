"""`keras-transformer prepare`."""

import shlex
import time
from pathlib import Path
from typing import Annotated

import typer

from keras_transformer.cli.console import Json, load_tensorflow, print_json, progress_bar, say
from keras_transformer.cli.train import (
    Changes,
    Data,
    Recipe,
    Source,
    Target,
    VocabSize,
    make_settings,
)


def prepare_command(
    folder: Annotated[
        Path, typer.Argument(metavar="CORPUS", help="New folder for the prepared corpus.")
    ],
    data: Data = None,
    recipe: Recipe = None,
    changes: Changes = None,
    source: Source = None,
    target: Target = None,
    vocab_size: VocabSize = None,
    as_json: Json = False,
) -> None:
    """Clean and tokenize a corpus once, for many trainings.

    If the command was interrupted, give it again: it continues.
    """
    settings = make_settings(
        recipe, changes, data=data, source=source, target=target, vocab_size=vocab_size
    )
    load_tensorflow()
    from keras_transformer.trainers.preparation import REASONS, prepare
    from keras_transformer.trainers.prepared import Manifest

    started = time.monotonic()
    with progress_bar("Preparing") as progress:
        prepare(settings, folder, progress)
    split = Manifest.read(folder).train
    say(f"Prepared: {split} in {time.monotonic() - started:.1f} s: {folder}")
    for reason, count in split.dropped.items():
        say(f"Dropped {count:,} because {REASONS[reason]}, for example:")
        for pair in split.examples[reason]:
            say(f"  {pair.source}  |  {pair.target}")
    # `train` needs the same settings, and takes the folder as its data.
    options = [
        ("--recipe", recipe),
        ("--source", source),
        ("--target", target),
        ("--vocab-size", vocab_size),
        *(("--set", each) for each in changes or () if each.partition("=")[0].strip() != "data"),
        ("--data", folder),
        ("--run-dir", "RUN"),
    ]
    words = [str(word) for option in options if option[1] is not None for word in option]
    say(f"Next: keras-transformer train {shlex.join(words)}")
    if as_json:
        report = {"kept": split.kept, "dropped": split.dropped, "examples": split.examples}
        print_json({"corpus": str(folder), **report})
