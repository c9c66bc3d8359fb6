"""`keras-transformer export`."""

import operator
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from keras_transformer.cli import options
from keras_transformer.cli.check import find_export, say_finding
from keras_transformer.cli.console import ProgressBar, cleaned_up, load_tensorflow, say, say_next
from keras_transformer.config import CheckpointName
from keras_transformer.export.options import ExportOptions
from keras_transformer.export.rows import by_length
from keras_transformer.run import Run
from keras_transformer.trainers.data.corpora import Pair
from keras_transformer.trainers.settings import TrainSettings
from keras_transformer.trainers.tasks import task_of

if TYPE_CHECKING:
    from keras_transformer.translator import Translator

MAX_EXAMPLES = 3  # validation sentences, to check, to warm up with, and to try
EXAMPLE_LENGTH = 100  # characters: longer sentences come last
MAX_PAIRS = 1_000  # to compare rounded weights on


def export_command(
    run: options.RunDirectory,
    folder: Annotated[
        Path,
        Argument(
            metavar="MODELS/NAME",
            help="The model's folder. The SavedModel is written to MODELS/NAME/VERSION.",
        ),
    ],
    version: Annotated[int, Option(help="Number of the version.")] = 1,
    search: options.Search = options.NONE,
    checkpoint: options.Checkpoint = None,
    export_options: ExportOptions = ExportOptions(),  # noqa: B008  # it is frozen
) -> None:
    """Export a run as a SavedModel, and check it.

    The SavedModel takes strings and returns strings. A model server such as TF Serving loads it.
    """
    load_tensorflow()
    from keras_transformer.export.saved_model import export_saved_model
    from keras_transformer.trainers.data.prepared import corpus_folder, read_validation_pairs
    from keras_transformer.translator import Translator

    started = time.monotonic()
    opened = Run.load(run)
    translator = Translator.of(opened, checkpoint, **search)
    pairs = read_validation_pairs(corpus_folder(opened))
    sources = [pair.tagged_source for pair in pairs if pair.source.strip()]
    with cleaned_up(), ProgressBar("Exporting"):
        path = export_saved_model(
            translator,
            folder,
            version,
            export_options,
            examples=sorted(sources, key=lambda text: len(text) > EXAMPLE_LENGTH)[:MAX_EXAMPLES],
            details=_details(opened, checkpoint),
            report=say_finding,
        )
    say(f"Export: SavedModel in {time.monotonic() - started:.1f} s: {path}")
    find_export(path)  # warns
    if {export_options.weights, export_options.compute} != {
        "float32"
    } and translator.defaults.sample_from is None:
        _compare(path, translator, pairs[:MAX_PAIRS], opened)
    say_next(["serve", folder], ["translate", path, "TEXT"])


def _details(run: Run, checkpoint: CheckpointName | None) -> dict[str, Any]:
    from keras_transformer.trainers.scoring.evaluation import read_scores

    name, reason = (checkpoint, "--checkpoint") if checkpoint else run.choice()
    chosen = run.checkpoint(name)
    evaluations = read_scores(run.path / "evaluation")
    metric = next(iter(task_of(run.settings).metrics))
    return {
        "source": run.source,
        "target": run.target,
        "checkpoint": {
            "name": name,
            "reason": reason,
            "step": chosen.step,
            "sha256": chosen.sha256,
            "metrics": chosen.metrics,
        },
        metric: {
            split: scores[metric]
            for split, scores in evaluations.items()
            if scores.get("checkpoint") == chosen.file
        },
        "settings": run.settings,
    }


def _compare(path: Path, translator: "Translator", pairs: list[Pair], run: Run) -> None:
    from keras_transformer.export.session import SavedModelSession

    if not pairs:
        say("The run holds no validation text to compare the rounded model on")
        return
    sources = [pair.tagged_source for pair in pairs]
    with ProgressBar("Comparing"):
        exact = [translation.text for translation in translator.translate(sources)]
        rows = by_length(sources, SavedModelSession(path).translate)
    rounded = [row["translation"] for row in rows]
    settings = TrainSettings.of_run(run)
    task, lowercase = task_of(run.settings), translator.tokenizer.lowercase
    label, *_ = task.metrics.values()
    metric, *_ = task.validation_metrics(settings, lowercase).values()
    score, exact_score = metric(rounded, pairs), metric(exact, pairs)
    same = sum(map(operator.eq, exact, rounded))
    num_bytes = sum(file.stat().st_size for file in (path / "variables").glob("*.data-*"))
    say(
        f"Rounded: {num_bytes / 1e6:.1f} MB; {label} {score:.2f}, with float32 "
        f"{exact_score:.2f}; {same:,} of {len(pairs):,} validation sentences have the same "
        "translation"
    )
