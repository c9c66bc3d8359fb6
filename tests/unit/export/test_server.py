"""The local server answers as TF Serving does, and every mistake by an error in JSON.

What is expected is written down from TF Serving's sources: `http_rest_api_handler.cc` and its test,
`json_tensor.cc`, `predict_util.cc`. The model's answers are those of `fake_models`.
"""

import gzip
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
import tensorflow as tf
from fake_models import predict_request, serving
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    prediction_service_pb2_grpc,
)

ROWS = [
    {"translation": "3:ABC", "score": -3.0, "truncated": False},
    {"translation": "3:ÖL " + "X" * 20, "score": -23.0, "truncated": True},
]
TEXTS = ["abc", "öl " + "x" * 20]
BASE_64 = [{"b64": "YWJj"}, {"b64": "w7ZsIHh4eHh4eHh4eHh4eHh4eHh4eHh4"}]


@pytest.fixture(scope="module")
def get(server, http):
    """Returns the status and the JSON of a path."""

    def get(path, method="GET"):
        response = http.request(method, server.url + path)
        assert response.headers["content-type"] == "application/json"
        return response.status, response.json()

    return get


def status_of_error(answer):
    """Returns the status of an error, which shows no internals."""
    status, body = answer
    assert body.keys() == {"error"}
    assert len(body["error"]) < 1100
    assert ".py" not in body["error"]
    return status


@pytest.mark.parametrize("instances", [TEXTS, [{"text": text} for text in TEXTS], BASE_64])
def test_row_format(post, instances):
    assert post({"instances": instances}) == (200, {"predictions": ROWS})


@pytest.mark.parametrize("inputs", [TEXTS, {"text": TEXTS}])
def test_column_format(post, inputs):
    columns = {name: [row[name] for row in ROWS] for name in ROWS[0]}
    assert post({"inputs": inputs}) == (200, {"outputs": columns})


def test_signatures(post):
    assert post({"signature_name": "nbest", "instances": ["a"]}) == (
        200,
        {"predictions": [{"translations": ["a1", "a2", ""], "scores": [-0.5, -1.25, -1e9]}]},
    )
    # One output is bare; an output named _bytes is in base 64; several inputs are named.
    assert post({"signature_name": "checked", "instances": ["abc"]}) == (200, {"predictions": [3]})
    assert post({"signature_name": "sums", "inputs": {"x": [7], "y": [[0.1, 1]]}}) == (
        200,
        {"outputs": {"total": [8.1], "raw_bytes": [{"b64": "/zc="}]}},
    )
    row = {"x": 2, "y": [1e-5, 0.1234567]}
    (answer,) = post({"signature_name": "sums", "instances": [row]})[1]["predictions"]
    assert answer["total"] == 2.1234667  # the shortest decimal of the float


@pytest.mark.parametrize(
    "path", ["/v1/models/fake/versions/3:predict", "/v1/models/%66ake:predict"]
)
def test_paths_of_the_model(post, path):
    assert post({"instances": ["abc"]}, path) == (200, {"predictions": ROWS[:1]})


@pytest.mark.parametrize("place", ["", "/versions/3", "/labels/stable"])
def test_status(get, place):
    state = {"version": "3", "state": "AVAILABLE"}
    state["status"] = {"error_code": "OK", "error_message": ""}
    assert get(f"/v1/models/fake{place}") == (200, {"model_version_status": [state]})


def test_metadata(get):
    status, answer = get("/v1/models/fake/metadata")
    assert status == 200
    assert answer["model_spec"] == {"name": "fake", "signature_name": "", "version": "3"}
    signature = answer["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["method_name"] == "tensorflow/serving/predict"
    assert signature["inputs"]["text"]["dtype"] == "DT_STRING"
    assert signature["inputs"]["text"]["tensor_shape"] == {
        "dim": [{"size": "-1", "name": ""}],
        "unknown_rank": False,
    }
    assert signature["outputs"].keys() == {"translation", "score", "truncated"}


@pytest.mark.parametrize(
    ("host", "allow_hosts", "allowed", "refused"),
    [
        (
            "127.0.0.1",
            [],
            ["localhost", "LocalHost:8501", "127.0.0.1:1", "[::1]:8501"],
            ["evil.example:8501", "localhost.evil.example", "evil@localhost"],
        ),
        ("127.0.0.1", ["My.example"], ["my.example:8501", "localhost"], ["evil.example"]),
        ("127.0.0.1", ["*"], ["any.example"], []),
        ("0.0.0.0", [], ["any.example"], []),
        ("0.0.0.0", ["my.example"], ["my.example", "localhost"], ["evil.example"]),
    ],
    ids=range(5),
)
def test_hosts(folder, http, host, allow_hosts, allowed, refused):
    with serving(folder, host=host, allow_hosts=allow_hosts) as server:
        url = f"http://127.0.0.1:{server.url.rpartition(':')[2]}"
        for name in allowed + refused:
            for path in ("/", "/healthz", "/v1/models/fake"):
                response = http.request("GET", url + path, headers={"Host": name})
                assert response.status == (200 if name in allowed else 400), name


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/v1/foo", 400),
        ("GET", "/v1/models", 400),
        ("GET", "/v1/models/fake/", 400),
        ("GET", "/v1/models/fake:predict", 400),
        ("GET", "/v1/models/fake/version/3", 400),
        ("GET", "/v1/models/other", 404),
        ("GET", "/v1/models/fake/versions/4", 404),
        ("GET", "/v1/models/fake/versions/4/metadata", 404),
        ("GET", "/v1/models/fake/labels/stable/metadata", 400),
        ("POST", "/v1/models/fake/labels/stable:predict", 400),
        ("POST", "/v1/models/fake:PREDICT", 400),
        ("POST", "/v1/models/fake:predict?x=1", 400),
        ("GET", "/v1/models/fake/metadata?x=1", 400),
        ("POST", "/v1/models/fake", 400),
        ("POST", "/v1/models/fake/versions/x:predict", 400),
        ("POST", "/v1/models/fake:predict", 400),  # without a body
        ("PUT", "/v1/models/fake:predict", 400),
        ("GET", "/v2/models/fake", 404),
    ],
)
def test_wrong_paths(get, method, path, expected):
    assert status_of_error(get(path, method)) == expected


