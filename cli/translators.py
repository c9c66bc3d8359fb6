"""What translates for `keras-transformer translate`: a run, an export or a server.

Each gives rows with the names of an export's outputs, for `num_best` the lists of `nbest`.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import Field

from keras_transformer.cli.check import find_export, inside
from keras_transformer.cli.console import (
    ProgressBar,
    load_session,
    load_tensorflow,
    say,
    use_one_thread,
)
from keras_transformer.errors import InputError, NotFiniteError
from keras_transformer.export.metadata import read_metadata
from keras_transformer.export.options import DEFAULT_SIGNATURE, NO_SCORE, max_size_of
from keras_transformer.export.rows import Row, by_length
from keras_transformer.languages import Languages
from keras_transformer.records import checked_dataclass, setting
from keras_transformer.run import Run

if TYPE_CHECKING:
    from keras_transformer.export.clients import GrpcClient, RestClient

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


class Model(NamedTuple):
    """What translates."""

    kind: Literal["run", "export", "server"]
    name: str  # for messages
    path: Path | None = None  # of the run directory, or of a version of the export

    def protected(self) -> list[str]:
        """Returns what the model protects, or nothing of a server, which does not say."""
        if self.path is None:
            return []
        if self.kind == "export":
            return list(read_metadata(self.path).get("protect", []))
        load_tensorflow()
        return list(Run.load(self.path).tokenizer().protect)

    def languages(self, options: TranslateOptions) -> Languages | None:
        """Returns the model's languages, those of the options among them.

        It is None for a model that does not say, such as one of one pair on a server.
        """
        known = self._languages(options)
        if known is not None:
            known.tag(options.source, options.target)
        elif options.source or options.target:
            raise InputError(
                f"{self.name} does not say which languages it has: leave out --source and --target"
            )
        return known

    def _languages(self, options: TranslateOptions) -> Languages | None:
        if self.path is None:
            return _client(options, DEFAULT_SIGNATURE).languages()
        if self.kind == "run":
            load_tensorflow()
            return Run.load(self.path).tokenizer().known_languages
        with contextlib.suppress(InputError):  # an export of another program
            return Languages(**read_metadata(self.path)["languages"])
        return None


def find_model(folder: str | None, options: TranslateOptions) -> Model:
    """Returns the model of a folder or, of None, the server that options name."""
    if folder is None:
        return Model("server", options.url or options.grpc or "")
    if os.path.isfile(os.path.join(folder, "run.json")):
        return Model("run", folder, Path(folder))
    version = find_export(folder)
    if version is None:
        raise InputError(f"{folder} must be a run directory or a SavedModel{inside(folder)}")
    return Model("export", folder, version)


def open_model(
    model: Model,
    options: TranslateOptions,
    search: Mapping[str, Any],
    *,
    optimize: bool,
    by_sentence: bool,
) -> Translate:
    """Opens a model, which by default splits texts into sentences if `by_sentence`.

    To `optimize` its graph takes a second or two, and saves a few percent of a search.
    """
    protected = model.protected() if options.terms else []
    if options.terms and model.path and not protected:
        raise InputError(f"--terms needs a model that protects strings. {model.path} protects none")
    signature = options.signature or DEFAULT_SIGNATURE
    by_sentence = by_sentence if options.sentences is None else options.sentences
    if options.prefix is not None:
        signature = "complete"
    elif options.num_best is not None:
        signature = "nbest"
    elif options.signature is None and (
        options.sentences or (options.sentences is None and by_sentence)
    ):
        signature = "document"
    if model.kind == "run":
        translate = _open_run(str(model.path), options, search, optimize)
    elif model.kind == "export":
        translate = _open_export(str(model.path), options, signature, optimize)
    else:
        client = _client(options, signature)

        def translate(texts: list[str], progress: Progress) -> Sequence[Row]:
            return _counted(client.translate(texts), progress)

    if options.num_best is not None and model.kind != "run":
        translate = _with_best(translate, options.num_best)
    if options.terms:
        translate = _with_terms(translate, options.terms, protected)
    return translate


def with_languages(translate: Translate, model: Model, options: TranslateOptions) -> Translate:
    """Asks for the languages of the options, if there are any."""
    asked = options.source, options.target
    known = model.languages(options) if any(asked) else None
    if known is None:
        return translate
    return lambda texts, progress: translate(known.tagged(texts, *asked), progress)


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


def _client(options: TranslateOptions, signature: str) -> "GrpcClient | RestClient":
    from keras_transformer.export.clients import GrpcClient, RestClient

    shared: dict[str, Any] = {"signature": signature, "prefix": options.prefix}
    shared["timeout"] = options.timeout or SERVER_TIMEOUT
    if options.url is not None and options.grpc is None:
        return RestClient(options.url, **shared)
    if options.url is None and options.grpc is not None and options.model is not None:
        load_tensorflow()
        return GrpcClient(options.grpc, options.model, **shared)
    raise InputError("Give either --url URL, or --grpc HOST:PORT and --model NAME")


def _open_run(
    folder: str, options: TranslateOptions, search: Mapping[str, Any], optimize: bool
) -> Translate:
    use_one_thread()
    load_tensorflow()
    import tensorflow as tf

    from keras_transformer.translator import Translation, Translator

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": not optimize})
    translator = Translator.load(folder, **search)
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


def _open_export(
    version: str, options: TranslateOptions, signature: str, optimize: bool
) -> Translate:
    load_session()
    from keras_transformer.export.session import INVALID_ARGUMENT, SessionError, open_saved_model

    output = "translation" if options.num_best is None else "translations"
    others = {} if options.prefix is None else {"prefix": options.prefix}
    translate = open_saved_model(version, signature, optimize, output, **others)

    def translate_batch(batch: list[bytes]) -> list[Row]:
        try:
            return translate(batch)
        except SessionError as error:
            if len(batch) > 1 or error.code != INVALID_ARGUMENT:
                raise
            start = batch[0].decode(errors="replace")[:40]
            raise InputError(f"The text that begins with {start!r} is refused: {error}") from error

    return lambda texts, progress: by_length(
        texts,
        lambda batch: _counted(translate_batch(batch), progress),
        max_size=max_size_of(signature),
    )


def _with_best(translate: Translate, num_best: int) -> Translate:
    """Returns the rows of the signature `nbest`, without the padding of missing translations."""

    def best(texts: list[str], progress: Progress) -> Sequence[Row]:
        rows = translate(texts, progress)
        for row in rows:
            if len(row["scores"]) < num_best:
                raise InputError(
                    f"--num-best must be at most {len(row['scores'])}, the beams of the export. "
                    f"Received: {num_best}"
                )
            row["scores"] = [score for score in row["scores"][:num_best] if score > NO_SCORE]
            if not row["scores"]:
                raise NotFiniteError("The model's scores are not finite: its training has diverged")
            row["translations"] = row["translations"][: len(row["scores"])]
        return rows

    return best


def _with_terms(translate: Translate, path: Path, protect: Sequence[str]) -> Translate:
    """Marks the terms of a glossary in the texts, except in strings that the model protects."""
    from keras_transformer.protection.terms import read_glossary, term_marker

    mark_terms = term_marker(read_glossary(path), protect)
    return lambda texts, progress: translate(list(map(mark_terms, texts)), progress)


def _counted(rows: Sequence[Row], progress: Progress) -> Sequence[Row]:
    progress(len(rows))
    return rows
