"""LibreTranslate's API, asked by another's client and over HTTP."""

import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlencode

import pytest
import urllib3
from command_line import assert_refused, cli, free_ports
from libretranslatepy import LibreTranslateAPI
from running_servers import running, running_app

from keras_transformer.errors import InputError
from keras_transformer.export import clients, html_text
from keras_transformer.export.gateway import Direction, Gateway
from keras_transformer.export.html_text import PROBE
from keras_transformer.protection.terms import TERM

JSON = {"content-type": "application/json"}
NAMES = ["eng_Latn", "nob_Latn", "por_Latn", "zho_Hans", "zho_Hant"]
NLLB = {"source": "eng_Latn", "target": "nob_Latn", "sources": NAMES[:2], "targets": NAMES}


class Model(BaseHTTPRequestHandler):
    """A model server: `document` is upper case, `nbest` adds a digit and has two translations.

    The models but "keeps", which also reads marks of terms, change tags. A sentence ends at a line
    break. "nllb" has several languages.
    """

    probes = 0
    version = "1"

    def do_GET(self):
        self.answer(
            200, {"model_version_status": [{"version": self.version, "state": "AVAILABLE"}]}
        )

    def do_POST(self):
        question = json.loads(self.rfile.read(int(self.headers["content-length"])))
        texts = question["instances"]
        if question["signature_name"] == "nbest":
            scores = [-0.5, -1.25, -1e9]
            rows = [
                {
                    "translations": [f"cs {t.upper()}".rstrip(), f"{t}2", f"{t}3", ""],
                    "scores": [0.5, *scores],
                    "truncated": t == "long",
                }
                for t in texts
            ]
        else:
            keeps = "keeps" in self.path
            Model.probes += PROBE in texts
            rows = [
                {
                    "translation": re.sub(TERM, r"\1", t)
                    if keeps
                    else f"{self.path[11:13]} {t.upper()}",
                    "sentences": len(t.split("\n")),
                }
                for t in texts
            ]
        if question["signature_name"] == "languages" and "nllb" in self.path:
            self.answer(200, {"predictions": [NLLB]})
        elif "refused" in texts or question["signature_name"] == "languages":
            self.answer(400, {"error": "too long"})
        else:
            self.answer(200, {"predictions": rows})

    def answer(self, status, body):
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def models():
    models = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    with running(models.serve_forever, models.shutdown):
        yield f"http://127.0.0.1:{models.server_port}/v1/models"
    models.server_close()


@pytest.fixture(scope="module")
def url(models):
    """A gateway to three models, of which the last is down."""
    clients.BACKOFF_SECONDS, before = 0.02, clients.BACKOFF_SECONDS
    (unused,) = free_ports(1)
    urls = {Direction("en", "cs"): f"{models}/cs", Direction("en", "ja"): f"{models}/ja"}
    urls[Direction("cs", "en")] = f"{models}/keeps"
    urls[Direction("de", "ja")] = f"http://127.0.0.1:{unused}/v1/models/down"
    app = Gateway(urls, max_characters=50, max_texts=3, timeout=5).app()
    with running_app(app) as url:
        yield url
    clients.BACKOFF_SECONDS = before


def ask(url, path, method="POST", **values):
    content = {"body": json.dumps(values), "headers": JSON} if values else {}
    response = urllib3.request(method, f"{url}{path}", timeout=20, **content)
    return response.status, response.json()


def test_the_client_of_others(url):
    client = LibreTranslateAPI(url)
    assert client.translate("Hello <b>you</b>", "en", "cs") == "cs HELLO <B>YOU</B>"
    assert [(each["code"], each["targets"]) for each in client.languages()] == [
        ("cs", ["en"]),
        ("de", ["ja"]),
        ("en", ["cs", "ja"]),
        ("ja", []),
    ]
    assert {each["language"] for each in client.detect("Hello")} == {"cs", "de", "en"}
    found = urllib3.request("GET", f"{url}/languages", headers=JSON)  # as npm's client asks
    assert found.json() == client.languages()


