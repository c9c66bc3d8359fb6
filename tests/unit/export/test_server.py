"""The stand-in answers as TF Serving documents, and every mistake by an error in JSON.

What is expected is written down from TF Serving's sources: `http_rest_api_handler.cc` and its test,
`json_tensor.cc`, `predict_util.cc`. The model's answers are those of `fake_models`.
"""

import gzip
import json
import time

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

from keras_transformer.export import json_tensors
from keras_transformer.export.grpc_server import GrpcServer
from keras_transformer.export.protocol import Limits, ServingError
from keras_transformer.export.session import Signature, TensorInfo


@pytest.fixture(scope="module")
def get(server, http):
    """Returns the status and the JSON of a path."""

    def get(path, method="GET"):
        response = http.request(method, server.url + path)
        assert response.headers["content-type"] == "application/json"
        return response.status, json.loads(response.data)

    return get


def error_of(answer):
    """Returns the status and the message of an error, which tells nothing of what is inside."""
    status, body = answer
    assert body.keys() == {"error"}
    assert "Traceback" not in body["error"]
    assert ".py" not in body["error"]
    return status, body["error"]


ROWS = [
    {"translation": "3:ABC", "score": -3.0, "truncated": False},
    {"translation": "3:ÖL " + "X" * 20, "score": -23.0, "truncated": True},
]
TEXTS = ["abc", "öl " + "x" * 20]


BASE_64 = [{"b64": "YWJj"}, {"b64": "w7ZsIHh4eHh4eHh4eHh4eHh4eHh4eHh4"}]


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
    assert answer["total"] == 2.12346673  # nine digits of a float, where six are not enough
    assert post({"signature_name": "rows", "inputs": TEXTS}) == (200, {"outputs": 2})


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_numbers_beyond_json(server, http, value):
    body = '{"signature_name": "sums", "instances": [{"x": 1, "y": [0, VALUE]}]}'
    body = body.replace("VALUE", value)
    response = http.request("POST", server.url + "/v1/models/fake:predict", body=body)
    assert response.status == 200
    assert f'"total": {value}'.encode() in response.data


@pytest.mark.parametrize(
    "path",
    ["/v1/models/fake/versions/3:predict", "/V1/Models/fake:Predict", "/v1/models/%66ake:predict"],
)
def test_paths_of_the_model(post, path):
    assert post({"instances": ["abc"]}, path) == (200, {"predictions": ROWS[:1]})


def test_status(get):
    expected = {
        "model_version_status": [
            {
                "version": "3",
                "state": "AVAILABLE",
                "status": {"error_code": "OK", "error_message": ""},
            }
        ]
    }
    assert get("/v1/models/fake") == (200, expected)
    assert get("/v1/models/fake/versions/3") == (200, expected)


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
    ("method", "path", "status", "message"),
    [
        ("GET", "/v1/foo", 400, "Malformed request: GET /v1/foo"),
        ("GET", "/v1/models", 400, "Missing model name in request."),
        ("GET", "/v1/models/debug/model_name", 400, "Malformed request"),
        ("GET", "/v1/models/fake:predict", 400, "Malformed request"),
        ("GET", "/v1/models/fake/version/3", 400, "Malformed request"),
        ("GET", "/v1/models/other", 404, "Could not find any versions of model other"),
        ("GET", "/v1/models/fake/versions/4", 404, "Could not find version 4 of model fake"),
        ("GET", "/v1/models/fake/versions/4/metadata", 404, "Specific(fake, 4)"),
        ("GET", "/v1/models/fake/versions/9223372036854775808", 400, "Failed to convert version"),
        ("GET", "/v1/models/fake/versions/" + "9" * 5000, 400, "Failed to convert version"),
        (
            "GET",
            "/v1/models/fake/labels/stable",
            400,
            "Unrecognized servable version label: stable",
        ),
        ("POST", "/v1/models", 400, "Malformed request"),
        ("POST", "/v1/models/fake/metadata", 400, "Malformed request"),
        ("POST", "/v1/models/fake/versions/3/labels/x:predict", 400, "Malformed request"),
        ("POST", "/v1/models/fake/versions/x:predict", 400, "Malformed request"),
        ("POST", "/v1/models/fake:predict", 400, "JSON Parse error: The document is empty"),
        ("POST", "/v1/models/fake:classify", 501, "This stand-in knows predict, not classify"),
        ("PUT", "/v1/models/fake:predict", 400, "Malformed request: PUT"),
        ("DELETE", "/v1/models/fake", 400, "Malformed request: DELETE"),
        ("OPTIONS", "/v1/models/fake", 400, "Malformed request"),
        ("BREW", "/v1/models/fake", 400, "Malformed request"),
        ("GET", "/v2/models/fake", 404, "Not found: /v2/models/fake"),
        ("GET", "/v1/models/%ff%00:x", 400, "Malformed request"),
        ("GET", "/v1/models/%ff%00", 404, "Could not find any versions of model \ufffd\x00"),
    ],
)
def test_wrong_paths(get, method, path, status, message):
    found, error = error_of(get(path, method))
    assert found == status
    assert message in error


