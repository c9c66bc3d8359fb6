"""TF Serving's REST interface, served locally, and a page to try the model at `/`.

The URLs, status codes and answers are those of TF Serving's
`model_servers/http_rest_api_handler.cc`.
"""

import html
import ipaddress
import json
import zlib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any
from urllib.parse import unquote

import tensorflow as tf
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
from keras_transformer.export.server.models import ServedModel
from keras_transformer.export.session import SessionError
from keras_transformer.languages import common_codes
from keras_transformer.protection.terms import term_marker

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


def make_app(model: ServedModel, allowed_hosts: Sequence[str], max_body_bytes: int) -> Starlette:
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

    async def terms(request: Request) -> Response:
        return await run_in_threadpool(_mark_terms, model, await request.body())

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

    routes = [
        Route("/", page),
        Route("/healthz", healthz),
        Route("/terms", terms, methods=["POST"]),
    ]
    for path in ("/v1/models/{name:model}", "/v1/models/{name:model}/versions/{version:int}"):
        routes += [
            Route(path, status),
            Route(f"{path}/metadata", metadata),
            Route(f"{path}:predict", predict, methods=["POST"]),
        ]
    # TF Serving ignores the label of a status.
    routes.append(Route("/v1/models/{name:model}/labels/{label:model}", status))
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=allowed_hosts, www_redirect=False)
    app = Starlette(
        routes=routes,
        middleware=[hosts, Middleware(_with_query)],
        exception_handlers=dict.fromkeys((HTTPException, InputError, Exception), _error),
        max_body_size=max_body_bytes,
    )
    app.router.redirect_slashes = False
    return app


def hosts_at(host: str, others: Sequence[str]) -> list[str]:
    """Returns the hosts that a request to a server at `host` may name: this machine's and `others`.

    Without `others`, unless `host` is a loopback address, it may name any, "*".
    """
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = host == "localhost"
    if not others and not is_loopback:
        return ["*"]
    return [f"[{host}]" if ":" in host else host, *LOCAL_HOSTS, *others]


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
        metadata = read_metadata(model.find(model.name).path)
    except InputError:
        metadata = {}
    known = metadata.get("languages", {})
    codes = {name: common_codes(tuple(known.get(name, ()))) for name in ("sources", "targets")}
    return {name: metadata.get(name) for name in ("source", "target", "protect")} | {
        "examples": [example["text"] for example in metadata.get("examples", [])],
        "languages": {**known, **codes} if codes["targets"] else None,
    }


def _mark_terms(model: ServedModel, body: bytes) -> Response:
    """Marks the terms, which the page's user wrote one a line, in a text."""
    document = json_tensors.parse(body)
    text, lines = (str(document.get(name, "")) for name in ("text", "terms"))
    glossary = {}
    for line in filter(str.strip, lines.split("\n")):
        columns = [column.strip() for column in line.split("\t" if "\t" in line else "=")]
        if len(columns) != 2 or not all(columns):
            raise InputError(
                "A line of terms must be a word, a tab or =, and its translation. "
                f"Received: {line.strip()}"
            )
        glossary[columns[0]] = columns[1]
    mark = term_marker(glossary, about_model(model)["protect"] or ())
    return JSONResponse({"text": mark(text)})


def _unzipped(body: bytes, max_bytes: int) -> bytes:
    decompressor = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        content = decompressor.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise SessionError(f"The request is not valid gzip: {error}") from None
    if len(content) > max_bytes:
        raise HTTPException(413, f"The request is larger than {max_bytes} bytes")
    if not decompressor.eof:
        raise SessionError("The request is not valid gzip: it is truncated")
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
    if isinstance(error, InputError):
        code = getattr(error, "code", tf.errors.INVALID_ARGUMENT)
        status, message = HTTP_STATUS.get(code, 500), str(error)
    elif isinstance(error, HTTPException):
        status, message = error.status_code, error.detail
        if status in (404, 405):  # no route has this path and method
            path = request.scope["path"]
            status = 400 if path.startswith("/v1/") else 404
            message = f"Malformed request: {request.method} {path}"
    return JSONResponse({"error": message}, status)
