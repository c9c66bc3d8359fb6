"""A prepared corpus: token ids on disk, as `prepare` writes them.

    CORPUS/
      corpus.json      a `CorpusManifest`: the settings, and what each shard holds
      tokenizer.model  of both languages
      train-00000.npy  a shard: the lengths of its pairs, two per pair, then the ids of the first
                       pair's source and target, of the second's, ..., each side with its EOS_ID
      ...
      val-00000.npy    the same for the validation split
      val.pairs.json   the validation split's text, for BLEU

Rows are numbered through all shards of a split. Numbers are uint16 where they fit.
"""

import hashlib
import json
import logging
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import pydantic

from keras_transformer.errors import InputError, require
from keras_transformer.files import check_file, write_atomically
from keras_transformer.records import settings_of
from keras_transformer.run import Run
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.trainers.data.corpora import Pair, is_prepared
from keras_transformer.trainers.data.languages import LanguagePair, pairs_of, rates_of
from keras_transformer.trainers.settings import DataSettings, TrainSettings

logger = logging.getLogger(__name__)

FEWEST_PROTECTED = 300  # pairs from which a model learns to place protected strings
CAN_CONTINUE = "Finished shards are kept, and a new call continues from them"


class Counts(pydantic.BaseModel):
    """What is left of some pairs."""

    kept: int = 0  # number of pairs, changed copies among them
    protected: int | None = None  # number of pairs with protected strings; None without `protect`
    copies: dict[str, int] = {}  # number of changed copies by kind, a key of `augmentation.KINDS`
    dropped: dict[str, int] = {}  # number of pairs by reason, a key of `cleaning.REASONS`
    examples: dict[str, list[tuple[str, str]]] = {}  # some of them, cut

    @classmethod
    def sum(cls, parts: Sequence["Counts"]) -> Self:
        protected = [part.protected for part in parts if part.protected is not None]
        return cls(
            kept=sum(part.kept for part in parts),
            protected=sum(protected) if protected else None,
            copies=sum((Counter(part.copies) for part in parts), Counter()),
            dropped=sum((Counter(part.dropped) for part in parts), Counter()),
            examples={key: some for part in parts[::-1] for key, some in part.examples.items()},
        )

    def log_protected(self) -> None:
        """Logs how many pairs have protected strings, and warns if they are too few."""
        if self.protected is None:
            return
        line = f"Protected strings: in {self.protected:,} training pairs"
        if self.protected >= FEWEST_PROTECTED:
            logger.info(line)
            return
        logger.warning(
            "%s: too few to learn where a translation has them. Add pairs with some, %d or more",
            *(line, FEWEST_PROTECTED),
        )

    def __str__(self) -> str:
        copies = f"; changed copies among them: {_listed(self.copies)}" if self.copies else ""
        return f"{self.kept:,} pairs (dropped: {_listed(self.dropped) or 'none'}{copies})"


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items())


class CorpusShard(Counts):
    """A file of token ids."""

    text_sha256: str  # of the text that it was made from
    sha256: str  # of the file
    languages: LanguagePair | None = None  # of a corpus of several pairs of languages


class Split(pydantic.BaseModel):
    """What was written of a split."""

    shards: list[CorpusShard] = []
    is_complete: bool = False

    @property
    def total(self) -> Counts:
        return Counts.sum(self.shards)

    @property
    def parts(self) -> dict[LanguagePair, Counts]:
        """What was written of each pair of languages; {} if there is one."""
        pairs = dict.fromkeys(shard.languages for shard in self.shards if shard.languages)
        return {
            pair: Counts.sum([shard for shard in self.shards if shard.languages == pair])
            for pair in pairs
        }


