"""A SavedModel in a TF1 Session, which is how TF Serving loads and runs it.

As a script, it needs TensorFlow and TF.Text's op libraries, but neither this package nor Keras:

    python session.py MODELS/NAME/1 < requests.jsonl

It reads one request from each line, {"signature_name": "serving_default", "inputs": {"text":
["Two dogs."]}}, and prints the outputs of each request on one line, {"translation": [...], ...}.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":
    # TensorFlow imports Keras if it is there. Here it must not, to show that nothing needs Keras.
    sys.modules["keras"] = None  # type: ignore[assignment]

import numpy as np
import tensorflow as tf

TEXT_OPS = (
    "sentencepiece_tokenizer",
    "fast_wordpiece_tokenizer",
    "regex_split_ops",
    "normalize_ops",
)


class TensorInfo(NamedTuple):
    """An input or output of a signature."""

    name: str  # in the graph
    dtype: tf.DType
    shape: tuple[int | None, ...] | None  # a None stands for any size, and None alone for any rank


class Signature(NamedTuple):
    """The inputs and outputs of a signature, by name."""

    inputs: dict[str, TensorInfo]
    outputs: dict[str, TensorInfo]


class SavedModelSession:
    """Runs the signatures of a SavedModel. Threads may share it.

    Args:
        path: the folder of a version, `MODELS/NAME/VERSION`.

    Attributes:
        signatures: the signatures by name.

    Raises:
        ValueError: if it does not hold a SavedModel with a signature `serving_default`.
    """

    signatures: dict[str, Signature]

    def __init__(self, path: str | Path) -> None:
        text = metadata.distribution("tensorflow-text")
        for name in TEXT_OPS:  # without the Python of TF.Text, which imports Keras
            tf.load_op_library(str(text.locate_file(f"tensorflow_text/python/ops/_{name}.so")))
        self._session = tf.compat.v1.Session(graph=tf.Graph())
        try:
            with self._session.graph.as_default():
                meta_graph = tf.compat.v1.saved_model.load(self._session, ["serve"], str(path))
            self.signatures = {
                name: Signature(_tensors(signature.inputs), _tensors(signature.outputs))
                for name, signature in meta_graph.signature_def.items()
                if not name.startswith("__")  # TensorFlow's own
            }
            _ = self.signatures["serving_default"]
        except (OSError, RuntimeError, KeyError, ValueError, tf.errors.OpError) as error:
            self._session.close()
            raise ValueError(
                f"{path} does not hold a complete SavedModel with a signature serving_default"
            ) from error

    def run(
        self, signature: str, inputs: Mapping[str, Any], timeout: float | None = None
    ) -> dict[str, np.ndarray]:
        """Runs a signature.

        Args:
            signature: its name.
            inputs: all inputs of the signature by name; strings as bytes.
            timeout: seconds after which the run is cancelled; None for never. A merged request
                is answered when its batch ends.

        Returns:
            The outputs by name.

        Raises:
            KeyError: if there is no such signature, or no such input.
            tf.errors.DeadlineExceededError: if it takes longer than `timeout`.
        """
        tensors = self.signatures[signature]
        feeds = {tensors.inputs[name].name: value for name, value in inputs.items()}
        fetches = {name: info.name for name, info in tensors.outputs.items()}
        options = timeout and tf.compat.v1.RunOptions(timeout_in_ms=max(1, int(1_000 * timeout)))
        outputs: dict[str, np.ndarray] = self._session.run(fetches, feeds, options or None)
        return outputs

    def translate(
        self, texts: Sequence[str | bytes], signature: str = "serving_default"
    ) -> list[dict[str, Any]]:
        """Runs a signature whose only input is `text`.

        Args:
            texts: the texts.
            signature: its name.

        Returns:
            The outputs by name for each text, with strings decoded.
        """
        encoded = [
            text if isinstance(text, bytes) else text.encode(errors="replace") for text in texts
        ]
        return rows_of(self.run(signature, {"text": encoded}))

    def close(self) -> None:
        """Frees the weights. No run may be in progress."""
        self._session.close()


def rows_of(outputs: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Turns outputs, tensors with a leading dimension of B, into B rows of numbers and strings."""
    columns = [decoded(array.tolist()) for array in outputs.values()]
    return [dict(zip(outputs, row, strict=True)) for row in zip(*columns, strict=True)]


def decoded(value: Any) -> Any:
    """Returns nested lists of bytes or numbers with the bytes decoded."""
    if isinstance(value, list):
        return [decoded(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


def _tensors(infos: Mapping[str, Any]) -> dict[str, TensorInfo]:
    tensors = {}
    for name, info in infos.items():
        shape = tf.TensorShape(info.tensor_shape)
        sizes = None if shape.rank is None else tuple(shape.as_list())
        tensors[name] = TensorInfo(info.name, tf.as_dtype(info.dtype), sizes)
    return tensors


def _main() -> None:
    session = SavedModelSession(sys.argv[1])
    for line in sys.stdin:
        request = json.loads(line)
        outputs = session.run(request["signature_name"], request["inputs"])
        answer = {name: decoded(array.tolist()) for name, array in outputs.items()}
        sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    _main()
