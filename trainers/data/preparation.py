"""From sentence pairs to token ids on disk, in shards.

The text is a stream, which is read more than once: to train the tokenizer, and to tokenize it. A
shard holds what is kept of a fixed number of pairs, so that an interrupted preparation continues
after its last finished shard.
"""

import hashlib
import io
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.files import locked, named_failure, write_atomically
from keras_transformer.records import settings_of
from keras_transformer.run import Run
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.trainers.data.alignment import find_shift
from keras_transformer.trainers.data.augmentation import (
    DEFAULT_RATES,
    KINDS,
    Change,
    changed_copies,
    supported,
)
from keras_transformer.trainers.data.cleaning import (
    REASONS,
    Cleaner,
    Progress,
    SeenPairs,
    hashed_text,
)
from keras_transformer.trainers.data.corpora import VALIDATION_SPLITS, Corpus, Pair, is_prepared
from keras_transformer.trainers.data.languages import drawn, rates_of
from keras_transformer.trainers.data.prepared import (
    CAN_CONTINUE,
    CorpusManifest,
    CorpusShard,
    PreparedCorpus,
    Split,
    complete_corpus,
    write_validation_pairs,
)
from keras_transformer.trainers.data.writers import (
    Writer,
    monolingual_files,
    monolingual_pairs,
    with_sources,
    with_targets,
)
from keras_transformer.trainers.recipes import completed
from keras_transformer.trainers.settings import DataSettings, TrainSettings
from keras_transformer.trainers.tasks import find_task

logger = logging.getLogger(__name__)

DEFAULT_VOCAB_SIZE = 8_000
PAIRS_PER_SHARD = 200_000
PAIRS_TO_COMPARE = 50_000  # for lines that are shifted


