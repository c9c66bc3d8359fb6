"""What a client of the model may rely on, at the local server and at TF Serving.

    make test-serving URL=http://HOST:8501 MODEL=NAME [GRPC=HOST:8500]

runs this file against any server of a translation model; without a URL it starts the local one, and
TensorFlow Serving where it is installed, with an export of its own. The environment variables are
SERVING_URL, SERVING_MODEL and SERVING_GRPC.
"""

import json
import math
import os

import grpc
import pytest
import tensorflow as tf
import urllib3
from fake_models import predict_request, serving
from serving_binary import tensorflow_serving
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    prediction_service_pb2_grpc,
)

TIMEOUT = 60
# A short text, an empty one, one of several bytes a letter, from the right, and a long one.
TEXTS = ["Two dogs play.", "", "Zwei Hunde spielen im Öl 😀", "שלום", "a man " * 40]
SIGNATURES = ["serving_default", "greedy", "nbest", "attention", "score", "document"]


SERVERS = ["local", pytest.param("tensorflow-serving", marks=pytest.mark.programs)]


@pytest.fixture(scope="module", params=[None] if os.environ.get("SERVING_URL") else SERVERS)
def target(request, tmp_path_factory):
    """The address of HTTP, the one of gRPC or None, and the model's name."""
    if url := os.environ.get("SERVING_URL"):
        model = os.environ.get("SERVING_MODEL")
        assert model, "SERVING_URL needs SERVING_MODEL, the name of the model"
        yield url.rstrip("/"), os.environ.get("SERVING_GRPC") or None, model
        return
    folder = request.getfixturevalue("exported").path.parent
    start = serving(folder)
    if request.param == "tensorflow-serving":
        start = tensorflow_serving({folder.name: folder}, tmp_path_factory.mktemp("server"))
    with start as server:
        yield server.url, server.grpc, folder.name


@pytest.fixture(scope="module")
def request_(target):
    """Sends a request; returns the status and the JSON of the answer."""
    pool = urllib3.PoolManager(retries=False, timeout=TIMEOUT)

    def send(method, path, body=None):
        content = body if body is None or isinstance(body, str) else json.dumps(body)
        response = pool.request(method, target[0] + path, body=content)
        assert response.headers["content-type"].startswith("application/json")
        return response.status, json.loads(response.data)

    yield send
    pool.clear()


@pytest.fixture(scope="module")
def predict(target, request_):
    """Asks the model; returns what is under "predictions" or "outputs"."""

    def send(body, version=""):
        status, answer = request_("POST", f"/v1/models/{target[2]}{version}:predict", body)
        assert status == 200, answer
        (key,) = answer
        assert key == ("predictions" if "instances" in body else "outputs")
        return answer[key]

    return send


@pytest.fixture(scope="module")
def signatures(target, request_):
    """The signatures of the metadata, TensorFlow's own left out."""
    status, answer = request_("GET", f"/v1/models/{target[2]}/metadata")
    assert status == 200
    assert answer["model_spec"]["name"] == target[2]
    return {
        name: signature
        for name, signature in answer["metadata"]["signature_def"]["signature_def"].items()
        if not name.startswith("__")
    }


@pytest.fixture(scope="module")
def version(target, request_):
    path = f"/v1/models/{target[2]}"
    status, answer = request_("GET", path)
    assert status == 200
    available = [entry for entry in answer["model_version_status"] if entry["state"] == "AVAILABLE"]
    assert available[0]["status"] == {"error_code": "OK", "error_message": ""}
    number = available[0]["version"]
    one = {"model_version_status": available[:1]}
    assert request_("GET", f"{path}/versions/{number}") == (200, one)
    assert request_("GET", f"{path}/labels/stable") == (200, answer)  # the label is ignored
    return int(number)


