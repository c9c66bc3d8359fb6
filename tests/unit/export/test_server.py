"""The stand-in answers as TF Serving documents, and every mistake by an error in JSON.

What is expected is written down from TF Serving's sources: `http_rest_api_handler.cc` and its test,
`json_tensor.cc`, `predict_util.cc`. The model's answers are those of `fake_models`.
"""

import asyncio
import gzip
import json
import socket
import threading
import time

import grpc
import pytest
import tensorflow as tf
import urllib3
from fake_models import predict_request, save_model, serving
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    prediction_service_pb2_grpc,
)

from keras_transformer.export import protocol
from keras_transformer.export import server as server_module
from keras_transformer.export.grpc_server import GrpcServer
from keras_transformer.export.models import ServedModel
from keras_transformer.export.protocol import Limits

LIMITS = Limits(max_body_bytes=60_000, max_rows=11, read_timeout=2.0)


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
def get(server, http):
    """Returns the status and the JSON of a path."""

    def get(path, method="GET"):
        response = http.request(method, server.url + path)
        assert response.headers["content-type"] == "application/json"
        return response.status, json.loads(response.data)

    return get


@pytest.fixture(scope="module")
def post(server, http):
    """Sends a request to the model; returns the status and the JSON."""

    def post(body, path="/v1/models/fake:predict"):
        content = body if isinstance(body, bytes | str) else json.dumps(body)
        response = http.request("POST", server.url + path, body=content)
        assert response.headers["content-type"] == "application/json"
        return response.status, json.loads(response.data)

    return post


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


def test_a_key_twice_among_many(post):
    pairs = ", ".join(f'"{number}": 0' for number in range(5_000))
    started = time.monotonic()
    status, answer = post(f'{{{pairs}, "7": 1}}')
    assert (status, answer) == (400, {"error": 'JSON Parse error: the key "7" is there twice'})
    assert time.monotonic() - started < 2


def test_answer_that_is_too_large(post):
    body = {"signature_name": "attention", "instances": ["x" * 1_001]}
    message = "The answer has more than 1,000,000 values: send fewer or shorter rows"
    assert post(body) == (429, {"error": message})


def test_runs_have_a_time_limit(folder, http):
    with serving(folder, Limits(run_timeout=1.0)) as server:
        url = f"{server.url}/v1/models/fake:predict"
        for instances, status in ((["slow"], 504), (["quick"], 200)):
            body = {"signature_name": "slow", "instances": instances}
            response = http.request("POST", url, json=body)
            assert response.status == status, response.data
        stub = prediction_service_pb2_grpc.PredictionServiceStub(grpc.insecure_channel(server.grpc))
        request = predict_request("slow", {"text": tf.make_tensor_proto(["slow"], tf.string)})
        with pytest.raises(grpc.RpcError) as error:
            stub.Predict(request, timeout=20)
        assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_errors_of_unknown_models(post):
    # The request is read before the model is looked for, as in TF Serving.
    for path, which in (("other", "Latest(other)"), ("fake/versions/50", "Specific(fake, 50)")):
        answer = error_of(post({"instances": [1]}, f"/v1/models/{path}:predict"))
        assert answer == (404, f"Servable not found for request: {which}")


def exchange(server, *parts, pause=0.0):
    """Sends bytes, and returns all that comes back until the server closes."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        for part in parts:
            connection.sendall(part)
            time.sleep(pause)
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
        return answer


HEAD = b"POST /v1/models/fake:predict HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(128, 256)),  # TLS
        b"nonsense\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /v1/models/f\xc3\xb6 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/one\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",  # no Host
        b"GET / HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nA: \x00\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 100_000,
        HEAD + b"Content-Length: -5\r\n\r\n",
        HEAD + b"Content-Length: 5x\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        HEAD + b"Transfer-Encoding: gzip\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
    ],
    ids=range(15),
)
def test_malformed_http(server, request_bytes):
    head, _, body = exchange(server, request_bytes).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 4")
    assert b"content-type: application/json" in head
    assert json.loads(body).keys() == {"error"}


def test_too_large(post, server, http):
    message = "The request is larger than 60000 bytes"
    body = json.dumps({"instances": ["a" * 61_000]})
    assert error_of(post(body)) == (413, message)
    assert error_of(post(b"a" * 1_000_000)) == (413, message)
    chunks = http.request(
        "POST", server.url + "/v1/models/fake:predict", body=iter([b"a" * 5000] * 20), chunked=True
    )
    assert (chunks.status, json.loads(chunks.data)) == (413, {"error": message})
    answer = exchange(server, HEAD + b"Content-Length: 1000000\r\nExpect: 100-continue\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    "begun", [b"", b"POST /v1/mod", HEAD, HEAD + b"Content-Length: 50\r\n\r\n{"], ids=range(4)
)
def test_requests_that_never_end(folder, begun):
    with serving(folder, Limits(read_timeout=1)) as server:
        started = time.monotonic()
        answer = exchange(server, begun)
        assert 0.9 < time.monotonic() - started < 8
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert answer.endswith(b'{"error": "The request did not come in time"}')


GET = b"GET /v1/models/fake HTTP/1.1\r\nHost: x\r\n"
CHUNKED = GET.replace(b"GET", b"PUT") + b"Transfer-Encoding: chunked\r\n\r\n"
DRIBBLED = [b"1\r\nx\r\n"] * 5


@pytest.mark.parametrize(
    "parts",
    [[GET + b"Content-Length: 9\r\n\r\n", b"x"], [CHUNKED, *DRIBBLED], [GET + b"\r\n" + GET]],
    ids=["body of a GET", "chunks of a PUT", "second of two"],
)
def test_answered_requests_that_never_end(folder, parts):
    with serving(folder, Limits(read_timeout=1)) as server:
        started = time.monotonic()
        answer = exchange(server, *parts, pause=0.1)
        assert 0.9 < time.monotonic() - started < 8
        assert answer.startswith(b"HTTP/1.1 ")


def test_answers_that_are_never_taken(folder):
    with serving(folder, Limits(read_timeout=1)) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect((host, int(port)))
            connection.setblocking(False)
            with pytest.raises((ConnectionResetError, BrokenPipeError)):
                flood(connection, GET.replace(b"fake", b"fake/metadata") + b"\r\n")


def flood(connection, request):
    """Sends as many requests as the server takes, for 20 s."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            connection.send(request * 100)
        except BlockingIOError:
            time.sleep(0.05)


