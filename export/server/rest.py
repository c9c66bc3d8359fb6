"""TF Serving's REST interface, served locally, and a page to try the model at `/`.

The URLs, status codes and answers are those of TF Serving's
`model_servers/http_rest_api_handler.cc`.
"""

import gzip
import html
import io
import ipaddress
import json
import zlib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any
from urllib.parse import unquote

import tensorflow as tf
import uvicorn
from google.protobuf import json_format
from google.protobuf.message import Message
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from keras_transformer.errors import InputError
from keras_transformer.export.metadata import read_metadata
from keras_transformer.export.options import DEFAULT_SIGNATURE
from keras_transformer.export.server import json_tensors
from keras_transformer.export.server.listening import listen
from keras_transformer.export.server.models import STOP_SECONDS, ServedModel
from keras_transformer.export.session import SessionError

HTTP_STATUS = {
    tf.errors.INVALID_ARGUMENT: 400,
    tf.errors.FAILED_PRECONDITION: 400,
    tf.errors.NOT_FOUND: 404,
    tf.errors.RESOURCE_EXHAUSTED: 429,
    tf.errors.UNAVAILABLE: 503,
}
LOCAL_HOSTS = ["localhost", "127.0.0.1", "[::1]"]


class _ModelName(StringConvertor):
    regex = "[^/:]+"

    def convert(self, value: str) -> str:
        return unquote(value)


register_url_convertor("model", _ModelName())


def _make_app(model: ServedModel, allowed_hosts: Sequence[str], max_body_bytes: int) -> Starlette:
    """Returns an ASGI application: the REST interface, `/healthz`, and the page at `/`."""
    folder = resources.files("keras_transformer.export.server")
    text = folder.joinpath("page.html").read_text("utf-8")

    def page(request: Request) -> Response:
        about = html.escape(json.dumps(about_model(model)))
        named = text.replace("{{model}}", html.escape(model.name))
        return HTMLResponse(named.replace("{{about}}", about))

    def healthz(request: Request) -> Response:
        model.find(model.name)
        return JSONResponse({"status": "ok"})

    async def predict(request: Request) -> Response:
        body = await request.body()
        if request.headers.get("content-encoding") == "gzip":
            body = _unzipped(body, max_body_bytes)
        return await run_in_threadpool(_predict, model, request.path_params, body)

    def status(request: Request) -> Response:
        name, version = request.path_params["name"], request.path_params.get("version")
        return JSONResponse(_to_dict(model.status(name, version)))

    def metadata(request: Request) -> Response:
        loaded = model.find(**request.path_params)
        spec = {"name": model.name, "signature_name": "", "version": str(loaded.number)}
        signatures = _to_dict(loaded.signature_map)
        return JSONResponse({"model_spec": spec, "metadata": {"signature_def": signatures}})

    routes = [Route("/", page), Route("/healthz", healthz)]
    for path in ("/v1/models/{name:model}", "/v1/models/{name:model}/versions/{version:int}"):
        routes += [
            Route(path, status),
            Route(f"{path}/metadata", metadata),
            Route(f"{path}:predict", predict, methods=["POST"]),
        ]
    # TF Serving ignores the label of a status.
    routes.append(Route("/v1/models/{name:model}/labels/{label:model}", status))
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=allowed_hosts, www_redirect=False),
            Middleware(_with_query),
        ],
        exception_handlers=dict.fromkeys((HTTPException, SessionError, Exception), _error),
        max_body_size=max_body_bytes,
    )
    app.router.redirect_slashes = False
    return app


def _with_query(app: ASGIApp) -> ASGIApp:
    """Makes a query a part of the path, which stays escaped, as TF Serving reads it."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        target: bytes = scope.get("raw_path", b"")
        if target.startswith(b"/v1"):
            target += b"?" * bool(scope["query_string"]) + scope["query_string"]
            scope = {**scope, "path": target.decode("latin-1")}
        await app(scope, receive, send)

    return wrapped


def about_model(model: ServedModel) -> dict[str, Any]:
    """Returns what the page shows of the loaded version, as far as known."""
    try:
        found = read_metadata(model.find(model.name).path)
    except InputError:
        found = {}
    examples = [each["text"] for each in found.get("examples", [])]
    about = {name: found.get(name) for name in ("source", "target", "protect")}
    return {**about, "examples": examples}


def _unzipped(body: bytes, max_bytes: int) -> bytes:
    try:
        with gzip.open(io.BytesIO(body)) as file:
            content = file.read(max_bytes + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise SessionError(f"The request is not valid gzip: {error}") from None
    if len(content) > max_bytes:
        raise HTTPException(413, f"The request is larger than {max_bytes} bytes")
    return content


def _predict(model: ServedModel, path_params: Mapping[str, Any], body: bytes) -> Response:
    document = json_tensors.parse(body)
    loaded = model.find(**path_params)
    name = document.get("signature_name") or DEFAULT_SIGNATURE
    if not isinstance(name, str):
        raise SessionError("'signature_name' must be a string")
    inputs = json_tensors.inputs_from_json(document, loaded.signature(name).inputs)
    outputs = loaded.run(name, inputs)
    return JSONResponse(json_tensors.answer(outputs, row_format="instances" in document))


def _to_dict(message: Message) -> dict[str, Any]:
    return json_format.MessageToDict(
        message, always_print_fields_with_no_presence=True, preserving_proto_field_name=True
    )


def _error(request: Request, error: Exception) -> Response:
    status, message = 500, f"Internal error: {type(error).__name__}"
    if isinstance(error, SessionError):
        status, message = HTTP_STATUS.get(error.code, 500), str(error)
    elif isinstance(error, HTTPException):
        status, message = error.status_code, error.detail
        if status in (404, 405):  # no route has this path and method
            path = request.scope["path"]
            status = 400 if path.startswith("/v1/") else 404
            message = f"Malformed request: {request.method} {path}"
    return JSONResponse({"error": message}, status)


class HttpServer:
    """Serves a model over HTTP.

    Args:
        model: the model, which the caller has loaded.
        host: the address to listen at; `url` has it and the port.
        port: 0 is a free one.
        max_body_bytes: the maximum size of a request.
        allow_hosts: hosts that a request may name, besides those of this machine; "*" is any.
            Without them, any host is allowed unless `host` is a loopback address.

    Raises:
        OSError: if it cannot listen there.
    """

    def __init__(
        self,
        model: ServedModel,
        host: str,
        port: int,
        max_body_bytes: int,
        allow_hosts: Sequence[str] = (),
    ) -> None:
        self._socket, self.url = listen(host, port)
        address = self._socket.getsockname()[0]
        name = f"[{host}]" if ":" in host else host
        any_host = not (allow_hosts or ipaddress.ip_address(address).is_loopback)
        hosts = ["*"] if any_host else [name, *LOCAL_HOSTS, *allow_hosts]
        config = uvicorn.Config(
            _make_app(model, hosts, max_body_bytes),
            log_config=None,
            log_level="error",
            timeout_graceful_shutdown=STOP_SECONDS,
        )
        self._server = uvicorn.Server(config)

    def run(self) -> None:
        """Serves until `stop`, SIGTERM or SIGINT; then waits for requests that have begun."""
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """Ends `run`, from any thread."""
        self._server.should_exit = True

    def close(self) -> None:
        """Stops listening; `run` has done so when it returns."""
        self._socket.close()
