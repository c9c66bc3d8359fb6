"""`keras-transformer demo`: the main job from end to end, on the bundled corpus."""

import resource
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keras_transformer.cli.console import cleaned_up, load_tensorflow, progress_bar, say
from keras_transformer.cli.export import say_finding
from keras_transformer.cli.train import train_with_progress
from keras_transformer.errors import InputError

if TYPE_CHECKING:
    from keras_transformer.translator import Translator


def demo_command(
    directory: Annotated[Path, typer.Option(help="Where to put the run and the export.")] = Path(
        "demo"
    ),
) -> None:
    """Train, evaluate, export, check and translate on a small synthetic corpus, in minutes.

    A second call uses the run and the export that it finds.
    """
    load_tensorflow()
    from keras_transformer.export.session import SavedModelSession
    from keras_transformer.run import Run
    from keras_transformer.trainers.corpora import load_corpus
    from keras_transformer.trainers.evaluation import evaluate
    from keras_transformer.translator import Translator

    started = time.monotonic()
    run_dir, model_dir = directory / "run", directory / "models" / "demo"
    _train(run_dir)
    run = Run.load(run_dir)
    translator = Translator.of(run)

    corpus = load_corpus("bundled", "en", "de")
    output = run_dir / "evaluation" / "test"
    with _stage() as done, progress_bar("Translating") as progress:
        scores = evaluate(
            translator,
            corpus.pairs("test"),
            output,
            "de",
            notes={"data": "bundled", "checkpoint": run.checkpoint().file},
            progress=progress,
        )
        done.append(
            f"Evaluation: BLEU {scores.bleu.value:.1f}, chrF {scores.chrf.value:.1f} on "
            f"{scores.num_pairs} held-out sentences",
        )
        done.append(f"{output}.hypothesis")

    unseen = [pair.source for pair, _ in zip(corpus.pairs("test"), range(3), strict=False)]
    saved_model = _export(translator, model_dir, unseen)
    for text, row in zip(unseen, SavedModelSession(saved_model).translate(unseen), strict=True):
        typer.echo(f"{text}\n  -> {row['translation']}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in KiB
    seconds = time.monotonic() - started
    say(f"All done in {seconds:.0f} s; this process took at most {peak / 1e6:.1f} GB of memory")
    served, saved = shlex.quote(str(model_dir)), shlex.quote(str(saved_model))
    say(f"Next: keras-transformer serve {served}, or keras-transformer translate {saved} TEXT")


@contextmanager
def _stage() -> Iterator[list[str]]:
    """Prints what a stage did, how long it took, and where its result lies."""
    started = time.monotonic()
    done: list[str] = []
    yield done
    what, where = done
    say(f"{what} in {time.monotonic() - started:.1f} s: {where}")


def _train(run_dir: Path) -> None:
    from keras_transformer.run import Run
    from keras_transformer.trainers.recipes import TrainSettings, load_recipe

    settings = TrainSettings.from_dict(load_recipe("demo"))
    if (run_dir / "run.json").is_file():
        run = Run.load(run_dir)
        if run.settings != settings.to_dict():
            raise InputError(f"{run_dir} holds another run: choose another directory, or delete it")
        if run.status == "complete":
            say(f"Training: found a complete run: {run_dir}")
            return
    with _stage() as done:
        train_with_progress(settings, run_dir, resume=True)
        done += [f"Training: {settings.steps:,} updates", str(run_dir)]


def _export(translator: "Translator", model_dir: Path, texts: list[str]) -> Path:
    from keras_transformer.export.check import check_saved_model, require_success
    from keras_transformer.export.saved_model import export_saved_model

    path = model_dir / "1"
    with _stage() as done:
        if path.exists():
            require_success(check_saved_model(path, say_finding), f"{path} failed its check")
            done.append("Export: found a SavedModel and checked it")
        else:
            with cleaned_up():
                export_saved_model(translator, model_dir, examples=texts, report=say_finding)
            done.append("Export: SavedModel, checked")
        done.append(str(path))
    return path
