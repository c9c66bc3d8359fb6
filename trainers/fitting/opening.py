"""Opening a run directory for training: a new one, or one to resume."""

import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from keras_transformer.errors import InputError
from keras_transformer.files import locked, named_failure
from keras_transformer.run import Run
from keras_transformer.trainers.data.back_translation import BACK_TRANSLATED
from keras_transformer.trainers.data.preparation import Progress, prepare
from keras_transformer.trainers.data.prepared import (
    Manifest,
    PreparedCorpus,
    complete_corpus,
    corpus_folder,
    is_prepared,
    open_prepared,
)
from keras_transformer.trainers.fitting.callbacks import is_over
from keras_transformer.trainers.fitting.fine_tuning import initial_config
from keras_transformer.trainers.fitting.strategies import Workers
from keras_transformer.trainers.recipes import completed
from keras_transformer.trainers.settings import RESUMABLE, TrainSettings

logger = logging.getLogger(__name__)

# What a killed call may leave before there is a run.json or a corpus.
BEFORE_MANIFEST = {"checkpoints", "tokenizer.model", "tmp-run.json"}


@contextmanager
def locked_run_dir(path: Path, resume: bool) -> Iterator[None]:
    """Creates or opens the run directory, and locks it.

    An `InputError` before a pair is prepared or back-translated leaves the directory as it was.
    """
    is_new = not path.exists()
    with named_failure(path):
        path.mkdir(parents=True, exist_ok=True)
    found = {each.name for each in path.iterdir()}
    can_resume = bool(found & {"run.json", "corpus"})
    if found and not resume:
        advice = "continue it with --resume, or " if can_resume else ""
        raise InputError(f"{path} exists and is not empty: {advice}choose another run directory")
    if not can_resume and found - BEFORE_MANIFEST:
        Run.load(path)  # raises the error
    with locked(path):
        try:
            yield
        except InputError:
            corpus = path / "corpus"
            has_pairs = is_prepared(corpus) and Manifest.read(corpus).train.kept
            has_pairs = has_pairs or any(corpus.glob(BACK_TRANSLATED.format("*")))
            if not (found or has_pairs or (path / "run.json").is_file()):
                for each in path.iterdir():
                    shutil.rmtree(each) if each.is_dir() else each.unlink()
                if is_new:
                    path.rmdir()
            raise


def open_run(
    settings: TrainSettings, path: Path, progress: Progress, workers: Workers
) -> tuple[Run, PreparedCorpus | None]:
    """Opens or creates the run, and its corpus unless the training is over.

    Only the chief of the workers creates files; the others wait until these exist.

    Raises:
        InputError: if a setting must not change, or the run has lost what it needs.
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
        known = run.tokenizer() if run is not None else None
        corpus = prepare(settings, path / "corpus", progress, known)
    if corpus.validation is None and settings.patience is not None:
        raise InputError(
            "`patience` needs a validation split, and the corpus has none. "
            f"Received: patience={settings.patience}"
        )
    tokenizer = corpus.tokenizer
    if run is None:
        config = initial_config(settings, tokenizer)
        languages = settings.source, settings.target
        values, sha256 = settings.to_dict(), corpus.training_sha256
        run = Run.create(path, config, tokenizer, *languages, values, sha256)
    elif run.tokenizer_sha256 != tokenizer.fingerprint:
        raise InputError(
            f"{path} was trained with another tokenizer than that of its corpus: restore the "
            "text that it was trained on, or choose another run directory"
        )
    elif run.corpus_sha256 not in (None, corpus.training_sha256):
        restore = "restore the corpus"
        if not is_prepared(settings.data):
            restore = f"restore the text and delete {path}/corpus"
        raise InputError(
            f"{path} was trained on other pairs than its corpus holds now: {restore}, or choose "
            "another run directory"
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
    if run.settings.get("average_last", 0) != settings.average_last:
        run.status, run.averaged = "training", None  # `train` computes the average again
    run.settings = settings.to_dict()
    _restore_tokenizer(run)
    return run


def _restore_tokenizer(run: Run) -> None:
    """Copies a lost or damaged tokenizer from the run's corpus."""
    try:
        run.tokenizer()
    except InputError:
        folder = corpus_folder(run)
        saved = Manifest.read(folder).tokenizer() if is_prepared(folder) else None
        if saved is None or saved.fingerprint != run.tokenizer_sha256:
            raise
        logger.warning("%s/tokenizer.model is restored from the corpus", run.path)
        run.save_tokenizer(saved)


def _check_settings(run: Run, settings: TrainSettings) -> None:
    """Raises `InputError` if the run cannot be resumed with these settings."""
    last = run.last.step if run.last else 0
    newest = max([last, *(state.step for state in run.states)])
    if settings.steps <= newest and settings.steps != last:
        raise InputError(
            f"`steps` must be more than the {newest} updates that {run.path} has saved. "
            f"Received: steps={settings.steps}"
        )
    saved = completed(TrainSettings.of_run(run).with_absolute_paths(), run.path).to_dict()
    for name, value in settings.to_dict().items():
        before = saved[name]
        if name == "data" and is_prepared(value):  # the corpus may have moved
            is_same = Manifest.read(value).training_sha256 == run.corpus_sha256
            before = value if is_same else before
        is_fixed_by_cooldown = name == "steps" and settings.cooldown > 0
        if before != value and (name not in RESUMABLE or is_fixed_by_cooldown):
            reason = ", because it ends with a cooldown" if is_fixed_by_cooldown else ""
            raise InputError(
                f"{run.path} is a run with {name}={before!r}, which cannot change "
                f"when it is resumed{reason}. Received: {name}={value!r}"
            )
