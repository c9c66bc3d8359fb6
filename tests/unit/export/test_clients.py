"""The clients against servers on loopback that answer as TensorFlow Serving does, or not at all."""

import json
import threading
from concurrent import futures
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
SLOW = "an answer that does not come while a test lasts"


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setattr(clients, "BACKOFF_SECONDS", 0.02)


def row_of(text):
    return {"translation": text.upper(), "score": -len(text) / 4, "truncated": len(text) > 20}


class Server:
    """Answers each request with the next of its answers, the last for ever; by default, well.

    An answer is what the protocol sends, or a function of the request's texts that returns such.
    """

    def __init__(self, *answers):
        self.answers = list(answers) or [self.good]
        self.requests = []  # where they went, and their texts
        self.ended = threading.Event()

    def answer(self, place, texts):
        self.requests.append((place, texts))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is SLOW:
            self.ended.wait(60)
            answer = self.good
        return answer(texts) if callable(answer) else answer

    def translate(self, texts, **options):
        client = self.client(**options)
        try:
            return client.translate(texts)
        finally:
            client.close()

    def fails(self, texts, message, **options):
        with pytest.raises(InputError, match=f"^{self.name} {message}$"):
            self.translate(texts, **options)

    @property
    def batches(self):
        return [texts for _, texts in self.requests]


class Rest(Server):
    """An answer is a status and a body; None closes the connection."""

    BUSY = (503, {"error": "no\n room"})
    GIVES_UP = "answered with status 503: no room"
    REFUSED = "cannot be reached: .*Connection refused.*"

    def __init__(self, *answers):
        super().__init__(*answers)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(handler):  # noqa: N805
                body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
                place = (handler.path, body["signature_name"])
                answer = self.answer(place, body["instances"])
                if answer is None:
                    handler.close_connection = True
                    return
                status, content = answer
                data = content if isinstance(content, bytes) else json.dumps(content).encode()
                handler.send_response(status)
                handler.send_header("Content-Length", str(len(data)))
                handler.send_header("Location", "/elsewhere")
                handler.end_headers()
                handler.wfile.write(data)

            def log_message(handler, *args):  # noqa: N805
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *_: None  # a client that waits no longer
        self.name = f"http://127.0.0.1:{self.server.server_port}/v1/models/tiny"

    def good(self, texts):
        return 200, {"predictions": [row_of(text) for text in texts]}

    def client(self, place="", **options):
        return RestClient(self.name + place, **options)

    def __enter__(self):
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class Grpc(Server, prediction_service_pb2_grpc.PredictionServiceServicer):
    """An answer is a status, or a dictionary of outputs."""

    BUSY = grpc.StatusCode.UNAVAILABLE
    GIVES_UP = "answered with UNAVAILABLE: it is so"
    REFUSED = "answered with UNAVAILABLE: .*refused.*"

    def __init__(self, *answers):
        super().__init__(*answers)
        self.server = grpc.server(futures.ThreadPoolExecutor(2))
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(self, self.server)
        self.target = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.name = f"grpc://{self.target}/tiny"

    def Predict(self, request, context):  # noqa: N802
        tensor = request.inputs["text"]
        spec = request.model_spec
        texts = [text.decode() for text in tf.make_ndarray(tensor)]
        answer = self.answer((spec.name, spec.signature_name), texts)
        if isinstance(answer, grpc.StatusCode):
            context.abort(answer, "it is\nso")
        outputs = {name: tf.make_tensor_proto(value) for name, value in answer.items()}
        return predict_pb2.PredictResponse(outputs=outputs)

    def good(self, texts):
        rows = [row_of(text) for text in texts]
        return {name: tf.constant([row[name] for row in rows]) for name in rows[0]}

    def client(self, **options):
        return GrpcClient(self.target, "tiny", **options)

    def __enter__(self):
        self.server.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.server.stop(None).wait()


both = pytest.mark.parametrize("protocol", [Rest, Grpc])


def test_batches_are_of_neighbours_in_length():
    batches = []

    def upper(texts):
        batches.append(b" ".join(texts).decode())
        return [text.decode().upper() for text in texts]

    texts = ["ccc", "a", "", "eeeee", b"bb", "dddd", "f", "é" * 23]
    expected = ["CCC", "A", "", "EEEEE", "BB", "DDDD", "F", "É" * 23]
    assert by_length(texts, upper, max_rows=3) == expected
    assert batches == [" a f", "bb ccc dddd", f"eeeee {'é' * 23}"]
    batches.clear()
    assert by_length(texts, upper, max_size=10) == expected
    assert batches == [" a f bb", "ccc dddd", "eeeee", "é" * 23]
    assert by_length([], lambda batch: pytest.fail("empty")) == []
    with pytest.raises(ValueError, match="zip"):
        by_length(texts, lambda texts: texts[1:])


@both
def test_rows_in_order(protocol):
    texts = [f"{'x' * (n * 7 % 31)}{n}" for n in range(71)]
    with protocol() as server:
        assert server.translate(texts) == [row_of(text) for text in texts]
        assert server.translate(texts[:17], max_rows=7) == [row_of(text) for text in texts[:17]]
    assert [len(batch) for batch in server.batches] == [32, 32, 7, 7, 7, 3]
    lengths = [len(text) for batch in server.batches[:3] for text in batch]
    assert lengths == sorted(lengths)


