"""Checks that TF Serving would load a SavedModel, and that it answers as the model does.

The export runs in a new process without the Python code of TensorFlow, TF.Text and Keras, in a
session of C++ like that of TF Serving, which pip cannot install.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef, SignatureDef
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from keras_transformer.errors import InputError, as_input_error, one_line
from keras_transformer.export.metadata import read_metadata
from keras_transformer.export.options import SIGNATURES, Signature
from keras_transformer.export.rows import Row, columns_of
from keras_transformer.export.warmup import read_warmup
from keras_transformer.files import check_file

PYTHON_OPS = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}  # only a Python process can run these

SCORE_TOLERANCE = 1e-3  # another runtime adds in another order
# Answers requests, one a line.
PROGRAM = """
import json, sys
from keras_transformer.export.rows import rows_of
from keras_transformer.export.session import SavedModelSession

session = SavedModelSession(sys.argv[1], optimize=True)
for line in sys.stdin:
    print(json.dumps(rows_of(session.run(*json.loads(line)))))
"""

Request = tuple[str, dict[str, list[str]]]  # a signature, and its inputs by name


class Finding(NamedTuple):
    """The result of one check."""

    name: str  # what was checked
    problem: str | None  # None if there is none
    detail: str  # what was found


class Export(NamedTuple):
    path: Path  # the version's folder
    metadata: dict[str, Any]
    meta_graph: MetaGraphDef

    @property
    def signatures(self) -> dict[str, Signature]:
        has = self.meta_graph.signature_def
        return {name: x for name, x in SIGNATURES.items() if not x.needs or name in has}


def check_saved_model(
    path: str | Path, report: Callable[[Finding], None] = lambda finding: None
) -> list[Finding]:
    """Checks an export.

    Args:
        path: the version's folder.
        report: called with each finding as soon as it is known.

    Raises:
        InputError: if `path` is not an export of this package.
    """
    export = open_export(Path(path))
    findings = []
    for name, check in CHECKS.items():
        try:
            finding = Finding(name, None, check(export))
        except InputError as error:
            finding = Finding(name, str(error), "")
        except Exception as error:  # a damaged file may break a check anywhere
            reason = f"{type(error).__name__}: {one_line(error)}"
            finding = Finding(name, f"cannot be checked: {reason}", "")
        findings.append(finding)
        report(finding)
    return findings


def require_success(findings: Iterable[Finding], failure: str) -> None:
    """Raises an `InputError` that begins with `failure` if there is a problem."""
    problems = [f"{finding.name}: {finding.problem}" for finding in findings if finding.problem]
    if problems:
        raise InputError(f"{failure}: {'; '.join(problems)}")


def open_export(path: Path) -> Export:
    metadata = read_metadata(path)
    file = path / "saved_model.pb"
    with as_input_error(f"{file} is missing or damaged", OSError, ValueError, DecodeError):
        (meta_graph,) = SavedModel.FromString(file.read_bytes()).meta_graphs
    return Export(path, metadata, meta_graph)


def check_files(export: Export) -> str:
    for name, digest in export.metadata["files"].items():
        check_file(export.path / name, digest, "export the run again")
    return f"{len(export.metadata['files'])}, unchanged since the export"


def check_signatures(export: Export) -> str:
    signatures = export.meta_graph.signature_def
    for name, (inputs, outputs, *_) in export.signatures.items():
        signature = signatures[name] if name in signatures else SignatureDef()
        if set(signature.inputs) != set(inputs) or set(signature.outputs) != outputs:
            raise InputError(f"{name} must take {inputs} and return {outputs}")
    return f"{', '.join(export.signatures)}: strings in, a row out for each row in"


def check_nodes(export: Export) -> str:
    """Checks that a stock server can run the graph: without Python, devices or XLA."""
    graph = export.meta_graph.graph_def
    # TensorFlow's saver, which names the CPU, is left out.
    functions = [node for node in graph.library.function if "_traced_" not in node.signature.name]
    nodes = [node for node in graph.node if node.name != "Const"]
    nodes += [node for function in functions for node in function.node_def]
    if python := sorted({node.op for node in nodes} & PYTHON_OPS):
        raise InputError(f"the graph calls Python: {', '.join(python)}")
    if devices := sorted({node.device for node in nodes} - {""}):
        raise InputError(f"the graph is bound to devices: {', '.join(devices)}")
    if any(holder.attr["_XlaMustCompile"].b for holder in (*nodes, *functions)):
        raise InputError("the graph asks for XLA, which servers turn off")
    return f"{len(nodes):,}; no Python, no device, no XLA"


def check_weights(export: Export) -> str:
    num_params, dtype = export.metadata["num_params"], export.metadata["weights"]
    files = (export.path / "variables").glob("variables.data-*")
    stored = sum(file.stat().st_size for file in files)
    needed = num_params * tf.as_dtype(dtype).size
    overhead = 20_000 + needed // 50  # names, shapes
    if not needed <= stored <= needed + overhead:
        raise InputError(f"{needed:,} bytes of weights take {stored:,}")
    return f"{num_params:,} of {dtype}, stored once: {stored / 1e6:.1f} MB"


def check_warmup(export: Export) -> str:
    names = [name for name, _ in _warmup_requests(export)]
    if missing := sorted(set(export.signatures) - set(names)):
        raise InputError(f"no request for {', '.join(missing)}")
    return f"{len(names)} requests"


def check_session(export: Export) -> str:
    """Runs the examples, the warm-up requests, and an empty request to each signature."""
    examples = export.metadata["examples"]
    texts = [example["text"] for example in examples]
    requests: list[Request] = [("serving_default", {"text": texts}), *_warmup_requests(export)]
    requests += [(name, {key: [] for key in x.inputs}) for name, x in export.signatures.items()]
    results = _run_session(export.path, requests)
    for (name, inputs), rows in zip(requests, results, strict=True):
        sizes = {len(rows), *map(len, inputs.values())}
        if len(sizes) > 1:
            raise InputError(f"{name} must return as many rows as it takes. Received: {sizes}")
    ties = []
    for answer, example in zip(results[0], examples, strict=True):
        same = {name: example[name] for name in ("text", "score", "translation")}
        if not _is_close(answer["score"], example["score"]) or answer | same != example:
            raise _difference(answer, example)
        if answer["translation"] != example["translation"]:
            ties.append((answer, example))
    if ties:
        _require_ties(export, ties)
    return (
        f"loads without Python code, answers {len(examples)} examples as the model does, and "
        f"{len(results) - 1} requests to all signatures"
    )


def _is_close(score: float, other: float) -> bool:
    return abs(score - other) <= SCORE_TOLERANCE


def _difference(answer: Row, example: Row) -> InputError:
    return InputError(f"the answer is {answer}, but the model gives {example}")


def _require_ties(export: Export, pairs: Sequence[tuple[Row, Row]]) -> None:
    """Raises `InputError` unless scores are equal: then the runtime decides what a search finds."""
    texts = [example["text"] for _, example in pairs]
    requests: list[Request] = [("nbest", {"text": texts})]
    for rows in zip(*pairs, strict=True):
        targets = [row["translation"] for row in rows]
        requests.append(("score", {"text": texts, "target": targets}))
    nbest, *scored = _run_session(export.path, requests)
    for (answer, example), best, *both in zip(pairs, nbest, *scored, strict=True):
        listed = zip(best["translations"], best["scores"], strict=True)
        # The signature `score` knows neither constraints nor the pieces that a search chose.
        is_listed = any(
            text == example["translation"] and _is_close(score, example["score"])
            for text, score in listed
        )
        scores = [row["score"] for row in both]
        if not is_listed and not all(map(_is_close, scores, (answer["score"], example["score"]))):
            raise _difference(answer, example)


def _warmup_requests(export: Export) -> list[Request]:
    return [(name, columns_of(arrays)) for name, arrays in read_warmup(export.path)]


def _run_session(path: Path, requests: Iterable[Request]) -> list[list[Row]]:
    """Returns the rows that answer each request, computed in a new process."""
    process = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, str(path)],
        input="".join(json.dumps(request) + "\n" for request in requests),
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    if process.returncode:
        lines = process.stderr.strip().splitlines() or ["there is no message"]
        raise InputError(f"it does not run: {lines[-1]}")
    return [json.loads(line) for line in process.stdout.splitlines()]


CHECKS: dict[str, Callable[[Export], str]] = {
    "files": check_files,
    "signatures": check_signatures,
    "nodes": check_nodes,
    "weights": check_weights,
    "warm-up": check_warmup,
    "Session": check_session,
}
