import os
import re
import subprocess
import sys

import pytest

from keras_transformer.trainers import grammar, lexicon
from keras_transformer.trainers.grammar import (
    Clause,
    NounPhrase,
    Sentence,
    predicative,
    prepositional,
)
from keras_transformer.trainers.lexicon import (
    ACCUSATIVE,
    DATIVE,
    INDEFINITE,
    NOMINATIVE,
    THE,
    THIS,
    WANT,
    Case,
    Phrase,
    Slot,
    Tense,
)

MY, _, HER, OUR, THEIR = lexicon.POSSESSIVES
HE, SHE, WE, THEY = (lexicon.PRONOUNS[name] for name in ("he", "she", "we", "they"))
TODAY, YESTERDAY = Phrase("today", "heute"), Phrase("yesterday", "gestern")
QUANTITY = {word.english: word for word in lexicon.QUANTITIES}


def noun_phrase(noun, determiner=THE, *adjectives, plural=False):
    words = {**lexicon.ADJECTIVES, **QUANTITY}
    modifiers = tuple(words[word] for word in adjectives)
    return NounPhrase(lexicon.NOUNS[noun], determiner, modifiers, plural)


def clause(verb, subject, accusative=None, dative=None, **kwargs):
    cases = zip(Case, (subject, accusative, dative), strict=True)
    arguments = {case: nominal for case, nominal in cases if nominal}
    return Clause(lexicon.VERBS[verb], arguments, **kwargs)


def words_of(texts):
    return {word for text in texts for word in re.findall(r"[\w']+", text.lower())}


# Nominative, accusative and dative of the singular and of the plural.
PARADIGMS = [
    (
        ("man", THE, "old"),
        "der alte Mann, den alten Mann, dem alten Mann",
        "die alten Männer, die alten Männer, den alten Männern",
    ),
    (
        ("man", INDEFINITE, "old"),
        "ein alter Mann, einen alten Mann, einem alten Mann",
        "alte Männer, alte Männer, alten Männern",
    ),
    (
        ("woman", THE, "tired"),
        "die müde Frau, die müde Frau, der müden Frau",
        "die müden Frauen, die müden Frauen, den müden Frauen",
    ),
    (
        ("woman", INDEFINITE, "young"),
        "eine junge Frau, eine junge Frau, einer jungen Frau",
        "junge Frauen, junge Frauen, jungen Frauen",
    ),
    (
        ("child", THE, "small"),
        "das kleine Kind, das kleine Kind, dem kleinen Kind",
        "die kleinen Kinder, die kleinen Kinder, den kleinen Kindern",
    ),
    (
        ("child", OUR, "clever"),
        "unser kluges Kind, unser kluges Kind, unserem klugen Kind",
        "unsere klugen Kinder, unsere klugen Kinder, unseren klugen Kindern",
    ),
    (
        ("student", MY, "rich"),
        "mein reicher Student, meinen reichen Studenten, meinem reichen Studenten",
        "meine reichen Studenten, meine reichen Studenten, meinen reichen Studenten",
    ),
    (
        ("boy", THIS, "tall"),
        "dieser große Junge, diesen großen Jungen, diesem großen Jungen",
        "diese großen Jungen, diese großen Jungen, diesen großen Jungen",
    ),
    (
        ("lamp", THEIR, "expensive"),
        "ihre teure Lampe, ihre teure Lampe, ihrer teuren Lampe",
        "ihre teuren Lampen, ihre teuren Lampen, ihren teuren Lampen",
    ),
    (
        ("office", lexicon.NO, "dark"),
        "kein dunkles Büro, kein dunkles Büro, keinem dunklen Büro",
        "keine dunklen Büros, keine dunklen Büros, keinen dunklen Büros",
    ),
]


@pytest.mark.parametrize(("phrase", "singular", "plural"), PARADIGMS)
def test_declension(phrase, singular, plural):
    for number, forms in ((False, singular), (True, plural)):
        declined = [noun_phrase(*phrase, plural=number).german(case) for case in Case]
        assert declined == forms.split(", ")


