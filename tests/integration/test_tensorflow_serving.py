"""Exports of every kind on TensorFlow Serving itself, bad clients, and a new version under load.

`test_serving_contract.py` runs on it, too.
"""

import itertools
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import grpc
import pytest
import tensorflow as tf
import urllib3
from fake_models import predict_request
from libretranslatepy import LibreTranslateAPI
from running_servers import running_app
from serving_binary import tensorflow_serving
from tensorflow_serving.apis.prediction_service_pb2_grpc import PredictionServiceStub

from keras_transformer.export.clients import GrpcClient, RestClient
from keras_transformer.export.gateway import Direction, Gateway
from keras_transformer.export.session import SavedModelSession

pytestmark = [pytest.mark.programs, pytest.mark.timeout(900)]

TEXTS = ["red dog .", "", "öl two one", "one two " * 31, "\u200bשלם 😀", "red %s <b>dog</b>"]
KINDS = ["sentencepiece", "word_pieces", "marian", "float16", "bfloat16", "parser", "protected"]
KINDS += ["recurrent", "several"]
BAD = [
    b"",
    b"{",
    b"[" * 100_000,
    b'{"instances": []}',
    b'{"instances": [5]}',
    b'{"instances": [["a", "b"]]}',
    b'{"instances": ["\xff\xfe"]}',
    b'{"inputs": "a"}',
    b'{"signature_name": "none", "instances": ["a"]}',
    b'{"instances": [' + b'"a",' * 2_000 + b'"a"]}',
    b'{"instances": ["' + b"x" * 13_000_000 + b'"]}',
]


@pytest.fixture(scope="module")
def models(kinds):
    """Folders of exports by their kind."""
    return {name: kinds[name].path.parent for name in KINDS}


@pytest.fixture(scope="module")
def served(models, tmp_path_factory):
    """The server's own copies of the folders."""
    copies = tmp_path_factory.mktemp("served")
    return {name: shutil.copytree(path, copies / name) for name, path in models.items()}


