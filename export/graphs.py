"""The graphs of an export: strings in, strings out, with requests checked and merged."""

import dataclasses
import functools
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from keras_transformer.config import DecodingOptions
from keras_transformer.export.options import NO_SCORE, SIGNATURES, ExportOptions
from keras_transformer.languages import Languages
from keras_transformer.model.tensor import precision
from keras_transformer.registry import allocate_model
from keras_transformer.texts.sentences import are_blank
from keras_transformer.texts.texts import TextSearch, TranslatedTexts
from keras_transformer.translator import Translator

MAX_BYTES = 4 << 20  # of the texts of a request: the tokenizer also reads what is cut later
MAX_ENQUEUED_BATCHES = 64  # of a signature; the server refuses more as unavailable

Outputs = dict[str, tf.Tensor]
Compute = Callable[..., Outputs]  # from the inputs of a signature, string [B], to its outputs


class ServingModule(tf.Module):
    """The variables, copies of the weights, and graphs that a SavedModel holds.

    The Keras model is no attribute: TF Serving's loader cannot find the variables of a module that
    holds a Keras 3 model (keras issue 20095).
    """

    def __init__(self, translator: Translator, options: ExportOptions) -> None:
        super().__init__()
        model, search_options = translator.model, translator.defaults
        self.stored = [
            tf.Variable(tf.cast(weight.value, options.weights), trainable=False, name=weight.name)
            for weight in model.weights
        ]
        if options.compute == "bfloat16":
            # Keras converts what stands for a variable to the variable's dtype.
            with precision("bfloat16" if options.weights == "bfloat16" else "mixed_bfloat16"):
                model = allocate_model(model.config)
        is_exact = model.compute_dtype == options.weights  # then products need no float32
        dtype = options.weights if is_exact else "float32"

        def read_weights() -> list[tf.Tensor]:
            return [tf.cast(tf.convert_to_tensor(weight), dtype) for weight in self.stored]

        tokenizer = translator.tokenizer.shared()
        make_search = functools.partial(TextSearch, model, tokenizer, read_weights=read_weights)
        computations = _computations(make_search, search_options, options)
        best = [search_options.beam_size]
        row_shapes = {"translations": best, "scores": best}  # of outputs with more than a value
        known = tokenizer.known_languages
        has = {"": True, "complete": options.complete, "languages": bool(known.targets)}
        self.inputs = {name: x.inputs for name, x in SIGNATURES.items() if has[x.needs]}
        self.graphs: dict[str, Any] = {}  # of each signature
        for name, inputs in self.inputs.items():
            compute = computations[name]
            if options.batching and SIGNATURES[name].merges:
                compute = merge_requests(compute, options, row_shapes)
            if name == "translate":
                graph = with_languages(check_requests(compute, options, ["text"]), known)
            else:
                graph = check_requests(compute, options, inputs)
            self.graphs[name] = graph


def _computations(
    make_search: Callable[..., TextSearch], decoding: DecodingOptions, options: ExportOptions
) -> dict[str, Compute]:
    """Returns what each signature computes."""

    def shared_search(decoding: DecodingOptions) -> TextSearch:
        # One function, which all graphs call: it is most of a graph, and a session prepares all
        # functions of a file before each signature's first run.
        search = make_search(decoding)
        specs = [search.tokenizer.spec, tf.TensorSpec([], tf.int32)]
        function = tf.function(search.search, specs, autograph=False)
        return make_search(decoding, shared_search=function)

    search = greedy_search = shared_search(decoding)
    if decoding.beam_size > 1 or decoding.sample_from is not None:
        greedy = dataclasses.replace(
            decoding, beam_size=1, sample_from=None, temperature=1.0, sample_seed=0
        )
        greedy_search = shared_search(greedy)

    def nbest(text: tf.Tensor) -> Outputs:
        result = search.translate(text, decoding.beam_size)
        return {
            "translations": result.translations,  # [B, K]
            "scores": _finite(result.scores),  # [B, K]
            "truncated": result.truncated,  # [B]
        }

    def score(text: tf.Tensor, target: tf.Tensor) -> Outputs:
        result = search.score(text, target)
        return {
            "log_probability": _finite(result.log_probs),  # [B]
            "score": _finite(result.scores),  # [B]
            "truncated": result.truncated,  # [B]
        }

    def document(text: tf.Tensor) -> Outputs:
        # Refused before it is split and tokenized; a token of natural text has about 4 bytes.
        max_tokens = options.max_document_tokens
        size, max_size = tf.reduce_sum(tf.strings.length(text)), 16 * max_tokens
        text = _require(text, size <= max_size, f"at most {max_size} bytes of text", size)
        result, num_sentences = search.translate_documents(text, max_tokens)
        return {
            "translation": result.translations[:, 0],  # [B]
            "score": _finite(result.scores[:, 0]),  # [B]
            "sentences": num_sentences,  # [B]
        }

    return {
        "serving_default": lambda text: _best(search.translate(text)),
        "greedy": lambda text: _best(greedy_search.translate(text)),
        "nbest": nbest,
        "attention": lambda text: search.align(text, options.attention_layer)._asdict(),
        "score": score,
        "document": document,
        "complete": lambda text, prefix: _best(search.translate(text, prefixes=prefix)),
        "translate": lambda text: _best(search.translate(text)),
        "languages": lambda text: _rows_of(search.tokenizer.known_languages, tf.size(text)),
    }