def test_not_healthy_without_a_version(http, tmp_path):
    with serving(tmp_path) as server:
        assert http.request("GET", f"{server.url}/healthz").status == 404


def test_unknown_models(post):
    for path in ("other", "fake/versions/50"):
        answer = post({"instances": ["abc"]}, f"/v1/models/{path}:predict")
        assert status_of_error(answer) == 404


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"signature_name": "scalar", "inputs": ["a", "b"]}, {"outputs": "ab"}),
        ({"signature_name": "scalar", "inputs": [{"b64": "YWI"}]}, {"outputs": "ab"}),
        ({"signature_name": "scalar", "inputs": [{"b64": "Y\nWI="}]}, {"outputs": "ab"}),
        ({"signature_name": "big", "instances": [2**64 - 1]}, {"predictions": [2**64 - 1]}),
    ],
)
def test_types(post, body, expected):
    assert post(body) == (200, expected)


@pytest.mark.parametrize(
    "body",
    [
        "[",
        "null",
        "{}",
        "[" * 25_000,
        '{"instances": ["a"]} x',
        '{"instances": ["a"], "inputs": ["a"]}',
        '{"instances": {"a": 1}}',
        '{"instances": []}',
        '{"instances": ["a"], "signature_name": 5}',
        '{"instances": ["a"], "signature_name": "no"}',
        '{"instances": [5]}',
        '{"instances": [null]}',
        '{"instances": [["a"], "b"]}',
        '{"instances": [["a"], ["a", "b"]]}',
        '{"instances": [["a"]]}',
        '{"inputs": "a"}',
        '{"instances": ["a", {"text": "b"}]}',
        '{"instances": [{"text": "a"}, "b"]}',
        '{"instances": [{"text": "a", "x": 1}]}',
        '{"instances": [{}]}',
        '{"inputs": {"x": 1}}',
        '{"instances": [{"b64": "?"}]}',
        '{"instances": [{"b64": "YWI=="}]}',
        '{"instances": [{"b64": "YWI===="}]}',
        '{"instances": [{"text": {"b64": 3}}]}',
        '{"instances": ["\\ud800"]}',
        b'{"instances": ["\xff"]}',
        '{"instances": [' + '"a",' * 11 + '"a"]}',
        '{"inputs": [' + '"a",' * 11 + "5]}",
        '{"signature_name": "checked", "inputs": ["bad"]}',
        '{"signature_name": "big", "instances": [18446744073709551616]}',
        '{"signature_name": "big", "instances": [-1]}',
        '{"signature_name": "complex", "inputs": ["a"]}',
        '{"signature_name": "scalar", "instances": ["a"]}',
        '{"signature_name": "scalar", "inputs": {"b64": "YWI"}}',
        '{"signature_name": "sums", "instances": [1]}',
        '{"signature_name": "sums", "inputs": [1]}',
        '{"signature_name": "sums", "instances": [{"x": 1}]}',
        '{"signature_name": "sums", "inputs": {"x": [1.0], "y": [[1, 2]]}}',
        '{"signature_name": "sums", "inputs": {"x": [true], "y": [[1, 2]]}}',
        '{"signature_name": "sums", "inputs": {"x": [1], "y": [["1", 2]]}}',
        '{"signature_name": "sums", "inputs": {"x": [1, 2], "y": [[1, 2], [3, 4], [5, 6]]}}',
    ],
    ids=range(42),
)
def test_wrong_requests(post, body):
    assert status_of_error(post(body)) == 400


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ('{"instances": [' + '"a",' * 11 + '"a"]}', "at most 11 rows"),
        ('{"inputs": [' + '"a",' * 11 + "5]}", "at most 11 rows"),  # before values are converted
        ('{"instances": [{"words": "a"}]}', "'text'"),
        ('{"signature_name": "no", "instances": ["a"]}', '"no"'),
        ('{"signature_name": "checked", "inputs": ["bad"]}', "assertion failed: [bad]"),
    ],
    ids=range(5),
)
def test_errors_name_what_is_wrong(post, body, name):
    assert name in post(body)[1]["error"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (gzip.compress(b'{"instances": ["abc"]}'), 200),
        (gzip.compress(b" " * 1_000_000), 413),
        (b'{"instances": ["abc"]}', 400),
    ],
    ids=range(3),
)
def test_compressed_requests(server, http, body, expected):
    url = server.url + "/v1/models/fake:predict"
    response = http.request("POST", url, body=body, headers={"Content-Encoding": "GZIP"})
    assert response.status == expected
    assert response.json().keys() == {"predictions" if expected == 200 else "error"}


