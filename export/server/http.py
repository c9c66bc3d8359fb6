"""An ASGI application on a port."""

import socket

import uvicorn
from starlette.applications import Starlette

from keras_transformer.errors import InputError

STOP_SECONDS = 60  # how long a server that stops waits for the requests that have begun


def address_of(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def cannot_listen(host: str, port: int, error: Exception) -> InputError:
    return InputError(f"Cannot listen at {host}:{port}: {error}; choose another port or host")


class HttpServer:
    """Serves an application at `url`, from `run` on; `InputError` if it cannot listen there."""

    def __init__(self, app: Starlette, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:  # the socket that uvicorn opens would end the process if the port is in use
            self._socket = socket.create_server((host, port), family=family)
        except OSError as error:
            raise cannot_listen(host, port, error) from error
        # asyncio sets it only for sockets that name their protocol; an answer takes 40 ms less.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.url = f"http://{address_of(host, self._socket.getsockname()[1])}"
        config = uvicorn.Config(
            app, log_config=None, log_level="error", timeout_graceful_shutdown=STOP_SECONDS
        )
        self._server = uvicorn.Server(config)

    def run(self) -> None:
        """Serves until `stop`, SIGTERM or SIGINT; then waits for requests that have begun."""
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """Ends `run`, from any thread."""
        self._server.should_exit = True

    def close(self) -> None:
        self._socket.close()
