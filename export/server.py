"""TF Serving's REST interface, for machines that have no TF Serving: a stand-in.

The URLs, status codes and answers are those of its `model_servers/http_rest_api_handler.cc`. On top
there are limits (TF Serving has none), and a page to try the model at `/`.
"""

import asyncio
import concurrent.futures
import contextlib
import html
import json
import logging
import math
import re
import resource
import socket
import threading
import zlib
from collections.abc import Iterator
from importlib import resources
from typing import Any
from urllib.parse import unquote

import h11
import numpy as np
import tensorflow as tf
import uvicorn
from google.protobuf import json_format
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
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
NUM_THREADS = 8  # that read and write JSON, beside the one that waits for requests
LOG_SECONDS = 10  # between two lines about connections that cannot be accepted

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
        except asyncio.CancelledError:  # by a stop whose time is over
            gone = ServingError(tf.errors.UNAVAILABLE, "The server is stopping")
            response = _json(json_tensors.error_body(gone), 503)
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
                return _json(await self._predict(request, name, version, body))
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

    async def _body(self, request: Request) -> bytes:
        """Reads a body of limited size; the connection sees to the time."""
        limit = self._limits.max_body_bytes
        too_large = _HttpError(413, f"The request is larger than {limit} bytes")
        size = int(request.headers.get("content-length", 0))
        if size > limit and "expect" in request.headers:  # the client asks before it sends
            raise too_large
        body = bytearray()
        received = 0
        async for chunk in request.stream():
            received += len(chunk)
            if received <= limit:
                body += chunk
            elif received > 4 * limit:
                # Some is read on, for a client that still sends does not see an answer.
                raise too_large
        if received > limit:
            raise too_large
        encoding = request.headers.get("content-encoding", "identity").lower()
        if encoding == "identity":
            return bytes(body)
        if encoding != "gzip":
            raise invalid(f"Content-Encoding must be gzip or identity. Received: {encoding}")
        content = await asyncio.to_thread(_gunzip, body, limit)
        if len(content) > limit:
            raise too_large
        return content

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

    async def _predict(
        self, request: Request, name: str, version: int | None, body: bytes
    ) -> bytes:
        document = await asyncio.to_thread(json_tensors.parse, body)
        signature_name = json_tensors.signature_name(document)
        with self._model.use(version, name) as loaded:
            signature = loaded.signature(signature_name)
            if signature is None:
                raise invalid(
                    f'Serving signature name: "{signature_name}" not found in signature def'
                )
            inputs, row_format = await asyncio.to_thread(
                json_tensors.inputs_of, document, signature, self._limits.max_rows
            )
            # Waiting takes no thread, so that any number of requests can wait and be merged.
            outputs = await _while_connected(request, loaded.submit(signature_name, inputs))
        return await asyncio.to_thread(json_tensors.answer, outputs, row_format)

    def _status(self, name: str, version: int | None) -> bytes:
        states = [
            {
                "version": str(state.version),
                "state": state.state,
                "status": {
                    "error_code": ServingError(state.code, "").name,
                    "error_message": state.message,
                },
            }
            for state in self._model.states(version, name)
        ]
        return json.dumps({"model_version_status": states}, indent=1).encode()

    def _metadata(self, name: str, version: int | None) -> bytes:
        with self._model.use(version, name) as loaded:
            number, signature_defs = loaded.number, loaded.signature_defs
        signatures = json_format.MessageToDict(
            get_model_metadata_pb2.SignatureDefMap(signature_def=signature_defs),
            always_print_fields_with_no_presence=True,
            preserving_proto_field_name=True,
        )
        spec = {"name": name, "signature_name": "", "version": str(number)}
        metadata: Any = {"model_spec": spec, "metadata": {"signature_def": signatures}}
        return json.dumps(metadata, indent=1).encode()


