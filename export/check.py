"""Whether TF Serving would load a SavedModel, and answer as the model does.

TF Serving's server binary is on no package index. It is built on TensorFlow's C++ loader and
runtime, TF.Text's ops and nothing else, so that a graph of those ops, loaded and run by a TF1
Session and by the C API in processes of their own, comes as near as one gets without it.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.framework import op_def_pb2
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer.errors import InputError
from keras_transformer.export import c_api, session
from keras_transformer.export.assets import read_metadata, read_warmup

# Of those that TF Serving links, what tokenizers of this package need.
TEXT_OPS = {
    "SentencepieceOp",
    "SentencepieceTokenizeOp",
    "SentencepieceDetokenizeOp",
    "SentencepieceIdToStringOp",
    "FastWordpieceTokenizeWithOffsets",
    "TFText>FastWordpieceDetokenize",
}
# The C++ library knows these ops, and only a Python process can run them.
PYTHON_OPS = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}

STRING, FLOAT, BOOL, INT = tf.string, tf.float32, tf.bool, tf.int32
_BEST = {"translation": (STRING, 1), "score": (FLOAT, 1), "truncated": (BOOL, 1)}
# Type and rank of each signature's outputs; the inputs are vectors of strings.
SIGNATURES = {
    "serving_default": (("text",), _BEST),
    "greedy": (("text",), _BEST),
    "nbest": (("text",), {"translations": (STRING, 2), "scores": (FLOAT, 2)}),
    "attention": (
        ("text",),
        {
            "source_pieces": (STRING, 2),
            "target_pieces": (STRING, 2),
            "source_lengths": (INT, 1),
            "target_lengths": (INT, 1),
            "attention": (FLOAT, 3),
        },
    ),
    "score": (
        ("text", "target"),
        {"log_probability": (FLOAT, 1), "score": (FLOAT, 1), "truncated": (BOOL, 1)},
    ),
    "document": (
        ("text",),
        {"translation": (STRING, 1), "score": (FLOAT, 1), "sentences": (INT, 1)},
    ),
}
TIMEOUT = 1_200  # seconds of a script; a large model on a small machine
SCORE_TOLERANCE = 1e-3  # another runtime adds up in another order


class Finding(NamedTuple):
    """The result of one check.

    Attributes:
        name: what was checked.
        problem: what is wrong; None for nothing.
        detail: what was seen.
    """

    name: str
    problem: str | None
    detail: str


class _CheckError(Exception):
    """A check that found something wrong."""


def check_saved_model(
    path: str | Path, report: Callable[[Finding], None] = lambda finding: None
) -> list[Finding]:
    """Checks an export.

    Args:
        path: the version's folder.
        report: called with each finding as soon as there is one.

    Raises:
        InputError: if `path` is not an export of this package.
    """
    path = Path(path)
    metadata = read_metadata(path)
    try:
        proto = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
        (meta_graph,) = proto.meta_graphs
    except (OSError, ValueError, DecodeError) as error:
        raise InputError(f"{path / 'saved_model.pb'} is missing or damaged: {error}") from error
    examples = metadata["examples"]
    process = _CApi(path, meta_graph, [example["text"] for example in examples])
    findings = []
    for name, check in {
        "signatures": lambda: _check_signatures(meta_graph),
        "nodes": lambda: _check_nodes(meta_graph),
        "weights": lambda: _check_weights(path, metadata),
        "warm-up": lambda: _check_warmup(path),
        "Session": lambda: _check_session(path, examples),
        "C API": lambda: process.check_answers(examples),
        "ops": lambda: _check_ops(meta_graph, process.core_ops),
    }.items():
        try:
            findings.append(Finding(name, None, check()))
        except _CheckError as failure:
            findings.append(Finding(name, str(failure), ""))
        report(findings[-1])
    return findings


def _check_signatures(meta_graph: Any) -> str:
    for name, (inputs, outputs) in SIGNATURES.items():
        if name not in meta_graph.signature_def:
            raise _CheckError(f"there is no signature {name}")
        signature = meta_graph.signature_def[name]
        found = {key: _type_and_rank(info) for key, info in signature.inputs.items()}
        if found != dict.fromkeys(inputs, (STRING, 1)):
            raise _CheckError(f"{name} has the inputs {found}")
        found = {key: _type_and_rank(info) for key, info in signature.outputs.items()}
        if found != outputs:
            raise _CheckError(f"{name} has the outputs {found}")
    return f"{', '.join(SIGNATURES)}: strings in, a row out for each row in"


def _type_and_rank(info: Any) -> tuple[tf.DType, int]:
    return tf.as_dtype(info.dtype), len(info.tensor_shape.dim)


def _functions(meta_graph: Any) -> Iterator[Any]:
    for function in meta_graph.graph_def.library.function:
        if not any(word in function.signature.name for word in ("_traced_save", "_traced_restore")):
            yield function


def _nodes(meta_graph: Any) -> Iterator[Any]:
    """All nodes but TensorFlow's own saver's, which names the CPU that every machine has."""
    for node in meta_graph.graph_def.node:
        if node.name != "Const":
            yield node
    for function in _functions(meta_graph):
        yield from function.node_def


def _check_nodes(meta_graph: Any) -> str:
    if python := sorted({node.op for node in _nodes(meta_graph)} & PYTHON_OPS):
        raise _CheckError(f"the graph calls Python: {', '.join(python)}")
    if devices := sorted({node.device for node in _nodes(meta_graph)} - {""}):
        raise _CheckError(f"the graph is bound to devices: {', '.join(devices)}")
    for holder in (*_nodes(meta_graph), *_functions(meta_graph)):
        if holder.attr["_XlaMustCompile"].b:
            raise _CheckError("the graph asks for XLA, which servers turn off")
    return f"{sum(1 for _ in _nodes(meta_graph)):,}; no Python, no device, no XLA"


def _check_weights(path: Path, metadata: dict[str, Any]) -> str:
    files = (path / "variables").glob("variables.data-*")
    stored = sum(file.stat().st_size for file in files)
    needed = metadata["num_params"] * tf.as_dtype(metadata["weights"]).size
    overhead = 20_000 + needed // 50  # names, shapes
    if not needed <= stored <= needed + overhead:
        raise _CheckError(f"{needed:,} bytes of weights take {stored:,}")
    return (
        f"{metadata['num_params']:,} of {metadata['weights']}, stored once: {stored / 1e6:.1f} MB"
    )


def _check_warmup(path: Path) -> str:
    try:
        covered = [request.model_spec.signature_name for request in read_warmup(path)]
    except (ValueError, DecodeError, tf.errors.OpError) as error:
        raise _CheckError(f"the requests cannot be read: {error}") from error
    if missing := sorted(set(SIGNATURES) - set(covered)):
        raise _CheckError(f"no request for {', '.join(missing)}")
    return f"{len(covered)} requests"


def _check_session(path: Path, examples: list[dict[str, Any]]) -> str:
    texts = {"text": [example["text"] for example in examples]}
    requests: list[tuple[str, dict[str, Any]]] = [("serving_default", texts)]
    for request in read_warmup(path):
        inputs = {name: _texts(tensor) for name, tensor in request.inputs.items()}
        requests.append((request.model_spec.signature_name, inputs))
    lines = [json.dumps({"signature_name": name, "inputs": inputs}) for name, inputs in requests]
    answers = _run_script(session.__file__, [str(path)], "\n".join(lines) + "\n").splitlines()
    columns, *others = map(json.loads, answers)
    _compare(columns, examples)
    for (name, inputs), outputs in zip(requests[1:], others, strict=True):
        num_rows = {len(column) for column in (*inputs.values(), *outputs.values())}
        if len(num_rows) > 1:
            raise _CheckError(f"{name} gives another number of rows than it takes: {num_rows}")
    return (
        f"loads without Keras, answers {len(examples)} examples as the model does, and "
        f"{len(others)} requests to all signatures"
    )


def _texts(tensor: Any) -> list[str]:
    return [text.decode() for text in tf.make_ndarray(tensor).tolist()]


def _check_ops(meta_graph: Any, core_ops: set[str]) -> str:
    used = {node.op for node in _nodes(meta_graph)}
    used -= {function.signature.name for function in meta_graph.graph_def.library.function}
    if foreign := sorted(used - core_ops - TEXT_OPS):
        raise _CheckError(f"no server knows the ops {', '.join(foreign)}")
    texts = used & TEXT_OPS
    return f"{len(used)} kinds, TensorFlow's own and TF.Text's {', '.join(sorted(texts))}"


class _CApi:
    """The script `c_api`, run once for two checks."""

    def __init__(self, path: Path, meta_graph: Any, texts: list[str]) -> None:
        self._path, self._meta_graph, self._texts = path, meta_graph, texts
        self.core_ops: set[str] = set()

    def check_answers(self, examples: list[dict[str, Any]]) -> str:
        signature = self._meta_graph.signature_def["serving_default"]
        texts = [text.encode().decode("latin-1") for text in self._texts]
        run = {
            "inputs": {signature.inputs["text"].name: texts},
            "outputs": {name: info.name for name, info in signature.outputs.items()},
        }
        libraries = session.text_op_libraries()
        request = {"path": str(self._path), "libraries": libraries, "runs": [run]}
        answer = json.loads(_run_script(c_api.__file__, [], json.dumps(request)))
        ops = op_def_pb2.OpList.FromString(answer["core_ops"].encode("latin-1"))
        self.core_ops = {op.name for op in ops.op} - PYTHON_OPS
        (columns,) = answer["outputs"]
        columns["translation"] = [
            text.encode("latin-1").decode() for text in columns["translation"]
        ]
        _compare(columns, examples)
        return f"loads without Python and answers {len(examples)} examples as the model does"


def _run_script(file: str, arguments: list[str], stdin: str) -> str:
    try:
        process = subprocess.run(
            [sys.executable, "-P", file, *arguments],
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            check=False,
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired as error:
        raise _CheckError(f"it does not end within {TIMEOUT} s") from error
    if process.returncode:
        (*_, last) = ["it says nothing", *process.stderr.strip().splitlines()]
        raise _CheckError(f"it does not run: {last}")
    return process.stdout


def _compare(columns: dict[str, list[Any]], examples: list[dict[str, Any]]) -> None:
    for i, example in enumerate(examples):
        answer = {name: column[i] for name, column in columns.items()}
        expected = {name: example[name] for name in ("translation", "truncated")}
        close = abs(answer.pop("score") - example["score"]) <= SCORE_TOLERANCE
        if answer != expected or not close:
            raise _CheckError(f"{example['text']!r} gives {answer}, but the model gives {expected}")