def test_translations(url):
    to_czech = {"source": "en", "target": "cs"}
    answer = {"translatedText": ["cs A", "cs B"]}
    assert ask(url, "/translate", q=["a", "b"], **to_czech) == (200, answer)
    answer = {"translatedText": "cs A ", "alternatives": ["a 2"]}  # a document keeps the space
    assert ask(url, "/translate", q="a ", alternatives=1, **to_czech) == (200, answer)
    texts = ["a", "a\n\nb", "long"]  # of 1, 3 and 1 sentences
    answer = {"translatedText": ["cs A", "cs A\n\nB", "cs LONG"]}
    answer["alternatives"] = [["a2"], [], []]
    assert ask(url, "/translate", q=texts, alternatives=1, **to_czech) == (200, answer)
    answer = {"translatedText": "cs A", "alternatives": []}
    assert ask(url, "/translate", q="a", alternatives=2, format="html", **to_czech) == (200, answer)
    answer = {"translatedText": ["cs A"]}
    answer["detectedLanguage"] = [{"confidence": 100, "language": "en"}]
    assert ask(url, "/translate", q=["a"], source="AUTO", target="cs_CZ") == (200, answer)
    fields = {"q": "a b", "source": "en_US", "target": "ja", "alternatives": "1"}
    response = urllib3.request("POST", f"{url}/translate", body=urlencode(fields))
    assert response.json() == {"translatedText": "ja A B", "alternatives": ["cs A B"]}
    headers = {"Origin": "http://other.org"}
    response = urllib3.request("GET", f"{url}/languages", headers=headers)
    assert response.headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("<b>Two</b> a &amp; b<br/>", "<b>cs TWO</b>cs  A &amp; B<br/>"),
        ("<!-- a > b --><p a='1'>x &lt; y</p>", "<!-- a > b --><p a='1'>cs X &lt; Y</p>"),
        ("<script>a < b</script>\n<i>&nbsp;</i> ", "<script>a < b</script>\n<i>&nbsp;</i> "),
        ('a<i x="b > c">d</i>', 'cs A<i x="b > c">cs D</i>'),
        ("<i x='>a</i>", "<i x='>cs A</i>"),
        ("<kbd>Ctrl</kbd>+<b>.</b> 1 < 2 <1>a</1>", "<kbd>Ctrl</kbd>+<b>.</b> 1 < 2 <1>cs A</1>"),
        ("a < b", "cs A &lt; B"),
        ("<b>\ud83d</b> a", "<b>?</b>cs  A"),
        ("<p translate=no>A<p>b", "<p translate=no>A<p>cs B"),
        ("<ul><li translate=no>A</ul>b", "<ul><li translate=no>A</ul>cs B"),
        ("<li translate=no><ul><li>A</ul>B</li>c", "<li translate=no><ul><li>A</ul>B</li>cs C"),
        ("<tr translate=no><td>A<tr>b", "<tr translate=no><td>A<tr>cs B"),
        ("<b translate=no>a <b>b</b></b> c", "<b translate=no>a <b>b</b></b>cs  C"),
        ("<i class='x notranslate'>a</i>b", "<i class='x notranslate'>a</i>cs B"),
        (
            'a<br translate="no">b<b translate="no">c',
            'cs A<br translate="no">cs B<b translate="no">c',
        ),
    ],
)
def test_html_without_protection_of_tags(url, html, expected):
    answer = ask(url, "/translate", q=html, source="en", target="cs", format="html")
    assert answer == (200, {"translatedText": expected})
    answer = ask(url, "/translate", q=[html], source="cs", target="en", format="html")
    html = html.replace("\ud83d", "?")
    assert answer == (200, {"translatedText": [html]})  # by a model that keeps tags


@pytest.mark.parametrize(
    ("html", "kept", "between"),
    [
        (
            "<p>Red\n dog.</p>\n<p>A</p>",
            "<p>Red dog.</p>\n<p>A</p>",
            "<p>cs RED DOG.</p>\n<p>cs A</p>",
        ),
        (
            "a\n<b>b\r\nc</b>\nd<br>\ne",
            "a <b>b c</b> d<br>\ne",
            "cs A <b>cs B C</b>cs  D<br>cs \nE",
        ),
        ("<pre>a\n <b>b</b>\nc</pre>", None, "<pre>cs A\n <b>cs B</b>cs \nC</pre>"),
        (
            "<pre translate=no>a</pre>b\nc",
            "<pre translate=no>a</pre>b c",
            "<pre translate=no>a</pre>cs B C",
        ),
        ("<li>a\n<code>b\nc</code>", "<li>a <code>b\nc</code>", "<li>cs A <code>b\nc</code>"),
    ],
)
def test_line_breaks_in_html(url, html, kept, between):
    for source, target, expected in (("cs", "en", kept or html), ("en", "cs", between)):
        answer = ask(url, "/translate", q=html, source=source, target=target, format="html")
        assert answer == (200, {"translatedText": expected})


@pytest.mark.timeout(10)
def test_many_spaces_take_no_time():
    html_text.split("<b>x</b>" + 50_000 * " " + "<p>y")


def test_any_text_may_stay_as_it_is():
    text = "<code>a | \u27e6b\u27e7</code> c | d"
    marked = html_text.with_marks(text)
    assert marked == "\u27e61|<code>a \ufdd1 \ufdd0b\ufdd2</code>\u27e7 c | d"
    assert html_text.without_stand_ins(re.sub(TERM, r"\1", marked)) == text


