"""A prepared corpus: token ids on disk, as `prepare` writes them.

    CORPUS/
      corpus.json               what it was made from, and the tokenizer's fingerprint
      tokenizer.model           of both languages
      train-00000.array_record  a record a pair: int32, the number of source tokens, these, then
                                the target's, each side with its EOS_ID
      train-00000.lengths.npy   both lengths, uint16 [rows, 2]
      train-00000.json          what the shard was made from, and what was dropped
      ...
      train.json                the split's shards, and the report of what was dropped
      val-*, val.json           the same for the validation split
      val.pairs.json            its text, for BLEU

Rows are numbered through all shards of a split.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from array_record.python.array_record_data_source import ArrayRecordDataSource

from keras_transformer.errors import InputError, one_line
from keras_transformer.files import sha256, write_whole
from keras_transformer.run import Run
from keras_transformer.tokenizer import Tokenizer
from keras_transformer.trainers.grammar import Pair
from keras_transformer.trainers.recipes import TrainSettings

FORMAT = "keras-transformer corpus"
FORMAT_VERSION = 1
UNFINISHED = "What was finished before is whole, and a new call goes on there"  # of a full disk
CLEANING = (
    "max_length",
    "max_length_ratio",
    "drop_duplicates",
    "source_script",
    "target_script",
)
# The settings that decide what a prepared corpus holds.
SETTINGS = ("source", "target", "tokenizer", "vocab_size", "lowercase", *CLEANING)
CORPUS_FIELDS = {"made_from": dict, "tokenizer_sha256": str, "has_validation": bool}
SPLIT_FIELDS = {"shards": int, "kept": int, "dropped": dict, "examples": dict}
SHARD_FIELDS = {"made_from": dict, "kept": int, "bytes": int, "dropped": dict, "examples": dict}


class Report(NamedTuple):
    """What became of a split's pairs.

    Attributes:
        kept: pairs to train on.
        dropped: pairs dropped, by reason; see `preparation.REASONS`.
        examples: some of them, by reason.
    """

    kept: int
    dropped: dict[str, int]
    examples: dict[str, list[Pair]]

    def __str__(self) -> str:
        """Says it in one line."""
        reasons = ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in self.dropped.items())
        return f"{self.kept:,} pairs (dropped: {reasons or 'none'})"


class TokenizedPairs:
    """Token ids of a split on disk, read by row number; never wholly in memory.

    Args:
        folder: a prepared corpus.
        split: name of the split.

    Attributes:
        lengths: uint16 [rows, 2], tokens of both sides.
        damage: the error that the last failed `read` raised; None if there is none.

    Raises:
        InputError: if the split is not there, or a shard is damaged or of another tokenizer.
    """

    def __init__(self, folder: Path, split: str) -> None:
        manifest = _read_split(folder, split)
        tokenizer_sha256 = sha256((folder / "tokenizer.model").read_bytes())
        lengths, paths = [], []
        for index in range(manifest["shards"]):
            path = shard_path(folder, split, index)
            shard = read_shard(path)
            if shard is None or not path.is_file():
                raise InputError(f"{path} is missing: {_again(folder)}")
            if shard["made_from"].get("tokenizer_sha256") != tokenizer_sha256:
                raise InputError(
                    f"{path} was tokenised by another tokenizer than {folder}/tokenizer.model: "
                    f"{_again(folder)}"
                )
            size = path.stat().st_size
            if size != shard["bytes"]:
                raise InputError(
                    f"{path} is damaged, {size} bytes instead of {shard['bytes']}: {_again(folder)}"
                )
            if shard["kept"]:
                lengths.append(_read_lengths(path, shard["kept"]))
                paths.append(str(path))
        if not paths:
            raise InputError(f"{folder / split}.json is damaged: it names no pair")
        self.damage: InputError | None = None
        self.lengths: np.ndarray = np.concatenate(lengths)
        self._paths = paths
        try:
            self._records = ArrayRecordDataSource(paths)
        except RuntimeError as error:
            raise _damage_of(paths, error) from error
        if len(self._records) != len(self.lengths):
            raise InputError(
                f"{folder / split}-*.array_record hold {len(self._records)} pairs instead of "
                f"{len(self.lengths)}: {_again(folder)}"
            )

    def read(self, rows: Sequence[int]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns the (source, target) token ids of rows, each with its `EOS_ID`.

        Raises:
            InputError: if a shard is damaged or another's: checksums and lengths are checked.
        """
        if not rows:
            return []
        try:
            records = self._records.__getitems__(rows)
        except RuntimeError as error:
            self.damage = _damage_of(self._paths, error)
            raise self.damage from error
        ids = [np.frombuffer(record, np.int32) for record in records]
        lengths = np.array([(each[0], len(each) - 1 - each[0]) for each in ids])
        if (lengths != self.lengths[rows]).any():
            folder = Path(self._paths[0]).parent
            self.damage = InputError(
                f"{folder} holds pairs of other lengths than it says: {_again(folder)}"
            )
            raise self.damage
        return [(each[1 : 1 + each[0]], each[1 + each[0] :]) for each in ids]


