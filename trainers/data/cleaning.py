"""Cleaning: which training pairs are kept, as token ids, and why the others are dropped."""

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import regex
import tensorflow as tf

from keras_transformer.config import BOS_ID, UNK_ID
from keras_transformer.tokenizers import Tokenizer, with_end
from keras_transformer.tokenizers.sides import utf8
from keras_transformer.trainers.data.augmentation import Change, changed_copies
from keras_transformer.trainers.data.corpora import Pair
from keras_transformer.trainers.data.prepared import Counts
from keras_transformer.trainers.settings import TrainSettings, script_letters

PAIRS_PER_CALL = 2_000
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
SYNTHETIC = "\ufdd0"  # before a source that a model wrote, in what is hashed: in no text

Progress = Callable[[int], None]


class Cleaner:
    """Tokenizes pairs, and drops some."""

    def __init__(self, tokenizer: Tokenizer, settings: TrainSettings, drops_unknown: bool) -> None:
        self.tokenizer, self.settings = tokenizer, settings
        self.language = settings.pairs[0][0]  # of sources that name none
        self.scripts = (
            script_letters(settings.source_script),
            script_letters(settings.target_script),
        )
        self.drops_unknown = drops_unknown
        self.first_slot: int | None = getattr(tokenizer, "first_slot", None)
        # Traced once: the tokenizer's op is made anew for each graph, which takes long.
        texts, flags = tf.TensorSpec([None], tf.string), tf.TensorSpec([None], tf.bool)
        self._tokenize = tf.function(self._read, [texts, texts, flags], autograph=False)

    def clean(
        self,
        pairs: Sequence[Pair],
        is_repeated: np.ndarray,
        first: int,
        rates: Mapping[Change, float],
        progress: Progress,
    ) -> tuple[np.ndarray, Counts]:
        """Returns the content of a shard: the pairs, numbered from `first` on, then copies."""
        parts: list[tuple[np.ndarray, np.ndarray]] = []  # lengths and ids
        dropped: dict[str, list[Pair]] = {}
        num_copies: Counter[str] = Counter()
        num_protected = 0
        for start in range(0, len(pairs), PAIRS_PER_CALL):
            chunk = pairs[start : start + PAIRS_PER_CALL]
            reasons, part = self._kept(chunk, is_repeated[start : start + len(chunk)])
            parts.append(part)
            num_protected += self._count_protected(*part)
            for row in np.flatnonzero(reasons).tolist():
                dropped.setdefault(str(reasons[row]), []).append(chunk[row])
            copies = [
                copy
                for row in np.flatnonzero(reasons == "").tolist()
                for copy in changed_copies(chunk[row], first + start + row, rates, self.language)
            ]
            if copies:
                kinds, changed = zip(*copies, strict=True)
                reasons, part = self._kept(changed, np.zeros(len(changed), bool))
                parts.append(part)
                num_copies.update(itertools.compress(kinds, reasons == ""))
            progress(len(chunk))
        lengths, ids = zip(*parts, strict=True)
        values = np.concatenate([*lengths, *ids])
        dtype = np.uint16 if values.max(initial=0) < 2**16 else np.int32
        return values.astype(dtype), Counts(
            kept=len(pairs) - sum(map(len, dropped.values())) + num_copies.total(),
            protected=None if self.first_slot is None else num_protected,
            copies=num_copies,
            dropped={reason: len(some) for reason, some in dropped.items()},
            examples={
                reason: [
                    (_cut(pair.tagged_source), _cut(pair.target)) for pair in some[:NUM_EXAMPLES]
                ]
                for reason, some in dropped.items()
            },
        )

    def _read(
        self, sources: tf.Tensor, targets: tf.Tensor, is_synthetic: tf.Tensor
    ) -> tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor]:
        """Returns ids of both sides, [B, (ids)], their numbers, [B, 2], and whether sides agree."""
        wrapper = self.tokenizer.wrapper
        sources, context = wrapper.read(utf8(sources))
        targets, agree = wrapper.read_targets(context, utf8(targets))
        # What a model wrote begins with the start symbol, which no other source has.
        source = self.tokenizer.source.tokenize(sources)
        is_marked = is_synthetic & (source.row_lengths() > 0)
        mark = tf.ragged.boolean_mask(tf.fill([tf.size(sources), 1], BOS_ID), is_marked[:, None])
        source = tf.concat([mark, self.tokenizer.delimit(source)], axis=1)
        target = with_end(self.tokenizer.target.tokenize(targets))
        sizes = [side.row_lengths() for side in (source, target)]
        return tf.concat([source, target], axis=1), tf.stack(sizes, axis=1), agree

    def _kept(
        self, pairs: Sequence[Pair], is_repeated: np.ndarray
    ) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
        """Returns why each pair is dropped, or "", and the lengths and the ids of the others."""
        tokens, num_ids, agree = self._tokenize(
            [pair.tagged_source for pair in pairs],
            [pair.target for pair in pairs],
            [pair.is_synthetic for pair in pairs],
        )
        ids, sizes = tokens.flat_values.numpy(), num_ids.numpy()
        lengths = sizes - [self.tokenizer.num_delimiters, 1]
        is_unknown = np.zeros(len(pairs), bool)
        if self.drops_unknown:
            is_unknown = tf.reduce_any(tokens == UNK_ID, axis=1).numpy()
        shorter, longer = lengths.min(axis=1), lengths.max(axis=1)
        ratio = self.settings.max_length_ratio
        applies = {  # the first one counts
            "empty": shorter == 0,
            "too_long": sizes.max(axis=1) > self.settings.max_length,
            "length_ratio": longer > (np.inf if ratio is None else ratio) * np.maximum(shorter, 1),
            "script": np.array([not all(map(_is_of, x.sides, self.scripts)) for x in pairs]),
            "duplicate": is_repeated,
            "unknown": is_unknown,
            "protected": ~agree.numpy(),
        }
        reasons = np.select(list(applies.values()), list(applies), default="")
        is_kept = reasons == ""
        kept_ids = ids[np.repeat(is_kept, sizes.sum(axis=1))]
        return reasons, (sizes[is_kept].ravel(), kept_ids)

    def _count_protected(self, lengths: np.ndarray, ids: np.ndarray) -> int:
        if self.first_slot is None or not len(ids):
            return 0
        sizes = lengths.reshape(-1, 2).sum(axis=1)
        largest = np.maximum.reduceat(ids, sizes.cumsum() - sizes)
        return int((largest >= self.first_slot).sum())