DEEP = 25_000
WRONG = [
    ("[", "JSON Parse error: Invalid value. at offset: 1"),
    ("instances = [1, 2]", "JSON Parse error: Invalid value. at offset: 0"),
    ("[]", "JSON Value: [] Is not object"),
    ("null", "Is not object"),
    ('"' + "a" * 50_000 + '"', "Is not object"),
    ("{}", "Missing 'inputs' or 'instances' key"),
    ('{"instances": ["a"]} x', "JSON Parse error: Extra data"),
    ('{"instances": ["a"], "instances": ["b"]}', 'the key "instances" is there twice'),
    ('{"instances": [{"text": "a", "text": "b"}]}', 'the key "text" is there twice'),
    ('{"instances": ["a"], "inputs": ["a"]}', "expecting only one of 'inputs' or 'instances'"),
    ('{"instances": "a"}', "Expecting 'instances' to be an list/array"),
    ('{"instances": {"a": 1}}', "Expecting 'instances' to be an list/array"),
    ('{"instances": []}', "No values in 'instances' array"),
    ('{"instances": ["a"], "signature_name": 5}', "'signature_name' key must be a string value."),
    ('{"instances": ["a"], "signature_name": "no"}', 'name: "no" not found in signature def'),
    ('{"instances": [5]}', "JSON Value: 5 Type: Number is not of expected type: string"),
    ('{"instances": [null]}', "Type: Null is not of expected type: string"),
    ('{"instances": [true]}', "Type: True is not of expected type: string"),
    ('{"instances": [["a"], "b"]}', "Expecting shape"),
    ('{"instances": [["a"], ["a", "b"]]}', "Expecting shape"),
    ('{"instances": [[["a"], "b"]]}', "found at incorrect level"),
    ('{"instances": [["a", ["b"]]]}', "Encountered list at unexpected level"),
    ('{"instances": [["a"]]}', "Input text has shape [1, 1], expected [-1]"),
    ('{"inputs": "a"}', "Input text has shape [], expected [-1]"),
    ('{"instances": ["a", {"text": "b"}]}', "Expecting value/list but got object at item 1"),
    ('{"instances": [{"text": "a"}, "b"]}', "Expecting object but got list at item 1"),
    ('{"instances": [{"text": "a", "x": 1}]}', "does not have named input: x"),
    ('{"instances": [{}]}', "keys must be equal to: text"),
    ('{"inputs": {"x": 1}}', "Missing named input: text"),
    ('{"instances": [{"b64": "?"}]}', "Unable to base64 decode"),
    ('{"instances": [{"text": {"b64": 3}}]}', "not formatted correctly for base64 data"),
    ('{"instances": [{"text": {"b65": "YQ=="}}]}', "not formatted correctly for base64 data"),
    ('{"instances": ["\\ud800"]}', "The surrogate pair in string is invalid"),
    ('{"instances": ["\\udc00\\ud800"]}', "The surrogate pair in string is invalid"),
    ('{"\\udead": 1}', "The surrogate pair in string is invalid"),
    ('{"instances": ["a\nb"]}', "JSON Parse error: Invalid control character"),
    ('{"instances": ["\\x41"]}', "JSON Parse error: Invalid \\escape"),
    (b'{"instances": ["\xff"]}', "Invalid encoding in string. at offset: 16"),
    (b'{"instances": ["\xed\xa0\x80"]}', "Invalid encoding in string"),
    ('{"instances": ["a"]}'.encode("utf-16"), "Invalid encoding in string"),
    (bytes(range(256)), "JSON Parse error"),
    ("[" * DEEP, "nested too deeply"),
    ('{"a":' * 10_000, "nested too deeply"),
    ('{"instances": ' + "[" * DEEP + "]" * DEEP + "}", "nested too deeply"),
    ('{"instances": ' + "[" * 90 + '"a"' + "]" * 90 + "}", "has more than 32 dimensions"),
    ('{"instances": [' + '"a",' * 11 + '"a"]}', "Task size 12 is larger"),
    ('{"inputs": [' + '"a",' * 11 + '"a"]}', "Task size 12 is larger"),
    ('{"instances": [' + "1" * 50_000 + "]}", "Number too big to be stored in double"),
    ('{"instances": [-1e999]}', "Number too big to be stored in double"),
    ('{"signature_name": "checked", "inputs": ["bad"]}', "assertion failed: [bad]"),
    ('{"signature_name": "rows", "instances": ["a"]}', "count has no shape information"),
    ('{"signature_name": "sums", "instances": [1]}', "but expecting list of objects"),
    ('{"signature_name": "sums", "inputs": [1]}', "but expecting an object"),
    ('{"signature_name": "sums", "instances": [{"x": 1}]}', "keys must be equal to: x,y"),
    ('{"signature_name": "sums", "inputs": {"x": [1.0], "y": [[1, 2]]}}', "expected type: int32"),
    ('{"signature_name": "sums", "inputs": {"x": [2147483648], "y": [[1, 2]]}}', "type: int32"),
    ('{"signature_name": "sums", "inputs": {"x": [true], "y": [[1, 2]]}}', "type: int32"),
    ('{"signature_name": "sums", "inputs": {"x": [1], "y": [["1", 2]]}}', "type: float"),
    ('{"signature_name": "sums", "inputs": {"x": [1], "y": [[1, 2, 3]]}}', "expected [-1, 2]"),
    (
        '{"signature_name": "sums", "inputs": {"x": [1, 2], "y": [[1, 2], [3, 4], [5, 6]]}}',
        "ncompatible shapes",
    ),
]


