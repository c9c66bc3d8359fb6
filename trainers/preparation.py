"""From sentence pairs to token ids on disk: cleaning, tokenising, shards; resumable.

A shard holds what is left of a fixed number of pairs, so that an interrupted preparation goes on
after the last whole shard.
"""

import hashlib
import itertools
import logging
import os
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import regex
import tensorflow as tf
from array_record.python.array_record_module import ArrayRecordWriter

from keras_transformer.config import EOS_ID
from keras_transformer.errors import InputError
from keras_transformer.files import locked, named_failure, sha256
from keras_transformer.tokenizer import Tokenizer, VocabularyTooLargeError, train_tokenizer
from keras_transformer.trainers.corpora import Corpus, load_corpus
from keras_transformer.trainers.grammar import Pair
from keras_transformer.trainers.prepared import (
    CLEANING,
    FORMAT,
    FORMAT_VERSION,
    SETTINGS,
    UNFINISHED,
    PreparedCorpus,
    Report,
    check_settings,
    is_prepared,
    load_tokenizer,
    open_prepared,
    read_report,
    read_shard,
    shard_path,
    write_json,
)
from keras_transformer.trainers.recipes import TrainSettings

logger = logging.getLogger(__name__)

PAIRS_PER_SHARD = 200_000
PAIRS_PER_CALL = 2_000
MAX_LENGTH = 2**16 - 1
NUM_EXAMPLES = 3  # of dropped pairs, for each reason and shard
REASONS = {
    "empty": "a side has no token",
    "too_long": "a side has more than `max_length` tokens, the end symbol included",
    "length_ratio": "one side is more than `max_length_ratio` times as long as the other",
    "script": "most letters of a side are of another script",
    "duplicate": "an earlier pair is the same",
}

Progress = Callable[[int], None]


def no_progress(pairs: int) -> None:
    """Shows nothing."""


def prepare(
    settings: TrainSettings, folder: Path, progress: Progress = no_progress
) -> PreparedCorpus:
    """Cleans and tokenises a corpus into `folder`, or goes on where an earlier call ended.

    What is complete is not compared with the text again.

    Args:
        settings: its data, languages, tokenizer and cleaning; the rest does not matter.
        folder: a folder that does not exist yet, is empty, or holds part of the same.
        progress: called with the number of training pairs read since the last call.

    Raises:
        InputError: if the data is not as settings say, or the folder holds something else.
    """
    corpus = load_corpus(settings.data, settings.source, settings.target)
    for split in ("train", corpus.validation_split):
        if split is not None:
            pairs = corpus.pairs(split)  # says at once if there is none, or it is empty
            if split == "train":
                _look_at(corpus.name, list(itertools.islice(pairs, 1_000)))
    if settings.max_length > MAX_LENGTH:
        raise InputError(
            f"`max_length` must be at most {MAX_LENGTH}. Received: max_length={settings.max_length}"
        )
    for name in ("source_script", "target_script"):
        check_script(name, getattr(settings, name))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"Cannot create the folder {folder}: {error.strerror}") from error
    is_folder = Path(settings.data).is_dir()
    data = str(Path(settings.data).resolve()) if is_folder else settings.data
    wanted = {"data": data, **{name: getattr(settings, name) for name in SETTINGS}}
    with locked(folder):
        return _write(folder, corpus, settings, wanted, progress)


def _write(
    folder: Path,
    corpus: Corpus,
    settings: TrainSettings,
    wanted: dict[str, Any],
    progress: Progress,
) -> PreparedCorpus:
    if not is_prepared(folder):
        # An interrupted call may have left these.
        if {path.name for path in folder.iterdir()} - {"tokenizer.model", "corpus.json.tmp"}:
            raise InputError(
                f"{folder} holds something other than a prepared corpus: choose another folder"
            )
        _start(folder, corpus, settings, wanted)
    check_settings(folder, wanted, corpus.validation_split is not None)
    tokenizer = load_tokenizer(folder)
    # The small one first: what is wrong with it shows at once, and not after hours.
    for split, shown in ((corpus.validation_split, no_progress), ("train", progress)):
        if split is None:
            logger.warning(
                "No validation: %s has none of the splits val, valid, validation, dev",
                corpus.name,
            )
            continue
        started = time.monotonic()
        name = "train" if split == "train" else "val"
        report = _write_split(folder, name, corpus, split, tokenizer, settings, shown)
        logger.info(
            "Corpus, %s: %s in %.1f s: %s", split, report, time.monotonic() - started, folder
        )
    return open_prepared(folder)


