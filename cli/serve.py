"""`keras-transformer serve`."""

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar
from urllib.parse import quote

import typer

from keras_transformer.cli.console import load_tensorflow, say, waitable
from keras_transformer.errors import InputError

if TYPE_CHECKING:
    from keras_transformer.export.models import ServedModel

Server = TypeVar("Server")


def serve_command(
    folder: Annotated[
        Path, typer.Argument(metavar="MODELS/NAME", help="A model's folder, as export writes it.")
    ],
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="For HTTP; 0 is any free one.")
    ] = 8501,
    grpc_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="For gRPC. [default: no gRPC]", show_default=False),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen at; 0.0.0.0 lets other machines in.")
    ] = "127.0.0.1",
    poll_seconds: Annotated[
        float,
        typer.Option(callback=waitable, min=0.01, help="How often to look for a new version."),
    ] = 1.0,
    max_batch_size: Annotated[
        int, typer.Option(min=1, help="Texts that are merged into one batch; 1 merges none.")
    ] = 32,
    batch_timeout_ms: Annotated[
        float,
        typer.Option(
            callback=waitable, min=0, help="How long a request waits for others to be merged with."
        ),
    ] = 2.0,
    max_rows: Annotated[int, typer.Option(min=1, help="Texts of a request.")] = 256,
    max_queue: Annotated[
        int, typer.Option(min=1, help="Requests that may wait; others are refused.")
    ] = 256,
    run_timeout: Annotated[
        float, typer.Option(callback=waitable, min=1, help="Seconds that a batch may take.")
    ] = 60.0,
    max_body_bytes: Annotated[int, typer.Option(min=1, help="Size of a request.")] = 4 << 20,
    max_connections: Annotated[
        int, typer.Option(min=1, help="HTTP connections that may be open; others are refused.")
    ] = 512,
    read_timeout: Annotated[
        float,
        typer.Option(
            callback=waitable,
            min=1,
            help="Seconds for a request to come, and for its answer to be taken.",
        ),
    ] = 30.0,
) -> None:
    """Serve an exported model over HTTP and gRPC, with a page to try it.

    A stand-in for TF Serving on machines that do not have it: the same URLs, requests, answers and
    errors. It takes up new versions that appear in the folder.
    """
    load_tensorflow()
    try:
        from keras_transformer.export.grpc_server import GrpcServer
        from keras_transformer.export.models import ServedModel
        from keras_transformer.export.protocol import Limits
        from keras_transformer.export.server import HttpServer
        from keras_transformer.export.versions import version_paths
    except ModuleNotFoundError as error:
        raise InputError(
            f"{error.name} is not installed: pip install 'keras3-transformer[serve]'"
        ) from error

    if not host:
        raise InputError("`--host` must be an address, such as 127.0.0.1. Received: an empty one")
    if (folder / "saved_model.pb").is_file():
        parent = os.path.dirname(os.path.abspath(folder))
        raise InputError(f"{folder} is a version of a model: name its folder, {parent}")
    if not version_paths(folder):
        raise InputError(
            f"{folder} holds no model: expected {folder / '1' / 'saved_model.pb'} or another "
            "version, as keras-transformer export writes it"
        )
    limits = Limits(
        max_body_bytes=max_body_bytes,
        max_rows=max_rows,
        max_queue=max_queue,
        max_batch_size=max_batch_size,
        batch_timeout=batch_timeout_ms / 1000,
        run_timeout=run_timeout,
        max_connections=max_connections,
        read_timeout=read_timeout,
    )
    model = ServedModel(folder, limits)
    with contextlib.ExitStack() as stack:
        stack.callback(model.close)
        # Ports first: to load a model takes longer than to find out that a port is taken.
        http = _listen(HttpServer, model, host, port)
        stack.callback(http.close)
        grpc = None
        if grpc_port is not None:
            grpc = _listen(GrpcServer, model, host, grpc_port)
            stack.callback(grpc.stop)
        model.poll()
        newest = model.states()[0]
        if newest.state != "AVAILABLE":
            raise InputError(f"Version {newest.version} cannot be loaded: {newest.message}")
        model.watch(poll_seconds)
        say(f"Model: {model.name}, version {newest.version}, in a stand-in for TF Serving")
        if grpc is not None:
            grpc.start()
            say(f"gRPC: {grpc.address}")
        # After its own handlers, uvicorn calls the ones before: a stop that was asked for is no
        # failure. Until then, these note it.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: http.stop())
        api = f"{http.url}/v1/models/{quote(model.name)}"
        say(f"Page: {http.url}/")
        say(f'Try: curl -d \'{{"instances": ["Two dogs play."]}}\' {api}:predict')
        http.run()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)  # the second time, it is meant
        say("Stopping: what was accepted is answered")


def _listen(
    server: Callable[["ServedModel", str, int], Server], model: "ServedModel", host: str, port: int
) -> Server:
    """Makes a server; a port that cannot be had is the user's to change."""
    try:
        return server(model, host, port)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"Cannot listen at {host}:{port}: {reason}; choose another") from error