def _rows_of(known: Languages, count: tf.Tensor) -> Outputs:
    """Returns the names of languages, the same for so many rows."""
    return {
        "source": tf.fill([count], known.source),  # [B]
        "target": tf.fill([count], known.target),  # [B]
        "sources": tf.tile(tf.constant([known.sources]), [count, 1]),  # [B, names]
        "targets": tf.tile(tf.constant([known.targets]), [count, 1]),  # [B, names]
    }


def _best(result: TranslatedTexts) -> Outputs:
    return {
        "translation": result.translations[:, 0],  # [B]
        "score": _finite(result.scores[:, 0]),  # [B]
        "truncated": result.truncated,  # [B]
    }


def check_requests(compute: Compute, options: ExportOptions, inputs: Sequence[str]) -> Any:
    """Returns the graph of a signature, which checks its inputs first.

    TF Serving checks no shape, and a bad request must not fail the others of its batch.
    """
    specs = [tf.TensorSpec([None], tf.string, name=name) for name in inputs]

    @tf.function(input_signature=specs, autograph=False)
    def graph(*texts: tf.Tensor) -> Outputs:
        vectors = [tf.ensure_shape(text, [None]) for text in texts]
        sizes = [tf.size(vector) for vector in vectors]
        num_bytes = tf.add_n([tf.reduce_sum(tf.strings.length(vector)) for vector in vectors])
        for condition, expected, received in (
            (sizes[0] <= options.max_texts, f"at most {options.max_texts} texts", sizes),
            (sizes[0] == sizes[-1], "inputs of one size", sizes),
            (num_bytes <= MAX_BYTES, f"at most {MAX_BYTES} bytes of text", [num_bytes]),
        ):
            vectors = [_require(vector, condition, expected, *received) for vector in vectors]
        return compute(*vectors)

    return graph


def with_languages(graph: Compute, known: Languages) -> Any:
    """Returns the graph of the signature `translate`, which calls `graph` for texts with tags.

    A client of gRPC may leave the languages out. TF Serving's REST wants all inputs, and "" is the
    default.
    """
    default = tf.constant([""])

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)] * 3, autograph=False)
    def translate(text: tf.Tensor, source: Any = default, target: Any = default) -> Outputs:
        text = tf.ensure_shape(text, [None])
        is_asked, asked = tf.constant(False), []
        for side, values in (("source", source), ("target", target)):
            names, size = getattr(known, f"{side}s"), tf.size(values)
            is_one_size = (size == 1) | (size == tf.size(text))
            values = _require(values, is_one_size, f"one {side}, or one for each text", size)
            values = tf.broadcast_to(values, [tf.size(text)])  # [B]
            is_known = tf.reduce_any(values[:, None] == ["", *names], axis=1)
            unknown = tf.boolean_mask(values, ~is_known)
            expected = f"{side} languages that the signature languages lists"
            values = _require(values, tf.reduce_all(is_known), expected, unknown)
            is_asked |= values != ""
            asked.append(tf.where(values == "", getattr(known, side), values))
        mark = tf.where(asked[0] == "", "", ":")
        tag = tf.strings.join([">>", asked[0], mark, asked[1], "<< "])
        is_asked &= (asked[1] != "") & ~are_blank(text)
        return graph(tf.strings.join([tf.where(is_asked, tag, ""), text]))

    return translate


def merge_requests(
    compute: Compute, options: ExportOptions, row_shapes: Mapping[str, list[int]]
) -> Compute:
    """Returns the same for concurrent requests together.

    Each output has a row of its shape in `row_shapes`, or a value, for each text.
    """
    batch = tf.nondifferentiable_batch_function(
        options.num_batch_threads,
        max_batch_size=options.max_texts,  # of a request; it is split into the sizes below
        batch_timeout_micros=options.batch_timeout_micros,
        # All sizes are allowed, so that no batch is padded.
        allowed_batch_sizes=list(range(1, min(options.max_batch_size, options.max_texts) + 1)),
        max_enqueued_batches=MAX_ENQUEUED_BATCHES + options.max_texts // options.max_batch_size,
        autograph=False,
    )(compute)
    # The runtime merges all requests under one name, even those of another graph.
    scope = f"batch_{uuid.uuid4().hex}"

    def merged(*texts: tf.Tensor) -> Outputs:
        with tf.name_scope(scope):
            outputs = batch(*texts)
        # The op returns a vector for an empty request, whatever the rank.
        return {
            name: tf.reshape(output, [-1, *row_shapes.get(name, ())])
            for name, output in outputs.items()
        }

    return merged


def _require(
    texts: tf.Tensor, condition: tf.Tensor, expected: str, *received: tf.Tensor
) -> tf.Tensor:
    """Returns the texts if the condition holds; otherwise the request fails."""
    message = f"A request must have {expected}. Received:"
    with tf.control_dependencies([tf.debugging.Assert(condition, [message, *received])]):
        return tf.identity(texts)


def _finite(scores: tf.Tensor) -> tf.Tensor:
    return tf.where(tf.math.is_finite(scores), scores, NO_SCORE)
