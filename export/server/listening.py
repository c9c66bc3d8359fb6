"""A socket for a server over HTTP."""

import socket


def listen(host: str, port: int) -> tuple[socket.socket, str]:
    """Returns a socket and its URL.

    The socket that uvicorn itself opens would end the process if the port is in use.

    Args:
        host: the address to listen at.
        port: 0 is a free one.

    Raises:
        OSError: if it cannot listen there.
    """
    is_ipv6 = ":" in host
    family = socket.AF_INET6 if is_ipv6 else socket.AF_INET
    listener = socket.create_server((host, port), family=family)
    # asyncio sets it only for sockets that name their protocol; without it an answer takes 40 ms
    # longer.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    name = f"[{host}]" if is_ipv6 else host
    return listener, f"http://{name}:{listener.getsockname()[1]}"
