"""A SavedModel in a TF1 Session, which is how TF Serving loads and runs it.

As a script, it needs TensorFlow and TF.Text's op libraries, but neither this package nor Keras:

    python session.py MODELS/NAME/1 < requests.jsonl

It reads one request from each line, {"signature_name": "serving_default", "inputs": {"text":
["Two dogs."]}}, and prints the outputs of each request on one line, {"translation": [...], ...}.
"""

import itertools
import json
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # TensorFlow imports Keras if it is installed. Without it, the script shows that none is needed.
    sys.modules["keras"] = None  # type: ignore[assignment]

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

MAX_MESSAGE = 1024  # characters of an error message, as in TF Serving
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
        optimize: whether TensorFlow optimizes the functions of the graph before the first run of
            each signature. That takes a second or more, and later runs take less time. TF Serving
            also optimizes the graph around them, which takes as long and saves nothing.

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
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        self._session = tf.compat.v1.Session(graph=tf.Graph(), config=config)
        try:
            with tempfile.TemporaryDirectory() as folder, self._session.graph.as_default():
                loaded = str(path) if optimize else _unoptimized(Path(path), folder, config)
                meta_graph = tf.compat.v1.saved_model.load(self._session, ["serve"], loaded)
        except (OSError, RuntimeError, ValueError, DecodeError, tf.errors.OpError) as error:
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
        # In the caller's thread: other threads cost a small model 10 % of the time.
        options = tf.compat.v1.RunOptions(inter_op_thread_pool=-1)
        outputs: dict[str, np.ndarray] = self._session.run(fetches, feeds, options)
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


def message_of(error: BaseException) -> str:
    """Returns the line of an error that says what happened, without the names of nodes."""
    message = error.message if isinstance(error, tf.errors.OpError) else str(error)
    message = re.split(r"^Node: .*\n", message, flags=re.MULTILINE)[-1]
    message = message.removeprefix("Graph execution error:").strip()
    return message.partition("\n")[0][:MAX_MESSAGE]


def _unoptimized(path: Path, folder: str, config: tf.compat.v1.ConfigProto) -> str:
    """Fills a folder with a SavedModel whose functions are called with `config`, and returns it.

    A function is called with the config of its export, and not with that of the session.
    """
    for file in path.iterdir():
        Path(folder, file.name).symlink_to(file.resolve())
    saved_model = SavedModel.FromString((path / "saved_model.pb").read_bytes())
    for graph in (each.graph_def for each in saved_model.meta_graphs):
        nodes = itertools.chain(graph.node, *(each.node_def for each in graph.library.function))
        for node in nodes:
            if "config_proto" in node.attr:
                node.attr["config_proto"].s = config.SerializeToString()
    Path(folder, "saved_model.pb").unlink()
    Path(folder, "saved_model.pb").write_bytes(saved_model.SerializeToString())
    return folder


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
