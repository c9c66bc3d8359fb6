"""From a model to a SavedModel that takes strings and returns strings, for TF Serving."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from keras_transformer.errors import InputError, as_input_error, require
from keras_transformer.export.check import Finding, check_saved_model, require_success
from keras_transformer.export.graphs import ServingModule
from keras_transformer.export.metadata import write_metadata
from keras_transformer.export.options import ExportOptions
from keras_transformer.export.rows import rows_of
from keras_transformer.export.session import with_config
from keras_transformer.export.warmup import write_warmup
from keras_transformer.files import atomic_folder
from keras_transformer.languages import Languages
from keras_transformer.translator import Translator

EXAMPLES = ("A dog runs.", "Two men in red shirts play with a ball in front of a house.")


def export_saved_model(
    translator: Translator,
    folder: str | Path,
    version: int = 1,
    options: ExportOptions | None = None,
    *,
    examples: Sequence[str] = EXAMPLES,
    details: Mapping[str, Any] | None = None,
    check: bool = True,
    report: Callable[[Finding], None] = lambda finding: None,
) -> Path:
    """Writes `folder/version/`, a SavedModel that TF Serving loads, and returns its path.

    `options.SIGNATURES` lists its signatures: `serving_default` takes `text`, string [B], and
    returns `translation`, string [B], `score`, float32 [B], and `truncated`, bool [B]. The
    version is written under another name, checked, and renamed. So a server that watches the
    folder never loads an incomplete or broken version.

    Args:
        translator: the model, its tokenizer, and how to search.
        folder: the model's folder, `MODELS/NAME`.
        version: the number of the version, at least 1.
        options: how to store weights, and which requests to take; None for the defaults.
        examples: texts to check and to warm up with; if empty, two English sentences.
        details: more values for the metadata.
        check: whether to check the SavedModel.
        report: called with each finding of the check.

    Raises:
        InputError: if the version exists already, cannot be written, or fails its check.
    """
    path = Path(folder) / str(version)
    options = options or ExportOptions()
    _require_new_version(path, version)
    num_layers, layer = translator.model.num_cross_attentions, options.attention_layer
    rule = f"`attention_layer` must be at least {-num_layers} and below {num_layers}"
    require(-num_layers <= layer < num_layers, rule, attention_layer=layer)
    if options.complete:
        translator.tokenizer.target.spellings()  # raises if there are none
    module = ServingModule(translator, options)
    texts = list(examples or EXAMPLES)
    name = os.path.basename(os.path.abspath(folder))
    failures = as_input_error(f"Cannot write {path}", OSError, tf.errors.OpError)
    with failures, atomic_folder(path) as written:
        tf.saved_model.save(module, written, signatures=module.graphs)
        graph = written / "saved_model.pb"
        graph.write_bytes(with_config(graph, _function_config()))
        known = translator.tokenizer.known_languages
        write_warmup(written, name, warmup_requests(texts, module.inputs, known))
        values = {"examples": _answers(translator, module, texts, options)}
        write_metadata(written, _metadata(translator, options) | dict(details or {}) | values)
        if check:
            findings = check_saved_model(written, report)
            require_success(findings, "The export failed its check and was deleted")
    return path


def _require_new_version(path: Path, version: int) -> None:
    if (path.parent / "saved_model.pb").exists():
        raise InputError(
            f"{path.parent} is a version of an export: name the folder of the versions, and "
            "`version`"
        )
    rule = "`version` must be at least 1 and below 2**63"
    require(1 <= version < 2**63, rule, version=version)
    if path.exists():
        raise InputError(f"{path} exists already: choose another version, or delete it")


def _metadata(translator: Translator, options: ExportOptions) -> dict[str, Any]:
    serving = dataclasses.asdict(options)
    return {
        "architecture": translator.model.config.architecture,
        "model": translator.model.config.to_dict(),
        "num_params": translator.model.count_params(),
        "weights": serving.pop("weights"),
        "compute": serving.pop("compute"),
        "protect": list(translator.tokenizer.protect),
        "languages": translator.tokenizer.known_languages._asdict(),
        "tokenizer_sha256": translator.tokenizer.fingerprint,
        "decoding": dataclasses.asdict(translator.defaults),
        "serving": serving,
    }


def _function_config() -> tf.compat.v1.ConfigProto:
    """Returns how a server optimizes each function: one pass of the optimizers that save time."""
    config = tf.compat.v1.ConfigProto()
    options = config.graph_options.rewrite_options
    options.meta_optimizer_iterations = options.ONE
    options.layout_optimizer = options.memory_optimization = options.OFF
    options.loop_optimization = options.shape_optimization = options.OFF
    return config


def _answers(
    translator: Translator, module: ServingModule, texts: list[str], options: ExportOptions
) -> list[dict[str, Any]]:
    """Returns texts with the translator's answers, or the graph's if it rounds."""
    if {options.weights, options.compute} != {"float32"}:
        outputs = module.graphs["serving_default"](tf.constant(texts))
        rows = rows_of({name: outputs[name].numpy() for name in outputs})
        return [{"text": text, **row} for text, row in zip(texts, rows, strict=True)]
    return [
        {"text": text, "translation": own.text, "score": own.score, "truncated": own.truncated}
        for text, own in zip(texts, translator.translate(texts), strict=True)
    ]


def warmup_requests(
    texts: list[str], inputs: Mapping[str, Sequence[str]], known: Languages
) -> list[tuple[str, dict[str, list[str]]]]:
    """Returns a short request to each signature, whose first run takes long, and one of all."""
    shortest = [min(texts, key=len)]
    requests = {name: dict.fromkeys(keys, shortest) for name, keys in inputs.items()}
    if "translate" in requests:
        requests["translate"] |= {"source": [known.source], "target": [known.targets[0]]}
    return [*requests.items(), ("serving_default", {"text": texts})]