@both
def test_texts_arrive_as_they_are(protocol):
    with protocol() as server:
        assert server.translate(TEXTS) == [row_of(text) for text in TEXTS]
        assert server.translate([text.encode() for text in TEXTS]) == [*map(row_of, TEXTS)]
        replaced = server.translate(["red \ud800 dog", b"red \xff dog"])
    assert [row["translation"] for row in replaced] == ["RED ? DOG", "RED \ufffd DOG"]
    assert server.translate([]) == []  # the server has ended


@pytest.mark.parametrize("place", ["/versions/3", "/labels/stable/"])
def test_rest_signature_and_version(place):
    with Rest() as server:
        assert server.translate(["a"], place=place, signature="greedy") == [row_of("a")]
        server.translate(["a"])
    path = "/v1/models/tiny" + place.rstrip("/")
    places = [(f"{path}:predict", "greedy"), ("/v1/models/tiny:predict", "serving_default")]
    assert [place for place, _ in server.requests] == places


def test_grpc_signature():
    with Grpc() as server:
        server.translate(["a"])
        server.translate(["a"], signature="greedy")
    assert server.requests == [(("tiny", name), ["a"]) for name in ("serving_default", "greedy")]


def test_a_prefix_is_replaced_as_texts_are():
    with Grpc() as server:
        assert server.translate(["a"], prefix="red \udcff") == [row_of("a")]


@pytest.mark.parametrize(
    ("protocol", "failure"),
    [(Rest, Rest.BUSY), (Rest, (429, b"")), (Rest, None), (Grpc, Grpc.BUSY)],
)
def test_failures_are_tried_again(protocol, failure):
    with protocol(failure, failure, lambda texts: server.good(texts)) as server:
        assert server.translate(["a"]) == [row_of("a")]
    assert server.batches == [["a"]] * 3


@both
@pytest.mark.parametrize(("retries", "requests"), [(0, 1), (2, 3)])
def test_client_gives_up(protocol, retries, requests):
    with protocol(protocol.BUSY) as server:
        server.fails(["a"], protocol.GIVES_UP, retries=retries)
    assert len(server.requests) == requests


@both
def test_timeout_is_not_repeated(protocol):
    with protocol(SLOW) as server:
        server.fails(["a"], "did not answer within 2 s", timeout=2)
    assert len(server.requests) == 1


@both
def test_no_server(protocol):
    with protocol() as server:
        pass
    server.fails(["a"], protocol.REFUSED)


@pytest.mark.parametrize(
    ("protocol", "answer", "message"),
    [
        (Rest, (404, {"error": "no model"}), "answered with status 404: no model"),
        (Rest, (307, b"\xff<html>"), "answered with status 307: Temporary Redirect"),
        (Rest, (200, b"\xffgarbage"), NO_TRANSLATION),
        (Rest, (200, {"predictions": ["A", "B"]}), NO_TRANSLATION),
        (Rest, (200, {"predictions": [row_of("a")]}), NO_TRANSLATION),
        (Grpc, grpc.StatusCode.NOT_FOUND, "answered with NOT_FOUND: it is so"),
        (Grpc, {}, NO_TRANSLATION),
        (Grpc, {"translation": [b"A", b"B"], "score": [1.0]}, NO_TRANSLATION),
        (Grpc, {"translation": [b"A", b"\xff"]}, NO_TRANSLATION),
        (Grpc, {"translation": b"A"}, NO_TRANSLATION),
    ],
)
def test_errors_are_one_sentence(protocol, answer, message):
    with protocol(answer) as server:
        server.fails(["a", "b"], message)
    assert len(server.requests) == 1


@pytest.mark.parametrize("rows", [[], None, [1], [{"name": "en"}]])
def test_wrong_languages(rows):
    with (
        Rest((200, {"predictions": rows})) as server,
        pytest.raises(InputError, match="must answer with names of languages"),
    ):
        server.client().languages()


@pytest.mark.parametrize(
    "url", ["localhost:8501", "http://localhost:8501/v1/models/x/versions/new"]
)
def test_rest_wrong_url(url):
    with pytest.raises(InputError, match="must have the form http://HOST:PORT/v1/models/NAME"):
        RestClient(url)


# The command.


def command(*arguments, **options):
    result = CliRunner().invoke(app, ["translate", *arguments], **options)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_command_asks_a_server(monkeypatch):
    said = []
    monkeypatch.setattr(translate, "say", said.append)
    long = "x" * 23
    with Rest() as server:
        result = command("--url", server.name, "red\u2028dog", "", long)
        assert result.stdout == f"RED DOG\n\n{long.upper()}\n"
        piped = command("--url", server.name, "--signature", "greedy", input="b\r\nöl\na".encode())
        assert piped.stdout == "B\nÖL\nA\n"
    signatures = [signature for (_, signature), _ in server.requests]
    assert [*dict.fromkeys(signatures)] == ["serving_default", "greedy"]
    with Grpc() as server:
        arguments = ("--grpc", server.target, "--model", "tiny", "--timeout", "7")
        assert command(*arguments, "a", "öl").stdout == "A\nÖL\n"
    warning, end = said
    assert warning == "warning: text 3 is too long, and its end was left out"
    assert end.startswith("Translation: lines of standard input: 3 in ")


def test_command_wants_one_server():
    for arguments in (["--url", "http://x", "--grpc", "x:1"], ["--grpc", "x:1", "a"]):
        with pytest.raises(InputError, match="Give either --url URL, or --grpc"):
            command(*arguments)
