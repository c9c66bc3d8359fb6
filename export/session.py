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
from typing import Any

if __name__ == "__main__":
    # TensorFlow imports Keras if it is installed. Without it, the script shows that none is needed.
    sys.modules["keras"] = None  # type: ignore[assignment]

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef

TEXT_OPS = (
    "sentencepiece_tokenizer",
    "fast_wordpiece_tokenizer",
    "regex_split_ops",
    "normalize_ops",
)


class SavedModelSession:
    """Runs the signatures of a SavedModel. Threads may share it.

    Args:
        path: the folder of a version, `MODELS/NAME/VERSION`.
        optimize: whether TensorFlow optimizes the graph before the first run of each signature, as
            it does in TF Serving. That takes seconds, and later runs are no faster.

    Attributes:
        signatures: the protocol buffers of the signatures, by name.

    Raises:
        ValueError: if it does not hold a complete SavedModel.
    """

    signatures: dict[str, SignatureDef]

    def __init__(self, path: str | Path, optimize: bool = False) -> None:
        text = metadata.distribution("tensorflow-text")
        for name in TEXT_OPS:  # without the Python of TF.Text, which imports Keras
            tf.load_op_library(str(text.locate_file(f"tensorflow_text/python/ops/_{name}.so")))
        config = tf.compat.v1.ConfigProto()
        config.graph_options.rewrite_options.disable_meta_optimizer = not optimize
        self._session = tf.compat.v1.Session(graph=tf.Graph(), config=config)
        try:
            with self._session.graph.as_default():
                meta_graph = tf.compat.v1.saved_model.load(self._session, ["serve"], str(path))
        except (OSError, RuntimeError, ValueError, tf.errors.OpError) as error:
            self._session.close()
            raise ValueError(f"{path} does not hold a complete SavedModel: {error}") from error
        self.signatures = {
            name: signature
            for name, signature in meta_graph.signature_def.items()
            if not name.startswith("__")  # TensorFlow's own
        }

    def run(self, signature: str, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Returns the outputs of a signature by name.

        Args:
            signature: its name.
            inputs: all its inputs by name; strings as bytes.

        Raises:
            KeyError: if there is no such signature, or if an input is missing.
        """
        tensors = self.signatures[signature]
        feeds = {info.name: inputs[name] for name, info in tensors.inputs.items()}
        fetches = {name: info.name for name, info in tensors.outputs.items()}
        outputs: dict[str, np.ndarray] = self._session.run(fetches, feeds)
        return outputs

    def translate(
        self, texts: Sequence[str | bytes], signature: str = "serving_default"
    ) -> list[dict[str, Any]]:
        """Returns the outputs for each text by name, with strings decoded.

        Args:
            texts: any number up to the graph's limit; bytes are UTF-8.
            signature: one whose only input is `text`.
        """
        encoded = [
            text if isinstance(text, bytes) else text.encode(errors="replace") for text in texts
        ]
        return rows_of(self.run(signature, {"text": encoded}))

    def close(self) -> None:
        """Frees the weights. No run may be in progress."""
        self._session.close()


def columns_of(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Returns arrays as nested lists of numbers and strings."""
    return {name: _decoded(array.tolist()) for name, array in arrays.items()}


def rows_of(arrays: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Turns arrays with a leading dimension of B into B rows of numbers and strings."""
    columns = columns_of(arrays)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


def _main() -> None:
    session = SavedModelSession(sys.argv[1], optimize=True)
    for line in sys.stdin:
        request = json.loads(line)
        outputs = session.run(request["signature_name"], request["inputs"])
        sys.stdout.write(json.dumps(columns_of(outputs)) + "\n")


if __name__ == "__main__":
    _main()
