"""A disk that is full."""

import contextlib
import resource


@contextlib.contextmanager
def full_disk(room):
    """Files of more than so many bytes do not fit: pytest's own log among them."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
