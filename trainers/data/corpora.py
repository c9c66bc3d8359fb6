"""Parallel corpora, read as streams: bundled, folders of text, tables, TensorFlow Datasets."""

import functools
import itertools
import logging
import lzma
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from keras_transformer.errors import InputError, as_input_error
from keras_transformer.files import decode_lines, kind_of, open_binary, read_failure
from keras_transformer.trainers.data.catalogues import PAIRED, OtherLanguagesError, read_catalogue
from keras_transformer.trainers.data.languages import LanguagePair, pairs_of
from keras_transformer.trainers.data.tables import TABLES, are_quoted, has_quoted_names, read_table

logger = logging.getLogger(__name__)

VALIDATION_SPLITS = ("val", "valid", "validation", "dev")
KINDS = (
    "'bundled', 'tfds:NAME', a folder of files {language}.{split}.txt, a "
    f"{', '.join((*TABLES, *PAIRED[:-1]))} or {PAIRED[-1]} file, or a folder of such files"
)
DATA = (*TABLES, *PAIRED)  # endings of files of pairs
# Endings of files that may hold text, and are not read.
UNREAD = (
    *(".7z", ".bz2", ".jsonl", ".ods", ".parquet", ".rar", ".tar", ".tgz", ".xls", ".xlsx"),
    *(".xz", ".zip", ".zst"),
)
MAX_HELD_OUT = 1_000  # about so many pairs for validation and for test, at most a twentieth each
BUNDLED_SPLITS = {"train": 24_000, "val": 500, "test": 500}  # pairs


class Pair(NamedTuple):
    """A sentence, and its translation."""

    source: str
    target: str
    languages: LanguagePair | None = None  # in a corpus of several pairs
    is_synthetic: bool = False  # whether a model wrote the source

    @property
    def sides(self) -> tuple[str, str]:
        return self.source, self.target

    def map(self, change: Callable[[str], str]) -> "Pair":
        """Returns the pair with both sides changed."""
        return self._replace(source=change(self.source), target=change(self.target))

    @property
    def tagged_source(self) -> str:
        """The source as a model reads it: it begins with the languages, ">>en:de<< A dog"."""
        return f">>{':'.join(self.languages)}<< {self.source}" if self.languages else self.source


Read = Callable[[], Iterator[Pair]]


class Corpus(NamedTuple):
    """Sentence pairs in named splits."""

    name: str  # for messages
    splits: tuple[str, ...]  # names
    read: Callable[[str], Iterator[Pair]]  # yields the pairs of a split
    parts: "Mapping[LanguagePair, Corpus]" = MappingProxyType({})  # if it has several languages

    def pairs(self, split: str) -> Iterator[Pair]:
        """Yields the pairs of a split; `InputError` if there are none, or they are unreadable."""
        if split not in self.splits:
            raise InputError(
                f"{self.name} has no split {split!r}. There are: {', '.join(self.splits)}"
            )
        pairs = self.read(split)
        first = next(pairs, None)
        if first is None:
            raise InputError(f"{self.name}: the split {split!r} is empty")
        return itertools.chain([first], pairs)

    def only(self, languages: Collection[LanguagePair]) -> "Corpus":
        """Returns those of its `parts` that have these pairs of languages, as one corpus."""
        parts = {pair: part for pair, part in self.parts.items() if pair in languages}
        return _joined([self.name], [*parts.values()])._replace(parts=parts)

    @property
    def validation_split(self) -> str | None:
        """The split to validate on; None if none has one of the usual names."""
        return next((name for name in VALIDATION_SPLITS if name in self.splits), None)


class Wanted(NamedTuple):
    """The pair of languages to load."""

    names: LanguagePair
    unnamed: tuple[str | None, str | None] = (None, None)  # those of gettext that names none
    is_only: bool = True  # so that all data must have it
    by_target: bool = False  # whether the target decides what is held out: of both directions, once


