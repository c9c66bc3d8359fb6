"""From a model to a SavedModel that takes strings and returns strings, for TF Serving."""

import copy
import dataclasses
import functools
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.architectures import build_model, precision
from keras_transformer.config import DecodingOptions
from keras_transformer.errors import InputError, one_line
from keras_transformer.export.check import (
    COMPLETE,
    SIGNATURES,
    Finding,
    check_saved_model,
    require_success,
)
from keras_transformer.export.metadata import write_metadata
from keras_transformer.export.options import NO_SCORE, ComputeType, ServingOptions, WeightsType
from keras_transformer.export.rows import rows_of
from keras_transformer.export.session import set_config
from keras_transformer.export.warmup import write_warmup
from keras_transformer.files import atomic_folder
from keras_transformer.model.encoder_decoder import EncoderDecoder
from keras_transformer.search.beam_search import Hypotheses
from keras_transformer.search.prefixes import Prefixes
from keras_transformer.search.texts import TextSearch, TranslatedTexts
from keras_transformer.tokenizers import EncodedTexts, Tokenizer
from keras_transformer.translator import Translator

MAX_BYTES = 4 << 20  # of the texts of a request: the tokenizer also reads what is cut later
MAX_ENQUEUED_BATCHES = 64  # of a signature; the server refuses more as unavailable
# The signatures that merge requests. The outputs of `attention` are as wide as the longest text of
# a batch, and one request to `document` may be as much work as a full batch.
MERGED = ("serving_default", "greedy", "nbest", "score")
EXAMPLES = ("A dog runs.", "Two men in red shirts play with a ball in front of a house.")

Outputs = dict[str, tf.Tensor]
SignatureFunction = Callable[..., Outputs]


class ServingModule(tf.Module):
    """The variables and graphs that a SavedModel holds; its arguments are `export_saved_model`'s.

    The variables are copies of the weights. The Keras model is no attribute: TF Serving's loader
    cannot find the variables of a module that holds a Keras 3 model (keras issue 20095).
    """

    def __init__(
        self,
        translator: Translator,
        serving: ServingOptions,
        attention_layer: int,
        weights: WeightsType,
        compute: ComputeType,
        complete: bool = False,
    ) -> None:
        super().__init__()
        model = translator.model
        self.stored = [
            tf.Variable(tf.cast(weight.value, weights), trainable=False, name=weight.name)
            for weight in model.weights
        ]
        if compute == "bfloat16":
            with precision("mixed_bfloat16"):
                model = build_model(model.config)
            translator = Translator(model, translator.tokenizer, translator.defaults)
        self.inputs = {name: inputs for name, (inputs, _) in SIGNATURES.items()}
        functions = _signatures(translator, serving, attention_layer, self.stored)
        if complete:
            self.inputs["complete"] = COMPLETE["complete"][0]
            functions["complete"] = _completion(translator, self.stored)
        self.graphs: dict[str, Any] = {}  # of each signature
        best = [translator.defaults.beam_size]
        row_shapes = {"translations": best, "scores": best}  # of outputs with more than a value
        for name, function in functions.items():
            if serving.batching and name in MERGED:
                function = _merged(function, serving, row_shapes)
            self.graphs[name] = _signature_graph(function, serving, self.inputs[name])