def test_connections_are_limited(folder):
    with serving(folder, Limits(max_connections=2)) as server:
        host, port = server.url.removeprefix("http://").split(":")
        for _ in range(3):  # what is closed counts no longer
            open_ = [socket.create_connection((host, int(port))) for _ in range(2)]
            head, _, body = exchange(server).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ")
            assert json.loads(body) == {"error": "Too many connections are open"}
            for connection in open_:
                connection.sendall(GET + b"Connection: close\r\n\r\n")
                assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
                while connection.recv(65536):
                    pass
                connection.close()
            time.sleep(0.1)


def test_threads_run_before_the_first_request(folder):
    before = set(threading.enumerate())
    server = server_module.HttpServer(ServedModel(folder))
    try:
        new = set(threading.enumerate()) - before
        assert sum(each.name.startswith("http") for each in new) == server_module.NUM_THREADS
    finally:
        server.close()


def test_failing_connections_fill_no_log(caplog):
    server = server_module._Server(server_module.uvicorn.Config(None), threads=None)
    loop = asyncio.new_event_loop()
    for _ in range(1000):
        server._tell(loop, {"message": "accept", "exception": OSError(24, "Too many open files")})
    loop.close()
    assert caplog.messages == ["A connection failed: Too many open files"]


@pytest.fixture
def held(folder, monkeypatch):
    """A server whose only batch thread waits: with what it has run, its batcher, and `go`."""
    monkeypatch.setattr(protocol, "STOP_SECONDS", 0)
    limits = Limits(num_batch_threads=1, max_batch_size=1, run_timeout=1)
    with serving(folder, limits) as server:
        begun, go, texts = threading.Event(), threading.Event(), []
        with server.model.use() as loaded:
            batcher = loaded._batcher
            run = batcher._run

            def wait(signature, inputs):
                begun.set()
                assert go.wait(20)
                texts.append(inputs["text"][0])
                return run(signature, inputs)

            batcher._run = wait
        stub = prediction_service_pb2_grpc.PredictionServiceStub(grpc.insecure_channel(server.grpc))
        first = stub.Predict.future(predict_request("", {"text": tf.make_tensor_proto(["first"])}))
        assert begun.wait(20)
        yield server, texts, batcher, go
        go.set()
        first.exception(20)


