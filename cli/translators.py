"""What translates for `keras-transformer translate`: a run, an export or a server.

Each gives rows with the names of an export's outputs, for `num_best` the lists of `nbest`.
"""

import functools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from keras_transformer.cli.check import find_export
from keras_transformer.cli.console import (
    ProgressBar,
    load_session,
    load_tensorflow,
    say,
)
from keras_transformer.errors import InputError, NotFiniteError, require
from keras_transformer.export.metadata import FOLDER, METADATA, read_metadata
from keras_transformer.export.options import DEFAULT_SIGNATURE, NO_SCORE, max_size_of
from keras_transformer.export.rows import Row, by_length
from keras_transformer.languages import Languages
from keras_transformer.records import checked_dataclass, setting
from keras_transformer.run import Run

if TYPE_CHECKING:
    from keras_transformer.export.clients import Client
    from keras_transformer.tokenizers import Tokenizer

SERVER_TIMEOUT = 60  # seconds

Progress = Callable[[int], None]  # takes the number of texts translated since the last call
Translate = Callable[[list[str], Progress], Sequence[Row]]


@checked_dataclass
class TranslateOptions:
    """What to translate, with what, and how; the options of the search are others."""

    input: Path | None = None
    """Read texts from this file, one per line; or translate subtitles (.srt, .vtt), or the empty
    entries of a gettext catalogue (.po) or XLIFF, into --output. Also as .gz."""
    output: Path | None = None
    """Write the output to this new file."""
    source: str | None = None
    """Language of the texts, as the model names it (eng_Latn) or by a common code (en, zh-Hans). A
    catalogue names its own. [default: the run's]"""
    target: str | None = None
    """Language to translate into. [default: the run's]"""
    url: str | None = None
    """Ask a model server over REST, at http://HOST:8501/v1/models/NAME."""
    grpc: Annotated[str | None, setting(metavar="HOST:PORT")] = None
    """Ask a model server over gRPC, with --model."""
    model: Annotated[str | None, setting(metavar="NAME")] = None
    """Name of the model on the gRPC server."""
    signature: str | None = None
    """Signature of the export or server: greedy is fast, document cuts no text. [default:
    serving_default]"""
    num_best: Annotated[int, Field(ge=1)] | None = None
    """Print so many translations of each text, best first, each on a line behind its score; at most
    as many as there are beams."""
    prefix: str | None = None
    """How each translation begins. Its last word may go on, unless a space follows it. An export
    and a server need the signature complete."""
    words: bool = False
    """With --json, add each word's probability; for a run."""
    sentences: Annotated[bool | None, setting(option="--sentences/--whole")] = None
    """Translate each line of a text or entry of a catalogue sentence by sentence, or as one text.
    [default: by sentence for runs and catalogues, else as the signature]"""
    terms: Path | None = None
    """A glossary for a model that protects strings: on each line a word of the source, a tab and
    its translation."""
    timeout: Annotated[float, Field(ge=0.001)] | None = None
    """Seconds to wait for the server. [default: 60]"""
    as_json: Annotated[bool, setting(option="--json")] = False
    """Print a JSON object per line: translation, score, truncated."""


class Model(ABC):
    """What translates as the options say: a run, an export or a server."""

    is_run = False
    protect: Sequence[str] | None = None  # what the model keeps; a server does not say
    known: Languages | None  # None if it does not say, such as a model of one pair on a server

    def __init__(self, name: str, options: TranslateOptions, search: Mapping[str, Any]) -> None:
        self.name, self.options, self.search = name, options, search

    @abstractmethod
    def _open(self, is_document: bool, is_long: bool) -> Translate: ...

    def open(self, is_document: bool = False, is_long: bool = False) -> Translate:
        """Returns what marks terms in texts, and translates them: a document, or many lines."""
        if self.options.terms is None:
            return self._open(is_document, is_long)
        from keras_transformer.protection.terms import read_glossary, term_marker

        if self.protect is not None and not self.protect:
            raise InputError(
                f"--terms needs a model that protects strings. {self.name} protects none"
            )
        mark_terms = term_marker(read_glossary(self.options.terms), self.protect or ())
        translate = self._open(is_document, is_long)
        return lambda texts, progress: translate(list(map(mark_terms, texts)), progress)

    def languages(self) -> Languages | None:
        """Returns the languages that are known, with those of the options among them."""
        source, target = self.options.source, self.options.target
        if self.known is not None:
            self.known.tag(source, target)
        elif source or target:
            raise InputError(
                f"{self.name} does not say which languages it has: leave out --source and --target"
            )
        return self.known

    def with_languages(self, translate: Translate) -> Translate:
        """Asks for the languages of the options, if there are any."""
        asked = self.options.source, self.options.target
        known = self.languages() if any(asked) else None
        if known is None:
            return translate
        return lambda texts, progress: translate(known.tagged(texts, *asked), progress)


def find_model(folder: str | None, options: TranslateOptions, search: Mapping[str, Any]) -> Model:
    """Returns the model of a folder or, of None, the server that options name."""
    if folder is None:
        return _Server(options.url or options.grpc or "", options, search)
    if os.path.isfile(os.path.join(folder, "run.json")):
        return _Run(folder, options, search)
    return _Export(folder, options, search)