@pytest.fixture(scope="module")
def server(served, tmp_path_factory):
    """One server of all kinds, which has replayed the warm-up requests of each."""
    with tensorflow_serving(served, tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(scope="module")
def post(server):
    """Sends a request to a model; returns the status and the JSON."""
    with urllib3.PoolManager(retries=False, timeout=120, maxsize=10) as pool:

        def post(name, body):
            content = {"body": body} if isinstance(body, bytes) else {"json": body}
            url = f"{server.url}/v1/models/{name}:predict"
            response = pool.request("POST", url, **content)
            return response.status, response.json()

        yield post


@pytest.mark.parametrize("name", KINDS)
def test_answers_as_a_session(name, models, post):
    (path,) = models[name].glob("[0-9]*")
    expected = [row["translation"] for row in SavedModelSession(path).translate(TEXTS)]
    assert any(expected)
    status, answer = post(name, {"instances": TEXTS})
    assert status == 200, answer
    assert [row["translation"] for row in answer["predictions"]] == expected


def test_completes_as_a_session(models, post):
    (path,) = models["protected"].glob("[0-9]*")
    texts, prefixes = TEXTS[::5], ["tw", "%s "]
    encoded = {"text": texts, "prefix": prefixes}
    encoded = {name: [each.encode() for each in column] for name, column in encoded.items()}
    expected = SavedModelSession(path).run("complete", encoded)["translation"]
    rows = [{"text": text, "prefix": prefix} for text, prefix in zip(texts, prefixes, strict=True)]
    status, answer = post("protected", {"signature_name": "complete", "instances": rows})
    assert status == 200, answer
    found = [row["translation"] for row in answer["predictions"]]
    assert found == [each.decode() for each in expected]
    assert all(map(str.startswith, found, prefixes))


LANGUAGES = {"text": TEXTS[:3], "source": ["en", "", ""], "target": ["deu", "fra", ""]}


def test_languages_of_each_text(models, post, server):
    """In rows and columns; gRPC has defaults, and one language for all texts of a request."""
    (path,) = models["several"].glob("[0-9]*")
    tagged = [f">>{tag}<< {text}" for tag, text in zip(["deu", "fra", "fra"], TEXTS, strict=False)]
    expected = [row["translation"] for row in SavedModelSession(path).translate(tagged)]
    rows = [dict(zip(LANGUAGES, row, strict=True)) for row in zip(*LANGUAGES.values(), strict=True)]
    status, answer = post("several", {"signature_name": "translate", "instances": rows})
    assert status == 200, answer
    assert [row["translation"] for row in answer["predictions"]] == expected
    status, answer = post("several", {"signature_name": "translate", "inputs": LANGUAGES})
    assert status == 200, answer
    assert answer["outputs"]["translation"] == expected
    with grpc.insecure_channel(server.grpc) as channel:
        stub = PredictionServiceStub(channel)

        def predict(**inputs):
            tensors = {name: tf.make_tensor_proto(texts) for name, texts in inputs.items()}
            request = predict_request("translate", tensors, model="several")
            outputs = stub.Predict(request, timeout=60).outputs
            return [text.decode() for text in tf.make_ndarray(outputs["translation"])]

        assert predict(text=TEXTS[1:3]) == expected[1:]  # the run's default
        assert predict(text=TEXTS[:1], target=["deu"]) == expected[:1]
        assert predict(text=TEXTS[1:3], target=["fra"], source=["en"]) == expected[1:]
    for client in (
        RestClient(f"{server.url}/v1/models/several"),
        GrpcClient(server.grpc, "several"),
    ):
        assert client.languages() == ("en", "fra", ["en"], ["deu", "fra"])
        client.close()
    with closing(RestClient(f"{server.url}/v1/models/sentencepiece")) as client:
        assert client.languages() is None


def test_an_unknown_language_fails_alone(models, post):
    (path,) = models["several"].glob("[0-9]*")
    (expected,) = SavedModelSession(path).translate([f">>deu<< {TEXTS[2]}"])
    good = {"text": [TEXTS[2]], "source": [""], "target": ["deu"]}
    bad = {"text": TEXTS[:2], "source": ["en", "en"], "target": ["deu", "xyz"]}
    with ThreadPoolExecutor(9) as pool:
        asked = [good, bad, good] * 12
        answers = pool.map(
            lambda inputs: post("several", {"signature_name": "translate", "inputs": inputs}), asked
        )
        for inputs, (status, answer) in zip(asked, answers, strict=True):
            if inputs is good:
                assert status == 200, answer
                assert answer["outputs"]["translation"] == [expected["translation"]]
            else:
                assert status == 400
                assert "target languages that the signature languages lists" in answer["error"]
                assert "xyz" in answer["error"]


def test_libretranslates_client_behind_a_gateway(models, server):
    (path,) = models["protected"].glob("[0-9]*")
    texts = [TEXTS[0], TEXTS[5]]
    expected = SavedModelSession(path).run("document", {"text": [t.encode() for t in texts]})
    urls = {Direction("en", "cs"): f"{server.url}/v1/models/protected"}
    app = Gateway(urls, max_characters=500, max_texts=9, timeout=60).app()
    with running_app(app) as url:
        client = LibreTranslateAPI(url)
        found = [client.translate(text, "en", "cs") for text in texts]
    assert found == [each.decode() for each in expected["translation"]]
    assert "%s" in found[1]


@pytest.fixture
def clients(post):
    """Eight clients that ask for single texts until `stop`; returns right and wrong answers."""
    is_over = threading.Event()

    def translation(text):  # the score depends on the batch, by rounding
        status, answer = post("sentencepiece", {"instances": [text]})
        return answer["predictions"][0]["translation"] if status == 200 else answer

    expected = list(map(translation, TEXTS))

    def ask(first):
        answers = []
        for number in itertools.count(first):
            place = number % len(TEXTS)
            answers.append(translation(TEXTS[place]) == expected[place])
            if is_over.is_set():
                return answers

    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(ask, first) for first in range(8)]

        def stop():
            is_over.set()
            return [answer for each in waiting for answer in each.result()]

        yield stop
        is_over.set()


def test_a_bad_client_harms_nobody(clients, post):
    statuses = [post("sentencepiece", body)[0] for body in BAD * 3]
    answers = clients()
    assert len(answers) > 50
    assert all(answers)
    assert statuses == [200 if b"\xff" in body else 400 for body in BAD * 3]  # it reads bytes


def test_a_new_version_under_load(clients, served, server):
    folder = served["sentencepiece"]
    shutil.copytree(folder / "7", folder / ".8.partial").rename(folder / "8")
    with urllib3.PoolManager(retries=False, timeout=60) as pool:
        states = {}
        end = time.monotonic() + 120
        while states != {"7": "END", "8": "AVAILABLE"}:
            assert time.monotonic() < end, states
            status = pool.request("GET", f"{server.url}/v1/models/sentencepiece").json()
            states = {each["version"]: each["state"] for each in status["model_version_status"]}
            time.sleep(0.2)
    answers = clients()
    assert len(answers) > 50
    assert all(answers)
