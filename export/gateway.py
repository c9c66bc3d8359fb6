"""LibreTranslate's API in front of a model server, for the clients that speak it.

Weblate, Nextcloud and browser extensions send such requests. The gateway keeps no state, and asks
TensorFlow Serving or the local server over REST. The API: https://docs.libretranslate.com
"""

import html
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from keras_transformer.errors import InputError
from keras_transformer.export.clients import RefusedError, RestClient
from keras_transformer.export.options import NO_SCORE
from keras_transformer.export.rows import Row

FORMATS = ("text", "html")
MAX_ALTERNATIVES = 10
# Only a model that protects tags and entities writes these three, each of them once.
PROBE = ('<q7 k="0">', "&#8258;", "</q7>")
_KEPT = "(?:script|style|code|kbd|samp|math|svg)"  # elements that are not translated
# Comments, such elements, and tags, whose attributes may have ">" and quotes without an end.
MARKUP = re.compile(
    rf"(<!--.*?-->|<{_KEPT}\b.*?</{_KEPT}\s*>"
    r"|<[/!?a-z0-9](?:\"[^\"]*\"|'[^']*'|[^'\"<>])*>|</?[a-z0-9][^<>]*>|<[!?][^<>]*>)",
    re.DOTALL | re.IGNORECASE,
)

Values = Mapping[str, Any]


class Direction(NamedTuple):
    """A source and a target language, by their codes."""

    source: str
    target: str


def make_gateway(
    urls: Mapping[Direction, str], max_characters: int, max_texts: int, timeout: float
) -> Starlette:
    """Returns an ASGI application.

    Args:
        urls: of the model of each pair, `http://HOST:8501/v1/models/NAME`.
        max_characters: maximum of a request.
        max_texts: maximum of a request.
        timeout: seconds that a model server may take to answer.
    """
    document, nbest = (
        {pair: RestClient(url, signature=name, timeout=timeout) for pair, url in urls.items()}
        for name in ("document", "nbest")
    )
    codes = sorted({code for pair in urls for code in pair})
    targets = {code: [pair.target for pair in urls if pair.source == code] for code in codes}

    def texts_of(values: Values) -> list[str]:
        texts = [values["q"]] if isinstance(values.get("q"), str) else values.get("q")
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise _refusal("missing q parameter, a text or a list of texts")
        for name, size, limit in (
            ("batch", len(texts), max_texts),
            ("text", sum(map(len, texts)), max_characters),
        ):
            if size > limit:
                raise _refusal(f"request ({size}) exceeds {name} limit ({limit})")
        return texts

    plain = {_plain(code): code for code in codes}

    def known(code: str) -> str:
        """Returns the code of a model for one such as "en-US" or "zh_Hans"."""
        written = _plain(code)
        while written not in plain and "-" in written:
            written = written.rpartition("-")[0]
        return plain.get(written, written)

    def pair_of(values: Values) -> Direction:
        for name in Direction._fields:
            if not values.get(name):
                raise _refusal(f"missing {name} parameter")
        pair = Direction(*(known(str(values[name])) for name in Direction._fields))
        sources = [each.source for each in urls if each.target == pair.target]
        if pair.source == "auto" and len(sources) == 1:  # no text needs to be looked at
            pair = pair._replace(source=sources[0])
        if pair not in urls:
            raise HTTPException(400, f"{pair.source} to {pair.target} is not supported")
        return pair

    def translate(values: Values) -> Any:
        texts, pair = texts_of(values), pair_of(values)
        count, format_name = str(values.get("alternatives") or 0), values.get("format") or "text"
        if count not in map(str, range(MAX_ALTERNATIVES + 1)):
            raise _refusal(f"alternatives must be 0 to {MAX_ALTERNATIVES}")
        if format_name not in FORMATS:
            raise HTTPException(400, f"{format_name} format is not supported")
        ask = document[pair].translate
        rows = ask(texts) if format_name == "text" else _translate_html(ask, texts)
        answer: dict[str, list[Any]] = {"translatedText": [row["translation"] for row in rows]}
        if count != "0":  # they are those of one sentence
            chosen = [number for number, row in enumerate(rows) if row.get("sentences") == 1]
            answer["alternatives"] = [[] for _ in rows]
            best = nbest[pair].translate([texts[number] for number in chosen])
            for number, row in zip(chosen, best, strict=True):
                others = [text for text in _best_first(row) if text != rows[number]["translation"]]
                answer["alternatives"][number] = (
                    [] if row.get("truncated") else others[: int(count)]
                )
        if _plain(str(values["source"])) == "auto":
            detected = {"confidence": 100, "language": pair.source}
            answer["detectedLanguage"] = [detected] * len(texts)
        is_single = isinstance(values["q"], str)
        return {name: each[0] for name, each in answer.items()} if is_single else answer

    def detect(values: Values) -> Any:
        texts_of(values)  # the models read these languages, whatever the text is
        sources = [code for code in codes if targets[code]]
        return [{"confidence": 100 / len(sources), "language": code} for code in sources]

    def languages(values: Values) -> Any:
        return [{"code": code, "name": code, "targets": targets[code]} for code in codes]

    def health(values: Values) -> Any:
        for client in document.values():
            try:
                client.translate(["."])
            except RefusedError as error:  # it is no fault of the request
                raise InputError(str(error)) from error
        return {"status": "ok"}

    return Starlette(
        routes=[
            _route("/translate", translate, "POST"),
            _route("/detect", detect, "POST"),
            _route("/languages", languages, "GET"),
            _route("/health", health, "GET"),
        ],
        # Pages of any origin may ask, as at LibreTranslate.
        middleware=[Middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["*"])],
        exception_handlers={HTTPException: _error, InputError: _error},
        max_body_size=16 * max_characters + 2**16,
    )


