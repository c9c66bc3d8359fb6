"""From a model to a SavedModel of strings, for TF Serving."""

import copy
import dataclasses
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.config import PAD_ID
from keras_transformer.errors import InputError
from keras_transformer.export.assets import WeightsType, write_metadata, write_warmup
from keras_transformer.export.check import Finding, check_saved_model, require_success
from keras_transformer.model import Transformer
from keras_transformer.tokenizer import NUM_FIXED_IDS, Tokenizer
from keras_transformer.translation import (
    DecodingOptions,
    TranslatedTexts,
    align_texts,
    score_texts,
    translate_documents,
    translate_texts,
)
from keras_transformer.translator import Translator

NO_SCORE = -1e9  # of hypotheses that there are not; JSON has neither -inf nor NaN


class ServingModule(tf.Module):
    """What the SavedModel holds: raw variables, and a graph for each signature.

    It must not hold the Keras model itself: TF Serving's loader cannot find the variables of a
    SavedModel written from a module with a Keras 3 model in an attribute (keras issue 20095).

    Args:
        model: the model.
        tokenizer: the model's.
        options: how to search, fixed in the graphs.
        attention_layer: the decoder layer whose attention is shown; -1 for the last.
        weights: type that the weights are stored in; computed with is the model's.

    Attributes:
        graphs: by signature.
    """

    graphs: dict[str, Any]

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        options: DecodingOptions,
        attention_layer: int = -1,
        weights: WeightsType = "float32",
    ) -> None:
        super().__init__()
        self.stored = [
            tf.Variable(tf.cast(weight.value, weights), trainable=False, name=weight.name)
            for weight in model.weights
        ]

        tokenizer = _with_shared_graphs(tokenizer)
        text = tf.TensorSpec([None], tf.string, name="text")  # [B]
        target = tf.TensorSpec([None], tf.string, name="target")  # [B]

        @contextmanager
        def stored_weights() -> Iterator[None]:
            # Read at the top of a graph, so that no loop reads or converts them again.
            values = [tf.cast(variable, "float32") for variable in self.stored]
            with keras.StatelessScope(state_mapping=zip(model.weights, values, strict=True)):
                yield

        @tf.function(input_signature=[text], autograph=False)
        def serving_default(text: tf.Tensor) -> dict[str, tf.Tensor]:
            with stored_weights():
                return _best(translate_texts(model, tokenizer, text, options))

        @tf.function(input_signature=[text], autograph=False)
        def greedy(text: tf.Tensor) -> dict[str, tf.Tensor]:
            with stored_weights():
                changed = dataclasses.replace(options, beam_size=1)
                return _best(translate_texts(model, tokenizer, text, changed))

        @tf.function(input_signature=[text], autograph=False)
        def nbest(text: tf.Tensor) -> dict[str, tf.Tensor]:
            with stored_weights():
                found = translate_texts(model, tokenizer, text, options, options.beam_size)
            return {
                "translations": found.translations,  # [B, K]
                "scores": _finite(found.scores),  # [B, K]
            }

        @tf.function(input_signature=[text], autograph=False)
        def attention(text: tf.Tensor) -> dict[str, tf.Tensor]:
            with stored_weights():
                found = align_texts(model, tokenizer, text, options, attention_layer)
            return found._asdict()

        @tf.function(input_signature=[text, target], autograph=False)
        def score(text: tf.Tensor, target: tf.Tensor) -> dict[str, tf.Tensor]:
            with stored_weights():
                found = score_texts(model, tokenizer, text, target, options)
            return {
                "log_probability": _finite(found.log_probs),  # [B]
                "score": _finite(found.scores),  # [B]
                "truncated": found.truncated,  # [B]
            }

        @tf.function(input_signature=[text], autograph=False)
        def document(text: tf.Tensor) -> dict[str, tf.Tensor]:
            with stored_weights():
                found = translate_documents(model, tokenizer, text, options)
            return {
                "translation": found.translations,  # [B]
                "score": _finite(found.scores),  # [B]
                "sentences": found.num_sentences,  # [B]
            }

        self.graphs = {
            "serving_default": serving_default,
            "greedy": greedy,
            "nbest": nbest,
            "attention": attention,
            "score": score,
            "document": document,
        }


def _best(found: TranslatedTexts) -> dict[str, tf.Tensor]:
    return {
        "translation": found.translations[:, 0],  # [B]
        "score": _finite(found.scores[:, 0]),  # [B]
        "truncated": found.truncated,  # [B]
    }


def _finite(scores: tf.Tensor) -> tf.Tensor:
    return tf.where(tf.math.is_finite(scores), scores, NO_SCORE)


