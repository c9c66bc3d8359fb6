import itertools
import json
import re

import pytest

from keras_transformer.cli.demo import EXAMPLES
from keras_transformer.files import sha256
from keras_transformer.trainers.grammar import (
    ACCUSATIVE,
    ADJECTIVES,
    PRONOUNS,
    REPORTS,
    VERBS,
    Case,
    Clause,
    Pair,
    Slot,
    bundled_splits,
    noun_phrase,
    prepositional,
)

TODAY, YESTERDAY = Pair("today", "heute"), Pair("yesterday", "gestern")


def clause(verb, subject, accusative=None, dative=None, **kwargs):
    """A clause; strings are pronouns, or nouns with the definite article."""
    arguments = {}
    for case, nominal in zip(Case, (subject, accusative, dative), strict=True):
        if isinstance(nominal, str):
            nominal = PRONOUNS[nominal] if nominal in PRONOUNS else noun_phrase(nominal)
        if nominal:
            arguments[case] = nominal
    return Clause({**VERBS, **REPORTS}[verb], arguments, **kwargs)


def words_of(texts):
    return {word for text in texts for word in re.findall(r"[\w']+", text.lower())}


# Nominative, accusative and dative of the singular and of the plural.
PARADIGMS = [
    (
        ("man", "the", ["old"]),
        "der alte Mann, den alten Mann, dem alten Mann",
        "die alten Männer, die alten Männer, den alten Männern",
    ),
    (
        ("man", "a", ["old"]),
        "ein alter Mann, einen alten Mann, einem alten Mann",
        "alte Männer, alte Männer, alten Männern",
    ),
    (
        ("woman", "the", ["tired"]),
        "die müde Frau, die müde Frau, der müden Frau",
        "die müden Frauen, die müden Frauen, den müden Frauen",
    ),
    (
        ("child", "our", ["small"]),
        "unser kleines Kind, unser kleines Kind, unserem kleinen Kind",
        "unsere kleinen Kinder, unsere kleinen Kinder, unseren kleinen Kindern",
    ),
    (
        ("student", "my", ["rich"]),
        "mein reicher Student, meinen reichen Studenten, meinem reichen Studenten",
        "meine reichen Studenten, meine reichen Studenten, meinen reichen Studenten",
    ),
    (("car", "the", []), "das Auto, das Auto, dem Auto", "die Autos, die Autos, den Autos"),
]


@pytest.mark.parametrize(("phrase", "singular", "plural"), PARADIGMS)
def test_declension(phrase, singular, plural):
    assert list(noun_phrase(*phrase).german) == singular.split(", ")
    assert list(noun_phrase(*phrase, plural=True).german) == plural.split(", ")


@pytest.mark.parametrize(
    ("determiner", "words", "forms"),
    [
        ("a", ["three", "old"], "drei alte Häuser, drei alte Häuser, drei alten Häusern"),
        ("a", ["many", "old"], "viele alte Häuser, viele alte Häuser, vielen alten Häusern"),
        ("the", ["three"], "die drei Häuser, die drei Häuser, den drei Häusern"),
    ],
)
def test_declension_after_quantities(determiner, words, forms):
    assert list(noun_phrase("house", determiner, words, plural=True).german) == forms.split(", ")


@pytest.mark.parametrize(
    ("preposition", "phrase", "english", "german"),
    [
        ("in: in DATIVE", noun_phrase("house"), "in the house", "im Haus"),
        (
            "in: in DATIVE",
            noun_phrase("house", "this", ["old"]),
            "in this old house",
            "in diesem alten Haus",
        ),
        ("into: in ACCUSATIVE", noun_phrase("house"), "into the house", "ins Haus"),
        ("to: zu DATIVE", noun_phrase("school"), "to the school", "zur Schule"),
        ("without: ohne ACCUSATIVE", noun_phrase("boy"), "without the boy", "ohne den Jungen"),
    ],
)
def test_prepositions_govern_a_case_and_contract(preposition, phrase, english, german):
    assert prepositional(preposition, phrase) == (english, german)


OPENS = clause("open", "teacher", "window")
BUYS = clause("buy", "man", noun_phrase("book", "a", ["new"]))
SINGS = clause("sing", noun_phrase("man", "the", ["old"]))

