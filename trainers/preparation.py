"""From sentence pairs to token ids on disk: cleaning, tokenizing, shards.

The text is read twice: to train the tokenizer, and to tokenize it. A shard holds what is kept of a
fixed number of pairs, so that an interrupted preparation continues after its last finished shard.
"""

import hashlib
import io
import itertools
import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import regex
import tensorflow as tf

from keras_transformer.config import EOS_ID
from keras_transformer.errors import InputError
from keras_transformer.files import locked, named_failure, sha256, write_atomically
from keras_transformer.tokenizer import Tokenizer, train_tokenizer
from keras_transformer.trainers.corpora import VALIDATION_SPLITS, Corpus, load_corpus
from keras_transformer.trainers.grammar import Pair
from keras_transformer.trainers.prepared import (
    CAN_CONTINUE,
    SETTINGS,
    CorpusShard,
    Manifest,
    PreparedCorpus,
    Split,
    check_settings,
    check_shards,
    is_prepared,
    load_tokenizer,
    open_prepared,
    shard_path,
)
from keras_transformer.trainers.recipes import TrainSettings

logger = logging.getLogger(__name__)

PAIRS_PER_SHARD = 200_000
PAIRS_PER_CALL = 2_000
NUM_EXAMPLES = 3  # of dropped pairs, for each reason
REASONS = {
    "empty": "a side has no token",
    "too_long": "a side has more than `max_length` tokens, the end symbol included",
    "length_ratio": "one side is more than `max_length_ratio` times as long as the other",
    "script": "most letters of a side are of another script",
    "duplicate": "an earlier pair is the same",
}

Progress = Callable[[int], None]
# Maps the texts of both sides to the ids of each pair, [B, (tokens)], each side with its `EOS_ID`,
# and to the lengths without it, [B, 2].
TokenizePairs = Callable[[Sequence[str], Sequence[str]], tuple[tf.RaggedTensor, tf.Tensor]]


def no_progress(pairs: int) -> None:
    """Shows nothing."""


def prepare(
    settings: TrainSettings,
    folder: Path,
    progress: Progress = no_progress,
    tokenizer: Tokenizer | None = None,
) -> PreparedCorpus:
    """Cleans and tokenizes a corpus into `folder`, or continues where an earlier call ended.

    It checks every byte of the shards that exist, and compares those of an incomplete split with
    their text.

    Args:
        settings: its data, languages, tokenizer and cleaning; the rest does not matter.
        folder: a folder that does not exist yet, is empty, or holds part of the same corpus.
        progress: called with the number of training pairs read since the last call.
        tokenizer: a tokenizer to use; None trains one by `settings`.

    Raises:
        InputError: if the data does not fit the settings, or the folder holds something else.
    """
    corpus = load_corpus(settings.data, settings.source, settings.target)
    _warn_of_equal_sides(corpus.name, list(itertools.islice(corpus.pairs("train"), 1_000)))
    val_split = corpus.validation_split
    validation = list(corpus.pairs(val_split)) if val_split else []
    for name in ("source_script", "target_script"):
        _check_script(name, getattr(settings, name))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"Cannot create the folder {folder}: {error.strerror}") from error
    is_folder = Path(settings.data).is_dir()
    data = str(Path(settings.data).resolve()) if is_folder else settings.data
    made_from = {"data": data, **{name: getattr(settings, name) for name in SETTINGS}}
    with locked(folder):
        if not is_prepared(folder):
            _start(folder, corpus, settings, made_from, tokenizer)
        check_settings(folder, made_from)
        saved = load_tokenizer(folder)
        if tokenizer is not None and tokenizer.fingerprint != saved.fingerprint:
            raise InputError(f"`tokenizer` is not the one that {folder} was prepared with")
        tokenize = _make_tokenize(saved)
        # The validation split is first, so that an error in it shows at once and not after hours.
        val = Manifest.read(folder).val
        if val is None:
            logger.warning(
                "No validation: %s was prepared from text that has none of the splits %s",
                folder,
                ", ".join(VALIDATION_SPLITS),
            )
        elif not val.is_complete:
            text = json.dumps(validation, ensure_ascii=False).encode()
            write_atomically(folder / "val.pairs.json", text, CAN_CONTINUE)
        if val is not None:
            _write_split(folder, "val", validation, tokenize, settings, no_progress)
        _write_split(folder, "train", corpus.pairs("train"), tokenize, settings, progress)
        return open_prepared(folder)


