"""The files of a run's `checkpoints/`: weights, and training states.

They are written under a temporary name and renamed, and their hashes are checked when they are
read. Reading them executes no code: they are HDF5 and NumPy arrays.
"""

import math
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pydantic

from keras_transformer.errors import InputError
from keras_transformer.files import atomic_file, check_file, file_sha256

if TYPE_CHECKING:
    import keras

RESTORE = "restore it from a copy, or, if the run is being trained, load the run again"
RESUME_ADVICE = "What was saved before is complete, and training with --resume continues from it"
PER_TOKEN = ("val_loss", "val_token_loss", "val_perplexity", "val_accuracy")
# The names of the files that are written to `checkpoints/`; users' own files there are kept.
WRITTEN = re.compile(
    r"(tmp-)?((step-\d{8,}|averaged-\d{8,}-\d{8,}-\d+)\.weights\.h5|state-\d{8,}\.npz)"
)


@pydantic.dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A saved file: the weights, or the training state, after a number of updates."""

    file: str  # path relative to the run directory
    sha256: str  # of the file
    step: int  # number of updates so far
    metrics: dict[str, Any]  # of a validation; an average has `of_steps` too, a state `seconds`


class State(NamedTuple):
    """What the next update of a training depends on."""

    arrays: dict[str, np.ndarray]  # variables by name
    seconds: float  # training time so far


class CheckpointFolder(NamedTuple):
    """The folder `checkpoints/` of a run directory."""

    run_dir: Path

    def write_weights(
        self, model: "keras.Model", name: str, step: int, metrics: Mapping[str, Any]
    ) -> Checkpoint:
        """Writes the weights of a model as `NAME.weights.h5`."""
        size = 4 * model.count_params() + 2**20

        def write(path: Path) -> None:
            # HDF5 crashes on a full disk; this raises an error before it begins.
            with path.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, size)
            model.save_weights(path)

        return self._write(f"{name}.weights.h5", step, metrics, write)

    def read_weights(self, model: "keras.Model", saved: Checkpoint) -> None:
        file = self._checked(saved)
        try:
            with warnings.catch_warnings():
                # Keras warns of layers that keep their initial values.
                warnings.simplefilter("error", UserWarning)
                model.load_weights(file)
        except (OSError, ValueError, KeyError, UserWarning) as error:
            raise InputError(f"{file} does not hold the weights of this model") from error

    def count_parameters(self, saved: Checkpoint) -> int:
        """Counts the parameters of a checkpoint, without reading them."""
        import h5py  # takes time, and settings are read without it

        file, items = self.run_dir / saved.file, []
        try:
            with h5py.File(file) as weights:
                weights.visititems(lambda _, item: items.append(item))
                arrays = [item for item in items if isinstance(item, h5py.Dataset)]
                return sum(array.size for array in arrays if array.dtype.kind == "f")  # no seeds
        except OSError as error:
            raise InputError(f"{file} is missing or damaged") from error

    def write_state(self, state: State, step: int) -> Checkpoint:
        return self._write(
            f"state-{step:08d}.npz",
            step,
            {"seconds": state.seconds},
            lambda path: np.savez(path, **state.arrays),  # type: ignore[arg-type]
        )

    def read_state(self, saved: Checkpoint) -> State:
        with np.load(self._checked(saved)) as arrays:
            return State(dict(arrays), saved.metrics["seconds"])

    def delete_others(self, kept: Iterable[Checkpoint]) -> None:
        """Deletes all checkpoints and states but those that are kept, and unfinished files."""
        names = {Path(saved.file).name for saved in kept}
        for path in (self.run_dir / "checkpoints").iterdir():
            if path.name not in names and WRITTEN.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def _write(
        self, name: str, step: int, metrics: Mapping[str, Any], write: Callable[[Path], None]
    ) -> Checkpoint:
        file = f"checkpoints/{name}"
        with atomic_file(self.run_dir / file, RESUME_ADVICE) as temporary:
            write(temporary)
        return Checkpoint(file, file_sha256(self.run_dir / file), step, dict(metrics))

    def _checked(self, saved: Checkpoint) -> Path:
        file = self.run_dir / saved.file
        check_file(file, saved.sha256, RESTORE)
        return file


def quality(metrics: Mapping[str, Any], metric: str | None = None) -> tuple[float, float]:
    """Returns the score of a validation, and minus its loss, which decides between equal scores."""
    # Without a `metric`, it is the first that is no mean over tokens: the usual one of the task.
    scores = (name for name in metrics if name.startswith("val_") and name not in PER_TOKEN)
    name = f"val_{metric}" if metric else next(scores, "")
    score = 0.0 if metric == "loss" else metrics.get(name, -math.inf)
    return round(score, 2), -metrics.get("val_token_loss", math.inf)