def _look_at(name: str, pairs: list[Pair]) -> None:
    """Warns of a corpus that holds one language twice, as a wrong delimiter makes it."""
    num_equal = sum(pair.source == pair.target for pair in pairs)
    if num_equal > len(pairs) / 10:
        logger.warning(
            "%s: both sides are equal in %d of the first %d pairs. Has each its own language?",
            name,
            num_equal,
            len(pairs),
        )


def _start(folder: Path, corpus: Corpus, settings: TrainSettings, wanted: dict[str, Any]) -> None:
    """Trains the tokenizer; `corpus.json` comes last."""
    started = time.monotonic()

    def texts() -> Iterator[str]:
        return itertools.chain.from_iterable(corpus.pairs("train"))

    kind, size, lowercase = settings.tokenizer, settings.vocab_size, settings.lowercase
    try:
        tokenizer = train_tokenizer(kind, texts(), size or 8_000, lowercase)
    except VocabularyTooLargeError as error:
        if size is not None:
            raise
        tokenizer = train_tokenizer(kind, texts(), error.limit, lowercase)
    with named_failure(folder / "tokenizer.model", advice=UNFINISHED):
        tokenizer.save(folder / "tokenizer.model")
    write_json(
        folder / "corpus.json",
        {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "made_from": wanted,
            "tokenizer_sha256": tokenizer.fingerprint,
            "has_validation": corpus.validation_split is not None,
        },
    )
    logger.info(
        "Tokenizer: %d subwords in %.1f s: %s",
        tokenizer.vocab_size,
        time.monotonic() - started,
        folder / "tokenizer.model",
    )


def _write_split(
    folder: Path,
    name: str,
    corpus: Corpus,
    split: str,
    tokenizer: Tokenizer,
    settings: TrainSettings,
    progress: Progress,
) -> Report:
    """Writes the shards that are not there yet, then the split's manifest."""
    if (folder / f"{name}.json").is_file():
        return read_report(folder, name)
    repeated = _repeated(corpus.pairs(split)) if settings.drop_duplicates else None
    # Making the op anew for each call would take longer than the call.
    tokenize = tf.function(tokenizer.tokenize, input_signature=[tf.TensorSpec([None], tf.string)])
    pairs = corpus.pairs(split)
    kept, text = 0, list[Pair]()
    dropped: Counter[str] = Counter()
    examples: dict[str, list[Pair]] = {}
    for shards in itertools.count():
        chunk = list(itertools.islice(pairs, PAIRS_PER_SHARD))
        if not chunk:
            break
        start = shards * PAIRS_PER_SHARD
        shard = _make_shard(
            shard_path(folder, name, shards),
            chunk,
            tokenizer,
            tokenize,
            settings,
            None if repeated is None else repeated[start : start + len(chunk)],
            progress,
        )
        kept += shard["kept"]
        dropped += Counter(shard["dropped"])
        examples = {**shard["examples"], **examples}
        if name == "val":
            text += chunk
    if not kept:
        counts = ", ".join(f"{count} because {REASONS[r]}" for r, count in dropped.items())
        raise InputError(f"No sentence pair of {split} is left: {counts}")
    if name == "val":
        write_json(folder / "val.pairs.json", text)
    write_json(
        folder / f"{name}.json",
        {"shards": shards, "kept": kept, "dropped": dict(dropped), "examples": examples},
    )
    return Report(kept, dict(dropped), examples)


