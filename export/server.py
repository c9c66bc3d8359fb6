"""TF Serving's REST interface, for machines that have no TF Serving: a stand-in.

The URLs, status codes and answers are those of its `model_servers/http_rest_api_handler.cc`. On top
there are limits (TF Serving has none), and a page to try the model at `/`.
"""

import asyncio
import contextlib
import html
import json
import logging
import re
import socket
from collections.abc import Iterator
from importlib import resources
from typing import Any
from urllib.parse import unquote

import h11
import tensorflow as tf
import uvicorn
from google.protobuf import json_format
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send
from tensorflow_serving.apis import get_model_metadata_pb2
from uvicorn.protocols.http.h11_impl import H11Protocol

from keras_transformer.export import json_tensors
from keras_transformer.export.models import ServedModel
from keras_transformer.export.protocol import Limits, ServingError, invalid

PREDICT = re.compile(
    r"/v1/models/([^/:]+)(?:/versions/(\d+)|/labels/([^/:]+))?:(classify|regress|predict)",
    re.IGNORECASE | re.ASCII,
)
STATUS = re.compile(
    r"/v1/models(?:/([^/:]+))?(?:/versions/(\d+)|/labels/([^/:]+))?(/metadata)?",
    re.IGNORECASE | re.ASCII,
)
HTTP_STATUS = {
    tf.errors.INVALID_ARGUMENT: 400,
    tf.errors.FAILED_PRECONDITION: 400,
    tf.errors.OUT_OF_RANGE: 400,
    tf.errors.PERMISSION_DENIED: 403,
    tf.errors.NOT_FOUND: 404,
    tf.errors.ABORTED: 409,
    tf.errors.RESOURCE_EXHAUSTED: 429,
    tf.errors.UNIMPLEMENTED: 501,
    tf.errors.UNAVAILABLE: 503,
    tf.errors.DEADLINE_EXCEEDED: 504,
}
# The page may load nothing from anywhere, and talks to this server alone.
PAGE_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SHUTDOWN_SECONDS = 30

_logger = logging.getLogger(__name__)


class _HttpError(Exception):
    """An error of HTTP itself, after which the connection is closed."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class RestApi:
    """Answers what comes below `/v1/`, as an ASGI application.

    Args:
        model: what is served.
    """

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self._limits = model.limits
        self._num_requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request; nothing that it does raises."""
        request = Request(scope, receive)
        try:
            response = await self._respond(request)
        except ClientDisconnect:
            return
        except _HttpError as error:
            content = json_tensors.error_body(ServingError(tf.errors.INVALID_ARGUMENT, str(error)))
            response = _json(content, error.status)
            response.headers["connection"] = "close"
        except Exception as error:
            answer = ServingError.of(error)
            if answer.code == tf.errors.INTERNAL:
                _logger.error("A request failed", exc_info=error)
            status = HTTP_STATUS.get(answer.code, 500)
            response = _json(json_tensors.error_body(answer), status)
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        path = request.scope["raw_path"].decode("ascii")
        if not re.match(r"/v1/", path, re.IGNORECASE):
            raise ServingError(tf.errors.NOT_FOUND, f"Not found: {path}")
        malformed = invalid(f"Malformed request: {request.method} {path}")
        if request.method == "POST":
            with self._counted():
                # Whatever the path is: TF Serving's answers do not come before the request's end.
                body = await self._body(request)
                if not (match := PREDICT.fullmatch(path)):
                    raise malformed
                name, version, method = self._target(match)
                if method.lower() != "predict":
                    raise ServingError(
                        tf.errors.UNIMPLEMENTED,
                        f"This stand-in knows predict, not {method.lower()}",
                    )
                return _json(await self._predict(name, version, body))
        if request.method == "GET" and (match := STATUS.fullmatch(path)):
            name, version, subresource = self._target(match)
            if not name:
                raise invalid("Missing model name in request.")
            return _json(
                self._metadata(name, version) if subresource else self._status(name, version)
            )
        raise malformed

    @staticmethod
    def _target(match: re.Match[str]) -> tuple[str, int | None, str]:
        """Returns the model's name, the version, and the rest of a path."""
        name, digits, label, rest = match.groups()
        if digits and (len(digits) > 19 or int(digits) >= 1 << 63):
            raise invalid(f"Failed to convert version: {digits} to numeric.")
        if label:
            raise invalid(f"Unrecognized servable version label: {unquote(label)}")
        return unquote(name or ""), int(digits) if digits else None, rest or ""

    def _check_name(self, name: str, otherwise: str) -> None:
        if name != self._model.name:
            raise ServingError(tf.errors.NOT_FOUND, otherwise)

    async def _body(self, request: Request) -> bytes:
        """Reads a body within the limits of size and time."""
        limit = self._limits.max_body_bytes
        too_large = _HttpError(413, f"The request is larger than {limit} bytes")
        size = int(request.headers.get("content-length", 0))
        if size > limit and "expect" in request.headers:  # the client asks before it sends
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.read_timeout):
                received = 0
                async for chunk in request.stream():
                    received += len(chunk)
                    if received <= limit:
                        body += chunk
                    elif received > 4 * limit:
                        # Some is read on, for a client that still sends does not see an answer.
                        raise too_large
        except TimeoutError:
            raise _HttpError(408, "The request did not come in time") from None
        if received > limit:
            raise too_large
        return bytes(body)

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        """Bounds the requests, and so the bodies, that are held at a time."""
        if self._num_requests >= 2 * self._limits.max_queue:
            raise ServingError(tf.errors.UNAVAILABLE, "Too many requests are being answered")
        self._num_requests += 1
        try:
            yield
        finally:
            self._num_requests -= 1

    async def _predict(self, name: str, version: int | None, body: bytes) -> bytes:
        document = await asyncio.to_thread(json_tensors.parse, body)
        signature_name = json_tensors.signature_name(document)
        which = f"Latest({name})" if version is None else f"Specific({name}, {version})"
        self._check_name(name, f"Servable not found for request: {which}")
        with self._model.use(version) as loaded:
            signature = loaded.signature(signature_name)
            if signature is None:
                raise invalid(
                    f'Serving signature name: "{signature_name}" not found in signature def'
                )
            inputs, row_format = await asyncio.to_thread(
                json_tensors.inputs_of, document, signature, self._limits.max_rows
            )
            # Waiting takes no thread, so that any number of requests can wait and be merged.
            outputs = await asyncio.wrap_future(loaded.submit(signature_name, inputs))
        return await asyncio.to_thread(json_tensors.answer, outputs, row_format)

    def _status(self, name: str, version: int | None) -> bytes:
        which = "any versions" if version is None else f"version {version}"
        self._check_name(name, f"Could not find {which} of model {name}")
        states = [
            {
                "version": str(state.version),
                "state": state.state,
                "status": {
                    "error_code": ServingError(state.code, "").name,
                    "error_message": state.message,
                },
            }
            for state in self._model.states(version)
        ]
        return json.dumps({"model_version_status": states}, indent=1).encode()

    def _metadata(self, name: str, version: int | None) -> bytes:
        which = f"Latest({name})" if version is None else f"Specific({name}, {version})"
        self._check_name(name, f"Servable not found for request: {which}")
        with self._model.use(version) as loaded:
            number, signature_defs = loaded.number, loaded.signature_defs
        signatures = json_format.MessageToDict(
            get_model_metadata_pb2.SignatureDefMap(signature_def=signature_defs),
            always_print_fields_with_no_presence=True,
            preserving_proto_field_name=True,
        )
        spec = {"name": name, "signature_name": "", "version": str(number)}
        metadata: Any = {"model_spec": spec, "metadata": {"signature_def": signatures}}
        return json.dumps(metadata, indent=1).encode()


