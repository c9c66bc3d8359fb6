"""Lines that are shifted against each other are seen by their lengths."""

import random

import pytest

from keras_transformer.trainers.data.alignment import find_shift
from keras_transformer.trainers.data.corpora import Pair

NUMBERS = random.Random(7)
SOURCES = ["x" * NUMBERS.randrange(3, 120) for _ in range(1_700)]
TARGETS = [source * 2 for source in SOURCES]


def shift_of(sources, targets):
    return find_shift(map(Pair, sources, targets))


@pytest.mark.parametrize(
    ("sources", "targets", "expected"),
    [
        (SOURCES, TARGETS, None),
        (SOURCES, ["a headline", *TARGETS], (0, 1)),
        (SOURCES, TARGETS[3:], (0, -3)),
        (SOURCES[8:], TARGETS, (0, 8)),
        (SOURCES, TARGETS[:1020] + TARGETS[1021:], (1000, -1)),
        (SOURCES[:120], TARGETS[1:], (0, -1)),
        (SOURCES[:99], TARGETS[1:], None),  # too few
        (SOURCES, TARGETS[20:], None),  # too far away
        (["a" * 9] * 900, ["b" * 9] * 900, None),  # all are equal
        (sorted(SOURCES), sorted(TARGETS), None),  # so are neighbours
    ],
)
def test_find_shift(sources, targets, expected):
    assert shift_of(sources, targets) == expected


def test_only_pairs_before_the_shift_are_read():
    pairs = (Pair(source, target) for source, target in zip(SOURCES, TARGETS[1:], strict=False))
    assert find_shift(pairs) == (0, -1)
    assert sum(1 for _ in pairs) == 1_699 - 500
