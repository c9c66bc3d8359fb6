"""Translations from a model server: TensorFlow Serving, or whatever speaks as it does.

Both clients offer what a `SavedModelSession` does, `translate(texts)`, for any number of texts:
they send a few rows a request, of about the same length. Threads may share one.
"""

import json
import math
import re
from collections.abc import Sequence
from typing import Any, Self

import urllib3
from urllib3.exceptions import HTTPError, MaxRetryError, ProtocolError, ReadTimeoutError

from keras_transformer.errors import InputError, one_line
from keras_transformer.export.rows import DEFAULT_SIGNATURE, by_length

# Of a request. export/docker/batching.config lets the server join a few requests of that size.
MAX_ROWS = 32
MAX_SIZE = 2**19  # rows times characters of the longest: long documents go alone
TIMEOUT = 60.0
CONNECT_TIMEOUT = 5.0
RETRIES = 3
BACKOFF_SECONDS = 0.2
RETRY_BYTES = 2**26
MAX_IDLE = 64  # connections that wait for the threads of a client

Row = dict[str, Any]


class RestClient:
    """Translates over HTTP. It does without TensorFlow.

    Args:
        url: of a model, `http://HOST:8501/v1/models/NAME`, or of one of its versions, with
            `/versions/VERSION` or `/labels/LABEL` behind it.
        signature: of the model; its input must be `text` alone.
        timeout: seconds that the server may be silent before it has answered a request.
        retries: how often a request is sent again when the server cannot be reached or is
            overloaded, waiting longer each time. One that timed out is not: the server would be
            as slow again, and busier.
        max_rows: most texts of a request; fewer for a server that takes fewer.

    Raises:
        InputError: if the URL has another form, or `max_rows` is less than 1.
    """

    def __init__(
        self,
        url: str,
        *,
        signature: str = DEFAULT_SIGNATURE,
        timeout: float = TIMEOUT,
        retries: int = RETRIES,
        max_rows: int = MAX_ROWS,
    ) -> None:
        self._url = url.rstrip("/")
        if not re.fullmatch(
            r"https?://[^/?#]+/([^?#]+/)?v1/models/[^/:?#]+((/versions/\d+)|(/labels/\w+))?",
            self._url,
        ):
            raise InputError(
                "The URL must have the form http://HOST:PORT/v1/models/NAME, and "
                f"/versions/VERSION or /labels/LABEL if need be. Received: {url}"
            )
        self._signature = signature
        self._timeout = timeout
        self._max_rows = _check_rows(max_rows)
        self._pool = urllib3.PoolManager(
            maxsize=MAX_IDLE,
            timeout=urllib3.Timeout(connect=min(timeout, CONNECT_TIMEOUT), read=timeout),
            retries=_Retries(
                retries,
                redirect=0,
                status_forcelist=[429, 502, 503],
                allowed_methods=None,  # a translation changes nothing: POST may be repeated
                backoff_factor=BACKOFF_SECONDS,
                respect_retry_after_header=False,  # it may name any time
                raise_on_status=False,
                raise_on_redirect=False,
            ),
        )

    def translate(self, texts: Sequence[str | bytes]) -> list[Row]:
        """Returns the signature's outputs for each text.

        Args:
            texts: any number; bytes are taken as UTF-8, with what is not valid replaced.

        Raises:
            InputError: if the server cannot be reached, takes too long, refuses, or answers with
                something else than a translation for each text.
        """
        strings = [
            text.decode(errors="replace") if isinstance(text, bytes) else text for text in texts
        ]
        return by_length(strings, self._predict, max_rows=self._max_rows, max_size=MAX_SIZE)

    def _predict(self, texts: list[str]) -> list[Row]:
        question = {"signature_name": self._signature, "instances": texts}
        try:
            response = self._pool.request(
                "POST",
                f"{self._url}:predict",
                # What is no text, half of a surrogate pair, becomes a question mark.
                body=json.dumps(question, ensure_ascii=False).encode(errors="replace"),
                headers={"Content-Type": "application/json"},
            )
        except ReadTimeoutError as error:
            raise InputError(f"{self._url} did not answer within {self._timeout:g} s") from error
        except HTTPError as error:
            cause = error.reason if isinstance(error, MaxRetryError) else error
            raise InputError(f"{self._url} cannot be reached: {_reason(cause)}") from error
        try:
            answer = json.loads(response.data)
            json.dumps(answer, ensure_ascii=False).encode()  # half of a surrogate pair is no text
        except (ValueError, RecursionError):  # the latter if it is nested too deeply
            answer = None
        if response.status != 200:
            said = answer.get("error") if isinstance(answer, dict) else None
            raise InputError(
                f"{self._url} answered with status {response.status}: "
                f"{_visible(said or response.reason or 'no reason given')}"
            )
        rows = answer.get("predictions") if isinstance(answer, dict) else None
        return _checked(rows, len(texts), self._url)

    def close(self) -> None:
        """Closes the connections."""
        self._pool.clear()


