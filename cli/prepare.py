"""`keras-transformer prepare`."""

import time
from pathlib import Path
from typing import Annotated

from typer import Argument

from keras_transformer.cli import options
from keras_transformer.cli.console import ProgressBar, load_tensorflow, print_json, say, say_next
from keras_transformer.cli.train import make_settings
from keras_transformer.records import settings_of
from keras_transformer.trainers.settings import DataSettings

CorpusOptions = Annotated[
    options.Given, options.Fields(DataSettings, (*settings_of(DataSettings, "option"),))
]


def prepare_command(
    folder: Annotated[Path, Argument(metavar="CORPUS", help="New folder for the prepared corpus.")],
    recipe: options.Recipe = None,
    changes: options.Changes = None,
    given: CorpusOptions = options.NONE,
    as_json: options.Json = False,
) -> None:
    """Clean and tokenize a corpus once, for many runs.

    If the command was interrupted, give it again: it continues.
    """
    settings = make_settings(given, recipe, changes or ())
    load_tensorflow()
    from keras_transformer.trainers.data.cleaning import REASONS
    from keras_transformer.trainers.data.preparation import prepare
    from keras_transformer.trainers.data.prepared import CorpusManifest

    started = time.monotonic()
    with ProgressBar("Preparing") as progress:
        prepare(settings, folder, progress)
    split = CorpusManifest.read(folder).train
    total = split.total
    say(f"Prepared: {total} in {time.monotonic() - started:.1f} s: {folder}")
    for languages, part in split.parts.items():
        say(f"  {' to '.join(languages)}: {part}")
    for reason, count in total.dropped.items():
        say(f"Dropped {count:,} because {REASONS[reason]}, for example:")
        for source_text, target_text in total.examples[reason]:
            say(f"  {source_text}  |  {target_text}")
    words = [] if recipe is None else ["--recipe", recipe]
    for change in changes or ():  # the corpus has its own settings
        if change.split("=")[0].strip().split(".")[0] not in settings_of(DataSettings):
            words += ["--set", change]
    say_next(["train", *words, "--data", folder, "--run-dir", "RUN"])
    if as_json:
        names = ("kept", "copies", "dropped", "examples")
        values = {"corpus": str(folder), **{name: getattr(total, name) for name in names}}
        pairs = {
            "-".join(languages): {name: getattr(part, name) for name in names[:-1]}
            for languages, part in split.parts.items()
        }
        print_json({**values, "pairs": pairs} if pairs else values)
