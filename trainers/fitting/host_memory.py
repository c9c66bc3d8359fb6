"""Settings of glibc's malloc that make training on a CPU faster."""

import ctypes

# glibc's malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


def keep_freed_memory() -> None:
    """Lets glibc keep the memory that an operation frees for the next operation.

    By default, glibc returns large results to the system, which clears their pages again at the
    next update (docs/log.md). Arenas other than the main one always return theirs, so later threads
    get none: call this before the first operation, which starts TensorFlow's threads. It changes
    the whole process, so `train` leaves it to the command line.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, TypeError, OSError):  # another C library
        return
    mallopt(_M_ARENA_MAX, 1)
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