@pytest.mark.parametrize(
    ("words", "forms"),
    [
        (("three", "old"), "drei alte Häuser, drei alte Häuser, drei alten Häusern"),
        (("many", "old"), "viele alte Häuser, viele alte Häuser, vielen alten Häusern"),
        (("some", "new"), "einige neue Häuser, einige neue Häuser, einigen neuen Häusern"),
    ],
)
def test_declension_after_quantities(words, forms):
    phrase = noun_phrase("house", INDEFINITE, *words, plural=True)
    assert [phrase.german(case) for case in Case] == forms.split(", ")
    weak = noun_phrase("house", THE, "three", "old", plural=True)
    assert weak.german(DATIVE) == "den drei alten Häusern"


@pytest.mark.parametrize(
    ("preposition", "noun", "english", "german"),
    [
        (lexicon.IN, "house", "in the house", "im Haus"),
        (lexicon.INTO, "house", "into the house", "ins Haus"),
        (lexicon.INTO, "garden", "into the garden", "in den Garten"),
        (lexicon.IN, "city", "in the city", "in der Stadt"),
        (lexicon.TO, "school", "to the school", "zur Schule"),
        (lexicon.TO, "station", "to the station", "zum Bahnhof"),
        (lexicon.FROM, "museum", "from the museum", "vom Museum"),
        (lexicon.NEAR, "hotel", "near the hotel", "beim Hotel"),
        (lexicon.WITH, "student", "with the student", "mit dem Studenten"),
        (lexicon.WITHOUT, "boy", "without the boy", "ohne den Jungen"),
    ],
)
def test_prepositions_govern_a_case_and_contract(preposition, noun, english, german):
    assert prepositional(preposition, noun_phrase(noun)) == (english, german, False)


def test_contraction_needs_a_definite_article():
    house = noun_phrase("house", THIS, "old")
    assert prepositional(lexicon.IN, house).german == "in diesem alten Haus"
    assert prepositional(lexicon.IN, noun_phrase("house", THE, "old")).german == "im alten Haus"


def test_indefinite_article_depends_on_the_next_sound():
    assert noun_phrase("apple", INDEFINITE).english(NOMINATIVE) == "an apple"
    assert noun_phrase("apple", INDEFINITE, "red").english(NOMINATIVE) == "a red apple"


TEACHER, WINDOW = noun_phrase("teacher"), noun_phrase("window")
OPENS = clause("aufmachen", TEACHER, WINDOW)
HAS_OPENED = clause("aufmachen", TEACHER, WINDOW, tense=Tense.PERFECT)
WANTS_TO_OPEN = clause("aufmachen", TEACHER, WINDOW, modal=WANT)
BUYS = clause("kaufen", noun_phrase("man"), noun_phrase("book", INDEFINITE, "new"))
RAINS = Clause(lexicon.WEATHER[0], {NOMINATIVE: lexicon.IT})
TIRED = Clause(
    lexicon.BE, {NOMINATIVE: HE}, {Slot.COMPLEMENT: predicative(lexicon.ADJECTIVES["tired"])}
)
INVITES = clause("einladen", TEACHER, lexicon.WHO)

