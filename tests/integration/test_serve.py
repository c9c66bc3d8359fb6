"""`keras-transformer serve`: what it says, how it stops, and how bad input ends."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import urllib3
from fake_models import save_model

from keras_transformer.cli.gateway import gateway_command
from keras_transformer.cli.serve import serve_command
from keras_transformer.errors import InputError

EXAMPLE = 'Don\'t "play", $HOME: öl!'  # of the model's own texts
PROGRAM = """
import sys, typer
from keras_transformer.cli.console import show_log
from keras_transformer.cli.serve import serve_command
show_log()
typer.run(serve_command)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "fake"
    extra = save_model(folder, 3) / "assets.extra"
    extra.mkdir()
    (extra / "metadata.json").write_text(json.dumps({"examples": [{"text": EXAMPLE}]}))
    return folder


def test_serves_takes_up_versions_and_stops(folder):
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    options = ["--port", "0", "--grpc-port", "0", "--poll-seconds", "0.05"]
    process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
    try:
        said = {}
        for line in process.stderr:
            name, _, value = line.strip().partition(": ")
            said[name] = value
            if name == "Try":
                break
        assert said["Model"] == "fake, version 3, on the local server"
        assert said["Page"].startswith("http://127.0.0.1:")
        assert said["gRPC"].startswith("127.0.0.1:")
        assert said["Try"].startswith("curl -d ")
        # The line works when it is pasted.
        curl = subprocess.run(
            said["Try"].replace("curl", "curl -s"), shell=True, capture_output=True, check=True
        )
        (row,) = json.loads(curl.stdout)["predictions"]
        assert row["translation"] == '3:DON\'T "PLAY", $HOME: ÖL!'
        save_model(folder, 4)
        assert "Version 4 of fake is available" in next(process.stderr)
        answer = urllib3.request("GET", said["Page"] + "v1/models/fake", timeout=20).json()
        assert answer["model_version_status"][0]["version"] == "4"
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
        assert process.wait(60) == 0
        assert "Stopping" in rest
        assert "Traceback" not in rest
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_folder_that_is_no_model(folder, tmp_path, monkeypatch):
    for empty in (tmp_path, tmp_path / "none"):
        with pytest.raises(InputError, match=r"must be the folder of a model, with 1/"):
            serve_command(empty)
    monkeypatch.chdir(folder / "3")
    for version in (folder / "3", Path()):
        with pytest.raises(InputError, match=r"is a version of a model: name its folder, /.*/fake"):
            serve_command(version)
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "saved_model.pb").write_bytes(b"half")
    with pytest.raises(InputError, match=r"Version 1 of .* cannot be loaded: "):
        serve_command(tmp_path, port=0)


def test_addresses_that_are_refused(folder):
    with pytest.raises(InputError, match="`--host`"):
        serve_command(folder, host="")  # which sockets take for all addresses
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for ports in ({"port": port}, {"port": 0, "grpc_port": port}):
            with pytest.raises(InputError, match=f"Cannot listen at 127.0.0.1:{port}: .*; choose"):
                serve_command(folder, **ports)
        with pytest.raises(InputError, match=f"Cannot listen at 127.0.0.1:{port}: .*; choose"):
            gateway_command(["en:de=http://localhost:8501/v1/models/x"], port)


def test_missing_extra(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "starlette", None)
    for name in [name for name in sys.modules if name.startswith("starlette.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "keras_transformer.export.server.rest", raising=False)
    wanted = r"is not installed: pip install 'keras3-transformer\[serve\]'"
    with pytest.raises(InputError, match=wanted):
        serve_command(folder)