class PreparedCorpus(NamedTuple):
    """A corpus ready to train on.

    Attributes:
        tokenizer: of both languages.
        training: the training split.
        validation: the validation split; None if there is none.
        validation_pairs: its text.
    """

    tokenizer: Tokenizer
    training: TokenizedPairs
    validation: TokenizedPairs | None
    validation_pairs: list[Pair]


def is_prepared(folder: str | Path) -> bool:
    """Whether a folder is one that `prepare` wrote to."""
    return (Path(folder) / "corpus.json").is_file()


def is_whole(folder: Path) -> bool:
    """Whether `prepare` has come to its end: the training split is the last that it writes."""
    return is_prepared(folder) and (folder / "train.json").is_file()


def corpus_folder(run: Run) -> Path:
    """Returns where the corpus of a run is: in its directory, or a prepared one, if it is that."""
    own = run.path / "corpus"
    # From here, there may be another one at the second, or none; the first may be unfinished.
    for folder in (own, Path(run.settings.get("data") or own)):
        with suppress(OSError, InputError):
            is_its = _read_manifest(folder)["tokenizer_sha256"] == run.tokenizer_sha256
            if is_its and is_whole(folder):
                return folder
    return own


def open_prepared(folder: str | Path, settings: TrainSettings | None = None) -> PreparedCorpus:
    """Opens what `prepare` wrote.

    Args:
        folder: the folder.
        settings: what it must have been made with; None for anything.

    Raises:
        InputError: if it is not whole, damaged, or made with other settings.
    """
    folder = Path(folder)
    if settings is not None:
        check_settings(folder, {name: getattr(settings, name) for name in SETTINGS})
    tokenizer, validation = load_tokenizer(folder), None
    pairs = read_validation_pairs(folder)
    if _read_manifest(folder)["has_validation"]:
        validation = TokenizedPairs(folder, "val")
        if not pairs:
            raise InputError(f"{folder}/val.pairs.json is missing")
    return PreparedCorpus(tokenizer, TokenizedPairs(folder, "train"), validation, pairs)


def read_validation_pairs(folder: str | Path) -> list[Pair]:
    """Reads the text of the validation pairs; none where there is none."""
    path = Path(folder) / "val.pairs.json"
    try:
        return [Pair(source, target) for source, target in _read_json(path) or []]
    except (TypeError, ValueError) as error:
        raise InputError(f"{path} is damaged") from error


def read_report(folder: str | Path, split: str = "train") -> Report:
    """Reads what became of a split's pairs."""
    manifest = _read_split(Path(folder), split)
    examples = {
        reason: [Pair(*pair) for pair in pairs] for reason, pairs in manifest["examples"].items()
    }
    return Report(manifest["kept"], manifest["dropped"], examples)


def check_settings(
    folder: Path, wanted: dict[str, Any], has_validation: bool | None = None
) -> None:
    """Raises `InputError` if a corpus was prepared with other settings than these.

    Args:
        folder: the corpus.
        wanted: the settings.
        has_validation: whether there is a validation split; None for either.
    """
    manifest = _read_manifest(folder)
    if has_validation not in (None, manifest["has_validation"]):
        then, now = ("without", "with") if has_validation else ("with", "without")
        raise InputError(
            f"{folder} was prepared {then} a validation split, and its text is {now} one now: "
            "prepare it in a new folder"
        )
    made_from = manifest["made_from"]
    defaults = TrainSettings(data="").to_dict()  # of settings that are newer than the corpus
    for name, value in wanted.items():
        made_with = made_from.get(name, defaults.get(name))
        if made_with != value:
            raise InputError(
                f"{folder} was prepared with {name}={made_with!r}. Received: {name}={value!r}"
            )


