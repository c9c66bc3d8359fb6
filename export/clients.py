"""Clients of a model server: TensorFlow Serving, or the local server.

Both have the method of a `SavedModelSession`, `translate(texts)`. Threads may share a client.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Self

import urllib3
from urllib3.exceptions import HTTPError, MaxRetryError, ReadTimeoutError

from keras_transformer.errors import InputError, one_line
from keras_transformer.export.options import DEFAULT_SIGNATURE, REQUEST_BYTES
from keras_transformer.export.rows import Row, by_length, rows_of
from keras_transformer.languages import Languages

REQUEST_ROWS = 32
TIMEOUT = 60.0
CONNECT_TIMEOUT = 5.0
RETRIES = 3
BACKOFF_SECONDS = 0.2
MAX_CONNECTIONS = 64  # kept open: one for each thread that uses a client


class RefusedError(InputError):
    """A model server refuses a request, for example because a text is too long."""


class Client(ABC):
    """What both clients take and do.

    Args:
        server: the server's name in errors.
        signature: of the model; its only input but `prefix` must be `text`.
        timeout: seconds that the server may take to answer a request.
        retries: how often a request is sent again if the server cannot be reached or is
            overloaded, each time after a longer wait; at most 4 over gRPC. A request that timed out
            is not sent again.
        max_rows: the maximum number of texts of a request.
        prefix: the input `prefix` for all texts; None for a signature without it.
    """

    def __init__(
        self,
        server: str,
        *,
        signature: str = DEFAULT_SIGNATURE,
        timeout: float = TIMEOUT,
        retries: int = RETRIES,
        max_rows: int = REQUEST_ROWS,
        prefix: str | None = None,
    ) -> None:
        self._server, self._signature, self._timeout = server, signature, timeout
        self._retries, self._max_rows = retries, max_rows
        self._others = {}
        if prefix is not None:  # a lone surrogate becomes a question mark, as in texts
            self._others["prefix"] = prefix.encode(errors="replace").decode()

    @abstractmethod
    def _predict(self, signature: str, rows: list[dict[str, str]]) -> Any:
        """Returns the rows that the server answers to rows of inputs by name."""

    @abstractmethod
    def close(self) -> None:
        """Closes the connections."""

    def languages(self) -> Languages | None:
        """Asks which languages the model has; None if it does not say, as one of one pair."""
        try:
            return Languages(**self._predict("languages", [{"text": ""}])[0])
        except RefusedError:
            return None
        except (TypeError, LookupError) as error:
            raise InputError(f"{self._server} must answer with names of languages") from error

    def translate(
        self,
        texts: Sequence[str | bytes],
        progress: Callable[[int], None] = lambda count: None,
    ) -> list[Row]:
        """Returns the signature's outputs for each text, in requests of texts of about one length.

        Args:
            texts: any number, with a tag of `Languages` for a model of several languages; bytes are
                UTF-8, and invalid ones are replaced.
            progress: called after each request, with its number of texts.

        Raises:
            InputError: if the server cannot be reached, takes too long, refuses the request, or
                does not answer with a translation for each text.
        """
        return by_length(
            texts,
            self._translate_batch,
            max_rows=self._max_rows,
            max_size=REQUEST_BYTES,
            progress=progress,
        )

    def _translate_batch(self, texts: list[bytes]) -> list[Row]:
        decoded = (text.decode(errors="replace") for text in texts)
        inputs = [{"text": text, **self._others} for text in decoded]
        rows = self._predict(self._signature, inputs)
        names = {"translation", "translations"}
        if (
            isinstance(rows, list)
            and len(rows) == len(texts)
            and all(isinstance(row, dict) and names & row.keys() for row in rows)
        ):
            return rows
        raise InputError(
            f"{self._server} must answer with a `translation` for each of {len(texts)} texts"
        )


class RestClient(Client):
    """Translates over HTTP, without TensorFlow.

    Args:
        url: of a model, `http://HOST:8501/v1/models/NAME`, or of one of its versions, with
            `/versions/VERSION` or `/labels/LABEL` at its end.
        options: those of `Client`.

    Raises:
        InputError: if the URL has another form.
    """

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url.rstrip("/"), **options)
        form = r"https?://[^/?#]+/([^?#]+/)?v1/models/[^/:?#]+((/versions/\d+)|(/labels/\w+))?"
        if not re.fullmatch(form, self._server):
            raise InputError(
                "The URL must have the form http://HOST:PORT/v1/models/NAME, and "
                f"optionally /versions/VERSION or /labels/LABEL. Received: {url}"
            )
        connect = min(self._timeout, CONNECT_TIMEOUT)
        self._pool = urllib3.PoolManager(
            maxsize=MAX_CONNECTIONS,
            timeout=urllib3.Timeout(connect=connect, read=self._timeout),
            retries=_Retries(
                self._retries,
                redirect=0,
                status_forcelist=[429, 502, 503],
                allowed_methods=None,  # a translation changes nothing: POST may be repeated
                backoff_factor=BACKOFF_SECONDS,
                respect_retry_after_header=False,  # a server may ask for any delay
                raise_on_status=False,
                raise_on_redirect=False,
            ),
        )

    def _predict(self, signature: str, rows: list[dict[str, str]]) -> Any:
        # One input needs no name.
        instances = rows if len(rows[0]) > 1 else [row["text"] for row in rows]
        question = {"signature_name": signature, "instances": instances}
        try:
            response = self._pool.request("POST", f"{self._server}:predict", json=question)
        except ReadTimeoutError as error:
            raise InputError(f"{self._server} did not answer within {self._timeout:g} s") from error
        except HTTPError as error:
            cause = error.reason if isinstance(error, MaxRetryError) else error
            raise InputError(f"{self._server} cannot be reached: {one_line(cause)}") from error
        try:
            answer = response.json()
        except ValueError:
            answer = None
        answer = answer if isinstance(answer, dict) else {}
        if response.status != 200:
            reason = one_line(answer.get("error") or response.reason)
            kind = RefusedError if response.status == 400 else InputError
            raise kind(f"{self._server} answered with status {response.status}: {reason}")
        return answer.get("predictions")

    def version(self) -> str | None:
        """Returns the newest version that the server has loaded, if it says so."""
        try:
            states = self._pool.request("GET", self._server).json()["model_version_status"]
            loaded = [state["version"] for state in states if state["state"] == "AVAILABLE"]
        except (HTTPError, ValueError, KeyError, TypeError):
            return None
        return max(loaded, key=int, default=None)

    def close(self) -> None:
        self._pool.clear()


class _Retries(urllib3.Retry):
    """Retries that do not repeat a request that timed out."""

    def increment(self, *args: Any, **kwargs: Any) -> Self:
        if isinstance(kwargs.get("error"), ReadTimeoutError):
            raise kwargs["error"]
        return super().increment(*args, **kwargs)


class GrpcClient(Client):
    """Translates over gRPC, with TensorFlow's tensors.

    Args:
        target: the server, `HOST:PORT`.
        model: name of the model.
        options: those of `Client`; the timeout is that of a request and its retries.
    """

    def __init__(self, target: str, model: str, **options: Any) -> None:
        import grpc
        from tensorflow_serving.apis.prediction_service_pb2_grpc import PredictionServiceStub

        super().__init__(f"grpc://{target}/{model}", **options)
        policy = {
            "maxAttempts": min(1 + self._retries, 5),  # gRPC's maximum
            "initialBackoff": f"{BACKOFF_SECONDS}s",
            "maxBackoff": "5s",
            "backoffMultiplier": 2,
            "retryableStatusCodes": ["UNAVAILABLE"],
        }
        methods = [{"name": [{}], "retryPolicy": policy}] if self._retries else []
        self._model = model
        self._channel = grpc.insecure_channel(
            target,
            options=[
                ("grpc.max_receive_message_length", -1),
                ("grpc.initial_reconnect_backoff_ms", int(1000 * BACKOFF_SECONDS)),
                ("grpc.service_config", json.dumps({"methodConfig": methods})),
            ],
        )
        self._stub = PredictionServiceStub(self._channel)

    def _predict(self, signature: str, rows: list[dict[str, str]]) -> Any:
        import grpc
        import tensorflow as tf
        from tensorflow_serving.apis.predict_pb2 import PredictRequest

        request = PredictRequest()
        request.model_spec.name = self._model
        request.model_spec.signature_name = signature
        for name in rows[0]:
            column = [row[name] for row in rows]
            request.inputs[name].CopyFrom(tf.make_tensor_proto(column, tf.string))
        try:
            response = self._stub.Predict(request, timeout=self._timeout)
        except grpc.RpcError as error:
            message = f"answered with {error.code().name}: {one_line(error.details())}"
            if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                message = f"did not answer within {self._timeout:g} s"
            refusals = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION
            kind = RefusedError if error.code() in refusals else InputError
            raise kind(f"{self._server} {message}") from error
        outputs = {name: tf.make_ndarray(tensor) for name, tensor in response.outputs.items()}
        try:
            return rows_of(outputs)
        except (ValueError, TypeError):  # the outputs do not have the same number of rows
            return None

    def close(self) -> None:
        self._channel.close()
