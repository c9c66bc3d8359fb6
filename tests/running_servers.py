"""Servers that run in threads of the tests."""

import threading
from contextlib import contextmanager

import uvicorn
from command_line import free_ports


@contextmanager
def running(run, stop):
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop()
        thread.join(20)
        assert not thread.is_alive()


@contextmanager
def running_app(app):
    """Serves an ASGI application; gives its URL."""
    (port,) = free_ports(1)
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
    with running(server.run, lambda: setattr(server, "should_exit", True)):
        while not server.started:
            pass
        yield f"http://127.0.0.1:{port}"