def _signatures(
    translator: Translator,
    serving: ServingOptions,
    attention_layer: int,
    stored: Sequence[tf.Variable],
) -> dict[str, SignatureFunction]:
    """Returns what each signature computes, from its inputs, string [B], to its outputs."""
    model, tokenizer = translator.model, _shared(translator.tokenizer)
    options = translator.defaults
    search = _SharedSearch(model, tokenizer, options, stored)
    greedy = search
    if options.beam_size > 1 or options.sample_from is not None:
        one_beam = dataclasses.replace(
            options, beam_size=1, sample_from=None, temperature=1.0, sample_seed=0
        )
        greedy = _SharedSearch(model, tokenizer, one_beam, stored)

    def best(search: TextSearch, text: tf.Tensor) -> Outputs:
        return _best(search.translate(text))

    def nbest(text: tf.Tensor) -> Outputs:
        found = search.translate(text, options.beam_size)
        return {
            "translations": found.translations,  # [B, K]
            "scores": _finite(found.scores),  # [B, K]
            "truncated": found.truncated,  # [B]
        }

    def attention(text: tf.Tensor) -> Outputs:
        return search.align(text, attention_layer)._asdict()

    def score(text: tf.Tensor, target: tf.Tensor) -> Outputs:
        found = search.score(text, target)
        return {
            "log_probability": _finite(found.log_probs),  # [B]
            "score": _finite(found.scores),  # [B]
            "truncated": found.truncated,  # [B]
        }

    def document(text: tf.Tensor) -> Outputs:
        # Refused before it is split and tokenized; a token of natural text has about 4 bytes.
        max_tokens = serving.max_document_tokens
        size, max_size = tf.reduce_sum(tf.strings.length(text)), 16 * max_tokens
        text = _require(text, size <= max_size, f"at most {max_size} bytes of text", size)
        found = search.translate_documents(text, max_tokens)
        return {
            "translation": found.translations[:, 0],  # [B]
            "score": _finite(found.scores[:, 0]),  # [B]
            "sentences": found.num_sentences,  # [B]
        }

    return {
        "serving_default": functools.partial(best, search),
        "greedy": functools.partial(best, greedy),
        "nbest": nbest,
        "attention": _with_weights(attention, model, stored),
        "score": _with_weights(score, model, stored),
        "document": document,
    }


def _completion(translator: Translator, stored: Sequence[tf.Variable]) -> SignatureFunction:
    """Returns what the signature `complete` computes; its search is a graph of its own."""
    tokenizer = _shared(translator.tokenizer)
    search = TextSearch(translator.model, tokenizer, translator.defaults)

    def complete(text: tf.Tensor, prefix: tf.Tensor) -> Outputs:
        return _best(search.translate(text, prefixes=prefix))

    return _with_weights(complete, translator.model, stored)


def _best(found: TranslatedTexts) -> Outputs:
    return {
        "translation": found.translations[:, 0],  # [B]
        "score": _finite(found.scores[:, 0]),  # [B]
        "truncated": found.truncated,  # [B]
    }


def _with_weights(
    function: Callable[..., Any], model: EncoderDecoder, stored: Sequence[tf.Variable]
) -> Callable[..., Any]:
    """Returns the function, computed with the stored weights instead of the model's own."""

    @functools.wraps(function)
    def compute(*tensors: Any) -> Any:
        # Read once, so that no loop reads or converts the weights again.
        is_exact = model.compute_dtype == stored[0].dtype.name  # then products need no float32
        dtype = stored[0].dtype if is_exact else tf.float32
        values = [tf.cast(tf.convert_to_tensor(each), dtype) for each in stored]
        with keras.StatelessScope(state_mapping=zip(model.weights, values, strict=True)):
            return function(*tensors)

    return compute


class _SharedSearch(TextSearch):
    """A `TextSearch` whose `search` is one function, which all graphs call.

    The search is most of a graph, and a session prepares all functions of a file before each
    signature's first run.
    """

    def __init__(
        self,
        model: EncoderDecoder,
        tokenizer: Tokenizer,
        options: DecodingOptions,
        stored: Sequence[tf.Variable],
    ) -> None:
        super().__init__(model, tokenizer, options)
        specs = [EncodedTexts.spec(), tf.TensorSpec([], tf.int32)]
        search = _with_weights(super().search, model, stored)
        self._graph = tf.function(search, specs, autograph=False)

    def search(
        self,
        source: EncodedTexts,
        num_best: int | tf.Tensor = 1,
        prefixes: Prefixes | None = None,
    ) -> Hypotheses:
        """Calls the function, which takes no prefixes; see `TextSearch`."""
        if prefixes is not None:
            raise ValueError("The shared search takes no prefixes")
        found: Hypotheses = self._graph(source, num_best)
        return found