def same(one, other):
    """Whether answers are equal, numbers nearly: a batch rounds otherwise than a row."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return math.isclose(one, other, rel_tol=1e-4, abs_tol=1e-4)
    return one == other


def test_default_signature(signatures):
    default = signatures["serving_default"]
    assert default["method_name"] == "tensorflow/serving/predict"
    (text,) = default["inputs"].values()
    assert text["dtype"] == "DT_STRING"
    assert text["tensor_shape"]["dim"] == [{"size": "-1", "name": ""}]
    assert {name: info["dtype"] for name, info in default["outputs"].items()} == {
        "translation": "DT_STRING",
        "score": "DT_FLOAT",
        "truncated": "DT_BOOL",
    }


def test_rows(predict):
    rows = predict({"instances": TEXTS})
    types = {"translation": str, "score": float, "truncated": bool}
    assert [{name: type(row[name]) for name in row} for row in rows] == [types] * len(TEXTS)
    assert same(predict({"instances": [{"text": text} for text in TEXTS]}), rows)
    for text, row in zip(TEXTS, rows, strict=True):  # whatever the neighbours are
        assert same(predict({"instances": [text]}), [row])


def test_columns_hold_the_same_as_rows(predict):
    rows = predict({"instances": TEXTS})
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    assert same(predict({"inputs": TEXTS}), columns)
    assert same(predict({"inputs": {"text": TEXTS}}), columns)


def test_base_64_and_explicit_names(predict, version):
    expected = predict({"instances": ["Öl"]})
    assert same(predict({"instances": [{"b64": "w5Zs"}]}), expected)
    assert same(predict({"instances": [{"text": {"b64": "w5Zs"}}]}), expected)
    body = {"signature_name": "serving_default", "instances": ["Öl"]}
    assert same(predict(body, f"/versions/{version}"), expected)


@pytest.mark.parametrize("name", SIGNATURES)
def test_every_signature_answers_in_rows(predict, signatures, name):
    if name not in signatures:
        pytest.skip(f"this model has no signature {name}")
    inputs = sorted(signatures[name]["inputs"])
    instances = [dict.fromkeys(inputs, text) for text in ("one", "two words")]
    rows = predict({"signature_name": name, "instances": instances})
    assert len(rows) == 2
    for row in rows:
        assert row.keys() == signatures[name]["outputs"].keys()


@pytest.mark.parametrize(
    "body",
    [
        "instances",
        "{}",
        {"instances": []},
        {"instances": "a"},
        {"instances": ["a"], "inputs": ["a"]},
        {"instances": [5]},
        {"instances": [["a", "b"]]},
        {"instances": [["a"], "b"]},
        {"inputs": "a"},
        {"instances": [{"words": "a"}]},
        {"instances": [{"text": "a", "more": "b"}]},
        {"instances": ["a", {"text": "b"}]},
        {"instances": [{"b64": "?"}]},
        {"inputs": {"words": ["a"]}},
        {"signature_name": 5, "instances": ["a"]},
        {"signature_name": "none", "instances": ["a"]},
    ],
    ids=str,
)
def test_wrong_requests(target, request_, body):
    status, answer = request_("POST", f"/v1/models/{target[2]}:predict", body)
    assert (status, list(answer)) == (400, ["error"])


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/v1/models", 400),
        ("GET", "/v1/models/MODEL/", 400),
        ("POST", "/v1/models/MODEL", 400),
        ("POST", "/v1/models/MODEL/versions/x:predict", 400),
        ("GET", "/v1/models/nobody", 404),
        ("GET", "/v1/models/MODEL/versions/987654321/metadata", 404),
        ("POST", "/v1/models/nobody:predict", 404),
        ("POST", "/v1/models/MODEL/versions/987654321:predict", 404),
    ],
)
def test_wrong_paths(target, request_, method, path, expected):
    body = {"instances": ["a"]} if method == "POST" else None
    status, answer = request_(method, path.replace("MODEL", target[2]), body)
    assert (status, list(answer)) == (expected, ["error"])


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("POST", "MODEL:predict?x=1", "Malformed request: {} {}"),
        ("GET", "MODEL/metadata?x=%20", "Malformed request: {} {}"),
        ("GET", "MODEL?x=a/b", "Malformed request: {} {}"),
        ("GET", "MODEL?x=1&y=%20z", "Could not find any versions of model MODEL?x=1&y= z"),
        ("GET", "MODEL%2Fmetadata", "Could not find any versions of model MODEL/metadata"),
        ("GET", "MODEL/versions/987", "Could not find version 987 of model MODEL"),
        ("POST", "MODEL?x=1:predict", "Servable not found for request: Latest(MODEL?x=1)"),
    ],
)
def test_a_query_is_a_part_of_the_path(target, request_, method, path, expected):
    path = f"/v1/models/{path.replace('MODEL', target[2])}"
    body = {"instances": ["a"]} if method == "POST" else None
    message = expected.replace("MODEL", target[2]).format(method, path)
    status = 400 if message.startswith("Malformed") else 404
    assert request_(method, path, body) == (status, {"error": message})


@pytest.fixture(scope="module")
def channel(target):
    if target[1] is None:
        pytest.skip("SERVING_GRPC is not set")
    with grpc.insecure_channel(target[1]) as channel:
        yield channel


@pytest.fixture(scope="module")
def prediction(channel):
    return prediction_service_pb2_grpc.PredictionServiceStub(channel)


def test_grpc_answers_as_rest(target, prediction, predict, version):
    request = predict_request("", {"text": tf.make_tensor_proto(TEXTS)}, target[2])
    response = prediction.Predict(request, timeout=TIMEOUT)
    assert response.model_spec.name == target[2]
    assert response.model_spec.signature_name == "serving_default"
    assert response.model_spec.version.value == version
    columns = {name: tf.make_ndarray(proto).tolist() for name, proto in response.outputs.items()}
    columns["translation"] = [text.decode() for text in columns["translation"]]
    assert same(columns, predict({"inputs": TEXTS}))


def test_grpc_status(target, channel, version):
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = target[2]
    response = model_service_pb2_grpc.ModelServiceStub(channel).GetModelStatus(
        request, timeout=TIMEOUT
    )
    states = {entry.version: entry for entry in response.model_version_status}
    assert states[version].state == get_model_status_pb2.ModelVersionStatus.AVAILABLE
    assert states[version].status.error_code == 0


def test_grpc_metadata(target, prediction, signatures, version):
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = target[2]
    response = prediction.GetModelMetadata(request, timeout=TIMEOUT)
    assert response.model_spec.version.value == version
    found = get_model_metadata_pb2.SignatureDefMap()
    assert response.metadata["signature_def"].Unpack(found)
    assert signatures.keys() <= found.signature_def.keys()


@pytest.mark.parametrize(
    ("model", "signature", "inputs", "code"),
    [
        ("nobody", "", ["text"], "NOT_FOUND"),
        (None, "none", ["text"], "FAILED_PRECONDITION"),
        ("", "", ["text"], "INVALID_ARGUMENT"),
        (None, "", [], "INVALID_ARGUMENT"),
        (None, "", ["words"], "INVALID_ARGUMENT"),
    ],
)
def test_grpc_errors(target, prediction, model, signature, inputs, code):
    protos = dict.fromkeys(inputs, tf.make_tensor_proto(["a"]))
    request = predict_request(signature, protos, target[2] if model is None else model)
    with pytest.raises(grpc.RpcError) as error:
        prediction.Predict(request, timeout=TIMEOUT)
    assert error.value.code().name == code