class _Run(Model):
    is_run = True

    @functools.cached_property
    def _tokenizer(self) -> "Tokenizer":
        load_tensorflow(searches=True)
        return Run.load(self.name).tokenizer()

    @property
    def protect(self) -> Sequence[str]:  # type: ignore[override]
        return self._tokenizer.protect

    @property
    def known(self) -> Languages:  # type: ignore[override]
        return self._tokenizer.known_languages

    def _open(self, is_document: bool, is_long: bool) -> Translate:
        load_tensorflow(searches=True)
        import tensorflow as tf

        from keras_transformer.translator import Translation, Translator

        # To optimize the graph takes a second or two, and saves a few percent of a search.
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": not is_long})
        translator, options = Translator.load(self.name, **self.search), self.options
        sentences = options.prefix is None if options.sentences is None else options.sentences

        def row_of(translation: Translation) -> Row:
            row: Row = {"translation": translation.text, "score": translation.score}
            if options.num_best is not None:
                texts, scores = zip(*translation.hypotheses, strict=True)
                row = {"translations": list(texts), "scores": list(scores)}
            if options.words:
                row["words"] = [word._asdict() for word in translation.words]
            return {**row, "truncated": translation.truncated}

        def translate(texts: list[str], progress: Progress) -> list[Row]:
            if sentences:  # which keep the white space at both ends
                texts = list(map(str.strip, texts))
            translations = translator.translate(
                texts,
                prefixes=None if options.prefix is None else [options.prefix] * len(texts),
                progress=progress,
                num_best=options.num_best or 1,
                words=options.words,
                sentences=sentences,
            )
            return list(map(row_of, translations))

        return translate


class _Served(Model):
    """A model with signatures."""

    @abstractmethod
    def _call(self, signature: str, is_long: bool) -> Translate:
        """Returns what asks a signature."""

    def _open(self, is_document: bool, is_long: bool) -> Translate:
        options, signature = self.options, self.options.signature
        if options.prefix is not None:
            signature = "complete"
        elif options.num_best is not None:
            signature = "nbest"
        elif is_document if options.sentences is None else options.sentences:
            signature = signature or "document"
        translate = self._call(signature or DEFAULT_SIGNATURE, is_long)
        if (count := options.num_best) is None:
            return translate
        return lambda texts, progress: [_best(row, count) for row in translate(texts, progress)]


class _Export(_Served):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._version = find_export(self.name, "a run directory or a SavedModel")

    @functools.cached_property
    def _metadata(self) -> dict[str, Any]:
        if not (self._version / FOLDER / METADATA).exists():
            return {}  # of an export of another program
        return read_metadata(self._version)

    @property
    def protect(self) -> Sequence[str]:  # type: ignore[override]
        return list(self._metadata.get("protect", []))

    @property
    def known(self) -> Languages | None:  # type: ignore[override]
        return Languages(**self._metadata["languages"]) if self._metadata else None

    def _call(self, signature: str, is_long: bool) -> Translate:
        load_session()
        from keras_transformer.export import session

        output = "translation" if self.options.num_best is None else "translations"
        others = {} if self.options.prefix is None else {"prefix": self.options.prefix}
        version = str(self._version)
        translate = session.open_saved_model(version, signature, is_long, output, **others)

        def translate_batch(batch: list[bytes]) -> list[Row]:
            try:
                return translate(batch)
            except session.SessionError as error:
                if len(batch) > 1 or error.code != session.INVALID_ARGUMENT:
                    raise
                start = batch[0].decode(errors="replace")[:40]
                message = f"The text that begins with {start!r} is refused: {error}"
                raise InputError(message) from error

        size = max_size_of(signature)
        return lambda texts, progress: by_length(
            texts, translate_batch, max_size=size, progress=progress
        )


class _Server(_Served):
    @functools.cached_property
    def known(self) -> Languages | None:  # type: ignore[override]
        return self._client(DEFAULT_SIGNATURE).languages()

    def _call(self, signature: str, is_long: bool) -> Translate:
        return self._client(signature).translate

    def _client(self, signature: str) -> "Client":
        from keras_transformer.export.clients import GrpcClient, RestClient

        options = self.options
        shared: dict[str, Any] = {"signature": signature, "prefix": options.prefix}
        shared["timeout"] = options.timeout or SERVER_TIMEOUT
        if options.url is not None and options.grpc is None:
            return RestClient(options.url, **shared)
        if options.url is None and options.grpc is not None and options.model is not None:
            load_tensorflow()
            return GrpcClient(options.grpc, options.model, **shared)
        raise InputError("Give either --url URL, or --grpc HOST:PORT and --model NAME")


def _best(row: Row, num_best: int) -> Row:
    """Returns the best of the signature `nbest`, without the padding of missing translations."""
    rule = f"--num-best must be at most {len(row['scores'])}, the beams of the export"
    require(len(row["scores"]) >= num_best, rule, num_best=num_best)
    scores = [score for score in row["scores"][:num_best] if score > NO_SCORE]
    if not scores:
        raise NotFiniteError("The model's scores are not finite: its training has diverged")
    return {**row, "scores": scores, "translations": row["translations"][: len(scores)]}


def translate_distinct(texts: Iterable[str], translate: Translate) -> tuple[dict[str, str], int]:
    """Returns the translation of each text, and how many texts were too long."""
    distinct = list(dict.fromkeys(texts))
    with ProgressBar("Translating", len(distinct)) as progress:
        rows = translate(distinct, progress)
    translations = {text: row["translation"] for text, row in zip(distinct, rows, strict=True)}
    return translations, sum(bool(row.get("truncated")) for row in rows)


def warn_truncated(count: int, what: str) -> None:
    if count:
        say(f"warning: the end of {count:,} {what} was too long, and is not translated")