@pytest.mark.parametrize(("body", "message"), WRONG, ids=range(len(WRONG)))
def test_wrong_requests(post, body, message):
    status, error = error_of(post(body))
    assert (status, message in error or error) == (400, True)
    assert len(error) < 1100
    assert post({"instances": ["abc"]})[0] == 200


@pytest.mark.parametrize("body", [{"inputs": []}, {"inputs": "a"}, {"instances": ["a"]}])
def test_signature_without_inputs(body):
    signature = Signature({}, {"y": TensorInfo("y:0", tf.float32, ())})
    assert json_tensors.inputs_of({"inputs": {}}, signature, 3) == ({}, False)
    with pytest.raises(ServingError, match="The signature takes no inputs"):
        json_tensors.inputs_of(body, signature, 3)


def test_a_key_twice_among_many():
    """In linear time: the first that is there twice is the last of all."""
    pairs = ", ".join(f'"{number}": 0' for number in range(50_000))
    started = time.process_time()
    with pytest.raises(ServingError, match='the key "49999" is there twice'):
        json_tensors.parse(f'{{{pairs}, "49999": 1}}'.encode())
    assert time.process_time() - started < 5


def test_answer_that_is_too_large(post):
    body = {"signature_name": "attention", "instances": ["x" * 1_001]}
    message = "The answer has more than 1,000,000 values: send fewer or shorter rows"
    assert post(body) == (429, {"error": message})


def test_runs_have_a_time_limit(folder, http):
    with serving(folder, Limits(run_timeout=3.0)) as server:
        url = f"{server.url}/v1/models/fake:predict"
        for instances, status in ((["slow"], 504), (["quick"], 200)):
            body = {"signature_name": "slow", "instances": instances}
            response = http.request("POST", url, json=body)
            assert response.status == status, response.data
        stub = prediction_service_pb2_grpc.PredictionServiceStub(grpc.insecure_channel(server.grpc))
        request = predict_request("slow", {"text": tf.make_tensor_proto(["slow"], tf.string)})
        with pytest.raises(grpc.RpcError) as error:
            stub.Predict(request)  # without a limit of its own
        assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_errors_of_unknown_models(post):
    # The request is read before the model is looked for, as in TF Serving.
    for path, which in (("other", "Latest(other)"), ("fake/versions/50", "Specific(fake, 50)")):
        answer = error_of(post({"instances": [1]}, f"/v1/models/{path}:predict"))
        assert answer == (404, f"Servable not found for request: {which}")


