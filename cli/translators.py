"""What translates for `keras-transformer translate`: a run, an export or a server.

Each gives rows with the names of an export's outputs, for `num_best` the lists of `nbest`.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_transformer.cli.console import load_session, load_tensorflow, use_one_thread
from keras_transformer.errors import InputError, NotFiniteError
from keras_transformer.export.metadata import read_metadata
from keras_transformer.export.options import NO_SCORE, max_size_of
from keras_transformer.export.rows import Row, by_length
from keras_transformer.run import Run

Progress = Callable[[int], None]  # takes the number of texts translated since the last call
Translate = Callable[[list[str], Progress], Sequence[Row]]


def open_server(
    url: str | None,
    grpc: str | None,
    model: str | None,
    signature: str,
    timeout: float,
    prefix: str | None,
) -> Translate:
    """Returns a client of a model server, at a REST URL or at a gRPC address with a model's name.

    Raises:
        InputError: unless exactly one of the two is given.
    """
    from keras_transformer.export.clients import GrpcClient, RestClient

    client: GrpcClient | RestClient
    if url is not None and grpc is None:
        client = RestClient(url, signature=signature, timeout=timeout, prefix=prefix)
    elif url is None and grpc is not None and model is not None:
        load_tensorflow()
        client = GrpcClient(grpc, model, signature=signature, timeout=timeout, prefix=prefix)
    else:
        raise InputError("Give either --url URL, or --grpc HOST:PORT and --model NAME")
    return lambda texts, progress: _counted(client.translate(texts), progress)


def open_run(
    folder: str,
    search: Mapping[str, Any],
    optimize: bool,
    num_best: int | None,
    prefix: str | None,
    words: bool,
    sentences: bool | None,
) -> Translate:
    """Opens a run directory with options of its search.

    `sentences` is whether to translate each text sentence by sentence; None to do so if there is no
    prefix.
    """
    use_one_thread()
    load_tensorflow()
    import tensorflow as tf

    from keras_transformer.translator import Translation, Translator

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": not optimize})
    translator = Translator.load(folder, **search)
    if sentences is None:
        sentences = prefix is None

    def row_of(found: Translation) -> Row:
        row: Row = {"translation": found.text, "score": found.score}
        if num_best is not None:
            texts, scores = zip(*found.hypotheses, strict=True)
            row = {"translations": list(texts), "scores": list(scores)}
        if words:
            row["words"] = [word._asdict() for word in found.words]
        return {**row, "truncated": found.truncated}

    def translate(texts: list[str], progress: Progress) -> list[Row]:
        prefixes = None if prefix is None else [prefix] * len(texts)
        if sentences:  # which keep the white space at both ends
            texts = list(map(str.strip, texts))
        found = translator.translate(
            texts,
            prefixes=prefixes,
            progress=progress,
            num_best=num_best or 1,
            words=words,
            sentences=sentences,
        )
        return [row_of(each) for each in found]

    return translate


def protected_by(version: Path | None, folder: str) -> list[str]:
    """Returns what an export or a run protects, or nothing of a server, which does not say."""
    if not folder:
        return []
    if version is None:
        load_tensorflow()
        protect = Run.load(folder).tokenizer().protect
    else:
        protect = read_metadata(version).get("protect", [])
    if not protect:
        raise InputError(
            f"--terms needs a model that protects strings. {version or folder} protects none"
        )
    return list(protect)


def open_export(
    version: str, signature: str, optimize: bool, is_nbest: bool, prefix: str | None
) -> Translate:
    """Opens a version of an export at one of its signatures."""
    load_session()
    from keras_transformer.export.session import INVALID_ARGUMENT, SessionError, open_saved_model

    output = "translations" if is_nbest else "translation"
    others = {} if prefix is None else {"prefix": prefix}
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


def with_best(translate: Translate, num_best: int) -> Translate:
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


def with_terms(translate: Translate, path: Path, protect: Sequence[str]) -> Translate:
    """Marks the terms of a glossary in the texts, except in strings that the model protects."""
    from keras_transformer.protection.terms import read_glossary, term_marker

    mark_terms = term_marker(read_glossary(path), protect)
    return lambda texts, progress: translate(list(map(mark_terms, texts)), progress)


def languages_of(version: Path | None, folder: str) -> tuple[str, str] | None:
    """Returns the languages of an export or a run; None if they are not known, as of a server."""
    if version is None:
        run = Run.load(folder) if folder else None
        return (run.source, run.target) if run else None
    try:
        found = read_metadata(version)
    except InputError:  # an export of another program
        return None
    return (found["source"], found["target"]) if "source" in found else None


def _counted(rows: Sequence[Row], progress: Progress) -> Sequence[Row]:
    progress(len(rows))
    return rows
