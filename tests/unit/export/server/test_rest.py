"""The local server beyond test_serving_contract.py, with a model whose answers are known."""

import gzip
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
import tensorflow as tf
import urllib3
from fake_models import predict_request, save_model, serving
from tensorflow_serving.apis import prediction_service_pb2_grpc

from keras_transformer.export.server.models import ServedModel

PREDICT = "/v1/models/fake:predict"
ROWS = [
    {"translation": "3:ABC", "score": -3.0, "truncated": False},
    {"translation": "3:ÖL " + "X" * 20, "score": -23.0, "truncated": True},
]
TEXTS = ["abc", "öl " + "x" * 20]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "fake"
    save_model(folder, 3)
    return folder


@pytest.fixture(scope="module")
def server(folder):
    with serving(folder) as server:
        yield server


@pytest.fixture(scope="module")
def http():
    with urllib3.PoolManager(retries=False, timeout=20) as pool:
        yield pool


@pytest.fixture(scope="module")
def post(server, http):
    """Sends a request; returns the status and the JSON."""

    def post(body, **options):
        content = {"body": body} if isinstance(body, bytes) else {"json": body}
        response = http.request("POST", server.url + PREDICT, **content, **options)
        return response.status, response.json()

    return post


def test_rows_and_columns(post):
    assert post({"instances": TEXTS}) == (200, {"predictions": ROWS})
    answer = post({"signature_name": "nbest", "inputs": {"text": ["a"]}})
    outputs = {"translations": [["a1", "a2", ""]], "scores": [[-0.5, -1.2500001, -1e9]]}  # float32
    assert answer == (200, {"outputs": outputs})
    rows = [{"text": "a", "target": "x"}, {"text": "b", "target": "y"}]
    answer = post({"signature_name": "pairs", "instances": rows})
    assert answer == (200, {"predictions": [{"joined": "a:x"}, {"joined": "b:y"}]})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"instances": ["a"]} x', "JSON Parse error"),
        (b'{"instances": ' + b"[" * 70 + b'"a"' + b"]" * 70 + b"}", "not a string: ["),
        (b'{"instances": ["\\ud800"]}', "not a string: '\\ud800'"),
        ({"signature_name": "pairs", "inputs": {"text": ["a"]}}, "['target', 'text']"),
        ({"signature_name": "checked", "inputs": ["bad"]}, "assertion failed: [bad]"),
    ],
    ids=range(5),
)
def test_errors_name_what_is_wrong(post, body, message):
    status, answer = post(body)
    assert (status, [*answer]) == (400, ["error"])
    assert message in answer["error"]


@pytest.mark.parametrize(
    ("host", "allow_hosts", "allowed", "refused"),
    [
        ("127.0.0.1", [], ["LocalHost:8501", "[::1]"], ["evil.example:8501"]),
        ("::1", ["*"], ["any.example"], []),
        ("0.0.0.0", ["My.example"], ["my.example:8501", "localhost"], ["evil.example"]),
    ],
    ids=range(3),
)
def test_hosts(folder, http, host, allow_hosts, allowed, refused):
    with serving(folder, host, allow_hosts) as server:
        for name in allowed + refused:
            for path in ("/", "/healthz", "/v1/models/fake"):
                response = http.request("GET", server.url + path, headers={"Host": name})
                assert response.status == (200 if name in allowed else 400), name


@pytest.mark.parametrize(
    ("body", "encoding", "expected"),
    [
        (gzip.compress(b'{"instances": ["abc"]}'), "gzip", 200),
        (gzip.compress(b" " * 1_000_000), "gzip", 413),
        (gzip.compress(b'{"instances": ["abc"]}')[:-1], "gzip", 400),
        (b"a" * 60_001, "identity", 413),
    ],
    ids=range(4),
)
def test_size_and_compression(server, http, body, encoding, expected):
    headers = {"Content-Encoding": encoding}
    response = http.request("POST", server.url + PREDICT, body=body, headers=headers)
    assert response.status == expected


def test_stop_answers_requests_that_have_begun(folder, http, monkeypatch):
    begun, original = threading.Event(), ServedModel.find

    def find(*arguments, **named):
        begun.set()
        return original(*arguments, **named)

    with serving(folder) as server, ThreadPoolExecutor(1) as threads:
        body = {"signature_name": "merged", "instances": ["a"]}  # waits for other requests
        monkeypatch.setattr(ServedModel, "find", find)
        answer = threads.submit(http.request, "POST", server.url + PREDICT, json=body)
        assert begun.wait(20)
        assert not answer.done()
        server.stop()
        assert answer.result(20).status == 200


@pytest.fixture(scope="module")
def predict(server):
    with grpc.insecure_channel(server.grpc) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        yield lambda request: stub.Predict(request, timeout=20)


def text_request(texts, signature="", **spec):
    return predict_request(signature, {"text": tf.make_tensor_proto(texts)}, **spec)


def test_grpc_outputs_are_in_the_fields_of_their_types(predict):
    outputs = predict(text_request(TEXTS)).outputs
    assert outputs["translation"].string_val == [row["translation"].encode() for row in ROWS]
    assert outputs["score"].float_val == [-3.0, -23.0]
    assert outputs["truncated"].bool_val == [False, True]
    assert predict(text_request(TEXTS, "checked")).outputs["length"].int_val == [3, 24]
    request = text_request(TEXTS, version=3)
    request.output_filter.append("score")
    assert list(predict(request).outputs) == ["score"]


MISFIT = text_request(["a", "b", "c"])
MISFIT.inputs["text"].tensor_shape.dim[0].size = 2


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (text_request([1]), "INVALID_ARGUMENT"),
        (MISFIT, "INVALID_ARGUMENT"),
        (text_request(["a" * 70_000]), "RESOURCE_EXHAUSTED"),
    ],
    ids=range(3),
)
def test_grpc_errors(predict, request_, code):
    with pytest.raises(grpc.RpcError) as error:
        predict(request_)
    assert error.value.code().name == code
