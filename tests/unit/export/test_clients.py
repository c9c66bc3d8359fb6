"""The clients against servers on loopback that answer as TensorFlow Serving does, or not at all."""

import json
import socket
import subprocess
import sys
import threading
from concurrent import futures
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc
from typer.testing import CliRunner

from keras_transformer.cli import translate
from keras_transformer.cli.main import app
from keras_transformer.errors import InputError
from keras_transformer.export import clients
from keras_transformer.export.clients import GrpcClient, RestClient
from keras_transformer.export.rows import by_length

NO_TRANSLATION = "must answer with a `translation` for each of 2 texts"
TEXTS = ["a somewhat longer one", "", "öl 😀", "b\nc", "שלום", '"quoted" \\', "\x00\x7f"]


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setattr(clients, "BACKOFF_SECONDS", 0.02)


def row_of(text):
    return {"translation": text.upper(), "score": -len(text) / 4, "truncated": len(text) > 20}


def unused_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@contextmanager
def waiting(answer):
    """An answer that does not come while a test lasts."""
    ended = threading.Event()

    def wait(texts):
        ended.wait(60)
        return answer(texts)

    try:
        yield wait
    finally:
        ended.set()


class Rest:
    """An HTTP server that answers each request with the next of its answers, the last for ever.

    An answer is a status and a body, or a function of the request's texts that returns such.
    """

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests = []  # paths and bodies
        rest = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                rest.requests.append((self.path, body))
                answer = rest.answers.pop(0) if len(rest.answers) > 1 else rest.answers[0]
                answer = answer(body["instances"]) if callable(answer) else answer
                if answer is None:
                    self.close_connection = True
                    return
                status, content = answer
                data = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.send_header("Location", "/elsewhere")
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *_: None  # a client that waits no longer
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/models/tiny"

    @property
    def instances(self):
        return [body["instances"] for _, body in self.requests]

    def __enter__(self):
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def translations(texts):
    return 200, {"predictions": [row_of(text) for text in texts]}


def rest_translate(url, texts, **options):
    client = RestClient(url, **options)
    try:
        return client.translate(texts)
    finally:
        client.close()


class Grpc(prediction_service_pb2_grpc.PredictionServiceServicer):
    """A gRPC server, likewise; an answer is a status, a dictionary of outputs, or a function."""

    def __init__(self, *answers, port=0):
        self.answers = list(answers)
        self.requests = []
        self.server = grpc.server(futures.ThreadPoolExecutor(2))
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(self, self.server)
        self.target = f"127.0.0.1:{self.server.add_insecure_port(f'127.0.0.1:{port}')}"

    def Predict(self, request, context):  # noqa: N802
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        texts = [text.decode() for text in tf.make_ndarray(request.inputs["text"])]
        answer = answer(texts) if callable(answer) else answer
        if isinstance(answer, grpc.StatusCode):
            context.abort(answer, "it is\nso")
        return predict_pb2.PredictResponse(
            outputs={name: tf.make_tensor_proto(value) for name, value in answer.items()}
        )

    @property
    def texts(self):
        return [tf.make_ndarray(request.inputs["text"]).tolist() for request in self.requests]

    def __enter__(self):
        self.server.start()
        return self

    def __exit__(self, *_):
        self.server.stop(None).wait()


def outputs(texts):
    rows = [row_of(text) for text in texts]
    return {
        "translation": [row["translation"].encode() for row in rows],
        "score": tf.constant([row["score"] for row in rows]),
        "truncated": [row["truncated"] for row in rows],
    }


def grpc_translate(target, texts, **options):
    client = GrpcClient(target, "tiny", **options)
    try:
        return client.translate(texts)
    finally:
        client.close()


# Batches.


def test_batches_are_of_neighbours_in_length():
    batches = []

    def translate(texts):
        batches.append(texts)
        return [text.upper() for text in texts]

    texts = ["ccc", "a", "", "eeeee", "bb", "dddd", "f"]
    rows = by_length(texts, translate, max_rows=3)
    assert rows == ["CCC", "A", "", "EEEEE", "BB", "DDDD", "F"]
    assert batches == [["", "a", "f"], ["bb", "ccc", "dddd"], ["eeeee"]]


def test_batches_have_a_size():
    batches = []

    def translate(texts):
        batches.append([len(text) for text in texts])
        return texts

    texts = ["x" * length for length in (23, 1, 5, 2, 3, 11, 0)]
    assert by_length(texts, translate, max_rows=5, max_size=12) == texts
    assert batches == [[0, 1, 2, 3], [5], [11], [23]]
    batches.clear()
    assert by_length([], translate, max_rows=5) == []
    assert batches == []


def test_batches_want_a_row_for_each_text():
    with pytest.raises(ValueError, match="zip"):
        by_length(["a", "b"], lambda texts: texts[1:], max_rows=5)


# REST.