def wait_for(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_requests_whose_clients_are_gone_are_not_run(held):
    server, texts, batcher, go = held
    host, port = server.url.removeprefix("http://").split(":")
    body = b'{"instances": ["gone"]}'
    connections = [socket.create_connection((host, int(port))) for _ in range(3)]
    for connection in connections:
        connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
    stub = prediction_service_pb2_grpc.PredictionServiceStub(grpc.insecure_channel(server.grpc))
    request = predict_request("", {"text": tf.make_tensor_proto(["gone"])})
    calls = [stub.Predict.future(request) for _ in range(2)]
    calls.append(stub.Predict.future(request, timeout=0.3))
    wait_for(lambda: batcher._waiting >= 5)
    for connection in connections:
        connection.close()
    for call in calls[:2]:
        call.cancel()
    wait_for(lambda: batcher._waiting == 0)  # while the thread is still busy
    go.set()
    answer = urllib3.request(
        "POST", server.url + "/v1/models/fake:predict", body='{"instances": ["on"]}', timeout=20
    )
    assert answer.status == 200
    assert texts == [b"first", b"on"]


def test_stop_takes_longer_than_a_run():
    assert Limits(run_timeout=60.5).stop_timeout == 61 + 5


def test_stop_waits_for_as_long_as_a_batch_may_run(held):
    server, _, batcher, _ = held
    answers = []
    url = server.url + "/v1/models/fake:predict"

    def client():
        answer = urllib3.request("POST", url, body='{"instances": ["a"]}', timeout=20)
        answers.append((answer.status, answer.json()))

    thread = threading.Thread(target=client)
    thread.start()
    wait_for(lambda: batcher._waiting == 1)
    started = time.monotonic()
    server.stop()
    thread.join(20)
    assert time.monotonic() - started > 0.9
    assert answers == [(503, {"error": "The server is stopping"})]


def test_client_that_goes_away_does_no_harm(server, post):
    host, port = server.url.removeprefix("http://").split(":")
    for request in (HEAD + b"Content-Length: 50\r\n\r\n{", HEAD + b"Content-Length: 2\r\n\r\n{}"):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(request)
    assert post({"instances": ["abc"]})[0] == 200


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


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("OPTIONS *", 404),
        ("OPTIONS /", 404),
        ("POST /", 404),
        ("CONNECT x:80", 404),
        ("OPTIONS /v1/models/fake", 400),
        ("GET http://x:8501/v1/models/fake", 200),
        ("GET HTTP://x/v1/models/none", 404),
        ("GET http://x/v2", 404),
        ("GET ftp://x/v1/models/fake", 404),
        ("GET v1/models/fake", 404),
    ],
)
def test_unusual_targets(server, target, status):
    request = f"{target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    head, _, body = exchange(server, request).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"content-type: application/json" in head
    assert json.loads(body).keys() == ({"model_version_status"} if status == 200 else {"error"})


@pytest.mark.parametrize("target", ["http://x/", "http://x", "/?a=b"])
def test_page_by_a_whole_url(server, target):
    request = f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    assert b"stand-in for TF Serving" in exchange(server, request)


def test_requests_at_the_same_time_are_merged(folder, http):
    """A slow run of the model leaves the others time to come."""
    with serving(folder, Limits(num_batch_threads=1, max_batch_size=8)) as server:
        sizes, begun, go_on = [], threading.Event(), threading.Event()
        with server.model.use() as loaded:
            batcher = loaded._batcher
            run = batcher._run

            def slow(signature, inputs):
                begun.set()
                assert go_on.wait(20)
                sizes.append(len(inputs["text"]))
                return run(signature, inputs)

            batcher._run = slow
        answers = {}

        def client(number):
            body = json.dumps({"instances": [f"text {number}"]})
            url = server.url + "/v1/models/fake:predict"
            answers[number] = urllib3.request("POST", url, body=body, timeout=20).json()

        threads = [threading.Thread(target=client, args=(number,)) for number in range(9)]
        threads[0].start()
        assert begun.wait(20)
        for thread in threads[1:]:
            thread.start()
        deadline = time.monotonic() + 20
        while batcher._waiting < 8 and time.monotonic() < deadline:
            time.sleep(0.01)
        go_on.set()
        for thread in threads:
            thread.join(20)
        assert sizes == [1, 8]
        for number in range(9):
            assert answers[number]["predictions"][0]["translation"] == f"3:TEXT {number}"


def test_full_queue_and_graceful_stop(folder):
    """One request runs, one waits, the third is refused; a stop waits for the first two."""
    limits = Limits(num_batch_threads=1, max_batch_size=1, max_queue=1)
    with serving(folder, limits) as server:
        begun, go_on = threading.Event(), threading.Event()
        with server.model.use() as loaded:
            batcher = loaded._batcher
            run = batcher._run
            batcher._run = lambda *inputs: (begun.set(), go_on.wait(20), run(*inputs))[-1]
        url = server.url + "/v1/models/fake:predict"
        statuses = []

        def client():
            answer = urllib3.request("POST", url, body='{"instances": ["a"]}', timeout=20)
            statuses.append((answer.status, answer.json()))

        threads = [threading.Thread(target=client) for _ in range(2)]
        threads[0].start()
        assert begun.wait(20)
        threads[1].start()
        deadline = time.monotonic() + 20
        while batcher._waiting < 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        client()
        ((status, refused),) = statuses
        assert status == 503
        assert refused.keys() == {"error"}
        server.stop()
        time.sleep(0.3)
        go_on.set()
        for thread in threads:
            thread.join(20)
        expected = {"predictions": [{"translation": "3:A", "score": -1.0, "truncated": False}]}
        assert statuses[1:] == [(200, expected)] * 2


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
    with pytest.raises(OSError, match=f"cannot listen at 127.0.0.1:{port}"):
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