def load_corpus(
    data: str | Sequence[str], source: str, target: str, has_all: bool = True
) -> Corpus:
    """Finds a corpus, or several that are read as one.

    Files without splits are all held out from together: about a twentieth of the pairs, and 1,000
    at most, for each of val and test.

    Args:
        data: "bundled", "tfds:NAME[/CONFIG]", a folder with a file `{language}.{split}.txt` for
            each language and split, one sentence per line, a file `.tsv` or `.csv` whose first
            line names the columns, a file of translators (`.po`, `.mo`, `.xlf`, `.xliff`, `.tmx`),
            or a folder of such tables and catalogues, of which those of other languages are left
            out; files also as `.gz`. Or several of these, of which the validation splits together
            become "val".
        source: source language, for example "en"; or several, "en,de".
        target: target language, for example "de"; or several. Then the corpus has all pairs of
            them that the data has, one after another, and each `Pair` names its languages.
        has_all: whether the data must have all languages, or some.

    Raises:
        InputError: if there is no such corpus, or it does not hold the languages.
    """
    names = list(dict.fromkeys([data] if isinstance(data, str) else data))
    if not names or not all(names):
        raise InputError(f"data must not be empty: it must be {KINDS}")
    pairs = pairs_of(source, target)
    if not pairs:
        raise InputError(f"Source and target language must differ. Received: {source!r} twice")
    for name in names:
        if unread := [path.name for path in _files_of(Path(name), UNREAD)]:
            listed = ", ".join(unread[:3])
            message = "%s: %d files of other formats are not read, such as %s"
            logger.warning(message, name, len(unread), listed)
    if len(pairs) == 1:
        return _load_pair(names, Wanted(pairs[0]))
    parts: dict[LanguagePair, Corpus] = {}
    order = [name for side in zip(*pairs, strict=True) for name in side]
    missing: dict[LanguagePair, OtherLanguagesError] = {}
    for one, other in pairs:
        by_target = order.index(other) < order.index(one)
        wanted = Wanted((one, other), (order[0], "und"), is_only=False, by_target=by_target)
        try:
            parts[one, other] = _with_languages(_load_pair(names, wanted), (one, other))
        except OtherLanguagesError as error:
            missing[one, other] = error
    loaded = set(itertools.chain.from_iterable(parts))
    for languages, failure in missing.items():
        if not loaded.issuperset(languages) and (has_all or not loaded):
            raise failure
    return _joined(names, [*parts.values()])._replace(parts=parts)


def _load_pair(names: Sequence[str], wanted: Wanted) -> Corpus:
    corpora: list[Corpus] = []
    files: list[tuple[str, Read]] = []
    for name in names:
        try:
            corpus_or_files = _find(name, wanted)
        except OtherLanguagesError:
            if wanted.is_only or len(names) == 1:
                raise
            continue
        if isinstance(corpus_or_files, Corpus):
            corpora.append(corpus_or_files)
        else:
            files += corpus_or_files
    if not (corpora or files):
        raise OtherLanguagesError(
            f"{', '.join(names)}: no text has the languages {' and '.join(wanted.names)}"
        )
    if files:
        corpora.append(hold_out(_name_of(names), files, wanted.by_target))
    return _joined(names, corpora)


def _find(name: str, wanted: Wanted) -> Corpus | list[tuple[str, Read]]:
    """Finds a corpus, or files without splits."""
    path = Path(name)
    if name == "bundled":
        return _bundled(wanted)
    if name.startswith("tfds:"):
        return _tfds(name, wanted)
    if path.is_file():
        return [(name, _open_file(path, wanted))]
    if corpus := _folder_of_lines(path, wanted):
        if others := [file.name for file in _files_of(path, DATA)]:
            listed = ", ".join(others[:3])
            logger.warning("%s has files of lines: %s is not read", name, listed)
        return corpus
    return _open_folder(path, wanted)


def _with_languages(corpus: Corpus, languages: LanguagePair) -> Corpus:
    """Returns a corpus whose pairs name its languages."""
    return corpus._replace(
        name=f"{corpus.name}, {' to '.join(languages)}",
        read=lambda split: (pair._replace(languages=languages) for pair in corpus.read(split)),
    )


def is_prepared(data: str | Path | Sequence[str]) -> bool:
    """Returns whether data is one folder that `prepare` wrote, or began to."""
    return isinstance(data, str | Path) and (Path(data) / "corpus.json").is_file()