def test_rest_rows_in_order():
    texts = [f"{'x' * (n * 7 % 31)}{n}" for n in range(71)]
    with Rest(translations) as server:
        assert rest_translate(server.url, texts) == [row_of(text) for text in texts]
        assert rest_translate(server.url, texts[:17], max_rows=7) == [*map(row_of, texts[:17])]
    assert server.requests[0][0] == "/v1/models/tiny:predict"
    assert server.requests[0][1]["signature_name"] == "serving_default"
    assert [len(instances) for instances in server.instances] == [32, 32, 7, 7, 7, 3]
    lengths = [len(text) for instances in server.instances[:3] for text in instances]
    assert lengths == sorted(lengths)


def test_rest_texts_arrive_as_they_are():
    with Rest(translations) as server:
        assert rest_translate(server.url, TEXTS) == [row_of(text) for text in TEXTS]
        assert rest_translate(server.url, [text.encode() for text in TEXTS])[2] == row_of("öl 😀")
        replaced = rest_translate(server.url, ["red \ud800 dog", b"red \xff dog"])
    assert [row["translation"] for row in replaced] == ["RED ? DOG", "RED \ufffd DOG"]
    assert rest_translate(server.url, []) == []  # whether there is a server or not


@pytest.mark.parametrize("place", ["/versions/3", "/labels/stable", "/"])
def test_rest_signature_and_version(place):
    with Rest(translations) as server:
        assert rest_translate(server.url + place, ["a"], signature="greedy") == [row_of("a")]
    path = "/v1/models/tiny" + place.rstrip("/")
    assert server.requests == [
        (f"{path}:predict", {"signature_name": "greedy", "instances": ["a"]})
    ]


@pytest.mark.parametrize("failure", [(503, {"error": "busy"}), (429, b""), (502, b"<html>"), None])
def test_rest_tries_again(failure):
    with Rest(failure, failure, translations) as server:
        assert rest_translate(server.url, ["a"]) == [row_of("a")]
    assert server.instances == [["a"]] * 3


@pytest.mark.parametrize(("retries", "requests"), [(0, 1), (2, 3)])
def test_rest_gives_up(retries, requests):
    with (
        Rest((503, {"error": "no\n room"})) as server,
        pytest.raises(InputError, match=f"^{server.url} answered with status 503: no room$"),
    ):
        rest_translate(server.url, ["a"], retries=retries)
    assert len(server.requests) == requests


def test_rest_timeout_is_not_repeated():
    with (
        waiting(translations) as slow,
        Rest(slow) as server,
        pytest.raises(InputError, match=f"^{server.url} did not answer within 0.5 s$"),
    ):
        rest_translate(server.url, ["a"], timeout=0.5)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((404, {"error": "Servable not found"}), "answered with status 404: Servable not found"),
        ((500, b"\xff<html>"), "answered with status 500: Internal Server Error"),
        ((307, b""), "answered with status 307: Temporary Redirect"),
        ((200, b"\xffgarbage"), NO_TRANSLATION),
        ((200, []), NO_TRANSLATION),
        ((200, {"predictions": ["A", "B"]}), NO_TRANSLATION),
        ((200, {"predictions": [row_of("a")]}), NO_TRANSLATION),
    ],
)
def test_rest_errors_are_one_sentence(answer, message):
    with (
        Rest(answer) as server,
        pytest.raises(InputError, match=f"^{server.url} {message}$"),
    ):
        rest_translate(server.url, ["a", "b"])
    assert len(server.requests) == 1


def test_rest_no_server():
    url = f"http://127.0.0.1:{unused_port()}/v1/models/tiny"
    with pytest.raises(InputError, match=f"^{url} cannot be reached: .*Connection refused$"):
        rest_translate(url, ["a"])


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8501",
        "ftp://localhost/v1/models/tiny",
        "http://localhost:8501/v1/models/tiny:predict",
        "http://localhost:8501/v1/models/tiny/versions/new",
        "http://localhost:8501/v1/models/tiny?x=1",
    ],
)
def test_rest_wrong_url(url):
    with pytest.raises(InputError, match="must have the form http://HOST:PORT/v1/models/NAME"):
        RestClient(url)


def test_rest_needs_no_tensorflow():
    with Rest(translations) as server:
        program = (
            "import sys; from keras_transformer.export.clients import RestClient;"
            f"rows = RestClient({server.url!r}).translate(['öl']);"
            "sys.exit(rows[0]['translation'] != 'ÖL' or 'tensorflow' in sys.modules)"
        )
        assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# gRPC.


def test_grpc_rows_in_order():
    texts = [f"{'x' * (n * 7 % 31)}{n}" for n in range(71)]
    with Grpc(outputs) as server:
        assert grpc_translate(server.target, texts) == [row_of(text) for text in texts]
        assert grpc_translate(server.target, texts[:17], max_rows=7) == [*map(row_of, texts[:17])]
    assert [len(rows) for rows in server.texts] == [32, 32, 7, 7, 7, 3]
    spec = server.requests[0].model_spec
    assert (spec.name, spec.signature_name) == ("tiny", "serving_default")
    assert list(server.requests[0].inputs) == ["text"]