def _warn_of_equal_sides(name: str, pairs: list[Pair]) -> None:
    """Warns of a corpus that holds one language twice, such as after a wrong delimiter."""
    num_equal = sum(pair.source == pair.target for pair in pairs)
    if num_equal > len(pairs) / 10:
        logger.warning(
            "%s: both sides are equal in %d of the first %d pairs. Has each its own language?",
            name,
            num_equal,
            len(pairs),
        )


def _start(
    folder: Path,
    corpus: Corpus,
    settings: TrainSettings,
    made_from: dict[str, object],
    tokenizer: Tokenizer | None,
) -> None:
    """Writes the tokenizer, then `corpus.json`."""
    # An interrupted call may have left these.
    if {path.name for path in folder.iterdir()} - {"tokenizer.model", "tmp-corpus.json"}:
        raise InputError(
            f"{folder} holds something other than a prepared corpus: choose another folder"
        )
    started = time.monotonic()
    if tokenizer is None:
        texts = itertools.chain.from_iterable(corpus.pairs("train"))
        vocab_size = settings.vocab_size or 8_000
        tokenizer = train_tokenizer(settings.tokenizer, texts, vocab_size, settings.lowercase)
    path = folder / "tokenizer.model"
    with named_failure(path, advice=CAN_CONTINUE):
        tokenizer.save(path)
    Manifest(
        made_from=made_from,
        tokenizer_sha256=tokenizer.fingerprint,
        val=Split() if corpus.validation_split else None,
    ).write(folder)
    seconds = time.monotonic() - started
    logger.info("Tokenizer: %d subwords in %.1f s: %s", tokenizer.vocab_size, seconds, path)
    if tokenizer.vocab_size < (settings.vocab_size or 0):
        logger.warning("The text is too small for `vocab_size`=%d", settings.vocab_size)


def _write_split(
    folder: Path,
    name: Literal["train", "val"],
    pairs: Iterable[Pair],
    tokenize: TokenizePairs,
    settings: TrainSettings,
    progress: Progress,
) -> None:
    """Writes the shards that are not there yet, and the manifest after each."""
    started = time.monotonic()
    manifest = Manifest.read(folder)
    split: Split = getattr(manifest, name)
    check_shards(folder, name, split.shards)
    if split.is_complete:
        return
    num_finished = len(split.shards)
    seen = np.zeros(0, np.uint64)  # hashes of the pairs of earlier shards
    iterator = iter(pairs)
    for index in itertools.count():
        chunk = list(itertools.islice(iterator, PAIRS_PER_SHARD))
        text_sha256 = sha256("\n".join(map("\t".join, chunk)).encode())
        path = shard_path(folder, name, index)
        is_finished = index < num_finished
        if is_finished and split.shards[index].text_sha256 != text_sha256:
            raise InputError(f"{path} was made from other text: prepare the corpus in a new folder")
        if not chunk:
            break
        is_repeated = np.zeros(len(chunk), bool)
        if settings.drop_duplicates:
            is_repeated, seen = _mark_repeated(chunk, seen)
        if is_finished:
            progress(len(chunk))
            continue
        shard, dropped = _write_shard(
            path, chunk, text_sha256, is_repeated, tokenize, settings, progress
        )
        split.shards.append(shard)
        for reason, found in dropped.items():
            split.dropped[reason] = split.dropped.get(reason, 0) + len(found)
            split.examples.setdefault(reason, found[:NUM_EXAMPLES])
        manifest.write(folder)
    if not split.kept:
        listed = ", ".join(f"{n} because {REASONS[reason]}" for reason, n in split.dropped.items())
        raise InputError(f"No sentence pair of {name} is left: {listed}")
    split.is_complete = True
    manifest.write(folder)
    logger.info("Corpus, %s: %s in %.1f s: %s", name, split, time.monotonic() - started, folder)


