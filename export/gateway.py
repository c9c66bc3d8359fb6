"""LibreTranslate's API in front of a model server, for the clients that speak it.

Weblate, Nextcloud and browser extensions send such requests. The gateway asks TensorFlow Serving or
the local server over REST. The API: https://docs.libretranslate.com
"""

import functools
import itertools
import json
from collections import defaultdict
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
from keras_transformer.export import html_text
from keras_transformer.export.clients import RefusedError, RestClient
from keras_transformer.export.options import NO_SCORE
from keras_transformer.export.rows import Row
from keras_transformer.languages import Languages, common_codes, find_language

FORMATS = ("text", "html")
MAX_ALTERNATIVES = 10

Values = Mapping[str, Any]


class Direction(NamedTuple):
    """A source and a target language, by their codes."""

    source: str
    target: str


class _Service:
    """A model on a server."""

    def __init__(self, url: str, timeout: float) -> None:
        self.url = url
        self.document, self.nbest = (
            RestClient(url, signature=name, timeout=timeout) for name in ("document", "nbest")
        )
        self._probed: tuple[str | None, bool] = "", False  # a version, whether it keeps tags

    @functools.cached_property
    def known(self) -> Languages | None:
        """Its languages; None for one pair."""
        return self.document.languages()

    def pairs(self) -> dict[Direction, Direction]:
        """Returns the pairs of a model of several languages, by common codes."""
        if self.known is None:
            raise InputError(
                f"{self.url} does not say which languages it has: name its pair, as in "
                f"en:cs={self.url}"
            )
        sources, targets = (common_codes(tuple(names)) for names in self.known[2:])
        return {
            Direction(sources[source], targets[target]): Direction(source, target)
            for source, target in itertools.product(sources, targets)
            if source != target
        }

    def tagged(self, texts: list[str], pair: Direction) -> list[str]:
        return self.known.tagged(texts, *pair) if self.known else texts

    def keeps_tags(self) -> bool:
        """Returns whether the model protects HTML's tags, which is asked once for each version."""
        version = self.document.version()
        if version is None or self._probed[0] != version:
            (probe,) = self.document.translate([html_text.PROBE])
            self._probed = version, html_text.is_kept(probe["translation"])
        return self._probed[1]


class Gateway:
    """Models on servers, `http://HOST:8501/v1/models/NAME`.

    The `urls` are those of pairs; `several` are models of several languages, which are asked for
    them now. The maxima are of a request, and the timeout, in seconds, of a model server's answer.
    """

    def __init__(
        self,
        urls: Mapping[Direction, str],
        max_characters: int,
        max_texts: int,
        timeout: float,
        several: Sequence[str] = (),
    ) -> None:
        self._limits = max_characters, max_texts
        self._services = {url: _Service(url, timeout) for url in (*urls.values(), *several)}
        # The service of each pair, and how that names it.
        self._routes = {pair: (self._services[url], pair) for pair, url in urls.items()}
        for service in (self._services[url] for url in several):
            for pair, own_pair in service.pairs().items():
                self._routes.setdefault(pair, (service, own_pair))
        self._targets: dict[str, list[str]] = defaultdict(list)
        for pair in self._routes:
            self._targets[pair.source].append(pair.target)
        self._codes = sorted({code for pair in self._routes for code in pair})

    def app(self) -> Starlette:
        """Returns an ASGI application."""
        return Starlette(
            routes=[
                _route("/translate", self.translate, "POST"),
                _route("/detect", self.detect, "POST"),
                _route("/languages", self.languages, "GET"),
                _route("/health", self.health, "GET"),
            ],
            # Pages of any origin may ask, as at LibreTranslate.
            middleware=[Middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["*"])],
            exception_handlers={HTTPException: _error, InputError: _error},
            max_body_size=16 * self._limits[0] + 2**16,
        )

    def translate(self, values: Values) -> Any:
        texts, pair = self._texts(values), self._pair(values)
        count, format_name = str(values.get("alternatives") or 0), values.get("format") or "text"
        if count not in map(str, range(MAX_ALTERNATIVES + 1)):
            raise _refusal(f"alternatives must be 0 to {MAX_ALTERNATIVES}")
        if format_name not in FORMATS:
            raise HTTPException(400, f"{format_name} format is not supported")
        service, own_pair = self._routes[pair]

        def translate(texts: list[str]) -> list[Row]:
            return service.document.translate(service.tagged(texts, own_pair))

        restore: Callable[[str], str] = str
        if format_name == "text":
            rows = translate(texts)
        elif service.keeps_tags():
            texts = list(map(html_text.with_marks, texts))
            rows = translate(texts)
            restore = html_text.without_stand_ins
        else:
            rows = html_text.translate_between_tags(translate, texts)
        answer: dict[str, list[Any]] = {
            "translatedText": [restore(row["translation"]) for row in rows]
        }
        if count != "0":
            single = [number for number, row in enumerate(rows) if row.get("sentences") == 1]
            asked = service.tagged([texts[number] for number in single], own_pair)
            answer["alternatives"] = [[] for _ in rows]
            for number, best in zip(single, service.nbest.translate(asked), strict=True):
                others = map(restore, _others(best, rows[number]["translation"]))
                answer["alternatives"][number] = [*others][: int(count)]
        if str(values["source"]).lower() == "auto":
            detected = {"confidence": 100, "language": pair.source}
            answer["detectedLanguage"] = [detected] * len(texts)
        is_single = isinstance(values["q"], str)
        return {name: column[0] for name, column in answer.items()} if is_single else answer

    def detect(self, values: Values) -> Any:
        self._texts(values)  # the models read these languages, whatever the text is
        confidence = 100 / len(self._targets)
        return [{"confidence": confidence, "language": code} for code in sorted(self._targets)]

    def languages(self, values: Values) -> Any:
        return [
            {"code": code, "name": code, "targets": self._targets.get(code, [])}
            for code in self._codes
        ]

    def health(self, values: Values) -> Any:
        for service in self._services.values():
            try:
                service.document.translate(["."])
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
        # A client may cut a text inside a surrogate pair.
        return [text.encode(errors="replace").decode() for text in texts]

    def _pair(self, values: Values) -> Direction:
        for name in Direction._fields:
            if not values.get(name):
                raise _refusal(f"missing {name} parameter")
        source, target = (str(values[name]) for name in Direction._fields)
        try:
            target = find_language(target, tuple(self._codes), "target ")
            if source.lower() == "auto":  # no text needs to be looked at
                sources = [pair.source for pair in self._routes if pair.target == target]
                source = sources[0] if len(sources) == 1 else "auto"
            else:
                source = find_language(source, tuple(self._codes), "source ")
        except InputError as error:
            raise HTTPException(400, str(error)) from error
        if (source, target) not in self._routes:
            raise HTTPException(400, f"{source} to {target} is not supported")
        return Direction(source, target)


def _others(best: Row, translation: str) -> list[str]:
    """Returns the best translations of a text but one; none if the text was cut."""
    scored = zip(best["translations"], best["scores"], strict=True)
    finite = [text for text, score in scored if score > NO_SCORE]
    if not finite:
        raise InputError("the model's scores are not finite")
    # A document keeps the white space around its text.
    others = [text for text in finite if text.strip() != translation.strip()]
    return [] if best.get("truncated") else others


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
