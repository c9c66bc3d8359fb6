"""The model of `fake_models`, served."""

import json

import pytest
import urllib3
from fake_models import save_model, serving

from keras_transformer.export.protocol import Limits

LIMITS = Limits(max_body_bytes=60_000, max_rows=11)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "fake"
    folder.mkdir()
    save_model(folder, 3)
    return folder


@pytest.fixture(scope="module")
def server(folder):
    with serving(folder, LIMITS) as server:
        yield server


@pytest.fixture(scope="module")
def http():
    with urllib3.PoolManager(retries=False, timeout=20) as pool:
        yield pool


@pytest.fixture(scope="module")
def post(server, http):
    """Sends a request to the model; returns the status and the JSON."""

    def post(body, path="/v1/models/fake:predict"):
        content = body if isinstance(body, bytes | str) else json.dumps(body)
        response = http.request("POST", server.url + path, body=content)
        assert response.headers["content-type"] == "application/json"
        return response.status, json.loads(response.data)

    return post
