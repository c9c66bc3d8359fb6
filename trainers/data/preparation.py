"""From sentence pairs to token ids on disk: cleaning, tokenizing, shards.

The text is a stream, which is read more than once: to train the tokenizer, and to tokenize it. A
shard holds what is kept of a fixed number of pairs, so that an interrupted preparation continues
after its last finished shard.
"""

import hashlib
import io
import itertools
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import regex
import tensorflow as tf

from keras_transformer.config import BOS_ID, EOS_ID, UNK_ID
from keras_transformer.errors import InputError
from keras_transformer.files import locked, named_failure, write_atomically
from keras_transformer.run import Run
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.trainers.data.alignment import find_shift
from keras_transformer.trainers.data.augmentation import (
    DEFAULT_RATES,
    LEARNED,
    Change,
    changed_copies,
    suited,
)
from keras_transformer.trainers.data.back_translation import (
    MARK,
    BackTranslator,
    monolingual_pairs,
)
from keras_transformer.trainers.data.corpora import VALIDATION_SPLITS, Corpus, Pair
from keras_transformer.trainers.data.prepared import (
    CAN_CONTINUE,
    CorpusShard,
    Manifest,
    PreparedCorpus,
    Split,
    complete_corpus,
    is_prepared,
    opened,
)
from keras_transformer.trainers.settings import OF_CORPUS, TrainSettings, completed
from keras_transformer.trainers.tasks import Task, find_task

logger = logging.getLogger(__name__)

DEFAULT_VOCAB_SIZE = 8_000
PAIRS_PER_SHARD = 200_000
PAIRS_PER_CALL = 2_000
PAIRS_TO_COMPARE = 50_000  # for lines that are shifted
NUM_EXAMPLES = 3  # of dropped pairs, for each reason
EXAMPLE_LENGTH = 100  # characters of a side; the rest is cut
REASONS = {
    "empty": "a side has no token",
    "too_long": "a side has more than `max_length` tokens, the end symbol included",
    "length_ratio": "one side is more than `max_length_ratio` times as long as the other",
    "script": "most letters of a side are of another script",
    "duplicate": "an earlier pair is the same",
    "unknown": "the tokenizer does not have all of its symbols",
    "protected": "the sides do not protect the same strings",
}

Progress = Callable[[int], None]