class SeenPairs:
    """Remembers the pairs of all shards so far, by 8 bytes of each."""

    def __init__(self) -> None:
        self._hashes = np.zeros(0, np.uint64)  # sorted

    def mark_repeated(self, pairs: Sequence[Pair]) -> np.ndarray:
        """Returns which pairs are equal to earlier ones, and remembers the others."""
        digests = [
            hashlib.blake2b(hashed_text(pair, "\0").encode(), digest_size=8).digest()
            for pair in pairs
        ]
        seen, hashes = self._hashes, np.frombuffer(b"".join(digests), np.uint64)
        is_first = np.zeros(len(pairs), bool)
        is_first[np.unique(hashes, return_index=True)[1]] = True
        # Not `isin` and `union1d`, which sort all hashes so far again.
        place = np.searchsorted(seen, hashes)
        is_seen = np.zeros_like(is_first)
        if seen.size:
            is_seen = np.append(seen, seen[:1])[place] == hashes
        new = np.unique(hashes[~is_seen])
        self._hashes = np.insert(seen, np.searchsorted(seen, new), new)
        return ~is_first | is_seen


def hashed_text(pair: Pair, separator: str) -> str:
    """Returns the text that stands for a pair in a hash."""
    return f"{SYNTHETIC * pair.is_synthetic}{pair.tagged_source}{separator}{pair.target}"


def _cut(text: str) -> str:
    return text if len(text) <= EXAMPLE_LENGTH else f"{text[: EXAMPLE_LENGTH - 1]}…"


def _is_of(text: str, letters: "regex.Pattern[str] | None") -> bool:
    """Returns whether at least half of a text's letters are of a script, if one is given."""
    return letters is None or 2 * len(letters.findall(text)) >= len(regex.findall(r"\p{L}", text))