def test_a_model_is_probed_once_for_each_version(url, monkeypatch):
    probes = []
    for version in ("7", "7", "8"):
        monkeypatch.setattr(Model, "version", version)
        before = Model.probes
        ask(url, "/translate", q="<b>a</b>", source="cs", target="en", format="html")
        probes.append(Model.probes - before)
    assert probes == [1, 0, 1]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"q": None}, "Invalid request: missing q parameter, a text or a list of texts"),
        ({"source": ""}, "Invalid request: missing source parameter"),
        ({"target": 3}, "There is no target language '3', but cs, de, en, ja"),
        ({"source": "en-XY-zz"}, "There is no source language 'en-XY-zz', but en, de, cs, ja"),
        ({"target": "de"}, "en to de is not supported"),
        ({"source": "auto", "target": "ja"}, "auto to ja is not supported"),
        ({"q": ["a"] * 4}, "Invalid request: request (4) exceeds batch limit (3)"),
        ({"q": ["a" * 26] * 2}, "Invalid request: request (52) exceeds text limit (50)"),
        ({"target": "\ud800"}, "There is no target language '\\ud800', but cs, de, en, ja"),
        ({"alternatives": -1}, "Invalid request: alternatives must be 0 to 10"),
        ({"format": "pdf"}, "pdf format is not supported"),
    ],
)
def test_what_is_refused(url, values, message):
    good = {"q": "a", "source": "en", "target": "cs"}
    assert ask(url, "/translate", **{**good, **values}) == (400, {"error": message})


def test_a_model_of_several_languages_answers_for_its_pairs(models):
    urls = {Direction("en", "cs"): f"{models}/cs"}
    app = Gateway(urls, 50, max_texts=3, timeout=5, several=[f"{models}/nllb"]).app()
    with running_app(app) as url:
        _, known = ask(url, "/languages", "GET")
        assert {each["code"]: each["targets"] for each in known} == {
            "cs": [],
            "en": ["cs", "nb", "pt", "zh-Hans", "zh-Hant"],
            "nb": ["en", "pt", "zh-Hans", "zh-Hant"],
            "pt": [],
            "zh-Hans": [],
            "zh-Hant": [],
        }
        for source, target, expected in (
            ("en", "cs", "cs A"),
            ("en-GB", "pt_BR", "nl >>ENG_LATN:POR_LATN<< A"),
            ("nb", "zh-TW", "nl >>NOB_LATN:ZHO_HANT<< A"),
        ):
            _, answer = ask(url, "/translate", q="a", source=source, target=target)
            assert answer == {"translatedText": expected}
        _, answer = ask(url, "/translate", q=["a"], source="en", target="no", alternatives=1)
        assert answer["alternatives"] == [["cs >>ENG_LATN:NOB_LATN<< A"]]
        _, answer = ask(url, "/translate", q="<b>a</b> ", source="en", target="no", format="html")
        assert answer == {"translatedText": "<b>nl &gt;&gt;ENG_LATN:NOB_LATN&lt;&lt; A</b> "}
        message = "There is no target language 'zh-Latn', but zh-Hans, zh-Hant, en, nb, pt, cs"
        refused = ask(url, "/translate", q="a", source="en", target="zh-Latn")
        assert refused == (400, {"error": message})
    # Its address with a pair is asked for this pair.
    with running_app(Gateway({Direction("en", "zh"): f"{models}/nllb"}, 50, 3, 5).app()) as url:
        _, answer = ask(url, "/translate", q="a", source="auto", target="zh")
        assert answer["translatedText"] == "nl >>ENG_LATN:ZHO_HANS<< A"
    with pytest.raises(InputError, match=r"/cs does not say which languages it has: name its pair"):
        Gateway({}, 50, 3, 5, several=[f"{models}/cs"]).app()


def test_other_requests(url):
    response = urllib3.request("POST", f"{url}/translate", body=b"[1]", headers=JSON)
    assert response.json()["error"].startswith("Invalid request: the body must be a ")
    response = urllib3.request("POST", f"{url}/translate", fields={"q": "a"})  # multipart
    assert response.json()["error"].endswith("and not multipart")
    assert ask(url, "/none")[0] == 404
    assert ask(url, "/translate", method="GET")[0] == 405


def test_what_a_server_refuses_is_no_failure(url):
    status, answer = ask(url, "/translate", q="refused", source="en", target="cs")
    assert status == 400
    assert answer["error"].endswith("answered with status 400: too long")


def test_a_server_that_is_down_is_one_sentence(url):
    status, answer = ask(url, "/translate", q="a", source="de", target="ja")
    assert status == 503
    assert answer["error"].startswith("Cannot translate text: http://127.0.0.1:")
    assert ask(url, "/health", method="GET")[0] == 503


def test_wrong_commands():
    form, twice = (
        "A model must have the form SOURCE:TARGET=URL.*",
        "There must be one model from .*",
    )
    assert_refused(cli("gateway", "en=http://h:1/v1/models/m"), form)
    assert_refused(cli("gateway", "http://h:1/m"), "The URL must have the form .*Received: .*/m")
    of_tenant = "https://h/tenant=a/m"  # a URL by itself, and not a pair of languages
    assert_refused(cli("gateway", of_tenant), f".*Received: {of_tenant}")
    assert_refused(cli("gateway", "en:de=h"), "The URL must have the form .*Received: h")
    assert_refused(cli("gateway", "en:de=u", "en:de=u"), twice)