def _json(content: bytes, status: int = 200) -> Response:
    return Response(content, status, media_type="application/json")


def make_app(model: ServedModel) -> Starlette:
    """Makes the application: the REST interface, and the page at `/`.

    Args:
        model: what is served.

    Returns:
        The application, for any ASGI server.
    """
    page = resources.files("keras_transformer.export").joinpath("page.html").read_text("utf-8")
    content = page.replace("{{model}}", html.escape(model.name)).encode()
    headers = {"content-security-policy": PAGE_POLICY, "x-content-type-options": "nosniff"}

    async def show_page(request: Request) -> Response:
        return Response(content, media_type="text/html", headers=headers)

    return Starlette(routes=[Route("/", show_page), Mount("/", RestApi(model))])


class _Protocol(H11Protocol):
    """HTTP that answers nonsense in JSON, and does not wait for ever for the end of a request."""

    read_timeout = Limits.read_timeout
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._watch()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _watch(self) -> None:
        """Runs a clock while the headers of a request are incomplete."""
        incomplete = self.conn.their_state is h11.IDLE and not self.transport.is_closing()
        if incomplete and self._deadline is None:
            self._deadline = self.loop.call_later(
                self.read_timeout, self._refuse, 408, "The request did not come in time"
            )
        elif not incomplete and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, status: int, message: str) -> None:
        body = json.dumps({"error": message}).encode()
        headers = [
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            ("connection", "close"),
        ]
        # A protocol error here means that an answer is on its way already.
        with contextlib.suppress(h11.LocalProtocolError):
            for event in (
                h11.Response(status_code=status, headers=headers),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class HttpServer:
    """Serves a model over HTTP.

    Args:
        model: what is served; opened and closed by whoever owns it.
        host: address to listen at.
        port: 0 takes a free one.

    Attributes:
        url: where it listens.

    Raises:
        OSError: if it cannot listen there.
    """

    def __init__(self, model: ServedModel, host: str = "127.0.0.1", port: int = 0) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # asyncio turns Nagle's delay, 40 ms an answer, off for sockets that name their protocol.
        self._socket = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((host, port))
            self._socket.listen()  # what comes before `run` waits
        except OSError:
            self._socket.close()
            raise
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._socket.getsockname()[1]}"
        protocol = type("Protocol", (_Protocol,), {"read_timeout": model.limits.read_timeout})
        config = uvicorn.Config(
            make_app(model),
            http=protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            timeout_keep_alive=75,  # a connection that a client keeps is not to end in its hands
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
        self._server = uvicorn.Server(config)

    def run(self) -> None:
        """Serves until `stop`, or SIGTERM or SIGINT in the main thread; answers what has come."""
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """Ends `run`, in whichever thread that is."""
        self._server.should_exit = True

    def close(self) -> None:
        """Stops listening; `run` has done so when it returns."""
        self._socket.close()
