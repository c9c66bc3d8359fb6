"""Whether TF Serving would load a SavedModel, and answer as the model does.

TF Serving's server binary is on no package index. It is built on TensorFlow's C++ loader and
runtime, TF.Text's ops and nothing else, so that a graph of those ops, loaded and run by a TF1
Session and by the C API in processes of their own, comes as near as one gets without it.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.framework import op_def_pb2
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer.errors import InputError, one_line
from keras_transformer.export import c_api, session
from keras_transformer.export.assets import read_metadata, read_warmup
from keras_transformer.files import file_sha256

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


class _Export:
    """What is checked.

    Args:
        path: the version's folder.

    Attributes:
        path: the version's folder.
        metadata: what was exported.
        examples: the model's own answers.
        meta_graph: the graph, and its signatures.
        core_ops: ops that TensorFlow's own runtime can run; None until it has told.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata = read_metadata(path)
        self.examples: list[dict[str, Any]] = self.metadata["examples"]
        try:
            proto = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
            (self.meta_graph,) = proto.meta_graphs
        except (OSError, ValueError, DecodeError) as error:
            raise InputError(f"{path / 'saved_model.pb'} is missing or damaged: {error}") from error
        self.core_ops: set[str] | None = None

    @property
    def warmup(self) -> list[Any]:
        """The warm-up requests."""
        try:
            return list(read_warmup(self.path))
        except (ValueError, DecodeError, tf.errors.OpError) as error:
            raise _CheckError(f"the warm-up requests cannot be read: {error}") from error

    def functions(self) -> Iterator[Any]:
        """All functions but those that save and restore."""
        for function in self.meta_graph.graph_def.library.function:
            name = function.signature.name
            if not any(word in name for word in ("_traced_save", "_traced_restore")):
                yield function

    def nodes(self) -> Iterator[Any]:
        """All nodes but TensorFlow's own saver's, which names the CPU that every machine has."""
        for node in self.meta_graph.graph_def.node:
            if node.name != "Const":
                yield node
        for function in self.functions():
            yield from function.node_def


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
    export = _Export(Path(path))
    findings = []
    for name, check in _CHECKS.items():
        try:
            findings.append(Finding(name, None, check(export)))
        except _CheckError as failure:
            findings.append(Finding(name, str(failure), ""))
        except Exception as error:  # what is damaged may break a check anywhere
            problem = f"cannot be checked: {type(error).__name__}: {one_line(error)}"
            findings.append(Finding(name, problem, ""))
        report(findings[-1])
    return findings


def require_success(findings: Iterable[Finding], failure: str) -> None:
    """Checks that nothing was found.

    Args:
        findings: of the check.
        failure: what to say otherwise, before what was found.

    Raises:
        InputError: if there is a problem.
    """
    problems = [f"{finding.name}: {finding.problem}" for finding in findings if finding.problem]
    if problems:
        raise InputError(f"{failure}: {'; '.join(problems)}")


def _check_files(export: _Export) -> str:
    written = export.metadata["files"]
    for name, digest in written.items():
        try:
            changed = file_sha256(export.path / name) != digest
        except OSError as error:
            raise _CheckError(f"{name} cannot be read: {error.strerror}") from error
        if changed:
            raise _CheckError(f"{name} is not what was exported")
    return f"{len(written)}, as they were exported"


def _check_signatures(export: _Export) -> str:
    signatures = export.meta_graph.signature_def
    for name, (inputs, outputs) in SIGNATURES.items():
        if name not in signatures:
            raise _CheckError(f"there is no signature {name}")
        found = {key: _type_and_rank(info) for key, info in signatures[name].inputs.items()}
        if found != dict.fromkeys(inputs, (STRING, 1)):
            raise _CheckError(f"{name} has the inputs {found}")
        found = {key: _type_and_rank(info) for key, info in signatures[name].outputs.items()}
        if found != outputs:
            raise _CheckError(f"{name} has the outputs {found}")
    return f"{', '.join(SIGNATURES)}: strings in, a row out for each row in"


def _type_and_rank(info: Any) -> tuple[tf.DType, int]:
    return tf.as_dtype(info.dtype), len(info.tensor_shape.dim)


