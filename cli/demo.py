"""`keras-transformer demo`: the main job from end to end, on the bundled corpus."""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keras_transformer.cli.console import keras_progress, load_tensorflow, progress_bar, say
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
    from keras_transformer.trainers.corpora import load_corpus
    from keras_transformer.trainers.evaluation import evaluate
    from keras_transformer.translator import Translator

    started = time.monotonic()
    run_dir, model_dir = directory / "run", directory / "models" / "demo"
    _train(run_dir)
    translator = Translator.load(run_dir)

    corpus = load_corpus("bundled", "en", "de")
    output = run_dir / "evaluation" / "test"
    with _stage() as done, progress_bar("Translating") as progress:
        scores = evaluate(translator, corpus.pairs("test"), output, "de", progress=progress)
        done.append(
            f"Evaluation: BLEU {scores.bleu.value:.1f}, chrF {scores.chrf.value:.1f} on "
            f"{scores.num_pairs} held-out sentences",
        )
        done.append(f"{output}.hypothesis")

    saved_model = _export(translator, model_dir)
    unseen = [pair.source for pair, _ in zip(corpus.pairs("test"), range(3), strict=False)]
    answers = _check(saved_model, translator, unseen)
    for text, answer in zip(unseen, answers, strict=True):
        typer.echo(f"{text}\n  -> {answer}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in KiB
    seconds = time.monotonic() - started
    say(f"All done in {seconds:.0f} s; this process took at most {peak / 1e6:.1f} GB of memory")
    say(f"Next: keras-transformer translate {saved_model} TEXT")


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
    from keras_transformer.trainers.training import train

    settings = TrainSettings.from_dict(load_recipe("demo"))
    if (run_dir / "run.json").is_file():
        run = Run.load(run_dir)
        if run.settings != settings.to_dict():
            raise InputError(f"{run_dir} holds another run: choose another directory, or delete it")
        if run.status == "complete":
            say(f"Training: found a complete run: {run_dir}")
            return
    with _stage() as done, keras_progress() as verbose:
        train(settings, run_dir, verbose, resume=True)
        done += [f"Training: {settings.steps:,} updates", str(run_dir)]


def _export(translator: "Translator", model_dir: Path) -> Path:
    from keras_transformer.export.saved_model import export_saved_model

    path = model_dir / "1"
    if path.exists():
        say(f"Export: found {path}")
        return path
    with _stage() as done:
        export_saved_model(translator, model_dir)
        done += ["Export: SavedModel", str(path)]
    return path


def _check(saved_model: Path, translator: "Translator", texts: list[str]) -> list[str]:
    """Translates in a Session in a fresh process, and compares with the run's own answers."""
    from keras_transformer.export import session

    with _stage() as done:
        process = subprocess.run(
            [sys.executable, "-P", session.__file__, str(saved_model)],
            input="\n".join(texts),
            capture_output=True,
            text=True,
            check=False,
        )
        if process.returncode:
            raise InputError(f"{saved_model} does not run in a Session: {process.stderr[-2000:]}")
        answers = [json.loads(line)["translation"] for line in process.stdout.splitlines()]
        expected = [translation.text for translation in translator.translate(texts)]
        if answers != expected:
            raise InputError(f"{saved_model} answers {answers}, but the run {expected}")
        done += [
            "Check: a TF1 Session in a process without Keras answers as the run does",
            str(saved_model),
        ]
    return answers