def test_grpc_texts_arrive_as_they_are():
    with Grpc(outputs) as server:
        assert grpc_translate(server.target, TEXTS, signature="greedy") == [
            row_of(text) for text in TEXTS
        ]
        assert grpc_translate(server.target, []) == []
    (request,) = server.requests
    assert request.model_spec.signature_name == "greedy"


def test_grpc_tries_again():
    busy = grpc.StatusCode.UNAVAILABLE
    with Grpc(busy, busy, outputs) as server:
        assert grpc_translate(server.target, ["a"]) == [row_of("a")]
    assert len(server.requests) == 3


@pytest.mark.parametrize(("retries", "requests"), [(0, 1), (2, 3)])
def test_grpc_gives_up(retries, requests):
    with (
        Grpc(grpc.StatusCode.UNAVAILABLE) as server,
        pytest.raises(
            InputError, match=f"^grpc://{server.target}/tiny answered with UNAVAILABLE: it is so$"
        ),
    ):
        grpc_translate(server.target, ["a"], retries=retries)
    assert len(server.requests) == requests


def test_grpc_deadline():
    with (
        waiting(outputs) as slow,
        Grpc(slow) as server,
        pytest.raises(
            InputError, match=f"^grpc://{server.target}/tiny did not answer within 0.5 s$"
        ),
    ):
        grpc_translate(server.target, ["a"], timeout=0.5)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (grpc.StatusCode.NOT_FOUND, "answered with NOT_FOUND: it is so"),
        ({}, NO_TRANSLATION),
        ({"translation": [b"A"], "score": [1.0]}, NO_TRANSLATION),
        ({"translation": [b"A", b"B"], "score": [1.0]}, NO_TRANSLATION),
        ({"translation": [b"A", b"\xff"]}, NO_TRANSLATION),
        ({"translation": b"A"}, NO_TRANSLATION),
    ],
)
def test_grpc_errors_are_one_sentence(answer, message):
    with (
        Grpc(answer) as server,
        pytest.raises(InputError, match=f"^grpc://{server.target}/tiny {message}$"),
    ):
        grpc_translate(server.target, ["a", "b"])
    assert len(server.requests) == 1


def test_grpc_no_server():
    target = f"127.0.0.1:{unused_port()}"
    with pytest.raises(
        InputError, match=f"^grpc://{target}/tiny answered with UNAVAILABLE: .*refused"
    ):
        grpc_translate(target, ["a"])


# The command.


def command(*arguments, **options):
    result = CliRunner().invoke(app, ["translate", *arguments], **options)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def said(monkeypatch):
    """What the command says besides translations."""
    lines = []
    monkeypatch.setattr(translate, "say", lines.append)
    return lines


def test_command_asks_over_rest(said):
    with Rest(translations) as server:
        long = "x" * 23
        result = command("--url", server.url, "red\u2028dog", "", long)
        assert result.stdout == f"RED DOG\n\n{long.upper()}\n"
        piped = command("--url", server.url, "--signature", "greedy", input="b\r\nöl\na".encode())
        assert piped.stdout == "B\nÖL\nA\n"
    assert said == ["warning: text 3 is too long and its end was not translated"]
    assert [body["signature_name"] for _, body in server.requests] == ["serving_default", "greedy"]
    assert server.instances[1] == ["b", "a", "öl"]  # by length


def test_command_asks_over_grpc(said):
    with Grpc(outputs) as server:
        arguments = ("--grpc", server.target, "--model", "tiny", "--timeout", "7")
        assert command(*arguments, "a", "öl").stdout == "A\nÖL\n"
    assert said == []


def test_document_signature_has_nothing_to_cut(said):
    answer = {"predictions": [{"translation": "A", "score": -1.0, "sentences": 3}]}
    with Rest((200, answer)) as server:
        assert command("--url", server.url, "--signature", "document", "a").stdout == "A\n"
    assert said == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--url", "{url}", "--grpc", "x:1"], "Give either --url URL, or --grpc"),
        (["--grpc", "x:1", "a"], "Give either --url URL, or --grpc"),
        (["{run}", "--signature", "greedy"], "run is a run directory: it has no signature greedy"),
        (["--url", "{url}", "--beam-size", "3", "a"], "was fixed by the export: beam_size cannot"),
        (["--url", "http://x", "a"], "The URL must have the form"),
    ],
)
def test_command_wants_one_source(tmp_path, arguments, message):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    url = f"http://127.0.0.1:{unused_port()}/v1/models/tiny"
    names = {"url": url, "run": tmp_path / "run"}
    with pytest.raises(InputError, match=message):
        command(*[argument.format(**names) for argument in arguments], input="")


def test_command_names_all_sources():
    result = command()
    assert result.exit_code == 2
    assert "Missing argument 'RUN|SAVEDMODEL', or --url, or --grpc." in result.stderr