@pytest.mark.parametrize(
    ("body", "encoding", "status", "message"),
    [
        (gzip.compress(b'{"instances": ["abc"]}'), "gzip", 200, None),
        (gzip.compress(b'{"instances": ["abc"]}'), "GZIP", 200, None),
        (gzip.compress(b" " * 1_000_000), "gzip", 413, "The request is larger than 60000 bytes"),
        (gzip.compress(b'{"instances": ["abc"]}')[:-1], "gzip", 400, "is not gzip, or not one"),
        (gzip.compress(b"{}") + b"more", "gzip", 400, "is not gzip, or not one"),
        (b'{"instances": ["abc"]}', "gzip", 400, "is not gzip, or not one"),
        (b"", "gzip", 400, "is not gzip, or not one"),
        (b"{}", "br", 400, "Content-Encoding must be gzip or identity. Received: br"),
        (b'{"instances": ["abc"]}', "identity", 200, None),
    ],
    ids=range(9),
)
def test_packed_requests(server, http, body, encoding, status, message):
    url = server.url + "/v1/models/fake:predict"
    response = http.request("POST", url, body=body, headers={"Content-Encoding": encoding})
    assert response.status == status, response.data
    if message is None:
        assert response.json() == {"predictions": ROWS[:1]}
    else:
        assert message in response.json()["error"]


def test_page(server, http):
    response = http.request("GET", server.url + "/")
    assert response.status == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in response.headers["content-security-policy"]
    text = response.data.decode()
    assert '<body data-model="fake">' in text
    assert "{{" not in text
    assert "stand-in for TF Serving" in text


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
    outputs = {name: tf.make_ndarray(proto).tolist() for name, proto in response.outputs.items()}
    assert outputs == {
        "translation": [row["translation"].encode() for row in ROWS],
        "score": [-3.0, -23.0],
        "truncated": [False, True],
    }
    request = predict_request("", inputs, version=3)
    request.output_filter.append("score")
    assert list(predict(request).outputs["score"].float_val) == [-3.0, -23.0]
    assert list(predict(request).outputs) == ["score"]


def test_grpc_without_a_deadline(channel):
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    response = stub.Predict(predict_request("", {"text": tf.make_tensor_proto(TEXTS)}))
    assert list(response.outputs["score"].float_val) == [-3.0, -23.0]


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


def test_grpc_port_in_use(server):
    port = int(server.grpc.rpartition(":")[2])
    with pytest.raises(OSError, match="the port is taken, or the address is not this"):
        GrpcServer(server.model, port=port)


TEXT = {"text": tf.make_tensor_proto(["a"])}
GRPC_WRONG = [
    (predict_request("", TEXT, model=""), "INVALID_ARGUMENT", "ModelSpec has no name"),
    (predict_request("", TEXT, model="other"), "NOT_FOUND", "Latest(other)"),
    (predict_request("", TEXT, version=9), "NOT_FOUND", "Specific(fake, 9)"),
    (predict_request("no", TEXT), "FAILED_PRECONDITION", 'Serving signature key "no" not found.'),
    (predict_request("", {}), "INVALID_ARGUMENT", "Missing but required: {text}"),
    (predict_request("sums", TEXT), "INVALID_ARGUMENT", "Sent extra: {text}"),
    (predict_request("", {"text": tf.make_tensor_proto([1])}), "INVALID_ARGUMENT", "type number 3"),
    (predict_request("", {"text": tf.make_tensor_proto("a")}), "INVALID_ARGUMENT", "shape []"),
    (
        predict_request("", {"text": tf.make_tensor_proto(["a"] * 12)}),
        "INVALID_ARGUMENT",
        "size 12",
    ),
    (
        predict_request("checked", {"text": tf.make_tensor_proto(["bad"])}),
        "INVALID_ARGUMENT",
        "failed",
    ),
    (predict_request("", {"text": tf.make_tensor_proto(["a" * 70_000])}), "RESOURCE_EXHAUSTED", ""),
]


@pytest.mark.parametrize(("request_", "code", "message"), GRPC_WRONG, ids=range(len(GRPC_WRONG)))
def test_grpc_errors(predict, request_, code, message):
    with pytest.raises(grpc.RpcError) as error:
        predict(request_)
    assert error.value.code().name == code
    assert message in error.value.details()
    assert ".py" not in error.value.details()
