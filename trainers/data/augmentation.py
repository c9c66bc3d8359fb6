"""Training pairs in changed form: what people type, and clean training text does not have.

Some pairs are added once more, changed (as OpusTrainer does, arXiv:2311.14838). Words keep what is
not a letter, so placeholders stay. Capitals and titles need no pairs: tokenizers read them.
"""

# ruff: noqa: RUF001 -- all scripts

import functools
import random
import sys
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

import regex

from keras_transformer.languages import LANGUAGE_TAG, TURKIC, language_of, lower_text
from keras_transformer.trainers.data.corpora import Pair

if TYPE_CHECKING:
    from keras_transformer.tokenizers import Tokenizer

Change = Literal["lower", "end", "quotes", "list", "symbols", "typing"]
WORD = regex.compile(r"(?<!\S)\p{L}[\p{L}\p{M}'’-]*+(?=[.,;:!?…]*(?!\S))")
# In these scripts, what stands between spaces is no word, and a letter may be one.
UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]")
TAG = regex.compile(rf"(?:\s*{LANGUAGE_TAG}\s*)?")
# Words, and what a program reads.
WORD_OR_CODE = regex.compile(r"(<[^<>]*>|&\w+;|\{[^{}]*\}|[%$]\S+|\S+@\S+|\w+://\S+)|\p{L}+")
FINAL = regex.compile(r"(?<=\w)[.!?…。！？؟।]+$")
QUOTES = ("“”", "„“", "«»", "»«", "‹›", "‘’", "‚‘", '""', "''", "「」", "『』", "《》", "()", "[]")
LIST_MARKS = ["•", "-", "–", "—", "*", "·", "◦", "▪", "‣", "→", "✓", "1.", "2)", "(3)", "a)"]
COMMON_SHARE = 0.5  # of list marks and emoji; the others are any marks of Unicode


@functools.cache
def _marks() -> tuple[list[str], list[str]]:
    """Returns symbols and punctuation of all languages that NFKC keeps, and the emoji of them."""
    marks = [
        mark
        for mark in map(chr, range(0xA1, sys.maxunicode + 1))
        if unicodedata.category(mark) in ("So", "Sm", "Po", "Pd")
        and unicodedata.normalize("NFKC", mark) == mark
    ]
    return marks, [mark for mark in marks if 0x1F300 <= ord(mark) <= 0x1FAFF]


def _in_capitals(text: str, language: str) -> str:
    return (text.replace("i", "İ") if language_of(language) in TURKIC else text).upper()


def _lower(chance: random.Random, pair: Pair, language: str) -> Pair:
    lowered = WORD.sub(lambda word: lower_text(word[0], language), pair.source)
    return pair._replace(source=lowered)


def _without_end(chance: random.Random, pair: Pair, language: str) -> Pair:
    """Takes the final punctuation off both sides."""
    return pair.map(partial(FINAL.sub, "")) if all(map(FINAL.search, pair.sides)) else pair


def _quoted(chance: random.Random, pair: Pair, language: str) -> Pair:
    marks = chance.choice(QUOTES)
    return pair.map(lambda side: f"{marks[0]}{side}{marks[1]}")


def _listed(chance: random.Random, pair: Pair, language: str) -> Pair:
    marks, _ = _marks()
    mark = chance.choice(LIST_MARKS if chance.random() < COMMON_SHARE else marks)
    return pair.map(lambda side: f"{mark} {side}")


def _with_symbol(chance: random.Random, pair: Pair, language: str) -> Pair:
    """Adds an emoji or another symbol before or after both sides."""
    marks, emoji = _marks()
    mark = chance.choice(emoji if chance.random() < COMMON_SHARE else marks)
    is_first = chance.random() < 1 / 4
    return pair.map(lambda side: f"{mark} {side}" if is_first else f"{side} {mark}")


