"""What clients do to a server: broken requests, slow ones, too many, and stops amid them."""

import asyncio
import json
import socket
import threading
import time

import grpc
import pytest
import tensorflow as tf
import urllib3
from fake_models import predict_request, serving
from tensorflow_serving.apis import prediction_service_pb2_grpc

from keras_transformer.export import protocol
from keras_transformer.export import server as server_module
from keras_transformer.export.models import ServedModel
from keras_transformer.export.protocol import Limits


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
    assert post(body) == (413, {"error": message})
    assert post(b"a" * 1_000_000) == (413, {"error": message})
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
