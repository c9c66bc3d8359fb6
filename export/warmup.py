"""Warm-up requests, which TF Serving replays when it loads a SavedModel."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from keras_transformer.export.metadata import FOLDER
from keras_transformer.export.options import DEFAULT_SIGNATURE

WARMUP = "tf_serving_warmup_requests"  # the name that TF Serving looks for


def write_warmup(path: Path, name: str, requests: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Writes requests to the model `name`: a signature, and a list of strings for each input."""
    (path / FOLDER).mkdir()
    with tf.io.TFRecordWriter(str(path / FOLDER / WARMUP)) as writer:
        for signature, inputs in requests:
            tensors = {key: tf.make_tensor_proto(texts, tf.string) for key, texts in inputs.items()}
            request = predict_pb2.PredictRequest(inputs=tensors)
            request.model_spec.name = name
            request.model_spec.signature_name = signature
            log = prediction_log_pb2.PredictLog(request=request)
            writer.write(prediction_log_pb2.PredictionLog(predict_log=log).SerializeToString())


def read_warmup(path: Path) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Yields the requests of a SavedModel: a signature, and an array for each input."""
    file = path / FOLDER / WARMUP
    if file.exists():
        for record in tf.data.TFRecordDataset(str(file)).as_numpy_iterator():
            request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
            arrays = {name: tf.make_ndarray(tensor) for name, tensor in request.inputs.items()}
            yield request.model_spec.signature_name or DEFAULT_SIGNATURE, arrays
