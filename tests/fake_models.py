"""SavedModels whose answers are known without running them.

serving_default  text -> translation (the version, a colon, upper case), score (characters, as
                 a negative number), truncated (longer than 20 bytes)
document         text -> translation (the version, a colon, upper case), score 0, sentences (lines)
nbest            text -> translations (text with 1, 2, and nothing), scores
attention        text -> its letters, the same in reverse, and the reversed identity; b is unlikely
checked          text -> length int32 [B]; an error if a text is "bad"
pairs            text, target -> joined, both with a colon between
merged           text -> size int32 [B], the rows of concurrent requests; waits for 4 rows
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf
from running_servers import running
from tensorflow_serving.apis import predict_pb2

from keras_transformer.export.server.grpc import GrpcServer
from keras_transformer.export.server.http import HttpServer
from keras_transformer.export.server.models import ServedModel
from keras_transformer.export.server.rest import hosts_at, make_app

graph = functools.partial(tf.function, autograph=False)
TEXT = [tf.TensorSpec([None], tf.string, name="text")]
LIMIT = 20  # bytes of a text
MAX_BODY_BYTES = 60_000


def save_model(folder: Path, version: int, *, nbest=True, attention=True, document=False) -> Path:
    """Writes a version, and renames it into place as an export does."""

    @graph(input_signature=TEXT)
    def serving_default(text):
        length = tf.strings.length(text, unit="UTF8_CHAR")
        return {
            "translation": tf.strings.join([f"{version}:", tf.strings.upper(text, "utf-8")]),
            "score": -tf.cast(length, tf.float32),
            "truncated": tf.strings.length(text) > LIMIT,
        }

    @graph(input_signature=TEXT)
    def document_(text):
        return {
            "translation": tf.strings.join([f"{version}:", tf.strings.upper(text, "utf-8")]),
            "score": tf.zeros([tf.size(text)]),
            "sentences": tf.cast(tf.strings.split(text, "\n").row_lengths(), tf.int32),
        }

    @graph(input_signature=TEXT)
    def nbest_(text):
        translations = [text + "1", text + "2", tf.zeros_like(text)]
        return {
            "translations": tf.stack(translations, axis=1),
            "scores": tf.tile([[-0.5, -1.2500001, -1e9]], [tf.size(text), 1]),
        }

    @graph(input_signature=TEXT)
    def attention_(text):
        letters = tf.strings.unicode_split(text, "UTF-8")
        lengths = tf.cast(letters.row_lengths(), tf.int32)
        identity = tf.eye(tf.reduce_max(lengths))
        reverse = tf.reverse_sequence(letters.to_tensor(""), lengths, seq_axis=1)
        return {
            "source_pieces": letters.to_tensor(""),
            "target_pieces": reverse,
            "source_lengths": lengths,
            "target_lengths": lengths,
            "attention": tf.tile(tf.reverse(identity, [1])[None], [tf.size(text), 1, 1]),
            "log_probabilities": -tf.cast(reverse == "b", tf.float32),
        }

    @graph(input_signature=[*TEXT, tf.TensorSpec([None], tf.string, name="target")])
    def pairs(text, target):
        return {"joined": tf.strings.join([text, ":", target])}

    @graph(input_signature=TEXT)
    def checked(text):
        with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(text != "bad"), ["bad"])]):
            return {"length": tf.strings.length(text)}

    @tf.nondifferentiable_batch_function(1, 4, 1_500_000, [1, 2, 3, 4], autograph=False)
    def sizes(text):
        return tf.fill([tf.size(text)], tf.size(text))

    @graph(input_signature=TEXT)
    def merged(text):
        return {"size": sizes(text)}

    signatures = {
        "serving_default": serving_default,
        "pairs": pairs,
        "checked": checked,
        "merged": merged,
        **({"nbest": nbest_} if nbest else {}),
        **({"document": document_} if document else {}),
        **({"attention": attention_} if attention else {}),
    }
    partial = folder / f".{version}.partial"
    tf.saved_model.save(tf.Module(), str(partial), signatures)
    return partial.rename(folder / str(version))


def predict_request(signature, inputs, model="fake", version=None) -> predict_pb2.PredictRequest:
    """Returns a request of TF Serving's gRPC interface."""
    request = predict_pb2.PredictRequest(inputs=inputs)
    request.model_spec.name = model
    request.model_spec.signature_name = signature
    if version is not None:
        request.model_spec.version.value = version
    return request


class Serving(NamedTuple):
    """A server that runs; `stop` asks it to stop, as a signal does."""

    url: str
    grpc: str
    stop: Callable[[], None]


@contextmanager
def serving(folder: Path, host: str = "127.0.0.1", allow_hosts=()) -> Iterator[Serving]:
    """Serves a model in a thread, on free ports of this machine."""
    model = ServedModel(folder)
    model.poll()
    http = HttpServer(make_app(model, hosts_at(host, allow_hosts), MAX_BODY_BYTES), host, 0)
    grpc = GrpcServer(model, "127.0.0.1", 0, MAX_BODY_BYTES)
    grpc.start()
    try:
        with running(http.run, http.stop):
            yield Serving(http.url, grpc.address, http.stop)
    finally:
        grpc.stop()
