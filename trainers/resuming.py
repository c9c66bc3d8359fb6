"""Opening a run directory for training: a new one, or one to resume."""

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from keras_transformer.errors import InputError
from keras_transformer.files import locked
from keras_transformer.run import Run
from keras_transformer.trainers.prepared import has_pairs
from keras_transformer.trainers.recipes import TrainSettings

logger = logging.getLogger(__name__)

# Settings that may change when a training is resumed; none of them changes an update.
RESUMABLE = (
    "steps",
    "max_hours",
    "patience",
    "keep_checkpoints",
    "average_last",
    "steps_per_save",
    "minutes_per_save",
    "strategy",
    "accumulate",
)
# What a killed call may leave before there is a run.json or a corpus.
BEFORE_MANIFEST = {"checkpoints", "tokenizer.model", "tmp-run.json"}


@contextmanager
def locked_run_dir(path: Path, resume: bool) -> Iterator[None]:
    """Creates or opens the run directory, and locks it.

    An `InputError` before there is a prepared corpus or a run leaves the directory as it was.
    """
    is_new = not path.exists()
    try:
        path.mkdir(parents=True, exist_ok=True)
        found = {each.name for each in path.iterdir()}
    except OSError as error:
        raise InputError(f"Cannot create the directory {path}: {error.strerror}") from error
    if found and not resume:
        advice = "continue it with --resume, or " if found & {"run.json", "corpus"} else ""
        raise InputError(f"{path} exists and is not empty: {advice}choose another run directory")
    if not found & {"run.json", "corpus"} and found - BEFORE_MANIFEST:
        Run.load(path)  # raises the error
    with locked(path):
        try:
            yield
        except InputError:
            if not (found or (path / "run.json").is_file() or has_pairs(path / "corpus")):
                for each in path.iterdir():
                    shutil.rmtree(each) if each.is_dir() else each.unlink()
                if is_new:
                    path.rmdir()
            raise


def open_run(settings: TrainSettings, path: Path) -> Run | None:
    """Opens a run to resume it with `settings`; None if there is none yet.

    Raises:
        InputError: if a setting must not change, or the run has lost what it needs.
    """
    if not (path / "run.json").is_file():
        if (path / "checkpoints").is_dir() and any((path / "checkpoints").iterdir()):
            raise InputError(
                f"{path} holds checkpoints, but {path}/run.json is missing: restore it from a "
                "copy, or choose another run directory"
            )
        return None
    run = Run.load(path)
    _check_settings(run, settings)
    if run.checkpoints and not (path / "metrics.jsonl").exists():
        logger.warning(
            "%s/metrics.jsonl is missing: only the metrics of the checkpoints are left", path
        )
        run.restore_metrics()
    if run.settings["average_last"] != settings.average_last:
        run.status, run.averaged = "training", None  # `train` computes the average again
    run.settings = settings.to_dict()
    return run


def _check_settings(run: Run, settings: TrainSettings) -> None:
    if run.last and settings.steps < run.last.step:
        raise InputError(
            f"`steps` must be at least the {run.last.step} updates that {run.path} has. "
            f"Received: steps={settings.steps}"
        )
    for name, value in settings.to_dict().items():
        before = run.settings.get(name)
        if name == "data" and Path(run.settings[name]).resolve() == Path(value).resolve():
            continue  # another spelling of the same folder
        is_fixed_by_cooldown = name == "steps" and settings.cooldown > 0
        if before != value and (name not in RESUMABLE or is_fixed_by_cooldown):
            reason = ", because it ends with a cooldown" if is_fixed_by_cooldown else ""
            raise InputError(
                f"{run.path} is a training with {name}={before!r}, which cannot change "
                f"when it is resumed{reason}. Received: {name}={value!r}"
            )
