"""LibreTranslate's API in front of a model server, for the clients that speak it.

Weblate, Nextcloud and browser extensions send such requests. The gateway asks TensorFlow Serving or
the local server over REST. The API: https://docs.libretranslate.com
"""

import json
from collections.abc import Callable, Mapping
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
from keras_transformer.export import html_text
from keras_transformer.export.clients import RefusedError, RestClient
from keras_transformer.export.options import NO_SCORE
from keras_transformer.export.rows import Row
from keras_transformer.languages import language_of

FORMATS = ("text", "html")
MAX_ALTERNATIVES = 10

Values = Mapping[str, Any]


class Direction(NamedTuple):
    """A source and a target language, by their codes."""

    source: str
    target: str


class _Gateway:
    def __init__(
        self, urls: Mapping[Direction, str], max_characters: int, max_texts: int, timeout: float
    ) -> None:
        self._limits = max_characters, max_texts
        self._document, self._nbest = (
            {pair: RestClient(url, signature=name, timeout=timeout) for pair, url in urls.items()}
            for name in ("document", "nbest")
        )
        # A version of each model, and whether it protects tags.
        self._probed: dict[Direction, tuple[str | None, bool]] = {}
        self._codes = sorted({code for pair in urls for code in pair})
        self._targets = {
            code: [pair.target for pair in urls if pair.source == code] for code in self._codes
        }

    def translate(self, values: Values) -> Any:
        texts, pair = self._texts(values), self._pair(values)
        count, format_name = str(values.get("alternatives") or 0), values.get("format") or "text"
        if count not in map(str, range(MAX_ALTERNATIVES + 1)):
            raise _refusal(f"alternatives must be 0 to {MAX_ALTERNATIVES}")
        if format_name not in FORMATS:
            raise HTTPException(400, f"{format_name} format is not supported")
        translate = self._document[pair].translate
        if format_name == "text":
            rows = translate(texts)
        elif self._is_tag_keeping(pair):
            texts = list(map(html_text.with_marks, texts))
            rows = translate(texts)
        else:
            rows = html_text.translate_between_tags(translate, texts)
        answer: dict[str, list[Any]] = {"translatedText": [row["translation"] for row in rows]}
        if count != "0":
            answer["alternatives"] = self._alternatives(pair, texts, rows, int(count))
        if str(values["source"]).lower() == "auto":
            detected = {"confidence": 100, "language": pair.source}
            answer["detectedLanguage"] = [detected] * len(texts)
        is_single = isinstance(values["q"], str)
        return {name: column[0] for name, column in answer.items()} if is_single else answer

    def detect(self, values: Values) -> Any:
        self._texts(values)  # the models read these languages, whatever the text is
        sources = [code for code in self._codes if self._targets[code]]
        return [{"confidence": 100 / len(sources), "language": code} for code in sources]

    def languages(self, values: Values) -> Any:
        return [
            {"code": code, "name": code, "targets": self._targets[code]} for code in self._codes
        ]

    def health(self, values: Values) -> Any:
        for client in self._document.values():
            try:
                client.translate(["."])
            except RefusedError as error:  # it is no fault of the request
                raise InputError(str(error)) from error
        return {"status": "ok"}

    def _texts(self, values: Values) -> list[str]:
        texts = [values["q"]] if isinstance(values.get("q"), str) else values.get("q")
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise _refusal("missing q parameter, a text or a list of texts")
        max_characters, max_texts = self._limits
        for name, size, limit in (
            ("batch", len(texts), max_texts),
            ("text", sum(map(len, texts)), max_characters),
        ):
            if size > limit:
                raise _refusal(f"request ({size}) exceeds {name} limit ({limit})")
        return texts

    def _pair(self, values: Values) -> Direction:
        for name in Direction._fields:
            if not values.get(name):
                raise _refusal(f"missing {name} parameter")
        source, target = (self._code(str(values[name])) for name in Direction._fields)
        sources = [pair.source for pair in self._document if pair.target == target]
        if source == "auto" and len(sources) == 1:  # no text needs to be looked at
            source = sources[0]
        if (source, target) not in self._document:
            raise HTTPException(400, f"{source} to {target} is not supported")
        return Direction(source, target)

    def _code(self, code: str) -> str:
        """Returns the code of a model for one such as "en-US", "eng" or "zh_Hans"."""
        language, tags = language_of(code), _tags(code)
        same = [known for known in self._codes if language_of(known) == language]
        return max(same, key=lambda known: len(tags & _tags(known)), default=language)

    def _is_tag_keeping(self, pair: Direction) -> bool:
        """Returns whether the model protects tags, which is asked once for each version."""
        client = self._document[pair]
        version = client.version()
        if version is None or self._probed.get(pair, ("", False))[0] != version:
            (probe,) = client.translate([html_text.PROBE])
            self._probed[pair] = version, html_text.is_kept(probe["translation"])
        return self._probed[pair][1]

    def _alternatives(
        self, pair: Direction, texts: list[str], rows: list[Row], count: int
    ) -> list[list[str]]:
        """Returns other translations of each text that is one sentence."""
        single = [number for number, row in enumerate(rows) if row.get("sentences") == 1]
        best = self._nbest[pair].translate([texts[number] for number in single])
        alternatives: list[list[str]] = [[] for _ in rows]
        for number, row in zip(single, best, strict=True):
            scored = zip(row["translations"], row["scores"], strict=True)
            finite = [text for text, score in scored if score > NO_SCORE]
            if not finite:
                raise InputError("the model's scores are not finite")
            if not row.get("truncated"):
                others = [text for text in finite if text != rows[number]["translation"]]
                alternatives[number] = others[:count]
        return alternatives


def make_gateway(
    urls: Mapping[Direction, str], max_characters: int, max_texts: int, timeout: float
) -> Starlette:
    """Returns an ASGI application for the models of pairs, `http://HOST:8501/v1/models/NAME`.

    The maxima are of a request, and the timeout, in seconds, of a model server's answer.
    """
    gateway = _Gateway(urls, max_characters, max_texts, timeout)
    return Starlette(
        routes=[
            _route("/translate", gateway.translate, "POST"),
            _route("/detect", gateway.detect, "POST"),
            _route("/languages", gateway.languages, "GET"),
            _route("/health", gateway.health, "GET"),
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
                fields = parse_qs(body.decode(), keep_blank_values=True)
                values = {name: field[-1] for name, field in fields.items()}
        if not isinstance(values, dict):
            raise _refusal("the body must be a JSON object or a form, and not multipart")
        return JSONResponse(await run_in_threadpool(answer, values))

    return Route(path, endpoint, methods=[method])


def _tags(code: str) -> set[str]:
    return set(code.lower().replace("_", "-").split("-"))


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