SENTENCES = [
    (
        Sentence(OPENS),
        "The teacher opens the window.",
        "Die Lehrerin macht das Fenster auf.",
    ),
    (
        Sentence(HAS_OPENED),
        "The teacher has opened the window.",
        "Die Lehrerin hat das Fenster aufgemacht.",
    ),
    (
        Sentence(WANTS_TO_OPEN),
        "The teacher wants to open the window.",
        "Die Lehrerin will das Fenster aufmachen.",
    ),
    (
        Sentence(RAINS, conjunction=lexicon.BECAUSE, subordinate=OPENS),
        "It rains because the teacher opens the window.",
        "Es regnet, weil die Lehrerin das Fenster aufmacht.",
    ),
    (
        Sentence(BUYS, conjunction=lexicon.ALTHOUGH, subordinate=HAS_OPENED),
        "The man buys a new book although the teacher has opened the window.",
        "Der Mann kauft ein neues Buch, obwohl die Lehrerin das Fenster aufgemacht hat.",
    ),
    (
        Sentence(BUYS, conjunction=lexicon.WHEN, subordinate=RAINS, preposed=True),
        "When it rains, the man buys a new book.",
        "Wenn es regnet, kauft der Mann ein neues Buch.",
    ),
    (
        Sentence(clause("sehen", SHE, HE), conjunction=lexicon.IF, subordinate=TIRED),
        "She sees him if he is very tired.",
        "Sie sieht ihn, wenn er sehr müde ist.",
    ),
    (
        Sentence(
            Clause(lexicon.REPORTS[0][0], {NOMINATIVE: WE}),
            conjunction=lexicon.THAT,
            subordinate=WANTS_TO_OPEN,
        ),
        "We know that the teacher wants to open the window.",
        "Wir wissen, dass die Lehrerin das Fenster aufmachen will.",
    ),
    (
        Sentence(
            clause(
                "kaufen",
                noun_phrase("man"),
                noun_phrase("apple", INDEFINITE, "three", "fresh", plural=True),
                adverbials={Slot.TIME: TODAY},
            ),
            front=Slot.TIME,
        ),
        "Today the man buys three fresh apples.",
        "Heute kauft der Mann drei frische Äpfel.",
    ),
    (
        Sentence(clause("kaufen", HE, noun_phrase("car", HER), tense=Tense.PAST, negated=True)),
        "He did not buy her car.",
        "Er hat ihr Auto nicht gekauft.",
    ),
    (
        Sentence(clause("kaufen", HE, noun_phrase("car", INDEFINITE, "old"), negated=True)),
        "He does not buy an old car.",
        "Er kauft kein altes Auto.",
    ),
    (
        Sentence(
            clause(
                "helfen",
                THEY,
                dative=noun_phrase("boy", INDEFINITE),
                modal=lexicon.CAN,
                negated=True,
            )
        ),
        "They cannot help a boy.",
        "Sie können keinem Jungen helfen.",
    ),
    (
        Sentence(clause("danken", HE, dative=THEY)),
        "He thanks them.",
        "Er dankt ihnen.",
    ),
    (
        Sentence(clause("geben", SHE, noun_phrase("key"), noun_phrase("neighbour"))),
        "She gives the key to the neighbour.",
        "Sie gibt dem Nachbarn den Schlüssel.",
    ),
    (
        Sentence(clause("zurückgeben", SHE, noun_phrase("key"), HE, adverbials={Slot.TIME: TODAY})),
        "She gives the key back to him today.",
        "Sie gibt ihm heute den Schlüssel zurück.",
    ),
    (
        Sentence(
            clause("ankommen", noun_phrase("train"), adverbials={Slot.TIME: lexicon.CLOCK[6]}),
        ),
        "The train arrives at 7 o'clock.",
        "Der Zug kommt um 7 Uhr an.",
    ),
    (
        Sentence(
            clause(
                "gehen",
                lexicon.PRONOUNS["I"],
                tense=Tense.PERFECT,
                adverbials={Slot.COMPLEMENT: prepositional(lexicon.INTO, noun_phrase("house"))},
            )
        ),
        "I have gone into the house.",
        "Ich bin ins Haus gegangen.",
    ),
    (
        Sentence(
            clause(
                "singen",
                SHE,
                tense=Tense.PAST,
                adverbials={
                    Slot.TIME: YESTERDAY,
                    Slot.MANNER: prepositional(lexicon.WITH, noun_phrase("uncle", MY)),
                    Slot.PLACE: prepositional(lexicon.BEHIND, noun_phrase("museum")),
                },
            )
        ),
        "She sang behind the museum with my uncle yesterday.",
        "Sie hat gestern mit meinem Onkel hinter dem Museum gesungen.",
    ),
    (
        Sentence(
            clause(
                "anrufen", HE, noun_phrase("doctor"), adverbials={Slot.TIME: lexicon.FREQUENCIES[0]}
            )
        ),
        "He often calls the doctor.",
        "Er ruft oft den Arzt an.",
    ),
    (
        Sentence(HAS_OPENED, front=None, interrogative=True),
        "Has the teacher opened the window?",
        "Hat die Lehrerin das Fenster aufgemacht?",
    ),
    (
        Sentence(OPENS, front=None, interrogative=True),
        "Does the teacher open the window?",
        "Macht die Lehrerin das Fenster auf?",
    ),
    (
        Sentence(INVITES, front=ACCUSATIVE, interrogative=True),
        "Whom does the teacher invite?",
        "Wen lädt die Lehrerin ein?",
    ),
    (
        Sentence(clause("zuhören", lexicon.WHO, dative=HE), interrogative=True),
        "Who listens to him?",
        "Wer hört ihm zu?",
    ),
    (
        Sentence(clause("ansehen", SHE, lexicon.WHAT), front=ACCUSATIVE, interrogative=True),
        "What does she look at?",
        "Was sieht sie an?",
    ),
    (
        Sentence(
            clause(
                "schlafen",
                HE,
                modal=lexicon.CAN,
                adverbials={Slot.PLACE: lexicon.WH_ADVERBS[Slot.PLACE]},
            ),
            front=Slot.PLACE,
            interrogative=True,
        ),
        "Where can he sleep?",
        "Wo kann er schlafen?",
    ),
]