def _make_shard(
    path: Path,
    pairs: list[Pair],
    tokenizer: Tokenizer,
    tokenize: Callable[[tf.Tensor], tf.RaggedTensor],
    settings: TrainSettings,
    repeated: np.ndarray | None,
    progress: Progress,
) -> dict[str, Any]:
    """Writes a shard, or checks that it is there; its JSON comes last."""
    made_from = {
        "tokenizer_sha256": tokenizer.fingerprint,
        "text_sha256": sha256("\n".join(map("\t".join, pairs)).encode()),
        "cleaning": {name: getattr(settings, name) for name in CLEANING},
    }
    found = read_shard(path)
    if found is not None and path.is_file() and path.stat().st_size == found["bytes"]:
        if found["made_from"] != made_from:
            raise InputError(
                f"{path} was made from other text or another tokenizer: "
                "prepare the corpus in a new folder"
            )
        progress(len(pairs))
        return found
    with named_failure(path, path.with_suffix(".tmp"), UNFINISHED):
        return _write_shard(path, made_from, pairs, tokenize, settings, repeated, progress)


def _write_shard(
    path: Path,
    made_from: dict[str, Any],
    pairs: list[Pair],
    tokenize: Callable[[tf.Tensor], tf.RaggedTensor],
    settings: TrainSettings,
    repeated: np.ndarray | None,
    progress: Progress,
) -> dict[str, Any]:
    lengths = array("H")
    dropped: Counter[str] = Counter()
    examples: dict[str, list[Pair]] = {}
    temporary = path.with_suffix(".tmp")
    writer = ArrayRecordWriter(str(temporary), "group_size:1")
    for start in range(0, len(pairs), PAIRS_PER_CALL):
        chunk = pairs[start : start + PAIRS_PER_CALL]
        sides = [tokenize(tf.constant(side)).numpy() for side in zip(*chunk, strict=True)]
        for row, (pair, source, target) in enumerate(zip(chunk, *sides, strict=True), start=start):
            reason = _fault(pair, len(source), len(target), settings)
            if reason is None and repeated is not None and repeated[row]:
                reason = "duplicate"
            if reason is not None:
                dropped[reason] += 1
                if dropped[reason] <= NUM_EXAMPLES:
                    examples.setdefault(reason, []).append(pair)
                continue
            record = [len(source) + 1, *source, EOS_ID, *target, EOS_ID]
            writer.write(np.array(record, np.int32).tobytes())
            lengths.extend((len(source) + 1, len(target) + 1))
        progress(len(chunk))
    writer.close()
    np.save(path.with_suffix(".lengths.npy"), np.array(lengths, np.uint16).reshape(-1, 2))
    size = temporary.stat().st_size
    os.replace(temporary, path)
    shard = {
        "made_from": made_from,
        "kept": len(lengths) // 2,
        "bytes": size,
        "dropped": dict(dropped),
        "examples": examples,
    }
    write_json(path.with_suffix(".json"), shard)
    return shard


def _fault(pair: Pair, source: int, target: int, settings: TrainSettings) -> str | None:
    """Why a pair of so many tokens is dropped, None if it is kept."""
    if not (source and target):
        return "empty"
    if max(source, target) >= settings.max_length:  # EOS_ID is one more
        return "too_long"
    ratio = settings.max_length_ratio
    if ratio is not None and max(source, target) > ratio * min(source, target):
        return "length_ratio"
    scripts = (settings.source_script, settings.target_script)
    if any(
        script and not _is_script(text, script) for text, script in zip(pair, scripts, strict=True)
    ):
        return "script"
    return None


def _is_script(text: str, script: str) -> bool:
    """Whether at least half of a text's letters are of a Unicode script."""
    letters = len(regex.findall(r"\p{L}", text))
    return 2 * len(regex.findall(rf"[\p{{L}}&&\p{{Script={script}}}]", text, regex.V1)) >= letters


def check_script(name: str, script: str | None) -> None:
    """Raises `InputError` unless the script is one that Unicode knows."""
    try:
        regex.compile(rf"\p{{Script={script or 'Latin'}}}")
    except regex.error as error:
        raise InputError(
            f"`{name}` must be a Unicode script, such as Latin or Cyrillic. "
            f"Received: {name}={script!r}"
        ) from error


def _repeated(pairs: Iterable[Pair]) -> np.ndarray:
    """Marks all but the first of equal pairs; of each pair only 8 bytes are kept in memory."""
    keys = np.fromiter(
        (
            int.from_bytes(hashlib.blake2b("\0".join(pair).encode(), digest_size=8).digest())
            for pair in pairs
        ),
        np.uint64,
    )
    repeated = np.ones(len(keys), bool)
    repeated[np.unique(keys, return_index=True)[1]] = False
    return repeated