async def _while_connected(
    request: Request, answer: concurrent.futures.Future[dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Waits for an answer while its client does; if that goes, what waits in the queue is dropped.

    Raises:
        ClientDisconnect: if the client is gone.
    """

    async def disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    gone = asyncio.ensure_future(disconnect())
    waiter = asyncio.wrap_future(answer)
    try:
        either: list[asyncio.Future[Any]] = [gone, waiter]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not waiter.done():
            raise ClientDisconnect
        return waiter.result()
    finally:
        gone.cancel()
        waiter.cancel()
        answer.cancel()


def _gunzip(body: bytes | bytearray, limit: int) -> bytes:
    """Unpacks a body, and no more than a byte beyond the limit of it."""
    inflate = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        content = inflate.decompress(body, limit + 1)
    except zlib.error:
        content = None
    if content is None or (len(content) <= limit and (not inflate.eof or inflate.unused_data)):
        raise invalid("The request is not gzip, or not one whole, as its Content-Encoding says")
    return content


def _json(content: bytes, status: int = 200) -> Response:
    return Response(content, status, media_type="application/json")


def make_app(model: ServedModel) -> ASGIApp:
    """Makes the application: the REST interface, and the page at `/`.

    Args:
        model: what is served.

    Returns:
        The application, for any ASGI server.
    """
    page = resources.files("keras_transformer.export").joinpath("page.html").read_text("utf-8")
    content = page.replace("{{model}}", html.escape(model.name)).encode()
    headers = {"content-security-policy": PAGE_POLICY, "x-content-type-options": "nosniff"}

    show_page = Response(content, media_type="text/html", headers=headers)
    answer = RestApi(model)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        # A URL may be whole, as for a proxy.
        path = re.sub(rb"^https?://[^/]*", b"", scope["raw_path"], flags=re.IGNORECASE) or b"/"
        if path == b"/" and scope["method"] in ("GET", "HEAD"):
            await show_page(scope, receive, send)
        else:
            await answer({**scope, "raw_path": path}, receive, send)

    return app


class _Protocol(H11Protocol):
    """HTTP that answers nonsense in JSON, and lets nobody hold a connection for ever."""

    timeout = Limits.read_timeout
    max_connections = Limits.max_connections
    _reading: asyncio.TimerHandle | None = None
    _writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # `pause_writing` tells of all that is not taken
        if len(self.connections) > self.max_connections:
            self._refuse(503, "Too many connections are open")
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writing = self.loop.call_later(self.timeout, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._writing is not None:
            self._writing.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._watch()
        if self._writing is not None:
            self._writing.cancel()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _watch(self) -> None:
        """Runs a clock while a request is incomplete, from its first byte to the last."""
        state = self.conn.their_state
        # Between two requests, it is uvicorn's clock for idle connections that runs.
        begun = self.cycle is None or bool(self.conn.trailing_data[0])
        incomplete = state is h11.SEND_BODY or (state is h11.IDLE and begun)
        if self.transport.is_closing() or not incomplete:
            if self._reading is not None:
                self._reading.cancel()
                self._reading = None
        elif self._reading is None:
            self._reading = self.loop.call_later(
                self.timeout, self._refuse, 408, "The request did not come in time"
            )

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


class _Server(uvicorn.Server):
    """A server that says now and then that it can accept no connection, not at every try."""

    _told = -math.inf

    def __init__(self, config: uvicorn.Config, threads: concurrent.futures.Executor) -> None:
        super().__init__(config)
        self._threads = threads

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(self._threads)
        loop.set_exception_handler(self._tell)
        await super().startup(sockets)

    def _tell(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError):
            loop.default_exception_handler(context)
        elif loop.time() - self._told >= LOG_SECONDS:
            self._told = loop.time()
            _logger.error("A connection failed: %s", error.strerror or error)


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
        limits = model.limits
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        # Half of the files that a process may open are left for all else.
        most = limits.max_connections if files < 0 else min(limits.max_connections, files // 2)
        protocol = type(
            "Protocol", (_Protocol,), {"timeout": limits.read_timeout, "max_connections": most}
        )
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
            timeout_graceful_shutdown=limits.stop_timeout,
        )
        self._threads = _started_threads(NUM_THREADS)
        self._server = _Server(config, self._threads)

    def run(self) -> None:
        """Serves until `stop`, or SIGTERM or SIGINT in the main thread; answers what has come."""
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """Ends `run`, in whichever thread that is."""
        self._server.should_exit = True

    def close(self) -> None:
        """Stops listening; `run` has done so when it returns."""
        self._socket.close()
        self._threads.shutdown(wait=False)


def _started_threads(count: int) -> concurrent.futures.ThreadPoolExecutor:
    """Makes a pool whose threads run already: beside gRPC's, the first to start takes 0.2 s."""
    threads = concurrent.futures.ThreadPoolExecutor(count, thread_name_prefix="http")
    together = threading.Barrier(count)
    for _ in range(count):
        threads.submit(together.wait)
    return threads
