"""A tokenizer whose protected strings come back as they were (`wrapper.py`)."""

import base64
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

import tensorflow as tf

from keras_transformer.config import PAD_ID
from keras_transformer.errors import InputError
from keras_transformer.protection.patterns import check, pattern_of
from keras_transformer.protection.wrapper import NUM_SLOTS, SLOTS, Protection
from keras_transformer.tokenizers.base import Tokenizer
from keras_transformer.tokenizers.learning import USER_DEFINED, add_languages, parse_sentencepiece
from keras_transformer.tokenizers.sides import utf8
from keras_transformer.tokenizers.subword import (
    SentencePieceSide,
    SentencePieceTokenizer,
    sentencepiece_sides,
)
from keras_transformer.tokenizers.wrappers import Visible, Wrapper

HEADER = b"# protected\n"  # of its file
LEAD_BYTE = "<0xF4>"  # begins the UTF-8 of slots, and of no other characters that Unicode assigns

Pairs = Iterable[tuple[str, str]]


class SlotSide(SentencePieceSide):
    """Subwords of which the last `NUM_SLOTS` are slots."""

    def sentencepiece_model(self) -> bytes:
        raise InputError("Other engines cannot translate with protected strings")

    def spellings(self) -> list[bytes]:
        lead = bytes.fromhex(LEAD_BYTE[3:5])  # bytes make no slot
        return [b"" if spelling == lead else spelling for spelling in super().spellings()]

    def detokenize(self, ids: tf.Tensor) -> tf.Tensor:
        if self.first_byte is not None:  # bytes make no slot
            ids = tf.where(ids == self.first_byte + int(LEAD_BYTE[3:5], 16), PAD_ID, ids)
        return super().detokenize(ids)

    def pieces(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the pieces of ids; a slot is its number in double brackets, from 1."""
        number = ids - (self.vocab_size - NUM_SLOTS) + 1
        name = tf.strings.join(["⟦", tf.strings.as_string(number), "⟧"])
        return tf.where(number < 1, super().pieces(ids), name)


class ProtectingTokenizer(Tokenizer):
    """Subwords by SentencePiece, and protected strings; its file is a header, then JSON."""

    def __init__(self, model: bytes) -> None:
        try:
            content = json.loads(model.removeprefix(HEADER))
            self._sentencepiece = base64.b64decode(content["sentencepiece"])
            self.protect = list(content["protect"])
            self.is_free: bool = content["free"]
            self._pattern: str = content["pattern"]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError("The tokenizer is damaged") from error
        super().__init__(model, *sentencepiece_sides(self._sentencepiece, SlotSide))
        pieces = [piece.piece for piece in parse_sentencepiece(self._sentencepiece).pieces]
        if tuple(pieces[-NUM_SLOTS:]) != SLOTS:
            raise InputError("The tokenizer is damaged")
        self._protection = Protection(self._pattern, self.source.spellings(), self.is_free)

    @property
    def first_slot(self) -> int:
        """The id of the first slot."""
        return self.vocab_size - NUM_SLOTS

    @property
    def wrappers(self) -> Sequence[Wrapper]:
        """Protection takes the place of `Visible`: a protected string keeps all its characters."""
        rest = [wrapper for wrapper in super().wrappers if not isinstance(wrapper, Visible)]
        return [self._protection, *rest]

    def with_languages(self, sources: Sequence[str], targets: Sequence[str]) -> Self:
        model = add_languages(self._sentencepiece, sources, targets)
        return self._from_parts(model, self.protect, self._pattern, self.is_free)

    @classmethod
    def learn(
        cls,
        pairs: Callable[[], Pairs],
        vocab_size: int,
        protect: Sequence[str],
        free: bool = False,
        **options: Any,
    ) -> Self:
        """Learns subwords from training pairs, which `pairs` returns, without protected strings.

        They are found by `protect`, names of sets and regular expressions. A `free` search may
        leave strings out, and repeat them. `options` are of `SentencePieceTokenizer.train`.
        """
        check(protect)
        pattern = pattern_of(protect, pairs())
        slotted, same = itertools.tee(_slotted(pairs(), Protection(pattern, (), free)))
        sources, targets = (pair[0] for pair in slotted), (pair[1] for pair in same)
        tokenizer = SentencePieceTokenizer.train(
            sources, vocab_size, targets=targets, symbols=SLOTS, **options
        )
        learned = cls._from_parts(tokenizer.model, protect, pattern, free)
        return learned.of_languages(tokenizer.languages)

    @classmethod
    def extend(
        cls, tokenizer: Tokenizer, pairs: Pairs, protect: Sequence[str], free: bool = False
    ) -> Self:
        """Adds slots after the ids of a tokenizer, if it does not protect the same already."""
        check(protect)
        if isinstance(tokenizer, cls):
            if (list(tokenizer.protect), tokenizer.is_free) == (list(protect), free):
                return tokenizer
            raise InputError(
                f"`protect` must be that of `init_from`, {list(tokenizer.protect)}, and "
                f"`protect_free` too. Received: {list(protect)}, {free}"
            )
        if type(tokenizer) is not SentencePieceTokenizer:
            raise InputError(
                "`protect` needs a run with a tokenizer of SentencePiece. "
                f"Received: a {type(tokenizer).__name__}"
            )
        message = parse_sentencepiece(tokenizer.model)
        for slot in SLOTS:
            message.pieces.add(piece=slot, type=USER_DEFINED)
        model = message.SerializeToString()
        return cls._from_parts(model, protect, pattern_of(protect, pairs), free)

    @classmethod
    def _from_parts(
        cls, sentencepiece: bytes, protect: Sequence[str], pattern: str, free: bool
    ) -> Self:
        content = {
            "sentencepiece": base64.b64encode(sentencepiece).decode(),
            "protect": list(protect),
            "pattern": pattern,
            "free": free,
        }
        return cls(HEADER + json.dumps(content).encode())


def _slotted(pairs: Pairs, protection: Protection) -> Iterator[tuple[str, str]]:
    """Yields pairs with slots."""
    iterator = iter(pairs)
    while batch := list(itertools.islice(iterator, 2_000)):
        sources, targets = (
            utf8(tf.constant([text.encode(errors="replace") for text in side]))
            for side in zip(*batch, strict=True)
        )
        sources, context = protection.read(sources)
        targets, _ = protection.read_targets(context, targets)
        sides = ([text.decode() for text in side.numpy()] for side in (sources, targets))
        yield from zip(*sides, strict=True)