def _check_nodes(export: _Export) -> str:
    if python := sorted({node.op for node in export.nodes()} & PYTHON_OPS):
        raise _CheckError(f"the graph calls Python: {', '.join(python)}")
    if devices := sorted({node.device for node in export.nodes()} - {""}):
        raise _CheckError(f"the graph is bound to devices: {', '.join(devices)}")
    for holder in (*export.nodes(), *export.functions()):
        if holder.attr["_XlaMustCompile"].b:
            raise _CheckError("the graph asks for XLA, which servers turn off")
    return f"{sum(1 for _ in export.nodes()):,}; no Python, no device, no XLA"


def _check_weights(export: _Export) -> str:
    num_params, dtype = export.metadata["num_params"], export.metadata["weights"]
    files = (export.path / "variables").glob("variables.data-*")
    stored = sum(file.stat().st_size for file in files)
    needed = num_params * tf.as_dtype(dtype).size
    overhead = 20_000 + needed // 50  # names, shapes
    if not needed <= stored <= needed + overhead:
        raise _CheckError(f"{needed:,} bytes of weights take {stored:,}")
    return f"{num_params:,} of {dtype}, stored once: {stored / 1e6:.1f} MB"


def _check_warmup(export: _Export) -> str:
    covered = [request.model_spec.signature_name for request in export.warmup]
    if missing := sorted(set(SIGNATURES) - set(covered)):
        raise _CheckError(f"no request for {', '.join(missing)}")
    return f"{len(covered)} requests"


def _check_session(export: _Export) -> str:
    texts = {"text": [example["text"] for example in export.examples]}
    requests: list[tuple[str, dict[str, Any]]] = [("serving_default", texts)]
    for request in export.warmup:
        inputs = {name: _texts(tensor) for name, tensor in request.inputs.items()}
        requests.append((request.model_spec.signature_name, inputs))
    lines = [json.dumps({"signature_name": name, "inputs": inputs}) for name, inputs in requests]
    stdin = "\n".join(lines) + "\n"
    answers = _run_script(session.__file__, [str(export.path)], stdin).splitlines()
    columns, *others = map(json.loads, answers)
    _compare(columns, export.examples)
    for (name, inputs), outputs in zip(requests[1:], others, strict=True):
        num_rows = {len(column) for column in (*inputs.values(), *outputs.values())}
        if len(num_rows) > 1:
            raise _CheckError(f"{name} gives another number of rows than it takes: {num_rows}")
    return (
        f"loads without Keras, answers {len(export.examples)} examples as the model does, and "
        f"{len(others)} requests to all signatures"
    )


def _texts(tensor: Any) -> list[str]:
    return [text.decode() for text in tf.make_ndarray(tensor).tolist()]


def _check_c_api(export: _Export) -> str:
    signature = export.meta_graph.signature_def["serving_default"]
    texts = [example["text"].encode().decode("latin-1") for example in export.examples]
    run = {
        "inputs": {signature.inputs["text"].name: texts},
        "outputs": {name: info.name for name, info in signature.outputs.items()},
    }
    libraries = session.text_op_libraries()
    request = {"path": str(export.path), "libraries": libraries, "runs": [run]}
    answer = json.loads(_run_script(c_api.__file__, [], json.dumps(request)))
    ops = op_def_pb2.OpList.FromString(answer["core_ops"].encode("latin-1"))
    export.core_ops = {op.name for op in ops.op} - PYTHON_OPS
    (columns,) = answer["outputs"]
    columns["translation"] = [text.encode("latin-1").decode() for text in columns["translation"]]
    _compare(columns, export.examples)
    return f"loads without Python and answers {len(export.examples)} examples as the model does"


def _check_ops(export: _Export) -> str:
    if export.core_ops is None:
        raise _CheckError("not known, for the C API did not answer")
    used = {node.op for node in export.nodes()}
    used -= {function.signature.name for function in export.meta_graph.graph_def.library.function}
    if foreign := sorted(used - export.core_ops - TEXT_OPS):
        raise _CheckError(f"no server knows the ops {', '.join(foreign)}")
    texts = used & TEXT_OPS
    return f"{len(used)} kinds, TensorFlow's own and TF.Text's {', '.join(sorted(texts))}"


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


# In this order: the C API tells the ops that there are.
_CHECKS: dict[str, Callable[[_Export], str]] = {
    "files": _check_files,
    "signatures": _check_signatures,
    "nodes": _check_nodes,
    "weights": _check_weights,
    "warm-up": _check_warmup,
    "Session": _check_session,
    "C API": _check_c_api,
    "ops": _check_ops,
}