class GrpcClient:
    """Translates over gRPC. It imports TensorFlow, whose tensors the messages are made of.

    Args:
        target: the server, `HOST:PORT`.
        model: name of the model.
        signature: of the model; its input must be `text` alone.
        timeout: of a request and its repetitions, in seconds.
        retries: how often a request is sent again when the server is not available, waiting
            longer each time; at most 4.
        max_rows: as for `RestClient`.

    Raises:
        InputError: if a name is not UTF-8, or `max_rows` is less than 1.
    """

    def __init__(
        self,
        target: str,
        model: str,
        *,
        signature: str = DEFAULT_SIGNATURE,
        timeout: float = TIMEOUT,
        retries: int = RETRIES,
        max_rows: int = MAX_ROWS,
    ) -> None:
        import grpc
        from tensorflow_serving.apis.prediction_service_pb2_grpc import PredictionServiceStub

        for name, text in (("target", target), ("model", model), ("signature", signature)):
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise InputError(f"`{name}` must be UTF-8. Received: {text!a}") from error
        self._name = f"grpc://{target}/{model}"
        self._model = model
        self._signature = signature
        self._timeout = timeout
        self._max_rows = _check_rows(max_rows)
        self._channel = grpc.insecure_channel(target, options=_channel_options(retries))
        self._stub = PredictionServiceStub(self._channel)

    def translate(self, texts: Sequence[str | bytes]) -> list[Row]:
        """Returns the signature's outputs for each text; as `RestClient.translate`."""
        encoded = [
            text if isinstance(text, bytes) else text.encode(errors="replace") for text in texts
        ]
        return by_length(encoded, self._predict, max_rows=self._max_rows, max_size=MAX_SIZE)

    def _predict(self, texts: list[bytes]) -> list[Row]:
        import grpc
        from tensorflow.core.framework.tensor_pb2 import TensorProto
        from tensorflow.core.framework.types_pb2 import DT_STRING
        from tensorflow_serving.apis.predict_pb2 import PredictRequest

        text = TensorProto(dtype=DT_STRING, string_val=texts)
        text.tensor_shape.dim.add(size=len(texts))
        request = PredictRequest(inputs={"text": text})
        request.model_spec.name = self._model
        request.model_spec.signature_name = self._signature
        try:
            response = self._stub.Predict(request, timeout=self._timeout)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                message = f"did not answer within {self._timeout:g} s"
            elif error.code() == grpc.StatusCode.UNAVAILABLE:
                message = f"is not available: {_visible(error.details())}"
            else:
                message = f"answered with {error.code().name}: {_visible(error.details())}"
            raise InputError(f"{self._name} {message}") from error
        return _checked(_rows_of(response.outputs), len(texts), self._name)

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()


class _Retries(urllib3.Retry):
    """Retries whatever may pass, which a timeout does not."""

    def increment(
        self,
        method: str | None = None,
        url: str | None = None,
        response: Any = None,
        error: Exception | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Self:
        if isinstance(error, ReadTimeoutError):
            raise error
        return super().increment(method, url, response, error, *args, **kwargs)


def _channel_options(retries: int) -> list[tuple[str, Any]]:
    options: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", -1),
        ("grpc.initial_reconnect_backoff_ms", int(1000 * BACKOFF_SECONDS)),  # as do the retries
    ]
    if retries:
        policy = {
            "maxAttempts": min(1 + retries, 5),  # gRPC takes no more
            "initialBackoff": f"{BACKOFF_SECONDS}s",
            "maxBackoff": "5s",
            "backoffMultiplier": 2,
            "retryableStatusCodes": ["UNAVAILABLE"],
        }
        # gRPC keeps a request to send it again only up to a size, 256 KiB if nothing else is said.
        options.append(("grpc.per_rpc_retry_buffer_size", RETRY_BYTES))
        config = {"methodConfig": [{"name": [{}], "retryPolicy": policy}]}
        options.append(("grpc.service_config", json.dumps(config)))
    return options


def _rows_of(outputs: Any) -> list[Row] | None:
    """Returns the rows of a gRPC answer, or None if the tensors have no rows in common."""
    import tensorflow as tf

    from keras_transformer.export.session import rows_of

    for tensor in outputs.values():
        # A few bytes may claim a shape of terabytes: whoever means it sends a byte for each value.
        if math.prod(dim.size for dim in tensor.tensor_shape.dim) > 1024 + tensor.ByteSize():
            return None
    try:
        return rows_of({name: tf.make_ndarray(tensor) for name, tensor in outputs.items()})
    except (ValueError, TypeError):
        return None


def _check_rows(max_rows: int) -> int:
    if max_rows < 1:
        raise InputError(f"`max_rows` must be at least 1. Received: max_rows={max_rows}")
    return max_rows


def _checked(rows: Any, count: int, server: str) -> list[Row]:
    if (
        isinstance(rows, list)
        and len(rows) == count
        and all(isinstance(row, dict) and isinstance(row.get("translation"), str) for row in rows)
    ):
        return rows
    raise InputError(f"{server} must answer with a `translation` for each of {count} texts")


def _visible(text: object) -> str:
    """Makes a message of others one line that a terminal prints and does not obey."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in one_line(text)
    )


def _reason(error: BaseException | None) -> str:
    """Says what went wrong, without the connection's own name, which the URL tells already."""
    text = " ".join(map(str, error.args)) if isinstance(error, ProtocolError) else str(error)
    return _visible(re.sub(r"^HTTPS?Connection\(.*?\): ", "", text))
