"""Training pairs in changed form."""

# ruff: noqa: RUF001 -- Turkish

import random
import unicodedata
from collections import Counter

import pytest

from keras_transformer.trainers.data.augmentation import (
    DEFAULT_RATES,
    KINDS,
    changed_copies,
    changed_in_all_ways,
)
from keras_transformer.trainers.data.corpora import Pair
from keras_transformer.trainers.recipes import change_recipe, load_recipe, recipe_names
from keras_transformer.trainers.settings import TrainSettings

PAIRS = [
    Pair("Don't open the iPhone's box, MARY!", "Öffne Marys Schachtel nicht!"),
    Pair("copy %s to {name}: 5 files", "%s nach {name} kopieren: 5"),
    Pair("猫が好き。", "Ich mag Katzen."),
]


@pytest.fixture(scope="module")
def changed():
    return changed_in_all_ways(PAIRS * 40)


def test_case_and_end(changed):
    assert [pair.source for pair in changed["title"][:3]] == [
        "Don't Open The IPhone's Box, MARY!",
        "Copy %s To {name}: 5 Files",
        "猫が好き。",
    ]
    assert changed["lower"][0].source == "don't open the iphone's box, mary!"
    for kind in ("title", "lower", "typing"):
        assert [pair.target for pair in changed[kind][:3]] == [pair.target for pair in PAIRS]
    assert changed["end"][:3] == [
        Pair("Don't open the iPhone's box, MARY", "Öffne Marys Schachtel nicht"),
        PAIRS[1],
        Pair("猫が好き", "Ich mag Katzen"),
    ]
    assert changed["capitals"][2] == Pair("猫が好き。", "ICH MAG KATZEN.")


def test_what_a_program_reads_stays():
    sides = ">>deu<< Copy %d <b>on</b> a&amp;b: http://a.b/c", "<b>ein</b> %d {a name} a@b.de"
    changed = changed_in_all_ways([Pair(*sides)] * 9)
    capitals = ">>deu<< COPY %d <b>ON</b> A&amp;B: http://a.b/c", "<b>EIN</b> %d {a name} a@b.de"
    assert changed["capitals"][0].sides == capitals
    for kind in ("quotes", "list", "symbols"):
        for number, pair in enumerate(changed[kind]):
            assert pair.source.startswith(">>deu<< "), kind
            assert pair.sides != sides
            copies = dict(changed_copies(Pair(*sides), number, {kind: 0.999}))
            assert copies[kind].source.startswith(">>deu<< ")


def test_marks_stand_on_both_sides(changed):
    for kind in ("quotes", "list", "symbols"):
        marks = set()
        for pair, same in zip(changed[kind], PAIRS * 40, strict=True):
            around = [side.split(own) for side, own in zip(pair.sides, same.sides, strict=True)]
            assert around[0] == around[1]
            marks.add("".join(around[0]).strip())
        assert len(marks) > 10
        assert all(unicodedata.normalize("NFKC", mark) == mark for mark in marks)


def test_typing_errors_spare_what_is_not_a_word(changed):
    sources = [pair.source for pair in changed["typing"]]
    assert sum(source not in {pair.source for pair in PAIRS} for source in sources) > 30
    for source in sources[1::3]:
        words = source.split()
        assert (words[1], words[3], words[4], len(words)) == ("%s", "{name}:", "5", 6)


def test_no_typing_errors_where_a_letter_is_a_word():
    pairs = [
        Pair("我不喜欢狗", "I do not like dogs"),
        Pair("คุณไม่ชอบหมา", "x"),
        Pair("좋아하지 않아요", "x"),
    ]
    mistype = KINDS["typing"].change
    changed = [mistype(random.Random(n), pair, "") for pair in pairs for n in range(40)]
    assert changed[:80] == [pairs[0]] * 40 + [pairs[1]] * 40
    assert changed[80:] != [pairs[2]] * 40  # Korean has words


def test_copies_have_more_typing_errors_than_an_evaluation():
    pair = Pair(" ".join(["binder"] * 8_000), "x")
    (copy,) = (changed for _, changed in changed_copies(pair, 0, {"typing": 0.999}))
    for changed, share in ((changed_in_all_ways([pair])["typing"][0], 0.15), (copy, 0.3)):
        mistyped = sum(word != "binder" for word in changed.source.split())
        # One error of four is a letter, the right one in one of six.
        assert mistyped == pytest.approx(share * (1 - 1 / 24) * 8_000, rel=0.1)


def test_rates_and_counts():
    rates = {"lower": 0.2, "quotes": 0.7}
    found = [list(changed_copies(pair, number, rates)) for number, pair in enumerate(PAIRS * 400)]
    again = changed_copies(PAIRS[2], 1199, rates)
    assert found[-1] == list(again)  # a seed of its own for each pair
    counts = Counter(kind for copies in found for kind, _ in copies)
    assert counts["quotes"] == pytest.approx(0.7 * 1200, rel=0.1)
    assert counts["lower"] == pytest.approx(0.2 * 400, rel=0.3)  # only the first can change
    assert not list(changed_copies(PAIRS[0], 0, {}))


def test_turkish_letters():
    pair = Pair("ILIK İYİ bir Gün", "It is warm")
    changed = changed_in_all_ways([pair], ("tr", "en"))
    assert changed["lower"][0].source == "ılık iyi bir gün"
    assert changed["capitals"][0] == Pair("ILIK İYİ BİR GÜN", "IT IS WARM")
    assert changed["title"][0].source == "ILIK İYİ Bir Gün"
    assert changed_in_all_ways([pair])["lower"][0].source != "ılık iyi bir gün"
    assert dict(changed_copies(pair, 0, {"lower": 0.999}, "tr"))["lower"] == changed["lower"][0]


def test_letters_that_python_does_not_know():
    """Kawi is newer than the tables of Python 3.11."""
    word = "\U00011f04\U00011f05\U00011f06"
    changed = KINDS["typing"].change(random.Random(1), Pair(" ".join([word] * 50), "x"), "")
    assert changed.source.count(word) < 50


@pytest.mark.parametrize("recipe", [{"augment": "all"}, {}])
def test_a_rate_beside_all(recipe):
    changed = change_recipe(recipe, ["augment.typing=0.5"])["augment"]
    assert (changed["typing"], changed["quotes"]) == (0.5, DEFAULT_RATES["quotes"])


def test_who_has_copies_by_default():
    """Text of one's own, but not trees, and no recipe whose figures stand in the pages."""
    assert TrainSettings.from_dict({"data": "bundled"}).augment == "all"
    assert TrainSettings.from_dict({"data": "bundled", "task": "parsing"}).augment == {}
    recipes = (load_recipe(name) for name in recipe_names())
    assert all(TrainSettings.from_dict(recipe).augment == {} for recipe in recipes)