def _route(path: str, answer: Callable[[Values], Any], method: str) -> Route:
    async def endpoint(request: Request) -> Response:
        body, kind = await request.body(), request.headers.get("content-type", "").lower()
        values = None
        with suppress(ValueError, RecursionError):
            if body and "json" in kind:  # a client may send the type of a body without a body
                values = json.loads(body)
            elif not kind.startswith("multipart"):
                values = {name: each[-1] for name, each in parse_qs(body.decode(), True).items()}
        if not isinstance(values, dict):
            raise _refusal("the body must be a JSON object or a form, and not multipart")
        return JSONResponse(await run_in_threadpool(answer, values))

    return Route(path, endpoint, methods=[method])


def _plain(code: str) -> str:
    return code.lower().replace("_", "-")


def _translate_html(
    ask: Callable[[list[str]], list[Row]], texts: list[str]
) -> Sequence[Mapping[str, Any]]:
    """Translates HTML: by a model that protects tags, or else the text between them.

    Args:
        ask: calls the signature `document`.
        texts: the HTML.
    """
    *rows, probe = ask([*texts, "".join(PROBE)])
    if all(probe["translation"].count(part) == 1 for part in PROBE):
        return rows
    parts = [MARKUP.split(text) for text in texts]  # text and markup in turns
    places = [
        (row, place)
        for row in parts
        for place in range(0, len(row), 2)
        if any(map(str.isalpha, html.unescape(row[place])))
    ]
    found = ask([html.unescape(row[place]) for row, place in places])
    for (row, place), translated in zip(places, found, strict=True):
        row[place] = html.escape(translated["translation"], quote=False)
    return [{"translation": "".join(row)} for row in parts]


def _best_first(row: Mapping[str, Any]) -> list[str]:
    """Returns the translations of a text."""
    scored = zip(row["translations"], row["scores"], strict=True)
    found = [text for text, score in scored if score > NO_SCORE]
    if not found:
        raise InputError("the model's scores are not finite")
    return found


def _refusal(what: str) -> HTTPException:
    return HTTPException(400, f"Invalid request: {what}")


def _error(request: Request, error: Any) -> Response:
    message, status = f"Cannot translate text: {error}", 503
    if isinstance(error, HTTPException):
        message, status = error.detail, error.status_code
    elif isinstance(error, RefusedError):
        status = 400  # another attempt would not help
    message = message.encode(errors="replace").decode()  # it may repeat half of a surrogate pair
    return JSONResponse({"error": message}, status)
