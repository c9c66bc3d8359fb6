"""A run of several trained runs."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from keras_transformer.config import CheckpointName
from keras_transformer.ensemble.config import EnsembleConfig
from keras_transformer.ensemble.model import Ensemble
from keras_transformer.errors import InputError
from keras_transformer.files import atomic_folder, require_new
from keras_transformer.run import Run
from keras_transformer.trainers.data.prepared import corpus_folder
from keras_transformer.trainers.tasks import task_of


def combine(
    members: Sequence[str | Path], run_dir: str | Path, checkpoint: CheckpointName | None = None
) -> Run:
    """Writes an ensemble of two or more runs as a new run directory, which all commands read.

    The runs have the same tokenizer, languages and task. The settings, such as those of the search,
    are the first run's.
    """
    run_dir = Path(run_dir)
    require_new(run_dir)
    if len(members) < 2 or len({Path(path).resolve() for path in members}) < len(members):
        raise InputError(
            "`members` must be two or more different run directories. "
            f"Received: {', '.join(map(str, members))}"
        )
    runs = [Run.load(path) for path in members]
    first = runs[0]
    for run in runs[1:]:
        for what, one, other in (
            ("languages", (first.source, first.target), (run.source, run.target)),
            ("task", task_of(first.settings).name, task_of(run.settings).name),
            ("tokenizer", first.tokenizer_sha256[:8], run.tokenizer_sha256[:8]),
        ):
            if one != other:
                raise InputError(
                    f"The {what} of all runs must be the same: train them with the data of one "
                    f"`prepare`. {first.path} has {one}, and {run.path} has {other}"
                )
    chosen = [run.checkpoint(checkpoint) for run in runs]
    model = Ensemble(EnsembleConfig.of([run.config for run in runs]))
    for run, member, weights in zip(runs, model.members, chosen, strict=True):
        run.load_weights(member, weights)
    pairs = zip(runs, chosen, strict=True)
    files = [str((run.path / weights.file).resolve()) for run, weights in pairs]
    with atomic_folder(run_dir) as written:
        ensemble = Run.create(
            written, model.config, first.tokenizer(), first.source, first.target, first.settings
        )
        ensemble.save_checkpoint(model, step=0, metrics={"of_files": files}, is_best=True)
        text = corpus_folder(first) / "val.pairs.json"
        if text.is_file():  # to check an export with
            (written / "corpus").mkdir()
            shutil.copy(text, written / "corpus")
        ensemble.finish()
    return Run.load(run_dir)