def _name_of(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _joined(names: Sequence[str], corpora: Sequence[Corpus]) -> Corpus:
    if len(corpora) == 1:
        return corpora[0]
    parts: dict[str, list[Read]] = {}
    for corpus in corpora:
        for split in corpus.splits:
            joined = "val" if split == corpus.validation_split else split
            parts.setdefault(joined, []).append(functools.partial(corpus.pairs, split))
    return Corpus(
        _name_of(names),
        tuple(parts),
        lambda split: itertools.chain.from_iterable(read() for read in parts[split]),
    )


def _bundled(wanted: Wanted) -> Corpus:
    source, target = wanted.names
    if {source, target} != {"en", "de"}:
        raise OtherLanguagesError(
            f"The bundled corpus holds the languages en and de. Received: {source!r}, {target!r}"
        )

    def read(split: str) -> Iterator[Pair]:
        for pair in bundled_splits()[split]:
            yield pair if source == "en" else Pair(source=pair.target, target=pair.source)

    return Corpus("The bundled corpus", tuple(bundled_splits()), read)


@functools.cache
def bundled_splits() -> dict[str, list[Pair]]:
    """Returns the train, val and test pairs, which a grammar made; no sentence is in two pairs.

    A tiny model learns them within minutes. BLEU on them says nothing about real text.
    """
    text = lzma.decompress(Path(__file__).with_name("bundled.tsv.xz").read_bytes()).decode()
    sides = (line.split("\t") for line in text.splitlines())
    pairs = (Pair(source, target) for source, target in sides)
    return {split: list(itertools.islice(pairs, size)) for split, size in BUNDLED_SPLITS.items()}


def _folder_of_lines(folder: Path, wanted: Wanted) -> Corpus | None:
    """Finds the files of lines in a folder; None if they have no split of both languages."""
    if not folder.is_dir():
        raise InputError(f"There is no folder {folder}: data must be {KINDS}; see docs/tutorial.md")
    if is_prepared(folder):
        raise InputError(
            f"{folder} is a prepared corpus, for `train`, and holds no text: name the folder that "
            "it was prepared from"
        )
    files = [split_files(folder, f"{language}.", ".txt") for language in wanted.names]
    common = sorted(set.intersection(*map(set, files)))
    alone = [x[name].name for x in files for name in VALIDATION_SPLITS if name in {*x} - {*common}]
    if common and alone and wanted.is_only:
        logger.warning("%s: there is no translation of %s", folder, ", ".join(alone))

    def read(split: str) -> Iterator[Pair]:
        paths = [side[split] for side in files]
        for one, other in itertools.zip_longest(*map(read_lines, paths)):
            if one is None or other is None:
                counts = [sum(1 for _ in read_lines(path)) for path in paths]
                raise InputError(
                    f"{paths[0]} and {paths[1]} must have the same number of lines. "
                    f"Received: {counts[0]} and {counts[1]}"
                )
            yield Pair(one, other)

    return Corpus(str(folder), tuple(common), read) if common else None


def split_files(folder: Path, prefix: str, ending: str) -> dict[str, Path]:
    """Returns the files "{prefix}{split}{ending}" of a folder by split, also those of `.gz`."""
    pattern = re.compile(rf"{re.escape(prefix)}(.+)(?i:{re.escape(ending)}(?:\.gz)?)")
    files: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if match := pattern.fullmatch(path.name):
            earlier = files.setdefault(match[1], path)
            if earlier != path:
                raise InputError(f"{folder} must hold one of {earlier.name} and {path.name}")
    return files


def _files_of(folder: Path, endings: Sequence[str]) -> list[Path]:
    """Returns the files of a folder, and of folders in it, that have one of these endings."""
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and kind_of(path) in endings
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]


def _open_folder(folder: Path, wanted: Wanted) -> list[tuple[str, Read]]:
    files, num_others = [], 0
    source, target = wanted.names
    for path in _files_of(folder, DATA):
        try:
            files.append((str(path), _open_file(path, wanted)))
        except OtherLanguagesError:
            num_others += 1
    if not files:
        raise OtherLanguagesError(
            f"{folder} must hold files {source}.SPLIT.txt and {target}.SPLIT.txt of a split, such "
            f"as {source}.train.txt and {target}.train.txt, or tables or catalogues of both "
            f"languages. It holds {num_others} tables and catalogues of others"
        )
    if num_others:
        logger.info("%s: %d files of other languages are left out", folder, num_others)
    return files