SENTENCES = [
    (OPENS.sentence(), "The teacher opens the window.", "Die Lehrerin macht das Fenster auf."),
    (
        SINGS.with_clause("because: weil", OPENS),
        "The old man sings because the teacher opens the window.",
        "Der alte Mann singt, weil die Lehrerin das Fenster aufmacht.",
    ),
    (
        BUYS.with_clause("when: wenn", SINGS, is_preposed=True),
        "When the old man sings, the man buys a new book.",
        "Wenn der alte Mann singt, kauft der Mann ein neues Buch.",
    ),
    (
        clause("know", "we").with_clause("that: dass", clause("arrive", "he", tense="must")),
        "We know that he must arrive.",
        "Wir wissen, dass er ankommen muss.",
    ),
    (
        clause("buy", "man", noun_phrase("apple", "a", ["three", "fresh"], plural=True))
        .with_adverbial(Slot.TIME, TODAY)
        .sentence(Slot.TIME),
        "Today the man buys three fresh apples.",
        "Heute kauft der Mann drei frische Äpfel.",
    ),
    (
        clause("buy", "he", noun_phrase("car", "a", ["old"]), is_negated=True).sentence(),
        "He does not buy an old car.",
        "Er kauft kein altes Auto.",
    ),
    (
        clause(
            "help", "they", dative=noun_phrase("boy", "a"), tense="can", is_negated=True
        ).sentence(),
        "They cannot help a boy.",
        "Sie können keinem Jungen helfen.",
    ),
    (
        clause("show", "I", "key", "he", adverbials={Slot.TIME: TODAY}).sentence(),
        "I show the key to him today.",
        "Ich zeige ihm heute den Schlüssel.",
    ),
    (
        clause(
            "sing",
            "she",
            tense="past",
            adverbials={
                Slot.TIME: YESTERDAY,
                Slot.MANNER: Pair("with my uncle", "mit meinem Onkel"),
                Slot.PLACE: Pair("behind the museum", "hinter dem Museum"),
            },
        ).sentence(),
        "She sang behind the museum with my uncle yesterday.",
        "Sie hat gestern mit meinem Onkel hinter dem Museum gesungen.",
    ),
    (
        OPENS.sentence(None, is_question=True),
        "Does the teacher open the window?",
        "Macht die Lehrerin das Fenster auf?",
    ),
    (
        clause("invite", "teacher", "who").sentence(ACCUSATIVE, is_question=True),
        "Whom does the teacher invite?",
        "Wen lädt die Lehrerin ein?",
    ),
    (
        clause("sleep", "he", tense="can", adverbials={Slot.PLACE: Pair("where", "wo")}).sentence(
            Slot.PLACE, is_question=True
        ),
        "Where can he sleep?",
        "Wo kann er schlafen?",
    ),
]


@pytest.mark.parametrize(("pair", "english", "german"), SENTENCES)
def test_sentences(pair, english, german):
    assert pair == (english, german)


# The examples of the demo, of which the first is README's.
DEMO = [
    clause("play", noun_phrase("dog", "a", ["two"], plural=True)).sentence(),
    OPENS.sentence(),
    clause("sleep", noun_phrase("child", plural=True), is_negated=True).with_clause(
        "when: wenn",
        SINGS.with_adverbial(Slot.PLACE, prepositional("in: in DATIVE", noun_phrase("garden"))),
        is_preposed=True,
    ),
]


def test_demo_shows_sentences_of_the_grammar_that_training_does_not_see():
    assert tuple(pair.source for pair in DEMO) == EXAMPLES
    assert [pair.target for pair in DEMO] == [
        "Zwei Hunde spielen.",
        "Die Lehrerin macht das Fenster auf.",
        "Wenn der alte Mann im Garten singt, schlafen die Kinder nicht.",
    ]
    sources, targets = (set(side) for side in zip(*bundled_splits()["train"], strict=True))
    assert sources.isdisjoint(EXAMPLES)
    assert targets.isdisjoint(pair.target for pair in DEMO)
    assert words_of(EXAMPLES) <= words_of(sources)


def test_bundled_corpus():
    """No sentence is in two pairs, held-out words occur in training, and the text never changes."""
    splits = bundled_splits()
    assert [len(split) for split in splits.values()] == [24_000, 500, 500]
    for train, *others in zip(
        *(zip(*split, strict=True) for split in splits.values()), strict=True
    ):
        texts = [text for side in (train, *others) for text in side]
        assert len(set(texts)) == 25_000
        assert words_of(itertools.chain(*others)) <= words_of(train)
    # The demo, the notebooks and the figures of the documentation are of this text.
    assert sha256(json.dumps(splits, ensure_ascii=False).encode())[:16] == "14f32d52b769b615"


@pytest.mark.parametrize("before", ["(?<!sehr )", "sehr "])
def test_adjectives_without_an_ending_are_frequent(before):
    """Without them, the demo's model cannot translate "The house is big."."""
    words = [word for word in ADJECTIVES.values() if word.nouns not in ("numeral", "quantity")]
    pattern = rf"{before}\b({'|'.join(word.german for word in words)})\b"
    targets = [pair.target for pair in bundled_splits()["train"]]
    assert sum(re.search(pattern, target) is not None for target in targets) > 0.05 * len(targets)
