"""A SavedModel in a TF1 Session, which is how TF Serving loads and runs it.

As a script it needs TensorFlow and the text op library, but neither this package nor Keras:

    python session.py MODELS/NAME/1 < texts.txt

prints a JSON object a line of input, with the outputs of `serving_default`.
"""

import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # TensorFlow imports Keras where it can; this process is to prove that nothing needs it.
    sys.modules["keras"] = None  # type: ignore[assignment]

import tensorflow as tf


class SavedModelSession:
    """Runs the signature `serving_default` of a SavedModel.

    Args:
        path: the folder of a version, `MODELS/NAME/VERSION`.

    Raises:
        ValueError: if it does not hold such a SavedModel.
    """

    def __init__(self, path: str | Path) -> None:
        _load_text_ops()
        self._session = tf.compat.v1.Session(graph=tf.Graph())
        try:
            with self._session.graph.as_default():
                meta_graph = tf.compat.v1.saved_model.load(self._session, ["serve"], str(path))
            signature = meta_graph.signature_def["serving_default"]
            self._input = signature.inputs["text"].name
            self._outputs = {
                name: signature.outputs[name].name for name in ("translation", "score", "truncated")
            }
        except (OSError, RuntimeError, KeyError, ValueError, tf.errors.OpError) as error:
            raise ValueError(
                f"{path} does not hold a SavedModel with a signature serving_default of text"
            ) from error

    def translate(self, texts: Sequence[str | bytes]) -> list[dict[str, Any]]:
        """Returns the outputs for each text: `translation`, `score` and `truncated`."""
        if not texts:
            return []
        encoded = [
            text if isinstance(text, bytes) else text.encode("utf-8", errors="replace")
            for text in texts
        ]
        columns = self._session.run(self._outputs, {self._input: encoded})
        rows = []
        for values in zip(*columns.values(), strict=True):
            row = dict(zip(columns, values, strict=True))
            rows.append(
                {
                    "translation": row["translation"].decode(),
                    "score": float(row["score"]),
                    "truncated": bool(row["truncated"]),
                }
            )
        return rows


def _load_text_ops() -> None:
    """Registers the tokenizers' ops, without importing tensorflow_text."""
    spec = importlib.util.find_spec("tensorflow_text")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("tensorflow_text is not installed")
    folder = Path(spec.submodule_search_locations[0])
    for name in ("_sentencepiece_tokenizer", "_fast_wordpiece_tokenizer"):
        tf.load_op_library(str(folder / "python" / "ops" / f"{name}.so"))


def _main() -> None:
    session = SavedModelSession(sys.argv[1])
    texts = [line.rstrip(b"\r\n") for line in sys.stdin.buffer]
    for start in range(0, len(texts), 32):
        for row in session.translate(texts[start : start + 32]):
            sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    _main()
