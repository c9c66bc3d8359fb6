"""`keras-transformer demo`: training, evaluation, export and translation on the bundled corpus."""

import shlex
import time
from pathlib import Path
from typing import Annotated

import typer

from keras_transformer.cli.console import load_tensorflow, progress_bar, say
from keras_transformer.cli.export import details_of, say_finding
from keras_transformer.cli.train import train_with_progress
from keras_transformer.trainers.recipes import TrainSettings, load_recipe

# Sentences of the bundled corpus's grammar that are not in its training split.
EXAMPLES = (
    "Two dogs play.",
    "The teacher opens the window.",
    "When the old man sings in the garden, the children do not sleep.",
)


def demo_command(
    directory: Annotated[Path, typer.Option(help="Folder for the run and the export.")] = Path(
        "demo"
    ),
) -> None:
    """Train, evaluate, export and use a small model.

    The demo takes minutes, on a synthetic corpus. A second call uses the run and the export of the
    first.
    """
    load_tensorflow()
    from keras_transformer.export.check import check_saved_model, require_success
    from keras_transformer.export.saved_model import export_saved_model
    from keras_transformer.export.session import SavedModelSession
    from keras_transformer.trainers.corpora import load_corpus
    from keras_transformer.trainers.evaluation import evaluate
    from keras_transformer.translator import Translator

    started = time.monotonic()

    def say_step(text: str) -> None:
        say(f"{text} (after {time.monotonic() - started:.0f} s)")

    settings = TrainSettings.from_dict(load_recipe("demo"))
    run = train_with_progress(settings, directory / "run", resume=True)
    say_step(f"Training: {settings.steps:,} updates: {run.path}")

    translator = Translator.of(run)
    output = run.path / "evaluation" / "test"
    notes = {"data": "bundled", "checkpoint": run.checkpoint().file}
    pairs = load_corpus("bundled", "en", "de").pairs("test")
    with progress_bar("Translating") as progress:
        scores = evaluate(translator, pairs, output, "de", notes=notes, progress=progress)
    say_step(
        f"Evaluation: BLEU {scores.bleu.value:.1f}, chrF {scores.chrf.value:.1f} on "
        f"{scores.num_pairs} held-out sentences: {output}.hypothesis"
    )

    model_dir = directory / "models" / "demo"
    saved_model = model_dir / "1"
    if saved_model.exists():
        findings = check_saved_model(saved_model, say_finding)
        require_success(findings, f"{saved_model} failed its check")
    else:
        export_saved_model(
            translator,
            model_dir,
            examples=EXAMPLES,
            details=details_of(run),
            report=say_finding,
        )
    say_step(f"Export: SavedModel, checked: {saved_model}")

    for text, row in zip(EXAMPLES, SavedModelSession(saved_model).translate(EXAMPLES), strict=True):
        typer.echo(f"{text}\n  -> {row['translation']}")
    served, saved = shlex.quote(str(model_dir)), shlex.quote(str(saved_model))
    say(f"Next: keras-transformer serve {served}, or keras-transformer translate {saved} TEXT")