class CorpusManifest(pydantic.BaseModel):
    """The content of `corpus.json`, which says what else the folder of a prepared corpus holds."""

    folder: Path = pydantic.Field(default=Path(), exclude=True)
    format_version: Literal[4] = 4
    made_from: dict[str, Any]  # the values of `DataSettings`
    tokenizer_sha256: str
    train: Split = Split()
    val: Split | None  # None if the data has no validation split

    @classmethod
    def read(cls, folder: str | Path) -> Self:
        """Reads a manifest; `InputError` if it is missing or damaged."""
        path = Path(folder) / "corpus.json"
        try:
            manifest = cls.model_validate_json(path.read_bytes())
        except (OSError, pydantic.ValidationError) as error:
            raise _damaged(path) from error
        manifest.folder = path.parent
        return manifest

    def write(self) -> None:
        path = self.folder / "corpus.json"
        write_atomically(path, self.model_dump_json().encode(), CAN_CONTINUE)

    def settings(self, init_from: str | None = None) -> dict[str, Any]:
        """Returns the settings of the corpus, without those that the run `init_from` decides."""
        others = {"data", *(settings_of(DataSettings, "decided") if init_from else ())}
        return {name: value for name, value in self.made_from.items() if name not in others}

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Raises `InputError` if the corpus was prepared with other settings."""
        for name, value in settings.items():
            own = self.made_from.get(name, value)  # an older corpus has fewer settings
            require(
                own == value,
                f"{self.folder} was prepared with {name}={own!r}: give the same "
                "value or another folder",
                **{name: value},
            )

    @property
    def training_sha256(self) -> str:
        shards = "".join(shard.sha256 for shard in self.train.shards)
        return hashlib.sha256(shards.encode()).hexdigest()

    def check_shards(self, split: str) -> None:
        """Reads the files of a split; `InputError` if one is missing or damaged."""
        for index, shard in enumerate(getattr(self, split).shards):
            check_file(self.shard_path(split, index), shard.sha256, _advice(self.folder))

    def shard_path(self, split: str, index: int) -> Path:
        return self.folder / f"{split}-{index:05d}.npy"

    def tokenizer(self) -> Tokenizer:
        """Reads the tokenizer; `InputError` if it is missing or another one."""
        path = self.folder / "tokenizer.model"
        check_file(path, self.tokenizer_sha256, _advice(self.folder))
        languages = pairs_of(self.made_from["source"], self.made_from["target"])[0]
        return Tokenizer.load(path).of_languages(languages)


class StoredPairs:
    """Token ids of a split, memory-mapped and read by row number.

    `check_files` compares every byte with its hash, which reads gigabytes of a large corpus.
    """

    lengths: np.ndarray  # int32 [rows, 2], numbers of tokens of both sides, `EOS_ID` included

    def __init__(
        self,
        corpus: Path | CorpusManifest,
        split: Literal["train", "val"],
        check_files: bool = True,
    ) -> None:
        manifest = corpus if isinstance(corpus, CorpusManifest) else CorpusManifest.read(corpus)
        written: Split = getattr(manifest, split)
        if not written.is_complete:
            command = _preparation(manifest.folder)
            raise InputError(f"{manifest.folder} is not complete: to continue, {command}")
        if check_files:
            manifest.check_shards(split)
        lengths, starts = [], []
        self._ids: list[np.ndarray] = []
        for index, shard in enumerate(written.shards):
            values = _open_shard(manifest.shard_path(split, index))
            lengths.append(values[: 2 * shard.kept].reshape(-1, 2).astype(np.int32))
            sizes = lengths[-1].sum(axis=1)
            starts.append(sizes.cumsum() - sizes)
            self._ids.append(values[2 * shard.kept :])
        self.lengths = np.concatenate(lengths)
        self.shards = written.shards
        self._starts: np.ndarray = np.concatenate(starts)  # [rows], in the row's shard
        self._last_rows: np.ndarray = np.cumsum([shard.kept for shard in written.shards]) - 1

    def rates(self, temperature: float) -> np.ndarray | None:
        """Returns how often an epoch has each row on average, float [rows]; None if once."""
        counts: Counter[LanguagePair | None] = Counter()
        for shard in self.shards:
            counts[shard.languages] += shard.kept
        if temperature == 1 or len(counts) < 2:
            return None
        rates = dict(zip(counts, rates_of([*counts.values()], temperature), strict=True))
        rates_of_shards = [rates[shard.languages] for shard in self.shards]
        return np.repeat(rates_of_shards, [shard.kept for shard in self.shards])

    def read(self, rows: Sequence[int]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns the (source, target) token ids of rows, int32, each with its `EOS_ID`."""
        pairs = []
        shards = np.searchsorted(self._last_rows, rows)
        for shard, start, (source, target) in zip(
            shards, self._starts[rows].tolist(), self.lengths[rows].tolist(), strict=True
        ):
            ids = self._ids[shard][start : start + source + target].astype(np.int32)
            pairs.append((ids[:source], ids[source:]))
        return pairs