def _signature_graph(
    function: SignatureFunction, serving: ServingOptions, inputs: Sequence[str]
) -> Any:
    """Returns the graph of a signature: it checks its inputs, and calls the function.

    TF Serving checks no shape, and a bad request must not fail the others of its batch.
    """
    specs = [tf.TensorSpec([None], tf.string, name=name) for name in inputs]

    @tf.function(input_signature=specs, autograph=False)
    def graph(*texts: tf.Tensor) -> Outputs:
        vectors = [tf.ensure_shape(text, [None]) for text in texts]
        sizes = [tf.size(vector) for vector in vectors]
        num_bytes = tf.add_n([tf.reduce_sum(tf.strings.length(vector)) for vector in vectors])
        for condition, expected, received in (
            (sizes[0] <= serving.max_texts, f"at most {serving.max_texts} texts", sizes),
            (sizes[0] == sizes[-1], "inputs of one size", sizes),
            (num_bytes <= MAX_BYTES, f"at most {MAX_BYTES} bytes of text", [num_bytes]),
        ):
            vectors = [_require(vector, condition, expected, *received) for vector in vectors]
        return function(*vectors)

    return graph


def _merged(
    function: SignatureFunction, serving: ServingOptions, row_shapes: Mapping[str, list[int]]
) -> SignatureFunction:
    """Returns the function, which then computes concurrent requests together.

    Each output of the function has a row of its shape in `row_shapes`, or a value, for each text.
    """
    batch = tf.nondifferentiable_batch_function(
        serving.num_batch_threads,
        max_batch_size=serving.max_texts,  # of a request; it is split into the sizes below
        batch_timeout_micros=serving.batch_timeout_micros,
        # All sizes are allowed, so that no batch is padded.
        allowed_batch_sizes=list(range(1, min(serving.max_batch_size, serving.max_texts) + 1)),
        max_enqueued_batches=MAX_ENQUEUED_BATCHES + serving.max_texts // serving.max_batch_size,
        autograph=False,
    )(function)
    # The runtime merges all requests under one name, even those of another graph.
    scope = f"batch_{uuid.uuid4().hex}"

    def compute(*texts: tf.Tensor) -> Outputs:
        with tf.name_scope(scope):
            outputs = batch(*texts)
        # The op returns a vector for an empty request, whatever the rank.
        return {
            name: tf.reshape(output, [-1, *row_shapes.get(name, ())])
            for name, output in outputs.items()
        }

    return compute


def _shared(tokenizer: Tokenizer) -> Tokenizer:
    """Returns the tokenizer with one function for each method, which all graphs call.

    Each op holds the tokenizer's complete model, so a file with few of them is smaller.
    """
    shared = copy.copy(tokenizer)
    texts, ids = tf.TensorSpec([None], tf.string), tf.TensorSpec([None, None], tf.int32)
    specs = {"tokenize": texts, "split_words": texts, "detokenize": ids, "pieces": ids}
    for name, spec in specs.items():
        setattr(shared, name, tf.function(getattr(tokenizer, name), [spec], autograph=False))
    if tokenizer.target is not tokenizer:
        shared.own_target = _shared(tokenizer.target)
    return shared


def _require(
    texts: tf.Tensor, condition: tf.Tensor, expected: str, *received: tf.Tensor
) -> tf.Tensor:
    """Returns the texts if the condition holds; otherwise the request fails."""
    message = f"A request must have {expected}. Received:"
    with tf.control_dependencies([tf.debugging.Assert(condition, [message, *received])]):
        return tf.identity(texts)


def _finite(scores: tf.Tensor) -> tf.Tensor:
    return tf.where(tf.math.is_finite(scores), scores, NO_SCORE)