def _mistyped(share: float, chance: random.Random, pair: Pair, language: str) -> Pair:
    """Makes errors in a share of the words of the source."""
    letters = regex.findall(r"\p{L}", pair.source)  # at least one: a word begins with it

    def changed(word: regex.Match[str]) -> str:
        text = word[0]
        if len(text) < 3 or UNSPACED.search(text) or chance.random() >= share:
            return text
        place = chance.randrange(1, len(text))
        before, letter, after = text[:place], text[place], text[place + 1 :]
        return chance.choice(
            (
                f"{before[:-1]}{letter}{before[-1]}{after}",
                f"{before}{after}",
                f"{before}{letter}{letter}{after}",
                f"{before}{lower_text(chance.choice(letters), language)}{after}",
            )
        )

    return pair._replace(source=WORD.sub(changed, pair.source))


Changer = Callable[[random.Random, Pair, str], Pair]


class Kind(NamedTuple):
    """A way to change pairs."""

    rate: float  # share of the training pairs that are added once more in this form, by default
    change: Changer
    is_learned: bool  # with the vocabulary: rare marks would become pieces, instead of their bytes
    to_evaluate: Changer | None = None  # instead of `change`


KINDS: Mapping[Change, Kind] = {
    "lower": Kind(0.05, _lower, is_learned=True),
    "end": Kind(0.05, _without_end, is_learned=True),
    "quotes": Kind(0.06, _quoted, is_learned=True),
    "list": Kind(0.06, _listed, is_learned=False),
    "symbols": Kind(0.06, _with_symbol, is_learned=False),
    # A model that learns from many errors is evaluated with a usual number of them.
    "typing": Kind(
        0.4, partial(_mistyped, 0.3), is_learned=False, to_evaluate=partial(_mistyped, 0.15)
    ),
}
DEFAULT_RATES: Mapping[Change, float] = {name: kind.rate for name, kind in KINDS.items()}


def _changed(changer: Changer, chance: random.Random, pair: Pair, language: str) -> Pair:
    """Returns a changed pair; a tag of a language stays at the beginning."""
    tag = TAG.match(pair.source)[0]
    untagged = pair._replace(source=pair.source.removeprefix(tag))
    changed = changer(chance, untagged, language)
    return changed._replace(source=tag + changed.source)


def supported(rates: Mapping[Change, float], tokenizer: "Tokenizer") -> dict[Change, float]:
    """Drops the changes that a tokenizer undoes, and those that it has no tokens for."""
    useless: set[Change] = {"lower"} if tokenizer.lowercase else set()
    if tokenizer.target.first_byte is None:  # other marks than those of the text are unknown
        useless |= {"quotes", "list", "symbols"}
    return {kind: rate for kind, rate in rates.items() if kind not in useless}


def changed_copies(
    pair: Pair, number: int, rates: Mapping[Change, float], language: str = ""
) -> Iterator[tuple[Change, Pair]]:
    """Yields changed copies of a training pair; the same pair and number give the same copies."""
    if not rates:
        return
    language = pair.languages[0] if pair.languages else language
    chance = random.Random(number)  # takes 5 microseconds
    for name, kind in KINDS.items():
        is_chosen = chance.random() < rates.get(name, 0)
        if is_chosen and (changed := _changed(kind.change, chance, pair, language)) != pair:
            yield name, changed


def changed_in_all_ways(
    pairs: Sequence[Pair], languages: tuple[str, str] = ("", "")
) -> dict[str, list[Pair]]:
    """Returns pairs changed in each way, to evaluate a model: also IN CAPITALS and As A Title."""
    source, target = languages

    def titled(pair: Pair) -> Pair:
        def with_capital(word: regex.Match[str]) -> str:
            return _in_capitals(word[0][0], source) + word[0][1:]

        return pair._replace(source=WORD.sub(with_capital, pair.source))

    def in_capitals(text: str, language: str) -> str:
        tag = TAG.match(text)[0]
        rest = text[len(tag) :]
        return tag + WORD_OR_CODE.sub(lambda m: m[1] or _in_capitals(m[0], language), rest)

    changed: dict[str, list[Pair]] = {
        "capitals": [
            p._replace(source=in_capitals(p.source, source), target=in_capitals(p.target, target))
            for p in pairs
        ],
        "title": list(map(titled, pairs)),
    }
    for name, kind in KINDS.items():
        change = kind.to_evaluate or kind.change
        changed[name] = [_changed(change, random.Random(n), p, source) for n, p in enumerate(pairs)]
    return changed
