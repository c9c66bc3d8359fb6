"""Memory that operations free, seen by the page faults of a thread that allocates again."""

import subprocess
import sys

from keras_transformer.trainers.fitting import host_memory

SCRIPT = """
import resource, runpy, sys, threading

if sys.argv[1:]:
    runpy.run_path(sys.argv[1])["keep_freed_memory"]()

def allocate():
    for i in range(20):
        if i == 10:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        bytearray(b"a") * 40_000_000
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

thread = threading.Thread(target=allocate)
thread.start()
thread.join()
"""


def page_faults(*arguments):
    command = [sys.executable, "-c", SCRIPT, *arguments]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_freed_memory_is_kept():
    assert page_faults() > 10 * 40_000_000 / 4096
    assert page_faults(host_memory.__file__) < 100


def test_another_c_library(monkeypatch):
    monkeypatch.setattr(host_memory.ctypes, "CDLL", lambda name: object())
    host_memory.keep_freed_memory()
