"""A SavedModel in a TF1 Session, which is how TF Serving loads and runs it.

As a script it needs TensorFlow and the text op library, but neither this package nor Keras:

    python session.py MODELS/NAME/1 < requests.jsonl

reads a request a line, {"signature_name": "serving_default", "inputs": {"text": ["Two dogs."]}},
and prints the outputs of each, {"translation": [...], ...}.
"""

import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":
    # TensorFlow imports Keras where it can; this process is to prove that nothing needs it.
    sys.modules["keras"] = None  # type: ignore[assignment]

import numpy as np
import tensorflow as tf

TAGS = ["serve"]


class TensorInfo(NamedTuple):
    """An input or output of a signature.

    Attributes:
        name: of the tensor in the graph.
        dtype: its type.
        shape: its sizes, None where any size goes; None for any rank.
    """

    name: str
    dtype: tf.DType
    shape: tuple[int | None, ...] | None


class Signature(NamedTuple):
    """What a signature takes and gives.

    Attributes:
        inputs: by name.
        outputs: by name.
    """

    inputs: dict[str, TensorInfo]
    outputs: dict[str, TensorInfo]


class SavedModelSession:
    """Runs the signatures of a SavedModel. Threads may share it.

    Args:
        path: the folder of a version, `MODELS/NAME/VERSION`.

    Attributes:
        signatures: by name.

    Raises:
        ValueError: if it does not hold a SavedModel with a signature `serving_default`.
    """

    signatures: dict[str, Signature]

    def __init__(self, path: str | Path) -> None:
        for library in text_op_libraries():
            tf.load_op_library(library)
        self._session = tf.compat.v1.Session(graph=tf.Graph())
        try:
            with self._session.graph.as_default():
                meta_graph = tf.compat.v1.saved_model.load(self._session, TAGS, str(path))
            self.signatures = {
                name: Signature(_tensors(signature.inputs), _tensors(signature.outputs))
                for name, signature in meta_graph.signature_def.items()
                if not name.startswith("__")  # TensorFlow's own
            }
            _ = self.signatures["serving_default"]
        except (OSError, RuntimeError, KeyError, ValueError, tf.errors.OpError) as error:
            self._session.close()
            raise ValueError(
                f"{path} does not hold a whole SavedModel with a signature serving_default"
            ) from error

    def run(
        self, signature: str, inputs: Mapping[str, Any], timeout: float | None = None
    ) -> dict[str, np.ndarray]:
        """Runs a signature.

        Args:
            signature: its name.
            inputs: by name, all of the signature's; strings as bytes.
            timeout: seconds after which it is given up; None for never.

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
        """Asks a signature whose only input is `text`.

        Args:
            texts: a row each.
            signature: its name.

        Returns:
            The outputs by name for each text, bytes decoded.
        """
        if not texts:
            return []
        encoded = [
            text if isinstance(text, bytes) else text.encode(errors="replace") for text in texts
        ]
        return rows_of(self.run(signature, {"text": encoded}))

    def close(self) -> None:
        """Frees the weights; runs that have begun must have ended."""
        self._session.close()


def rows_of(outputs: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Turns columns, a tensor with a leading dimension of B each, into B rows of plain values."""
    return [
        {name: _plain(value) for name, value in zip(outputs, values, strict=True)}
        for values in zip(*(array.tolist() for array in outputs.values()), strict=True)
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


def _tensors(infos: Mapping[str, Any]) -> dict[str, TensorInfo]:
    tensors = {}
    for name, info in infos.items():
        shape = tf.TensorShape(info.tensor_shape)
        sizes = None if shape.rank is None else tuple(shape.as_list())
        tensors[name] = TensorInfo(info.name, tf.as_dtype(info.dtype), sizes)
    return tensors


def text_op_libraries() -> list[str]:
    """Returns the files of the tokenizers' ops, without importing tensorflow_text."""
    spec = importlib.util.find_spec("tensorflow_text")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("tensorflow_text is not installed")
    folder = Path(spec.submodule_search_locations[0]) / "python" / "ops"
    names = ("_sentencepiece_tokenizer.so", "_fast_wordpiece_tokenizer.so")
    return [str(folder / name) for name in names]


def _main() -> None:
    session = SavedModelSession(sys.argv[1])
    for line in sys.stdin:
        request = json.loads(line)
        outputs = session.run(request["signature_name"], request["inputs"])
        answer = {name: _plain(array.tolist()) for name, array in outputs.items()}
        sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    _main()
