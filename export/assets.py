"""What lies beside the graph, in a SavedModel's `assets.extra/`: metadata and warm-up requests."""

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, get_args

import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from keras_transformer._version import __version__
from keras_transformer.errors import InputError
from keras_transformer.files import file_sha256

FOLDER = "assets.extra"
METADATA = "metadata.json"
WARMUP = "tf_serving_warmup_requests"  # TF Serving's name
MAX_WARMUP_REQUESTS = 1_000  # TF Serving's
FORMAT = "keras-transformer export"

WeightsType = Literal["float32", "float16", "bfloat16"]  # what weights may be stored as


def write_metadata(path: Path, values: Mapping[str, Any]) -> None:
    """Writes `values`, time, versions and a SHA-256 of each file into the SavedModel at `path`."""
    packages = ("tensorflow", "tensorflow-text", "keras")
    versions = {"keras3-transformer": __version__}
    versions |= {package: metadata.version(package) for package in packages}
    files = sorted(file for file in path.rglob("*") if file.is_file() and file.name != METADATA)
    written = {
        "format": FORMAT,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions,
        "git_revision": _git_revision(),
        "files": {str(file.relative_to(path)): file_sha256(file) for file in files},
        **values,
    }
    folder = path / FOLDER
    folder.mkdir(exist_ok=True)
    text = json.dumps(written, indent=2, ensure_ascii=False)
    (folder / METADATA).write_text(text + "\n", encoding="utf-8")


def read_metadata(path: Path) -> dict[str, Any]:
    """Returns what `write_metadata` wrote.

    Raises:
        InputError: if the SavedModel at `path` is not one of this package's.
    """
    file = path / FOLDER / METADATA
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"{path} is not an export of this package: cannot read {file}: {error.strerror}"
        ) from error
    except ValueError as error:
        raise InputError(f"{file} is damaged: {error}") from error
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise InputError(f"{file} must be of the format {FORMAT!r}")
    if values.get("weights") not in get_args(WeightsType) or not isinstance(
        values.get("num_params"), int
    ):
        raise InputError(f"{file} is damaged: it must tell the number and the type of weights")
    files = values.get("files")
    if not isinstance(files, dict) or not all(isinstance(each, str) for each in files.values()):
        raise InputError(f"{file} is damaged: it must tell the SHA-256 of each file")
    examples = values.get("examples")
    if not isinstance(examples, list) or not examples or not all(map(_is_example, examples)):
        raise InputError(f"{file} is damaged: it must tell the model's own answers to examples")
    return values


def _is_example(value: Any) -> bool:
    return isinstance(value, dict) and {
        name: type(value.get(name)) for name in ("text", "translation", "score", "truncated")
    } == {"text": str, "translation": str, "score": float, "truncated": bool}


def write_warmup(path: Path, name: str, requests: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Writes requests that TF Serving replays before it announces a version.

    Args:
        path: the version's folder.
        name: of the model.
        requests: signatures, and their inputs by name, lists of strings.
    """
    folder = path / FOLDER
    folder.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(folder / WARMUP)) as writer:
        for signature, inputs in requests:
            request = predict_pb2.PredictRequest()
            request.model_spec.name = name
            request.model_spec.signature_name = signature
            for key, values in inputs.items():
                request.inputs[key].CopyFrom(tf.make_tensor_proto(values, tf.string))
            log = prediction_log_pb2.PredictionLog()
            log.predict_log.request.CopyFrom(request)
            writer.write(log.SerializeToString())


def read_warmup(path: Path) -> Iterator[predict_pb2.PredictRequest]:
    """Yields the warm-up requests of the SavedModel at `path`, none if it has none.

    Raises:
        ValueError: if there are more than TF Serving takes, or of another kind than Predict.
    """
    file = path / FOLDER / WARMUP
    if not file.exists():
        return
    records = tf.data.TFRecordDataset(str(file)).as_numpy_iterator()
    for number, record in enumerate(records, start=1):
        if number > MAX_WARMUP_REQUESTS:
            raise ValueError(
                f"Number of warmup records exceeds the maximum ({MAX_WARMUP_REQUESTS})"
            )
        log = prediction_log_pb2.PredictionLog.FromString(record)
        if not log.HasField("predict_log"):
            raise ValueError(f"Unsupported log_type for warmup: {log.WhichOneof('log_type')}")
        yield log.predict_log.request


def _git_revision() -> str | None:
    """The commit of this package's source, where it runs from a checkout."""
    folder = Path(__file__).parent
    try:
        tracked = subprocess.run(
            ["git", "ls-files", "--error-unmatch", __file__],
            cwd=folder,
            capture_output=True,
            check=False,
        )
        if tracked.returncode:
            return None
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:  # no git
        return None
    return described.stdout.strip() or None