def _with_shared_graphs(tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer whose ops, each of which holds its whole model, the graphs share."""
    shared = copy.copy(tokenizer)
    for name, spec in (
        ("tokenize", tf.TensorSpec([None], tf.string)),
        ("detokenize", tf.TensorSpec([None, None], tf.int32)),
        ("pieces", tf.TensorSpec([None, None], tf.int32)),
    ):
        graph = tf.function(getattr(tokenizer, name), input_signature=[spec], autograph=False)
        setattr(shared, name, graph)
    return shared


def export_saved_model(
    translator: Translator,
    folder: str | Path,
    version: int = 1,
    options: DecodingOptions | None = None,
    *,
    weights: WeightsType = "float32",
    attention_layer: int = -1,
    examples: Sequence[str] = (),
    details: Mapping[str, Any] | None = None,
    check: bool = True,
    report: Callable[[Finding], None] = lambda finding: None,
) -> Path:
    """Writes `folder/version/`, a SavedModel that TF Serving loads.

    Its signatures are those of `check.SIGNATURES`: `serving_default` takes `text`, string [B],
    and returns `translation`, string [B], `score`, float32 [B], and `truncated`, bool [B]. It is
    written under another name, checked, and renamed, so that a server that watches the folder
    never sees half of it, nor anything that does not work.

    Args:
        translator: model and tokenizer.
        folder: the model's folder, `MODELS/NAME`.
        version: number of the version, at least 1.
        options: how to search; None for the translator's defaults.
        weights: type to store the weights in; half the size for some of the last digits.
        attention_layer: the decoder layer that the signature `attention` shows, from 0; -1 for
            the last.
        examples: texts to check and to warm up with; none for some made of the vocabulary.
        details: more to write into the metadata, plain values.
        check: whether to check it.
        report: called with each finding of the check.

    Returns:
        The folder of the version.

    Raises:
        InputError: if the version exists already, cannot be written, or fails its check.
    """
    if not 1 <= version < 2**63:
        raise InputError(
            f"`version` must be at least 1 and below 2**63. Received: version={version}"
        )
    num_layers = len(translator.model.decoder_layers)
    if not -num_layers <= attention_layer < num_layers:
        raise InputError(
            f"`attention_layer` must be at least {-num_layers} and below {num_layers}. "
            f"Received: attention_layer={attention_layer}"
        )
    absolute = Path(os.path.abspath(folder))
    try:
        str(absolute).encode()
    except UnicodeEncodeError as error:
        raise InputError(f"A model's folder must be UTF-8. Received: {str(folder)!a}") from error
    if (absolute / "saved_model.pb").is_file():
        raise InputError(
            f"{folder} is a version of a model: name its folder, {absolute.parent}, "
            "and another version"
        )
    path = Path(folder) / str(version)
    if path.exists():
        raise InputError(f"{path} exists already: choose another version, or delete it")
    options = options or translator.defaults
    model, tokenizer = translator.model, translator.tokenizer
    module = ServingModule(model, tokenizer, options, attention_layer, weights)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".writing-", dir=path.parent))
        try:
            tf.saved_model.save(module, temporary, signatures=module.graphs)
            texts = list(examples) or _made_up_texts(tokenizer)
            write_warmup(temporary, absolute.name, _warmup_requests(texts))
            write_metadata(
                temporary,
                {
                    "model": model.config.to_dict(),
                    "num_params": model.count_params(),
                    "weights": weights,
                    "tokenizer_sha256": tokenizer.fingerprint,
                    "decoding": dataclasses.asdict(options),
                    **(details or {}),
                    "examples": _answers(translator, module, texts, options),
                },
            )
            if check:
                findings = check_saved_model(temporary, report)
                require_success(findings, "The export failed its check and was deleted")
            temporary.chmod(0o755)  # mkdtemp's is for the owner only
            os.rename(temporary, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise InputError(f"Cannot write {path}: {error.strerror}") from error
    except tf.errors.OpError as error:
        raise InputError(f"Cannot write {path}: {error.message}") from error
    return path


def _answers(
    translator: Translator, module: ServingModule, texts: list[str], options: DecodingOptions
) -> list[dict[str, Any]]:
    """The model's own answers; those of rounded weights are no one else's than the graph's."""
    if module.stored[0].dtype == tf.float32:
        own = Translator(translator.model, translator.tokenizer, options).translate(texts)
        columns: Any = zip(*((each.text, each.score, each.truncated) for each in own), strict=True)
    else:
        found = module.graphs["serving_default"](tf.constant(texts))
        columns = [found[name].numpy().tolist() for name in ("translation", "score", "truncated")]
        columns[0] = [text.decode() for text in columns[0]]
    return [
        {"text": text, "translation": translation, "score": score, "truncated": truncated}
        for text, translation, score, truncated in zip(texts, *columns, strict=True)
    ]


def _made_up_texts(tokenizer: Tokenizer) -> list[str]:
    """Three texts of pieces from all over the vocabulary."""
    step = max(1, tokenizer.vocab_size // 64)
    ids = list(range(tokenizer.vocab_size - 1, min(NUM_FIXED_IDS, 4 * step), -step))
    rows = tf.ragged.constant([ids[:3], ids[3:12], ids[12:]], tf.int32).to_tensor(PAD_ID)
    return [text.decode() for text in tokenizer.detokenize(rows).numpy()]


def _warmup_requests(texts: Sequence[str]) -> list[tuple[str, dict[str, list[str]]]]:
    """Requests of one short text, of one long text and of several, to every signature."""
    short, long = min(texts, key=len), " ".join(texts)
    rows = [[short], [long], list(texts)]
    requests = [
        (signature, {"text": row})
        for signature in ("serving_default", "greedy", "nbest", "attention", "document")
        for row in rows
    ]
    return [*requests, *(("score", {"text": row, "target": row}) for row in rows)]