def prepare(
    settings: TrainSettings,
    folder: str | Path,
    progress: Progress = lambda pairs: None,
    tokenizer: Tokenizer | None = None,
) -> PreparedCorpus:
    """Cleans and tokenizes a corpus into `folder`, or continues where an earlier call ended.

    It checks the shards that exist, and compares those of an incomplete split with their text.

    Args:
        settings: its data, languages, tokenizer and cleaning; the rest does not matter.
        folder: a folder that does not exist yet, is empty, or holds part of the same corpus.
        progress: called with the number of training pairs read since the last call.
        tokenizer: a tokenizer to use, with settings from `completed`; None for that of
            `settings.init_from`, or a new one.

    Raises:
        InputError: if the data does not fit the settings, or the folder holds something else.
    """
    if tokenizer is None:
        settings = completed(settings)
    task, languages = find_task(settings.task), (settings.source, settings.target)
    corpus = _trained(task.load_data(settings.data, *languages))
    others = task.load_data(settings.mix, *languages, has_all=False) if settings.mix else None
    others = others and _trained(others, has_all=False)
    if tokenizer is None and settings.init_from is not None:
        tokenizer = Run.load(settings.init_from).tokenizer()
    if tokenizer is not None:
        tokenizer = task.adapt_tokenizer(settings, corpus, tokenizer)
    _check(corpus, others)
    validation = list(corpus.pairs(corpus.validation_split)) if corpus.validation_split else []
    folder = Path(folder)
    writers = (None, None) if complete_corpus(folder) else _writers(settings, folder)
    rates = DEFAULT_RATES if settings.augment == "all" else settings.augment
    with named_failure(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        manifest = _open_manifest(folder, settings)
        if manifest is None:
            if tokenizer is None:
                tokenizer = _learn_tokenizer(settings, corpus, rates)
            manifest = _start(folder, settings, tokenizer, has_validation=bool(validation))
        saved = manifest.tokenizer()
        if tokenizer is not None and tokenizer.fingerprint != saved.fingerprint:
            raise InputError(
                f"{folder} was prepared with another tokenizer: delete it, or choose another folder"
            )
        cleaner = Cleaner(saved, settings, task.drops_unknown)
        # The validation split is first, so that an error in it shows at once and not after hours.
        if manifest.val is not None:
            if not manifest.val.is_complete:
                write_validation_pairs(folder, validation)
            _write_split(manifest, "val", validation, cleaner, {})
        pairs = _training_pairs(settings, corpus, others, *writers)
        _write_split(manifest, "train", pairs, cleaner, supported(rates, saved), progress)
        manifest.train.total.log_protected()
        return PreparedCorpus.of(manifest, saved, check_files=False)


def _trained(corpus: Corpus, has_all: bool = True) -> Corpus:
    """Leaves out pairs of languages without training text; `has_all` as in `load_corpus`."""
    trained = [
        languages
        for languages, part in corpus.parts.items()
        if "train" in part.splits and any(True for _ in part.read("train"))
    ]
    lost = {*itertools.chain(*corpus.parts)} - {*itertools.chain(*trained)}
    if lost and (has_all or not trained):
        raise InputError(f"{corpus.name} has no training text of {', '.join(sorted(lost))}")
    for languages in corpus.parts.keys() - {*trained}:
        logger.info("%s: no training text from %s to %s", corpus.name, *languages)
    return corpus.only(trained) if trained else corpus


def _check(corpus: Corpus, others: Corpus | None) -> None:
    """Warns of a corpus that a model will not learn from as it should."""
    if others is not None:
        next(others.pairs("train"), None)  # an error in it shows at once
    for part in corpus.parts.values():
        _check(part, None)
    if corpus.parts:
        return
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
    if not corpus.validation_split:
        names = ", ".join(VALIDATION_SPLITS)
        logger.warning("No validation: %s has none of the splits %s", corpus.name, names)


def _writers(settings: TrainSettings, folder: Path) -> tuple[Writer | None, Writer | None]:
    """Opens the models that write text: the teacher, and the back-translator."""
    teacher = back_translator = None
    if settings.teacher:  # a student would learn its loops
        teacher = Writer("teacher", settings.teacher, settings.pairs, folder, no_repeat_ngram=4)
    if settings.monolingual and settings.back_translator:
        pairs = [pair[::-1] for pair in monolingual_files(settings.monolingual, settings.pairs)]
        back_translator = Writer(
            *("back_translator", settings.back_translator, pairs, folder),
            sample_from=settings.monolingual_sample,
        )
        if next(monolingual_pairs(settings.monolingual, settings.pairs), None) is None:
            raise InputError(
                f"{settings.monolingual} holds no text: it must have one sentence per line"
            )
    return teacher, back_translator


def _training_pairs(
    settings: TrainSettings,
    corpus: Corpus,
    others: Corpus | None,
    teacher: Writer | None,
    back_translator: Writer | None,
) -> Iterator[Pair]:
    pairs = corpus.pairs("train")
    if teacher is not None:
        pairs = with_targets(pairs, teacher, settings.pairs[0])
    if others is not None:
        pairs = mixed(pairs, partial(others.pairs, "train"), settings.mix_share)
    if back_translator is not None and settings.monolingual:
        lines = partial(monolingual_pairs, settings.monolingual, settings.pairs)
        pairs = mixed(pairs, lines, settings.monolingual_share, "monolingual lines")
        pairs = with_sources(pairs, back_translator, settings.pairs[0])
    return pairs


def mixed(
    pairs: Iterable[Pair],
    others: Callable[[], Iterable[Pair]],
    share: float,
    what: str = "other pairs",
) -> Iterator[Pair]:
    """Yields the pairs, then a sample of the others, so that these are a share of all.

    The sample is spread evenly over all others; too few of them are all taken, with a warning.
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


def sampled(corpus: Corpus, split: str, temperature: float) -> Iterator[Pair]:
    """Yields the pairs of a split, those of each pair of languages as often as training does."""
    if temperature == 1 or not corpus.parts:
        return corpus.read(split)
    parts = [partial(part.read, split) for part in corpus.parts.values() if split in part.splits]
    rates = rates_of([sum(1 for _ in read()) for read in parts], temperature)
    return itertools.chain.from_iterable(
        drawn(read(), rate) for read, rate in zip(parts, rates, strict=True)
    )


def _learn_tokenizer(
    settings: TrainSettings, corpus: Corpus, rates: Mapping[Change, float]
) -> Tokenizer:
    kinds = {name for name, kind in KINDS.items() if kind.is_learned}
    kinds -= {"quotes"} if settings.tokenizer == "wordpiece" else set()
    learned = {kind: rate for kind, rate in rates.items() if kind in kinds}

    def read(split: str) -> Iterator[Pair]:
        for number, pair in enumerate(sampled(corpus, split, settings.sampling_temperature)):
            yield pair
            if split == "train" and all(map(str.strip, pair.sides)):
                for _, copy in changed_copies(pair, number, learned, settings.pairs[0][0]):
                    yield copy

    started, vocab_size = time.monotonic(), settings.vocab_size or DEFAULT_VOCAB_SIZE
    with_copies = corpus._replace(read=read)
    tokenizer = find_task(settings.task).learn_tokenizer(settings, with_copies, vocab_size)
    if tokenizer.vocab_size < vocab_size:
        logger.warning("The text is too small for `vocab_size`=%d", vocab_size)
    seconds = time.monotonic() - started
    logger.info("Tokenizer: %d subwords in %.1f s", tokenizer.vocab_size, seconds)
    return tokenizer


def _open_manifest(folder: Path, settings: TrainSettings) -> CorpusManifest | None:
    """Reads what an earlier call wrote; None if there is nothing yet."""
    if not is_prepared(folder):
        # An interrupted call may have left these.
        if {path.name for path in folder.iterdir()} - {"tokenizer.model", "tmp-corpus.json"}:
            raise InputError(
                f"{folder} holds something other than a prepared corpus: choose another folder"
            )
        return None
    manifest = CorpusManifest.read(folder)
    manifest.check_settings(_made_from(settings))
    if manifest.train.is_complete:
        logger.info("%s is complete, and stays. For other text, choose another folder", folder)
    return manifest


def _start(
    folder: Path, settings: TrainSettings, tokenizer: Tokenizer, has_validation: bool
) -> CorpusManifest:
    path = folder / "tokenizer.model"
    with named_failure(path, advice=CAN_CONTINUE):
        tokenizer.save(path)
    manifest = CorpusManifest(
        folder=folder,
        made_from=_made_from(settings),
        tokenizer_sha256=tokenizer.fingerprint,
        val=Split() if has_validation else None,
    )
    manifest.write()
    return manifest


def _made_from(settings: TrainSettings) -> dict[str, object]:
    absolute = settings.with_absolute_paths()
    return {name: getattr(absolute, name) for name in settings_of(DataSettings)}


def _write_split(
    manifest: CorpusManifest,
    name: Literal["train", "val"],
    pairs: Iterable[Pair],
    cleaner: Cleaner,
    rates: Mapping[Change, float],
    progress: Progress = lambda pairs: None,
) -> None:
    """Checks the shards that are there, and writes the others, and the manifest after each."""
    started = time.monotonic()
    split: Split = getattr(manifest, name)
    manifest.check_shards(name)
    if split.is_complete:
        return
    finished, seen = list(split.shards), SeenPairs()
    for index, chunk in enumerate(_chunks(pairs)):
        text = "\n".join(hashed_text(pair, "\t") for pair in chunk)
        text_sha256 = hashlib.sha256(text.encode()).hexdigest()
        path = manifest.shard_path(name, index)
        if index < len(finished) and finished[index].text_sha256 != text_sha256:
            raise InputError(f"{path} was made from other text: prepare the corpus in a new folder")
        if not chunk:
            break
        is_repeated = np.zeros(len(chunk), bool)
        if cleaner.settings.drop_duplicates:
            is_repeated = seen.mark_repeated(chunk)
        if index < len(finished):
            progress(len(chunk))
            continue
        first = index * PAIRS_PER_SHARD
        values, counts = cleaner.clean(chunk, is_repeated, first, rates, progress)
        file = io.BytesIO()
        np.save(file, values)
        write_atomically(path, file.getvalue(), CAN_CONTINUE)
        shard = CorpusShard(
            text_sha256=text_sha256,
            sha256=hashlib.sha256(file.getvalue()).hexdigest(),
            languages=chunk[0].languages,
            **counts.model_dump(),
        )
        split.shards.append(shard)
        manifest.write()
    total = split.total
    if not total.kept:
        listed = ", ".join(f"{n} because {REASONS[reason]}" for reason, n in total.dropped.items())
        raise InputError(f"No sentence pair of {name} is left: {listed}")
    split.is_complete = True
    manifest.write()
    seconds = time.monotonic() - started
    for (source, target), part in split.parts.items():
        logger.info("Corpus, %s, %s to %s: %s", name, source, target, part)
    logger.info("Corpus, %s: %s in %.1f s: %s", name, total, seconds, manifest.folder)


def _chunks(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    """Yields the pairs of shards, each of one pair of languages, and then an empty list."""
    for _, group in itertools.groupby(pairs, lambda pair: pair.languages):
        while chunk := list(itertools.islice(group, PAIRS_PER_SHARD)):
            yield chunk
    yield []
