"""Opening a run directory for training: a new one, or one to resume."""

import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from keras_transformer.errors import InputError, require
from keras_transformer.files import locked, named_failure
from keras_transformer.records import settings_of
from keras_transformer.run import Run
from keras_transformer.trainers.data.cleaning import Progress
from keras_transformer.trainers.data.corpora import is_prepared
from keras_transformer.trainers.data.preparation import prepare
from keras_transformer.trainers.data.prepared import (
    CorpusManifest,
    PreparedCorpus,
    complete_corpus,
    corpus_folder,
    open_prepared,
)
from keras_transformer.trainers.data.writers import TRANSLATED
from keras_transformer.trainers.fitting.callbacks import is_over
from keras_transformer.trainers.fitting.fine_tuning import initial_config
from keras_transformer.trainers.fitting.strategies import Workers
from keras_transformer.trainers.settings import TrainSettings

logger = logging.getLogger(__name__)

# What a killed call may leave before there is a run.json or a corpus.
BEFORE_MANIFEST = {"checkpoints", "tokenizer.model", "tmp-run.json"}


@contextmanager
def locked_run_dir(path: Path, resume: bool) -> Iterator[None]:
    """Creates or opens the run directory, and locks it.

    An `InputError` before a pair is prepared or translated leaves the directory as it was.
    """
    is_new = not path.exists()
    with named_failure(path):
        path.mkdir(parents=True, exist_ok=True)
    names = {file.name for file in path.iterdir()}
    can_resume = bool(names & {"run.json", "corpus"})
    if names and not resume:
        advice = "continue it with --resume, or " if can_resume else ""
        raise InputError(f"{path} exists and is not empty: {advice}choose another run directory")
    if not can_resume and names - BEFORE_MANIFEST:
        Run.load(path)  # raises the error
    with locked(path):
        try:
            yield
        except InputError:
            if not names and not _holds_work(path):
                for file in path.iterdir():
                    shutil.rmtree(file) if file.is_dir() else file.unlink()
                if is_new:
                    path.rmdir()
            raise


def _holds_work(path: Path) -> bool:
    """Returns whether there is a run, or a pair is prepared or translated."""
    corpus = path / "corpus"
    return (
        (path / "run.json").is_file()
        or (is_prepared(corpus) and CorpusManifest.read(corpus).train.total.kept > 0)
        or any(corpus.glob(TRANSLATED.format("*")))
    )


def open_run(
    settings: TrainSettings, path: Path, progress: Progress, workers: Workers
) -> tuple[Run, PreparedCorpus | None]:
    """Opens or creates the run, and its corpus unless the training is over.

    Only the chief of the workers creates files; the others wait until these exist.
    """
    run, corpus = _open_as_chief(settings, path, progress) if workers.is_chief else (None, None)
    (must_train,) = workers.any_set(corpus is not None)
    workers.check_same("settings", json.dumps(settings.to_dict(), sort_keys=True))
    if run is None:
        if not (path / "run.json").is_file():
            raise InputError(f"All workers must share the directory {path}; this one does not")
        run = Run.load(path)
        run.settings["data"] = settings.data  # the corpus may have moved
        corpus = open_prepared(corpus_folder(run), settings) if must_train else None
    return run, corpus


def _open_as_chief(
    settings: TrainSettings, path: Path, progress: Progress
) -> tuple[Run, PreparedCorpus | None]:
    run = _open_to_resume(settings, path)
    if run is not None and is_over(run, settings):
        return run, None
    if is_prepared(settings.data):
        corpus = open_prepared(str(settings.data), settings)
    elif run is not None and complete_corpus(path / "corpus"):
        corpus = open_prepared(path / "corpus", settings)  # without the text, which may be gone
    else:
        tokenizer = run.tokenizer() if run is not None else None
        corpus = prepare(settings, path / "corpus", progress, tokenizer)
    require(
        corpus.validation is not None or settings.patience is None,
        "`patience` needs a validation split, and the corpus has none",
        patience=settings.patience,
    )
    if run is None:
        config = initial_config(settings, corpus.tokenizer)
        languages = settings.pairs[0]
        values, sha256 = settings.to_dict(), corpus.training_sha256
        run = Run.create(path, config, corpus.tokenizer, *languages, values, sha256)
    elif (
        run.corpus_sha256 not in (None, corpus.training_sha256)
        or run.tokenizer_sha256 != corpus.tokenizer.fingerprint
    ):
        restore = "restore the corpus"
        if not is_prepared(settings.data):
            restore = f"restore the text and delete {path}/corpus"
        raise InputError(
            f"{path} was trained on other pairs than its corpus holds now, or with another "
            f"tokenizer: {restore}, or choose another run directory"
        )
    return run, corpus


def _open_to_resume(settings: TrainSettings, path: Path) -> Run | None:
    """Opens a run to resume it with `settings`; None if there is none yet."""
    if not (path / "run.json").is_file():
        if list((path / "checkpoints").glob("*")):
            raise InputError(
                f"{path} holds checkpoints, but {path}/run.json is missing: restore it from a "
                "copy, or choose another run directory"
            )
        return None
    run = Run.load(path)
    if run.last is not None and run.last.step == 0:  # imported, or an ensemble
        raise InputError(
            f"{path} was imported or is an ensemble, so it cannot be resumed. A new run can start "
            "from an imported one: `init_from`"
        )
    _check_settings(run, settings)
    if run.settings["average_last"] != settings.average_last:
        run.status, run.averaged = "training", None  # `train` computes the average again
    run.settings = settings.to_dict()
    _restore_tokenizer(run)
    return run


def _restore_tokenizer(run: Run) -> None:
    try:
        run.tokenizer()
    except InputError:
        folder = corpus_folder(run)
        tokenizer = CorpusManifest.read(folder).tokenizer() if is_prepared(folder) else None
        if tokenizer is None or tokenizer.fingerprint != run.tokenizer_sha256:
            raise
        logger.warning("%s/tokenizer.model is restored from the corpus", run.path)
        run.save_tokenizer(tokenizer)


def _check_settings(run: Run, settings: TrainSettings) -> None:
    last = run.last.step if run.last else 0
    newest = max([last, *(state.step for state in run.states)])
    require(
        settings.steps > newest or settings.steps == last,
        f"`steps` must be more than the {newest} updates that {run.path} has saved",
        steps=settings.steps,
    )
    saved, resumable = TrainSettings.of_run(run).to_dict(), settings_of(TrainSettings, "resumable")
    for name, value in settings.to_dict().items():
        if value == saved[name]:
            continue
        if name == "data" and is_prepared(value):  # the corpus may have moved
            is_free = CorpusManifest.read(value).training_sha256 == run.corpus_sha256
        else:
            is_free = name in resumable and not (name == "steps" and settings.cooldown)
        require(
            is_free,
            f"{run.path} is a run with {name}={saved[name]!r}, which cannot change when it is "
            f"resumed{', because it ends with a cooldown' if name == 'steps' else ''}",
            **{name: value},
        )
