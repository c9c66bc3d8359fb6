import pytest

from keras_transformer.trainers.lexicon import (
    EVERY,
    HABEN,
    NOUNS,
    SEIN,
    THIS,
    VERBS,
    Case,
    Gender,
    contract,
    decline,
    decline_noun,
)


def test_regular_spelling_of_english():
    assert VERBS["tragen"].english_parts() == ("carry", "carries", "carried", "carried")
    assert VERBS["waschen"].english_parts() == ("wash", "washes", "washed", "washed")
    assert VERBS["gehen"].english_parts() == ("go", "goes", "went", "gone")
    assert VERBS["zumachen"].english_parts() == ("close", "closes", "closed", "closed")
    plurals = {NOUNS[noun].english_plural for noun in ("city", "bench", "tomato", "boy", "man")}
    assert plurals == {"cities", "benches", "tomatoes", "boys", "men"}


@pytest.mark.parametrize(
    ("infinitive", "parts"),
    [
        ("kaufen", ("", ("kaufe", "kauft", "kaufen"), HABEN, "gekauft")),
        ("gehen", ("", ("gehe", "geht", "gehen"), SEIN, "gegangen")),
        ("aufstehen", ("auf", ("stehe", "steht", "stehen"), SEIN, "aufgestanden")),
    ],
)
def test_principal_parts_of_german(infinitive, parts):
    assert VERBS[infinitive].german_parts() == parts
    assert VERBS[infinitive].infinitive == infinitive


@pytest.mark.parametrize("determiner", [EVERY, THIS])
def test_der_words_take_strong_endings(determiner):
    stem = determiner.stem
    declined = [decline(determiner, case, Gender.MASCULINE) for case in Case]
    assert declined == [(f"{stem}er", "e"), (f"{stem}en", "en"), (f"{stem}em", "en")]


@pytest.mark.parametrize(
    ("noun", "singular", "plural"),
    [
        ("man", "Mann Mann Mann", "Männer Männer Männern"),
        ("boy", "Junge Jungen Jungen", "Jungen Jungen Jungen"),
        ("car", "Auto Auto Auto", "Autos Autos Autos"),
    ],
)
def test_declension_of_nouns(noun, singular, plural):
    for number, forms in ((False, singular), (True, plural)):
        declined = [decline_noun(NOUNS[noun], case, plural=number) for case in Case]
        assert declined == forms.split()


def test_contraction():
    assert contract("in dem alten Haus") == "im alten Haus"
    assert contract("in den Garten") == "in den Garten"