def _open_shard(path: Path) -> np.ndarray:
    try:
        # A plain view of the file: slicing NumPy's memmap class is slower.
        return np.asarray(np.load(path, mmap_mode="r"))
    except (FileNotFoundError, ValueError, EOFError) as error:
        raise _damaged(path) from error
    except OSError as error:  # such as too many open files
        raise InputError(f"Cannot read {path}: {error.strerror}") from error


class PreparedCorpus(NamedTuple):
    """A corpus ready to train on."""

    tokenizer: Tokenizer
    training: StoredPairs
    validation: StoredPairs | None
    validation_pairs: list[Pair]  # the text of `validation`
    training_sha256: str  # of all shards

    def first_validation_pairs(self, count: int) -> list[Pair]:
        """Returns the first pairs, so many of each of several languages."""
        seen: Counter[LanguagePair | None] = Counter()
        chosen = []
        for pair in self.validation_pairs:
            seen[pair.languages] += 1
            if seen[pair.languages] <= count:
                chosen.append(pair)
        return chosen

    @classmethod
    def of(cls, manifest: CorpusManifest, tokenizer: Tokenizer, check_files: bool) -> Self:
        """Opens the splits of a corpus as `StoredPairs`."""
        return cls(
            tokenizer,
            StoredPairs(manifest, "train", check_files),
            StoredPairs(manifest, "val", check_files) if manifest.val else None,
            read_validation_pairs(manifest.folder),
            manifest.training_sha256,
        )


def complete_corpus(folder: Path) -> CorpusManifest | None:
    """Returns the manifest of a complete corpus, or None."""
    manifest = CorpusManifest.read(folder) if is_prepared(folder) else None
    # The training split is written last.
    return manifest if manifest and manifest.train.is_complete else None


def corpus_folder(run: Run) -> Path:
    """Returns the folder of a run's corpus: in the run directory, or where `prepare` wrote it."""
    own = run.path / "corpus"
    data: Any = run.settings.get("data") or own
    for folder in (own, Path(data) if is_prepared(data) else own):
        # The run's own corpus may be incomplete; the other may be deleted or replaced.
        with suppress(InputError):
            manifest = CorpusManifest.read(folder)
            if manifest.train.is_complete and manifest.tokenizer_sha256 == run.tokenizer_sha256:
                return folder
    return own


def open_prepared(folder: str | Path, settings: TrainSettings | None = None) -> PreparedCorpus:
    """Opens what `prepare` wrote; `InputError` if it is damaged, or made with other settings."""
    manifest = CorpusManifest.read(folder)
    if settings is not None:
        names = manifest.settings(settings.init_from)  # the tokenizer is compared later
        manifest.check_settings({name: getattr(settings, name) for name in names})
    corpus = PreparedCorpus.of(manifest, manifest.tokenizer(), check_files=True)
    manifest.train.total.log_protected()
    return corpus


def write_validation_pairs(folder: Path, pairs: Iterable[Pair]) -> None:
    rows = [[*pair.sides, *(pair.languages or ())] for pair in pairs]
    content = json.dumps(rows, ensure_ascii=False).encode()
    write_atomically(folder / "val.pairs.json", content, CAN_CONTINUE)


def read_validation_pairs(folder: str | Path) -> list[Pair]:
    """Reads the text of the validation pairs; an empty list if there are none."""
    path = Path(folder) / "val.pairs.json"
    try:
        rows = json.loads(path.read_bytes())  # with languages in a corpus of several pairs
        return [
            Pair(source, target, (languages[0], languages[1]) if languages else None)
            for source, target, *languages in rows
        ]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, IndexError) as error:
        raise _damaged(path) from error


def _damaged(path: Path) -> InputError:
    return InputError(f"{path} is missing, damaged or of another version: {_advice(path.parent)}")


def _advice(folder: Path) -> str:
    return f"delete {folder}, then {_preparation(folder)}"


def _preparation(folder: Path) -> str:
    """Returns what to do to prepare a corpus, or the rest of it."""
    run = folder.parent
    if folder.name == "corpus" and (run / "run.json").is_file():
        words = ["train", "--run-dir", str(run), "--resume"]
        return f"run: keras-transformer {shlex.join(words)}"
    return "repeat the `prepare` command that made it"