def _open_file(path: Path, wanted: Wanted) -> Read:
    if kind_of(path) in PAIRED:
        read = read_catalogue(path, *wanted.names, wanted.unnamed)
        return lambda: itertools.starmap(Pair, read())
    if kind_of(path) not in TABLES:
        raise InputError(
            f"{path} must end in .tsv, .csv, .tsv.gz or .csv.gz, or data must be {KINDS}"
        )

    def read_rows(quoted: bool) -> Iterator[Pair]:
        return itertools.starmap(Pair, read_table(path, read_lines(path), *wanted.names, quoted))

    quoted = kind_of(path) == ".csv" or has_quoted_names(next(read_lines(path), ""))
    next(read_rows(quoted), None)  # an error in its first lines shows at once
    return functools.partial(read_rows, quoted or are_quoted(read_lines(path)))


def hold_out(name: str, files: Sequence[tuple[str, Read]], by_target: bool = False) -> Corpus:
    """Splits the pairs with text of named files into train, val and test by a hash of the source.

    Where pairs are added, a training pair stays one: no model is scored on what it has seen.
    """

    def hash_of(pair: Pair) -> int:
        if not all(map(str.strip, pair.sides)):
            return -1
        # Spreads the checksums of short texts, whose first bits may be alike.
        return zlib.crc32(pair.sides[by_target].encode()) * 2_654_435_761 % 2**32

    parts, num_rows = [], 0
    for file, read_file in files:
        hashes = np.fromiter(map(hash_of, read_file()), np.int64)
        parts.append(hashes[hashes >= 0])
        num_rows += len(hashes)
        logger.info("%s: %d pairs; left out: %d empty", file, len(parts[-1]), (hashes < 0).sum())
    # Of 2**32 hashes. Empty rows count, as they did when they were pairs of the splits.
    held_out = int(2**32 * min(1 / 20, MAX_HELD_OUT / max(num_rows, 1)))

    def split_of(number: int) -> str | None:
        if 0 <= number < held_out:
            return "val"
        if number >= 2**32 - held_out:
            return "test"
        return "train" if number >= 0 else None

    def read(split: str) -> Iterator[Pair]:
        pairs = itertools.chain.from_iterable(read_file() for _, read_file in files)
        return (pair for pair in pairs if split == split_of(hash_of(pair)))

    used = {"train", *map(split_of, np.unique(np.concatenate(parts)).tolist())}
    return Corpus(name, tuple(split for split in ("train", "val", "test") if split in used), read)


def read_lines(path: str | Path) -> Iterator[str]:
    """Yields the lines of a file, UTF-8 or with a byte order mark UTF-16, also `.gz`."""
    path = Path(path)
    with read_failure(path), open_binary(path) as file:
        lines = decode_lines(file, path)
        for line in itertools.islice(lines, 2):
            if "\0" in line:
                raise InputError(
                    f"{path} has zero bytes: it must be UTF-8, or UTF-16 with a byte order mark"
                )
            yield line
        yield from lines


def _tfds(data: str, wanted: Wanted) -> Corpus:
    # These imports take seconds.
    import tensorflow as tf
    import tensorflow_datasets as tfds

    name = data.removeprefix("tfds:")
    unknown = f"TensorFlow Datasets has no {name!r}, as it has wmt14_translate/de-en"
    with as_input_error(unknown, ValueError, AssertionError, TypeError):
        builder = tfds.builder(name)
    languages = list(builder.info.features or {})
    source, target = wanted.names
    for language in wanted.names:
        if language not in languages:
            raise OtherLanguagesError(
                f"{data} holds {', '.join(languages)}. Received: {language!r}"
            )
    with as_input_error(f"{data} cannot be prepared"):  # the network, the disk, the archive, ...
        builder.download_and_prepare()  # does nothing the second time

    def read(split: str) -> Iterator[Pair]:
        unreadable = f"{data}: the split {split!r} cannot be read"
        with as_input_error(unreadable, tf.errors.OpError, OSError, UnicodeDecodeError):
            for example in builder.as_dataset(split=split).as_numpy_iterator():
                yield Pair(example[source].decode(), example[target].decode())

    return Corpus(data, tuple(builder.info.splits), read)
