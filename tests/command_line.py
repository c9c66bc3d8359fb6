"""The program in this process, and how its commands end."""

import io
import logging
import re
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from keras_transformer.cli.main import main

ROOT = Path(__file__).parents[1]


def cli(*arguments, stdin=b""):
    """Runs a command in this process; returns its exit status, standard output and error."""
    logger = logging.getLogger("keras_transformer")
    level = logger.level
    code = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["keras-transformer", *map(str, arguments)])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        patch.setattr(sys, "stdout", io.StringIO())
        patch.setattr(sys, "stderr", io.StringIO())
        patch.setattr(logger, "handlers", [])  # whose stream is this call's standard error
        try:
            main()
        except SystemExit as error:
            code = error.code or 0
        finally:
            logger.setLevel(level)
        return code, sys.stdout.getvalue(), sys.stderr.getvalue()


def free_ports(count):
    """Ports that nothing listens to."""
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [each.getsockname()[1] for each in sockets]


def assert_documented(command, values):
    """Asserts that the page on the command line has the keys of an object."""
    page = (ROOT / "docs" / "reference" / "command-line.md").read_text("utf-8")
    (row,) = re.findall(rf"^\| `{command}` \| (.*) \|$", page, re.MULTILINE)
    keys = {f"`{key}`" for key in values}
    assert keys <= set(re.findall("`[^`]+`", row))


def assert_refused(result, message):
    code, out, err = result
    assert (code, out) == (1, "")
    assert re.fullmatch(f"error: {message}\n", err)
