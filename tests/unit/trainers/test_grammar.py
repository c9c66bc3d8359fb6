import re
import subprocess
import sys

import pytest

from keras_transformer.cli.demo import EXAMPLES
from keras_transformer.trainers import grammar
from keras_transformer.trainers.grammar import (
    ACCUSATIVE,
    NOMINATIVE,
    PRONOUNS,
    REPORTS,
    VERBS,
    Case,
    Clause,
    Gender,
    Pair,
    Slot,
    decline,
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
        ("woman", "a", ["young"]),
        "eine junge Frau, eine junge Frau, einer jungen Frau",
        "junge Frauen, junge Frauen, jungen Frauen",
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
    (
        ("boy", "this", ["tall"]),
        "dieser große Junge, diesen großen Jungen, diesem großen Jungen",
        "diese großen Jungen, diese großen Jungen, diesen großen Jungen",
    ),
    (
        ("lamp", "their", ["expensive"]),
        "ihre teure Lampe, ihre teure Lampe, ihrer teuren Lampe",
        "ihre teuren Lampen, ihre teuren Lampen, ihren teuren Lampen",
    ),
    (
        ("house", "no", ["dark"]),
        "kein dunkles Haus, kein dunkles Haus, keinem dunklen Haus",
        "keine dunklen Häuser, keine dunklen Häuser, keinen dunklen Häusern",
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


def test_der_words_take_strong_endings():
    declined = [decline("jed", case, Gender.MASCULINE) for case in Case]
    assert declined == [("jeder", "e"), ("jeden", "en"), ("jedem", "en")]


@pytest.mark.parametrize(
    ("preposition", "phrase", "english", "german"),
    [
        ("in: in DATIVE", noun_phrase("house"), "in the house", "im Haus"),
        ("in: in DATIVE", noun_phrase("city"), "in the city", "in der Stadt"),
        (
            "in: in DATIVE",
            noun_phrase("house", "this", ["old"]),
            "in this old house",
            "in diesem alten Haus",
        ),
        ("into: in ACCUSATIVE", noun_phrase("house"), "into the house", "ins Haus"),
        ("into: in ACCUSATIVE", noun_phrase("garden"), "into the garden", "in den Garten"),
        ("to: zu DATIVE", noun_phrase("school"), "to the school", "zur Schule"),
        ("to: zu DATIVE", noun_phrase("station"), "to the station", "zum Bahnhof"),
        ("from: von DATIVE", noun_phrase("museum"), "from the museum", "vom Museum"),
        ("near: bei DATIVE", noun_phrase("school"), "near the school", "bei der Schule"),
        ("without: ohne ACCUSATIVE", noun_phrase("boy"), "without the boy", "ohne den Jungen"),
    ],
)
def test_prepositions_govern_a_case_and_contract(preposition, phrase, english, german):
    assert prepositional(preposition, phrase) == (english, german)


def test_indefinite_article_depends_on_the_next_sound():
    assert noun_phrase("apple", "a").english[0] == "an apple"
    assert noun_phrase("apple", "a", ["red"]).english[0] == "a red apple"


OPENS = clause("open", "teacher", "window")
HAS_OPENED = clause("open", "teacher", "window", tense="perfect")
BUYS = clause("buy", "man", noun_phrase("book", "a", ["new"]))
SINGS = clause("sing", noun_phrase("man", "the", ["old"]))
TIRED = clause("be", "he", adverbials={Slot.COMPLEMENT: Pair("very tired", "sehr müde")})

SENTENCES = [
    (OPENS.sentence(), "The teacher opens the window.", "Die Lehrerin macht das Fenster auf."),
    (
        clause("open", "teacher", "window", tense="will").sentence(),
        "The teacher will open the window.",
        "Die Lehrerin wird das Fenster aufmachen.",
    ),
    (
        SINGS.with_clause("because: weil", OPENS),
        "The old man sings because the teacher opens the window.",
        "Der alte Mann singt, weil die Lehrerin das Fenster aufmacht.",
    ),
    (
        BUYS.with_clause("although: obwohl", HAS_OPENED),
        "The man buys a new book although the teacher has opened the window.",
        "Der Mann kauft ein neues Buch, obwohl die Lehrerin das Fenster aufgemacht hat.",
    ),
    (
        BUYS.with_clause("when: wenn", SINGS, is_preposed=True),
        "When the old man sings, the man buys a new book.",
        "Wenn der alte Mann singt, kauft der Mann ein neues Buch.",
    ),
    (
        clause("see", "she", "he").with_clause("if: wenn", TIRED),
        "She sees him if he is very tired.",
        "Sie sieht ihn, wenn er sehr müde ist.",
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
        clause("buy", "he", noun_phrase("car", "her"), tense="past", is_negated=True).sentence(),
        "He did not buy her car.",
        "Er hat ihr Auto nicht gekauft.",
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
            "go",
            "I",
            tense="perfect",
            adverbials={Slot.COMPLEMENT: prepositional("into: in ACCUSATIVE", noun_phrase("city"))},
        ).sentence(),
        "I have gone into the city.",
        "Ich bin in die Stadt gegangen.",
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
        clause("call", "he", "doctor", adverbials={Slot.OFTEN: Pair("often", "oft")}).sentence(),
        "He often calls the doctor.",
        "Er ruft oft den Arzt an.",
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
        clause("listen", "who", dative="he").sentence(NOMINATIVE, is_question=True),
        "Who listens to him?",
        "Wer hört ihm zu?",
    ),
    (
        clause("look", "she", "what").sentence(ACCUSATIVE, is_question=True),
        "What does she look for?",
        "Was sucht sie?",
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


@pytest.fixture(scope="module")
def splits():
    return grammar.bundled_splits()


@pytest.fixture(scope="module")
def pairs(splits):
    return [pair for split in splits.values() for pair in split]


def test_demo_shows_sentences_of_the_grammar_that_training_does_not_see(splits):
    assert tuple(pair.source for pair in DEMO) == EXAMPLES
    assert [pair.target for pair in DEMO] == [
        "Zwei Hunde spielen.",
        "Die Lehrerin macht das Fenster auf.",
        "Wenn der alte Mann im Garten singt, schlafen die Kinder nicht.",
    ]
    sources, targets = (set(side) for side in zip(*splits["train"], strict=True))
    assert sources.isdisjoint(EXAMPLES)
    assert targets.isdisjoint(pair.target for pair in DEMO)
    assert words_of(EXAMPLES) <= words_of(sources)


def test_split_sizes(splits):
    sizes = {name: len(split) for name, split in splits.items()}
    assert sizes == {"train": 24_000, "val": 500, "test": 500}


def test_sentences_are_distinct_across_and_within_splits(pairs):
    assert len({pair.source for pair in pairs}) == len(pairs)
    assert len({pair.target for pair in pairs}) == len(pairs)


def test_translation_is_a_function():
    translations = {}
    sampler = grammar.Sampler(seed=1)
    for _ in range(8_000):
        source, target = sampler.sentence()
        assert translations.setdefault(source, target) == target


def test_text_is_well_formed(pairs):
    for text in (text for pair in pairs for text in pair):
        assert re.fullmatch(r"[A-ZÄÖÜ][\w' ,]*[.?]", text), text
        assert "  " not in text
        assert " ," not in text


def test_lengths_and_vocabulary(pairs):
    lengths = [len(pair.source.split()) for pair in pairs]
    assert 8 <= sum(lengths) / len(lengths) <= 10
    assert max(lengths) <= grammar.MAX_WORDS
    for side in zip(*pairs, strict=True):
        assert 300 < len(words_of(side)) < 900


def test_held_out_words_occur_in_training(splits):
    sides = {name: zip(*split, strict=True) for name, split in splits.items()}
    for train, val, test in zip(*sides.values(), strict=True):
        assert words_of(val + test) <= words_of(train)


def test_seed_determines_pairs():
    expected = grammar.generate(200, seed=3)
    assert grammar.generate(200, seed=4) != expected
    assert grammar.generate(100, seed=3) == expected[:100]
    code = "from keras_transformer.trainers.grammar import generate; print(generate(200, seed=3))"
    printed = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", code], capture_output=True, check=True
    )
    assert printed.stdout.decode().strip() == repr(expected)


NUMERALS = "|".join(word.german for word in grammar.ADJECTIVES.values() if word.nouns == "numeral")
PREDICATES = "|".join(
    word.german for word in grammar.ADJECTIVES.values() if word.nouns not in ("numeral", "quantity")
)
PREFIXES = "auf|zu|ein|an|mit|aus"
PHENOMENA = {
    "separable verb": rf" ({PREFIXES})\.",
    "separable infinitive or participle": rf"\b(?!einige)({PREFIXES})(ge\w+|\w+en)\b",
    "subordinate clause": r"\b(weil|dass|ob|[Ww]enn|[Oo]bwohl)\b",
    "preposed clause": r"^(Wenn|Weil|Obwohl) ",
    "fronted time": r"^(Heute|Morgen|Gestern|Jetzt|Am|Um|Jeden Tag|Letzte Woche) ",
    "modal": r"\b([Kk](ann|önnen)|[Mm](uss|üssen)|[Ss]ollten?)\b",
    "future": r"\b[Ww](ird|erde|erden)\b",
    "Perfekt with haben": r"\b[Hh](at|abe|aben)\b",
    "Perfekt with sein": r"\b([Bb]in|[Ii]st|[Ss]ind)\b.*\b(ge\w+en|gefolgt|\w+ge\w+en)\b",
    "nicht": r"\bnicht\b",
    "kein": r"\bkein(e|en|em|er)?\b",
    "dative verb": r"\b(helfen|hilft|geholfen|(ge)?dankt?|\w*gehört|folgt?)\b",
    "ditransitive verb": r"\b(geben|gibt|gegeben)|zeig|schick",
    "predicate": rf"(?<!sehr )\b({PREDICATES})\b",
    "predicate with an adverb": rf"sehr ({PREDICATES})\b",
    "digit": r"\b\d+ Uhr\b",
    "numeral": rf"(?i)\b({NUMERALS})\b",
    "contraction": r"\b(im|ins|zum|zur|vom|beim)\b",
    "yes-no question": r"^(?!W(er|en|em|as|o|ann|arum)\b).*\?$",
    "wh-question": r"^W(er|en|em|as|o|ann|arum)\b.*\?$",
    "object pronoun": r"\b(ihn|ihm|ihnen|mich|mir|uns)\b",
    "possessive": r"\b([Mm]ein|[Ss]ein|[Ii]hr|[Uu]nser)(e|en|em|er)?\b",
}


@pytest.mark.parametrize("phenomenon", PHENOMENA)
def test_every_phenomenon_is_frequent(splits, phenomenon):
    targets = [pair.target for pair in splits["train"]]
    found = sum(re.search(PHENOMENA[phenomenon], target) is not None for target in targets)
    assert found >= 0.03 * len(targets)
