"""`keras-transformer serve`."""

import contextlib
import json
import shlex
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

from typer import Argument, Option

from keras_transformer.cli.check import find_export
from keras_transformer.cli.console import load_tensorflow, say
from keras_transformer.errors import InputError, needs_extra

if TYPE_CHECKING:
    from keras_transformer.export.server.http import HttpServer
    from keras_transformer.export.server.models import ServedModel


def serve_command(
    folder: Annotated[
        Path, Argument(metavar="MODELS/NAME", help="A model's folder, as export writes it.")
    ],
    port: Annotated[
        int, Option(min=0, max=65535, help="Port for HTTP; 0 takes a free one.")
    ] = 8501,
    grpc_port: Annotated[
        int | None, Option(min=0, max=65535, help="Port for gRPC. [default: no gRPC]")
    ] = None,
    host: Annotated[
        str, Option(help="Address to listen at; with 0.0.0.0, other machines can connect.")
    ] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        Option(
            help="Another value of the Host header to accept; * is any. May be repeated. [default: "
            "only localhost if --host is a loopback address, else any]"
        ),
    ] = None,
    poll_seconds: Annotated[
        float, Option(min=0.01, help="Seconds between two checks for a new version.")
    ] = 1.0,
    max_body_bytes: Annotated[
        int, Option(min=1, max=2**31 - 1, help="Maximum size of a request, in bytes.")
    ] = 4_194_304,
) -> None:
    """Serve an export over HTTP and gRPC, for development.

    The local server has the URLs, requests, answers and errors of TF Serving, and a page to try
    the model. It loads new versions that appear in the folder.
    """
    say(f"Loading {folder} ...")
    load_tensorflow(searches=True)
    with needs_extra("serve"):
        from keras_transformer.export.server.grpc import GrpcServer
        from keras_transformer.export.server.http import HttpServer
        from keras_transformer.export.server.models import ServedModel
        from keras_transformer.export.server.rest import hosts_at, make_app
    if not host:
        raise InputError("`--host` must be an address, such as 127.0.0.1. Received: an empty one")
    if find_export(folder, "the folder of a model, with 1/saved_model.pb in it") == folder:
        parent = folder.absolute().parent
        raise InputError(f"{folder} is a version of a model: name its folder, {parent}")
    model = ServedModel(folder)
    with contextlib.ExitStack() as stack:
        # The ports come first: loading a model takes long, and a port may be in use.
        app = make_app(model, hosts_at(host, allow_host or ()), max_body_bytes)
        http = HttpServer(app, host, port)
        stack.callback(http.close)
        if grpc_port is not None:
            grpc = GrpcServer(model, host, grpc_port, max_body_bytes)
            stack.callback(grpc.stop)
        model.poll()
        stack.enter_context(model.watched(poll_seconds))
        say(f"Model: {model.name}, version {model.find(model.name).number}, on the local server")
        if grpc_port is not None:
            grpc.start()
            say(f"gRPC: {grpc.address}")
        _answer_requests(http, model)


def _answer_requests(http: "HttpServer", model: "ServedModel") -> None:
    from keras_transformer.export.server.rest import about_model

    # uvicorn raises the signal again when it has stopped; with these handlers it exits with 0.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: http.stop())
    api = f"{http.url}/v1/models/{quote(model.name)}"
    say(f"Page: {http.url}/")
    body = {"instances": (about_model(model)["examples"] or ["A text."])[:1]}
    say(f"Try: curl -d {shlex.quote(json.dumps(body, ensure_ascii=False))} {api}:predict")
    http.run()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # a second signal ends it at once
    say("Stopping: requests that have begun are answered")
