"""Several pairs of languages in one corpus."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np

LanguagePair = tuple[str, str]  # of source and target
_Item = TypeVar("_Item")

NAME = r"[^\s<>:,]+"


def split_names(side: str) -> list[str]:
    """Returns the names of a setting such as "de,fr"."""
    return [*dict.fromkeys(filter(None, map(str.strip, side.split(","))))]


def is_name(text: str) -> bool:
    """Returns whether a text may be the name of a language."""
    return re.fullmatch(NAME, text) is not None


def pairs_of(source: str, target: str) -> list[LanguagePair]:
    """Returns the pairs of the languages that settings name, and none of a language with itself."""
    pairs = ((one, other) for one in split_names(source) for other in split_names(target))
    return [(one, other) for one, other in pairs if one != other]


def rates_of(counts: Sequence[int], temperature: float) -> np.ndarray:
    """Returns how often to draw each text of parts of a corpus, float [parts].

    The shares of the parts are proportional to (their sizes) ** (1 / temperature); the number of
    texts stays.
    """
    sizes = np.asarray(counts, float)
    shares = sizes ** (1 / temperature)
    return shares / shares.sum() * sizes.sum() / sizes


def drawn(items: Iterable[_Item], rate: float) -> Iterator[_Item]:
    """Yields items so often on average, spread evenly."""
    for number, item in enumerate(items):
        yield from [item] * (int((number + 1) * rate) - int(number * rate))