@pytest.mark.parametrize(("sentence", "english", "german"), SENTENCES)
def test_sentences(sentence, english, german):
    assert sentence.render() == (english, german)


@pytest.fixture(scope="module")
def splits():
    return grammar.bundled_splits()


@pytest.fixture(scope="module")
def pairs(splits):
    return [pair for split in splits.values() for pair in split]


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
        pair = sampler.sentence().render()
        assert translations.setdefault(pair.source, pair.target) == pair.target


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
    assert grammar.generate(200, seed=3) == grammar.generate(200, seed=3)
    assert grammar.generate(200, seed=3) != grammar.generate(200, seed=4)
    assert grammar.generate(100, seed=3) == grammar.generate(200, seed=3)[:100]


def test_pairs_do_not_depend_on_the_process():
    code = (
        "from keras_transformer.trainers.grammar import generate\n"
        "import sys\n"
        "sys.stdout.buffer.write(repr(generate(200, seed=3)).encode())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert outputs == {repr(grammar.generate(200, seed=3)).encode()}


NUMERALS = "|".join(word.german for word in lexicon.NUMERALS)
PREFIXES = "auf|zu|ein|ab|an|mit|aus|zurück|nach"
PHENOMENA = {
    "separable verb": rf" ({PREFIXES})\.",
    "separable infinitive or participle": rf"\b(?!einige)({PREFIXES})(ge\w+|\w+en)\b",
    "weil": r"\bweil\b",
    "dass": r"\bdass\b",
    "wenn": r"\b[Ww]enn\b",
    "obwohl": r"\b[Oo]bwohl\b",
    "preposed clause": r"^(Wenn|Weil|Obwohl) ",
    "fronted time": r"^(Heute|Morgen|Gestern|Jetzt|Am|Um|Jeden Tag|Letzte Woche) ",
    "modal": r"\b([Kk](ann|önnen)|[Mm](uss|üssen)|[Dd](arf|ürfen)|[Ss]ollten?|[Ww](ill|ollen))\b",
    "future": r"\b[Ww](ird|erde|erden)\b",
    "Perfekt with haben": r"\b[Hh](at|abe|aben)\b",
    "Perfekt with sein": r"\b([Bb]in|[Ii]st|[Ss]ind)\b.*\b(ge\w+en|gefolgt|\w+ge\w+en)\b",
    "nicht": r"\bnicht\b",
    "kein": r"\bkein(e|en|em|er)?\b",
    "dative verb": r"\b(helfen|hilft|geholfen|(ge)?dankt?|\w*antwort\w+|\w*gehört|folgt?)\b",
    "ditransitive verb": r"\b(zurück)?(geben|gibt|gegeben)|zeig|schick|zurückge",
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
