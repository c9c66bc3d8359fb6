"""`keras-transformer demo`: training, evaluation, export and translation on the bundled corpus."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from keras_transformer.cli.check import check_command
from keras_transformer.cli.console import load_tensorflow
from keras_transformer.cli.evaluate import evaluate_command
from keras_transformer.cli.export import export_command
from keras_transformer.cli.train import train_with_progress
from keras_transformer.trainers.recipes import load_recipe
from keras_transformer.trainers.settings import TrainSettings

# Sentences like those of the bundled corpus, but not in its training split.
EXAMPLES = (
    "Two dogs play.",
    "The teacher opens the window.",
    "When the old man sings in the garden, the children do not sleep.",
)


def demo_command(
    directory: Annotated[Path, Option(help="Folder for the run and the export.")] = Path("demo"),
) -> None:
    """Train, evaluate, export and use a small model.

    The demo takes minutes, on a synthetic corpus. A second call uses the run and the export of the
    first.
    """
    load_tensorflow()
    from keras_transformer.export.session import SavedModelSession

    run, model = directory / "run", directory / "models" / "demo"
    train_with_progress(TrainSettings.from_dict(load_recipe("demo")), run, resume=True)
    evaluate_command(run)
    if (model / "1").exists():
        check_command(model)
    else:
        export_command(run, model)
    translated = SavedModelSession(model / "1").translate(EXAMPLES)
    for text, row in zip(EXAMPLES, translated, strict=True):
        typer.echo(f"{text}\n  -> {row['translation']}")