def test_too_large_requests(post, server, http):
    assert status_of_error(post(b"a" * 1_000_000)) == 413
    url, chunks = server.url + "/v1/models/fake:predict", [b"a" * 5000] * 20
    assert http.request("POST", url, body=iter(chunks), chunked=True).status == 413
    assert post({"instances": ["abc"]})[0] == 200


def test_concurrent_requests_are_merged(post):
    with ThreadPoolExecutor(4) as threads:
        bodies = [{"signature_name": "merged", "instances": [text]} for text in "abcd"]
        answers = list(threads.map(post, bodies))
    assert answers == [(200, {"predictions": [4]})] * 4


def test_stop_answers_requests_that_have_begun(folder, http):
    with serving(folder) as server, ThreadPoolExecutor(1) as threads:
        url = f"{server.url}/v1/models/fake:predict"
        body = {"signature_name": "merged", "instances": ["a"]}  # waits for other requests
        answer = threads.submit(http.request, "POST", url, json=body)
        time.sleep(1)
        assert not answer.done()
        server.stop()
        assert answer.result(20).status == 200


def test_ipv6(folder, http):
    with serving(folder, host="::1") as server:
        assert server.url.startswith("http://[::1]:")
        assert http.request("GET", server.url + "/v1/models/fake").status == 200


@pytest.fixture(scope="module")
def channel(server):
    with grpc.insecure_channel(server.grpc) as channel:
        yield channel


@pytest.fixture(scope="module")
def predict(channel):
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    return lambda request: stub.Predict(request, timeout=20)


def test_grpc_predict(predict):
    inputs = {"text": tf.make_tensor_proto(TEXTS)}
    response = predict(predict_request("", inputs))
    assert response.model_spec.name == "fake"
    assert response.model_spec.signature_name == "serving_default"
    assert response.model_spec.version.value == 3
    # In the fields of their types, as TF Serving sends them.
    assert response.outputs["translation"].string_val == [
        row["translation"].encode() for row in ROWS
    ]
    assert response.outputs["score"].float_val == [-3.0, -23.0]
    assert response.outputs["truncated"].bool_val == [False, True]
    request = predict_request("", inputs, version=3)
    request.output_filter.append("score")
    assert list(predict(request).outputs) == ["score"]


def test_grpc_numbers(predict):
    inputs = {"x": tf.constant([5, 2**64 - 1], tf.uint64)}
    protos = {name: tf.make_tensor_proto(tensor) for name, tensor in inputs.items()}
    output = predict(predict_request("big", protos)).outputs["y"]
    assert tf.make_ndarray(output).tolist() == [5, 2**64 - 1]


def test_grpc_status_and_metadata(channel):
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = "fake"
    stub = model_service_pb2_grpc.ModelServiceStub(channel)
    (status,) = stub.GetModelStatus(request, timeout=20).model_version_status
    assert (status.version, status.state, status.status.error_code) == (3, 30, 0)  # AVAILABLE, OK
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "fake"
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    response = stub.GetModelMetadata(request, timeout=20)
    assert response.model_spec.version.value == 3
    found = get_model_metadata_pb2.SignatureDefMap()
    assert response.metadata["signature_def"].Unpack(found)
    assert sorted(found.signature_def["sums"].inputs) == ["x", "y"]


def text_request(texts, signature="", **spec):
    return predict_request(signature, {"text": tf.make_tensor_proto(texts)}, **spec)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (text_request(["a"], model=""), "INVALID_ARGUMENT"),
        (text_request(["a"], model="other"), "NOT_FOUND"),
        (text_request(["a"], version=9), "NOT_FOUND"),
        (text_request(["a"], "no"), "FAILED_PRECONDITION"),
        (predict_request("", {}), "INVALID_ARGUMENT"),
        (text_request(["a"], "sums"), "INVALID_ARGUMENT"),
        (text_request([1]), "INVALID_ARGUMENT"),
        (text_request("a"), "INVALID_ARGUMENT"),
        (text_request(["a"] * 12), "INVALID_ARGUMENT"),
        (text_request(["bad"], "checked"), "INVALID_ARGUMENT"),
        (text_request(["a" * 70_000]), "RESOURCE_EXHAUSTED"),
    ],
    ids=range(11),
)
def test_grpc_errors(predict, request_, code):
    with pytest.raises(grpc.RpcError) as error:
        predict(request_)
    assert error.value.code().name == code
    assert ".py" not in error.value.details()