def load_tokenizer(folder: Path) -> Tokenizer:
    """Reads the tokenizer that a corpus was prepared with; `InputError` if it is another."""
    tokenizer = Tokenizer.load(folder / "tokenizer.model")
    if tokenizer.fingerprint != _read_manifest(folder)["tokenizer_sha256"]:
        raise InputError(
            f"{folder}/tokenizer.model is not the tokenizer that {folder} was "
            "prepared with: its SHA-256 is not the one in corpus.json"
        )
    return tokenizer


def shard_path(folder: Path, split: str, index: int) -> Path:
    """Returns where a shard of a split lies."""
    return folder / f"{split}-{index:05d}.array_record"


def _again(folder: Path) -> str:
    return f"delete {folder} and prepare it again"


def _damage_of(paths: Sequence[str], error: Exception) -> InputError:
    """Names the damaged one of some shards; it has to read them, as the error names none."""
    folder = Path(paths[0]).parent
    for path in paths:
        try:
            shard = ArrayRecordDataSource([path])
            shard.__getitems__(range(len(shard)))
        except RuntimeError as found:
            return InputError(f"{path} is damaged ({one_line(found)}): {_again(folder)}")
    # A file system that fails once is no reason to delete anything.
    return InputError(f"{folder} could not be read: {one_line(error)}")


def _read_lengths(path: Path, rows: int) -> np.ndarray:
    file = path.with_suffix(".lengths.npy")
    try:
        lengths: np.ndarray = np.load(file)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{file} is missing or damaged: {_again(path.parent)}") from error
    if lengths.shape != (rows, 2):
        raise InputError(
            f"{file} is damaged, of shape {lengths.shape} instead of {(rows, 2)}: "
            f"{_again(path.parent)}"
        )
    return lengths


def _read_manifest(folder: Path) -> dict[str, Any]:
    """Reads what a prepared corpus was made from."""
    path = folder / "corpus.json"
    manifest = _read_object(path) or {}
    found = (manifest.get("format"), manifest.get("format_version"))
    if found != (FORMAT, FORMAT_VERSION):
        raise InputError(
            f"{path} must be of the format {(FORMAT, FORMAT_VERSION)}. Received: {found}"
        )
    return _check_fields(path, manifest, CORPUS_FIELDS)


def _read_split(folder: Path, split: str) -> dict[str, Any]:
    """Reads what a split consists of."""
    path = folder / f"{split}.json"
    manifest = _read_object(path)
    if manifest is None:
        raise InputError(f"{folder} is no whole corpus: prepare it again, and it goes on")
    return _check_fields(path, manifest, SPLIT_FIELDS)


def read_shard(path: Path) -> dict[str, Any] | None:
    """Reads what a shard holds; None if it is not whole."""
    file = path.with_suffix(".json")
    shard = _read_object(file)
    return None if shard is None else _check_fields(file, shard, SHARD_FIELDS)


def _read_object(path: Path) -> dict[str, Any] | None:
    """Reads a JSON object; None if there is no file."""
    values = _read_json(path)
    if values is not None and not isinstance(values, dict):
        raise InputError(f"{path} is damaged: it must be a JSON object")
    return values


def _check_fields(path: Path, values: dict[str, Any], fields: Mapping[str, type]) -> dict[str, Any]:
    """Returns the values of a file if these are among them."""
    for name, expected in fields.items():
        if type(values.get(name)) is not expected:
            raise InputError(f"{path} is damaged: its {name} is missing or of a wrong type")
    return values


def _read_json(path: Path) -> Any:
    """Reads a file that `write_json` wrote; None if there is none."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is damaged") from error


def write_json(path: Path, values: Any) -> None:
    """Writes a JSON file, whole or not at all."""
    write_whole(path, json.dumps(values, ensure_ascii=False).encode(), UNFINISHED)