def prepare(
    settings: TrainSettings,
    folder: str | Path,
    progress: Progress = lambda pairs: None,
    tokenizer: Tokenizer | None = None,
) -> PreparedCorpus:
    """Cleans and tokenizes a corpus into `folder`, or continues where an earlier call ended.

    It checks every byte of the shards that exist, and compares those of an incomplete split with
    their text.

    Args:
        settings: its data, languages, tokenizer and cleaning; the rest does not matter.
        folder: a folder that does not exist yet, is empty, or holds part of the same corpus.
        progress: called with the number of training pairs read since the last call.
        tokenizer: a tokenizer to use; None for that of `settings.init_from`, or a new one. If it is
            given, `settings.init_from` is not read, so the settings must come from `completed`.

    Raises:
        InputError: if the data does not fit the settings, or the folder holds something else.
    """
    if tokenizer is None:
        settings = completed(settings)
    task, languages = find_task(settings.task), (settings.source, settings.target)
    corpus = task.load_data(settings.data, *languages)
    others = task.load_data(settings.mix, *languages) if settings.mix else None
    if others is not None:
        next(others.pairs("train"), None)  # an error in it shows at once
    rates = DEFAULT_RATES if settings.augment == "all" else settings.augment
    if tokenizer is None and settings.init_from is not None:
        tokenizer = Run.load(settings.init_from).tokenizer()
    if tokenizer is not None:
        tokenizer = task.adapt_tokenizer(settings, corpus, tokenizer)
    first = list(itertools.islice(corpus.pairs("train"), 1_000))
    if sum(pair.source == pair.target for pair in first) > len(first) / 10:
        logger.warning("%s: both sides are equal in many pairs", corpus.name)
    if len(first) < 1_000:
        logger.warning(
            "%s has only %d training pairs: too few to learn from", corpus.name, len(first)
        )
    if shift := find_shift(itertools.islice(corpus.pairs("train"), PAIRS_TO_COMPARE)):
        logger.warning(
            "%s: after about %d pairs, targets are %d lines too %s, by their lengths: compare the "
            "lines there",
            *(corpus.name, shift[0], abs(shift[1]), "late" if shift[1] > 0 else "early"),
        )
    val_split = corpus.validation_split
    validation = list(corpus.pairs(val_split)) if val_split else []
    if not val_split:
        names = ", ".join(VALIDATION_SPLITS)
        logger.warning("No validation: %s has none of the splits %s", corpus.name, names)
    absolute = settings.with_absolute_paths()
    made_from = {name: getattr(absolute, name) for name in ("data", *OF_CORPUS)}
    scripts = [_letters(settings, name) for name in ("source_script", "target_script")]
    folder, back_translator = Path(folder), None
    if settings.monolingual and settings.back_translator and not complete_corpus(folder):
        back_translator = BackTranslator(
            settings.back_translator, *languages, folder, settings.monolingual_sample
        )
        if next(monolingual_pairs(settings.monolingual), None) is None:
            raise InputError(
                f"{settings.monolingual} holds no text: it must have one sentence per line"
            )
    with named_failure(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        if is_prepared(folder):
            manifest = Manifest.read(folder)
            manifest.check_settings(made_from)
            if manifest.train.is_complete:
                logger.info(
                    "%s is complete, and stays. For other text, choose another folder", folder
                )
        else:
            learned = _to_learn_from(corpus, rates, settings)
            manifest = _start(folder, learned, task, settings, made_from, tokenizer)
        saved = manifest.tokenizer()
        if tokenizer is not None and tokenizer.fingerprint != saved.fingerprint:
            raise InputError(
                f"{folder} was prepared with another tokenizer: delete it, or choose another folder"
            )
        cleaner = _Cleaner(saved, settings, scripts, task.drops_unknown)
        # The validation split is first, so that an error in it shows at once and not after hours.
        if manifest.val is not None:
            if not manifest.val.is_complete:
                text = json.dumps(validation, ensure_ascii=False).encode()
                write_atomically(folder / "val.pairs.json", text, CAN_CONTINUE)
            _write_split(manifest, "val", validation, cleaner, lambda pairs: None)
        pairs: Iterable[Pair] = corpus.pairs("train")
        if others is not None:
            pairs = mixed(pairs, partial(others.pairs, "train"), settings.mix_share)
        if back_translator is not None and settings.monolingual:
            lines = partial(monolingual_pairs, settings.monolingual)
            pairs = mixed(pairs, lines, settings.monolingual_share, "monolingual lines")
            pairs = back_translator.completed(pairs)
        cleaner.rates = suited(rates, saved)
        _write_split(manifest, "train", pairs, cleaner, progress)
        return opened(manifest, saved, check_files=False)


def _to_learn_from(
    corpus: Corpus, rates: Mapping[Change, float], settings: TrainSettings
) -> Corpus:
    """Returns a corpus with changed copies of training pairs, for the vocabulary."""
    kinds = set(LEARNED) - ({"quotes"} if settings.tokenizer == "wordpiece" else set())
    learned = {kind: rate for kind, rate in rates.items() if kind in kinds}

    def read(split: str) -> Iterator[Pair]:
        for number, pair in enumerate(corpus.read(split)):
            yield pair
            if split == "train" and all(map(str.strip, pair)):
                yield from (copy for _, copy in changed_copies(pair, number, learned))

    return corpus._replace(read=read)


def mixed(
    pairs: Iterable[Pair],
    others: Callable[[], Iterable[Pair]],
    share: float,
    what: str = "other pairs",
) -> Iterator[Pair]:
    """Yields the pairs, then a sample of the others, so that these are a share of all.

    The sample is spread evenly over all others. If there are too few of them, it takes them all and
    logs a warning.

    Args:
        pairs: new pairs.
        others: returns the other pairs; called twice.
        share: at least 0 and below 1.
        what: the name of the others in the log.
    """
    count = 0
    for pair in pairs:
        count += 1
        yield pair
    wanted = round(count * share / (1 - share))
    total = sum(1 for _ in others())
    sample = min(wanted, total)
    logger.info("Mixed in: %s of %s %s", f"{sample:,}", f"{total:,}", what)
    if sample < wanted:
        logger.warning(
            "The %s are %.2g of all pairs, less than a share of %s, because there are only %s",
            *(what, sample / (count + sample), share, f"{total:,}"),
        )
    for index, pair in enumerate(others()):
        if (index + 1) * sample // total > index * sample // total:
            yield pair


def _start(
    folder: Path,
    corpus: Corpus,
    task: Task,
    settings: TrainSettings,
    made_from: dict[str, Any],
    tokenizer: Tokenizer | None,
) -> Manifest:
    """Writes the tokenizer, then `corpus.json`."""
    # An interrupted call may have left these.
    if {path.name for path in folder.iterdir()} - {"tokenizer.model", "tmp-corpus.json"}:
        raise InputError(
            f"{folder} holds something other than a prepared corpus: choose another folder"
        )
    started = time.monotonic()
    if tokenizer is None:
        vocab_size = settings.vocab_size or DEFAULT_VOCAB_SIZE
        tokenizer = task.learn_tokenizer(settings, corpus, vocab_size)
        if tokenizer.vocab_size < vocab_size:
            logger.warning("The text is too small for `vocab_size`=%d", vocab_size)
    path = folder / "tokenizer.model"
    with named_failure(path, advice=CAN_CONTINUE):
        tokenizer.save(path)
    manifest = Manifest(
        folder=folder,
        made_from=made_from,
        tokenizer_sha256=tokenizer.fingerprint,
        val=Split() if corpus.validation_split else None,
    )
    manifest.write()
    seconds = time.monotonic() - started
    logger.info("Tokenizer: %d subwords in %.1f s: %s", tokenizer.vocab_size, seconds, path)
    return manifest


def _write_split(
    manifest: Manifest,
    name: Literal["train", "val"],
    pairs: Iterable[Pair],
    cleaner: "_Cleaner",
    progress: Progress,
) -> None:
    """Checks the shards that are there, and writes the others, and the manifest after each."""
    started = time.monotonic()
    folder, split = manifest.folder, getattr(manifest, name)
    manifest.check_shards(name)
    if split.is_complete:
        return
    finished = list(split.shards)
    seen = np.zeros(0, np.uint64)  # hashes of the pairs of earlier shards
    iterator = iter(pairs)
    for index in itertools.count():
        chunk = list(itertools.islice(iterator, PAIRS_PER_SHARD))
        text = "\n".join(map("\t".join, chunk))
        text_sha256 = hashlib.sha256(text.encode()).hexdigest()
        path = manifest.shard_path(name, index)
        if index < len(finished) and finished[index].text_sha256 != text_sha256:
            raise InputError(f"{path} was made from other text: prepare the corpus in a new folder")
        if not chunk:
            break
        is_repeated = np.zeros(len(chunk), bool)
        if cleaner.settings.drop_duplicates:
            is_repeated, seen = _mark_repeated(chunk, seen)
        if index < len(finished):
            progress(len(chunk))
            continue
        first = index * PAIRS_PER_SHARD
        cleaner.num_protected = 0
        values, dropped, copies = cleaner.clean(chunk, is_repeated, first, progress)
        if cleaner.first_slot is not None:
            split.protected = (split.protected or 0) + cleaner.num_protected
        file = io.BytesIO()
        np.save(file, values)
        content = file.getvalue()
        write_atomically(path, content, CAN_CONTINUE)
        kept = len(chunk) - sum(map(len, dropped.values())) + copies.total()
        sha256 = hashlib.sha256(content).hexdigest()
        shard = CorpusShard(text_sha256=text_sha256, sha256=sha256, kept=kept)
        split.shards.append(shard)
        split.copies = dict(copies + Counter(split.copies))
        for reason, found in dropped.items():
            split.dropped[reason] = split.dropped.get(reason, 0) + len(found)
            examples = [Pair(*map(_cut, pair)) for pair in found[:NUM_EXAMPLES]]
            split.examples.setdefault(reason, examples)
        manifest.write()
    if not split.kept:
        listed = ", ".join(f"{n} because {REASONS[reason]}" for reason, n in split.dropped.items())
        raise InputError(f"No sentence pair of {name} is left: {listed}")
    split.is_complete = True
    manifest.write()
    logger.info("Corpus, %s: %s in %.1f s: %s", name, split, time.monotonic() - started, folder)


class _Cleaner:
    """Tokenizes pairs, and drops some."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        settings: TrainSettings,
        scripts: list[regex.Pattern[str] | None],
        drops_unknown: bool,
    ) -> None:
        self.tokenizer = tokenizer
        self.settings = settings
        self.scripts = scripts  # the letters that each side may have
        self.drops_unknown = drops_unknown
        self.rates: Mapping[Change, float] = {}  # of changed copies
        self.first_slot: int | None = getattr(tokenizer, "first_slot", None)
        self.num_protected = 0  # kept pairs with protected strings, without copies
        # Traced once: the tokenizer's op is made anew for each graph, which takes long.
        texts = tf.TensorSpec([None], tf.string)
        self.tokenize = tf.function(self._tokenize, [texts, texts], autograph=False)

    def _tokenize(
        self, sources: tf.Tensor, targets: tf.Tensor
    ) -> tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor]:
        """Tokenizes pairs.

        Returns:
            The ids of each pair, int32 [B, (tokens)]; both lengths without EOS_ID, [B, 2]; and
            `TokenizedPairs.agree`.
        """
        is_made = tf.strings.regex_full_match(sources, f"(?s){MARK}.+")
        sources = tf.strings.regex_replace(sources, MARK, "")
        pairs = self.tokenizer.read_pairs(sources, targets)
        # The mark is the start symbol, which no other source has.
        mark = tf.ragged.boolean_mask(tf.fill([tf.size(sources), 1], BOS_ID), is_made[:, None])
        source = tf.concat([mark, pairs.source], axis=1)
        end = tf.fill([tf.size(sources), 1], EOS_ID)  # [B, 1]
        ids = tf.concat([source, end, pairs.target, end], axis=1)  # [B, (tokens)]
        lengths = [side.row_lengths() for side in (source, pairs.target)]
        return ids, tf.stack(lengths, axis=1), pairs.agree

    def clean(
        self,
        pairs: list[Pair],
        is_repeated: np.ndarray,
        first: int,
        progress: Progress,
    ) -> tuple[np.ndarray, dict[str, list[Pair]], Counter[Change]]:
        """Returns the content of a shard, the dropped pairs by reason, and counts of copies.

        Changed copies of the pairs that are kept follow them; copies are not compared.

        Args:
            pairs: of the shard.
            is_repeated: bool [pairs], whether a pair is equal to an earlier one.
            first: the number of the first pair.
            progress: called with the number of pairs since the last call.
        """
        parts: list[tuple[np.ndarray, np.ndarray]] = []
        dropped: dict[str, list[Pair]] = {}
        counts: Counter[Change] = Counter()
        for start in range(0, len(pairs), PAIRS_PER_CALL):
            chunk = pairs[start : start + PAIRS_PER_CALL]
            reasons, part = self.kept(chunk, is_repeated[start : start + len(chunk)])
            parts.append(part)
            self.num_protected += self.count_protected(*part)
            for row in np.flatnonzero(reasons):
                dropped.setdefault(str(reasons[row]), []).append(chunk[row])
            copies = [
                copy
                for row in np.flatnonzero(reasons == "").tolist()
                for copy in self.copies(chunk[row], first + start + row)
            ]
            if copies:
                kinds, changed = zip(*copies, strict=True)
                reasons, part = self.kept(changed, np.zeros(len(changed), bool))
                parts.append(part)
                counts.update(itertools.compress(kinds, reasons == ""))
            progress(len(chunk))
        lengths, ids = zip(*parts, strict=True)
        values = np.concatenate([*lengths, *ids])
        dtype = np.uint16 if values.max(initial=0) < 2**16 else np.int32
        return values.astype(dtype), dropped, counts

    def count_protected(self, lengths: np.ndarray, ids: np.ndarray) -> int:
        """Returns how many of the pairs that `kept` returns have protected strings."""
        if self.first_slot is None or not len(ids):
            return 0
        sizes = lengths.reshape(-1, 2).sum(axis=1)
        largest = np.maximum.reduceat(ids, sizes.cumsum() - sizes)
        return int((largest >= self.first_slot).sum())

    def copies(self, pair: Pair, number: int) -> Iterator[tuple[Change, Pair]]:
        """Yields `changed_copies`; those of a source that a model wrote keep its mark."""
        mark = MARK if pair.source.startswith(MARK) else ""
        written = pair._replace(source=pair.source.removeprefix(MARK))
        for kind, changed in changed_copies(written, number, self.rates):
            yield kind, changed._replace(source=mark + changed.source)

    def kept(
        self, pairs: Sequence[Pair], is_repeated: np.ndarray
    ) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
        """Returns why each pair is dropped, or "", and the lengths and the ids of the others."""
        tokens, num_tokens, agree = self.tokenize(*zip(*pairs, strict=True))
        ids, lengths = tokens.flat_values.numpy(), num_tokens.numpy()
        reasons = self.reasons(pairs, lengths, is_repeated)
        if self.drops_unknown:
            is_unknown = tf.reduce_any(tokens == UNK_ID, axis=1).numpy()
            reasons = np.where((reasons == "") & is_unknown, "unknown", reasons)
        reasons = np.where((reasons == "") & ~agree.numpy(), "protected", reasons)
        lengths += 1  # the end symbols
        is_kept = reasons == ""
        kept_ids = ids[np.repeat(is_kept, lengths.sum(axis=1))]
        return reasons, (lengths[is_kept].ravel(), kept_ids)

    def reasons(
        self, pairs: Sequence[Pair], lengths: np.ndarray, is_repeated: np.ndarray
    ) -> np.ndarray:
        """Returns for each pair the first key of `REASONS` that applies; "" if it is kept."""
        shorter, longer = lengths.min(axis=1), lengths.max(axis=1)
        ratio = self.settings.max_length_ratio
        applies = {
            "empty": shorter == 0,
            "too_long": longer >= self.settings.max_length,  # the end symbol is one more
            "length_ratio": longer > (np.inf if ratio is None else ratio) * np.maximum(shorter, 1),
            "script": np.array([not all(map(_is_of, pair, self.scripts)) for pair in pairs]),
            "duplicate": is_repeated,
        }
        return np.select(list(applies.values()), list(applies), default="")


def _cut(text: str) -> str:
    text = text.removeprefix(MARK)
    return text if len(text) <= EXAMPLE_LENGTH else f"{text[: EXAMPLE_LENGTH - 1]}…"


def _letters(settings: TrainSettings, name: str) -> regex.Pattern[str] | None:
    """Returns the pattern of a script's letters; `InputError` if Unicode has no such script."""
    script = getattr(settings, name)
    if script is None:
        return None
    try:
        return regex.compile(rf"[\p{{L}}&&\p{{Script={script}}}]", regex.V1)
    except regex.error as error:
        raise InputError(
            f"`{name}` must be a Unicode script, such as Latin or Cyrillic. "
            f"Received: {name}={script!r}"
        ) from error


def _is_of(text: str, script: regex.Pattern[str] | None) -> bool:
    """Returns whether at least half of a text's letters are of a script."""
    return script is None or 2 * len(script.findall(text)) >= len(regex.findall(r"\p{L}", text))


def _mark_repeated(pairs: list[Pair], seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns which pairs are equal to earlier ones, and the sorted hashes of all pairs so far."""
    digests = [hashlib.blake2b("\0".join(pair).encode(), digest_size=8).digest() for pair in pairs]
    hashes = np.frombuffer(b"".join(digests), np.uint64)
    is_first = np.zeros(len(pairs), bool)
    is_first[np.unique(hashes, return_index=True)[1]] = True
    # Not `isin` and `union1d`, which sort all hashes so far again.
    place = np.searchsorted(seen, hashes)
    is_seen = np.append(seen, seen[:1])[place] == hashes if seen.size else np.zeros_like(is_first)
    new = np.unique(hashes[~is_seen])
    return ~is_first | is_seen, np.insert(seen, np.searchsorted(seen, new), new)