def export_saved_model(
    translator: Translator,
    folder: str | Path,
    version: int = 1,
    options: DecodingOptions | None = None,
    *,
    serving: ServingOptions | None = None,
    weights: WeightsType = "float32",
    compute: ComputeType = "float32",
    attention_layer: int = -1,
    complete: bool = False,
    examples: Sequence[str] = EXAMPLES,
    details: Mapping[str, Any] | None = None,
    check: bool = True,
    report: Callable[[Finding], None] = lambda finding: None,
) -> Path:
    """Writes `folder/version/`, a SavedModel that TF Serving loads, and returns its path.

    `check.SIGNATURES` lists its signatures: `serving_default` takes `text`, string [B], and
    returns `translation`, string [B], `score`, float32 [B], and `truncated`, bool [B]. The
    version is written under another name, checked, and renamed. So a server that watches the
    folder never loads an incomplete or broken version.

    Args:
        translator: the model and its tokenizer.
        folder: the model's folder, `MODELS/NAME`.
        version: the number of the version, at least 1.
        options: how to search; None for the translator's defaults.
        serving: how to merge and bound requests; None for the defaults.
        weights: the type to store the weights in.
        compute: the type of matmuls; "bfloat16" is fast only on processors that have
            instructions for it (AVX512-BF16, AMX).
        attention_layer: the decoder layer that the signature `attention` shows, from 0; -1 for
            the last.
        complete: whether to add the signature `complete`, which takes a `prefix` too, and
            continues it. It adds to the time of the start of a server.
        examples: texts to check and to warm up with; if empty, two English sentences.
        details: more values for the metadata.
        check: whether to check the SavedModel.
        report: called with each finding of the check.

    Raises:
        InputError: if the version exists already, cannot be written, or fails its check.
    """
    path = Path(folder) / str(version)
    if (Path(folder) / "saved_model.pb").exists():
        raise InputError(
            f"{folder} is a version of an export: name the folder of the versions, and `version`"
        )
    if not 1 <= version < 2**63:
        raise InputError(
            f"`version` must be at least 1 and below 2**63. Received: version={version}"
        )
    if path.exists():
        raise InputError(f"{path} exists already: choose another version, or delete it")
    num_layers = translator.model.num_cross_attentions
    if attention_layer not in range(-num_layers, num_layers):
        raise InputError(
            f"`attention_layer` must be at least {-num_layers} and below {num_layers}. "
            f"Received: attention_layer={attention_layer}"
        )
    if complete:
        translator.tokenizer.target.spellings()  # raises if there are none
    serving = serving or ServingOptions()
    translator = Translator(translator.model, translator.tokenizer, options or translator.defaults)
    module = ServingModule(translator, serving, attention_layer, weights, compute, complete)
    texts = list(examples or EXAMPLES)
    metadata = {
        "architecture": translator.model.config.architecture,
        "model": translator.model.config.to_dict(),
        "num_params": translator.model.count_params(),
        "weights": weights,
        "compute": compute,
        "protect": list(translator.tokenizer.protect),
        "tokenizer_sha256": translator.tokenizer.fingerprint,
        "decoding": dataclasses.asdict(translator.defaults),
        "serving": dataclasses.asdict(serving),
        **(details or {}),
    }
    try:
        with atomic_folder(path) as written:
            tf.saved_model.save(module, written, signatures=module.graphs)
            set_config(written, _function_config())
            name = os.path.basename(os.path.abspath(folder))
            write_warmup(written, name, _warmup_requests(texts, module.inputs))
            is_rounded = {weights, compute} != {"float32"}
            answers = _answers(translator, module, texts, is_rounded)
            write_metadata(written, {**metadata, "examples": answers})
            if check:
                findings = check_saved_model(written, report)
                require_success(findings, "The export failed its check and was deleted")
    except (OSError, tf.errors.OpError) as error:
        raise InputError(f"Cannot write {path}: {one_line(error)}") from error
    return path


def _function_config() -> tf.compat.v1.ConfigProto:
    """Returns how a server optimizes each function: one pass of the optimizers that save time."""
    config = tf.compat.v1.ConfigProto()
    options = config.graph_options.rewrite_options
    options.meta_optimizer_iterations = options.ONE
    options.layout_optimizer = options.memory_optimization = options.OFF
    options.loop_optimization = options.shape_optimization = options.OFF
    return config


def _answers(
    translator: Translator, module: ServingModule, texts: list[str], is_rounded: bool
) -> list[dict[str, Any]]:
    """Returns texts with the translator's answers, or the graph's if it rounds."""
    if is_rounded:
        outputs = module.graphs["serving_default"](tf.constant(texts))
        rows = rows_of({name: outputs[name].numpy() for name in outputs})
        return [{"text": text, **row} for text, row in zip(texts, rows, strict=True)]
    return [
        {"text": text, "translation": own.text, "score": own.score, "truncated": own.truncated}
        for text, own in zip(texts, translator.translate(texts), strict=True)
    ]


def _warmup_requests(
    texts: list[str], inputs: Mapping[str, Sequence[str]]
) -> list[tuple[str, dict[str, list[str]]]]:
    """Returns a short request to each signature, and one of several texts.

    The first run of a signature prepares its graph, which takes much longer than a translation.
    """
    shortest = [min(texts, key=len)]
    requests = [(name, dict.fromkeys(keys, shortest)) for name, keys in inputs.items()]
    return [*requests, ("serving_default", {"text": texts})]
