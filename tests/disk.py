"""A disk that is full."""

import contextlib
import logging
import resource


@contextlib.contextmanager
def full_disk(room):
    """Files of more than so many bytes do not fit, and nothing is logged, for a log is a file."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    logging.disable()
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        logging.disable(logging.NOTSET)