def _make_tokenize(tokenizer: Tokenizer) -> TokenizePairs:
    # Traced once: the tokenizer's op is made anew for each graph, which takes long.
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)] * 2, autograph=False)
    def tokenize(sources: tf.Tensor, targets: tf.Tensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
        size = tf.size(sources)
        sides = tokenizer.tokenize(sources), tokenizer.target.tokenize(targets)  # [B, (tokens)]
        end = tf.fill([size, 1], EOS_ID)  # [B, 1]
        ids = tf.concat([sides[0], end, sides[1], end], axis=1)  # [B, (tokens)]
        return ids, tf.stack([side.row_lengths() for side in sides], axis=1)

    return tokenize


def _write_shard(
    path: Path,
    pairs: list[Pair],
    text_sha256: str,
    is_repeated: np.ndarray,
    tokenize: TokenizePairs,
    settings: TrainSettings,
    progress: Progress,
) -> tuple[CorpusShard, dict[str, list[Pair]]]:
    """Tokenizes and writes a shard; returns its entry in the manifest and the dropped pairs."""
    all_lengths, all_ids = [], []
    dropped: dict[str, list[Pair]] = {}
    for start in range(0, len(pairs), PAIRS_PER_CALL):
        chunk = pairs[start : start + PAIRS_PER_CALL]
        tokens, num_tokens = tokenize(*zip(*chunk, strict=True))
        ids, lengths = tokens.flat_values.numpy(), num_tokens.numpy()
        reasons = _drop_reasons(chunk, lengths, is_repeated[start : start + len(chunk)], settings)
        for row in np.flatnonzero(reasons):
            dropped.setdefault(str(reasons[row]), []).append(chunk[row])
        lengths += 1  # the end symbols
        is_kept = reasons == ""
        all_lengths.append(lengths[is_kept].ravel())
        all_ids.append(ids[np.repeat(is_kept, lengths.sum(axis=1))])
        progress(len(chunk))
    values = np.concatenate([*all_lengths, *all_ids])
    file = io.BytesIO()
    np.save(file, values.astype(np.uint16 if values.max(initial=0) < 2**16 else np.int32))
    write_atomically(path, file.getvalue(), CAN_CONTINUE)
    shard = CorpusShard(
        text_sha256=text_sha256,
        sha256=sha256(file.getvalue()),
        kept=len(pairs) - sum(map(len, dropped.values())),
    )
    return shard, dropped


def _drop_reasons(
    pairs: list[Pair], lengths: np.ndarray, is_repeated: np.ndarray, settings: TrainSettings
) -> np.ndarray:
    """Says why each pair is dropped: the first key of `REASONS` that applies; "" if it is kept."""
    shorter, longer = lengths.min(axis=1), lengths.max(axis=1)
    ratio = settings.max_length_ratio
    scripts = (settings.source_script, settings.target_script)
    applies = {
        "empty": shorter == 0,
        "too_long": longer >= settings.max_length,  # the end symbol is one more
        "length_ratio": longer > (np.inf if ratio is None else ratio) * np.maximum(shorter, 1),
        "script": np.array(
            [
                any(
                    script is not None and not _is_script(text, script)
                    for text, script in zip(pair, scripts, strict=True)
                )
                for pair in pairs
            ]
        ),
        "duplicate": is_repeated,
    }
    return np.select(list(applies.values()), list(applies), default="")


def _is_script(text: str, script: str) -> bool:
    """Whether at least half of a text's letters are of a Unicode script."""
    letters = len(regex.findall(r"\p{L}", text))
    return 2 * len(regex.findall(rf"[\p{{L}}&&\p{{Script={script}}}]", text, regex.V1)) >= letters


def _check_script(name: str, script: str | None) -> None:
    """Raises `InputError` unless the script is one of Unicode's."""
    try:
        regex.compile(rf"\p{{Script={script or 'Latin'}}}")
    except regex.error as error:
        raise InputError(
            f"`{name}` must be a Unicode script, such as Latin or Cyrillic. "
            f"Received: {name}={script!r}"
        ) from error


def _mark_repeated(pairs: list[Pair], seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Marks pairs that are equal to earlier ones.

    Args:
        pairs: some pairs.
        seen: hashes of the pairs before them, 8 bytes each, sorted.

    Returns:
        A mask of the pairs, and `seen` with the hashes of these.
    """
    digests = [hashlib.blake2b("\0".join(pair).encode(), digest_size=8).digest() for pair in pairs]
    hashes = np.frombuffer(b"".join(digests), np.uint64)
    is_first = np.zeros(len(pairs), bool)
    is_first[np.unique(hashes, return_index=True)[1]] = True
    return ~is_first | np.isin(hashes, seen), np.union1d(hashes, seen)
