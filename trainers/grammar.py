"""The bundled corpus: synthetic English-German sentence pairs from a small transfer grammar.

The sentences are *synthetic*: nobody ever wrote or said them. A grammar draws a language-neutral
clause (who does what to whom, when and where) and renders it once in English and once in German.
The pairs exercise what sets the two languages apart - gender, case and adjective declension,
separable verbs, verb-second and verb-final order - with a closed vocabulary, so that a tiny model
can learn them within minutes and without a download. BLEU on this corpus says whether the
implementation works; it says nothing about real text.

Every English sentence has exactly one German translation. Whatever would break this is left out:
"you" (du, ihr, Sie), "it" except for the weather, and the past tense of verbs such as "read".
"""

import functools
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, Flag, IntEnum
from typing import NamedTuple, TypeVar

T = TypeVar("T")

SPLIT_SIZES = {"train": 24_000, "val": 500, "test": 500}
BUNDLED_SEED = 2017
MAX_WORDS = 18


class Pair(NamedTuple):
    """An English sentence and its German translation."""

    source: str
    target: str


# --- Grammatical categories ---------------------------------------------------------------------

Case = Enum("Case", "NOMINATIVE ACCUSATIVE DATIVE")
Gender = Enum("Gender", "MASCULINE FEMININE NEUTER PLURAL")  # German plurals have no gender
Person = IntEnum("Person", "FIRST THIRD PLURAL", start=0)  # of verb forms, an index of `Finite`
Tense = Enum("Tense", "PRESENT PAST PERFECT")  # of English: German has the Perfekt for the last two
Order = Enum("Order", "FIRST SECOND FINAL")  # the place of the German finite verb
Slot = Enum("Slot", "TIME NEGATION MANNER PLACE COMPLEMENT")  # of adverbials, in German order
Kind = Flag(  # the semantic classes of nouns, which verbs and adjectives select
    "Kind",
    "PERSON ANIMAL FOOD READING OBJECT DEVICE OPENABLE TRANSPORT VEHICLE FURNITURE SITE SPACE ROOM",
)
NONE = Kind(0)
LIVING = Kind.PERSON | Kind.ANIMAL
PORTABLE = Kind.READING | Kind.OBJECT
OWNABLE = PORTABLE | Kind.DEVICE | Kind.VEHICLE
GOODS = OWNABLE | Kind.FOOD
THING = OWNABLE | Kind.OPENABLE | Kind.TRANSPORT | Kind.FURNITURE
LOCATION = Kind.SITE | Kind.SPACE

NOMINATIVE, ACCUSATIVE, DATIVE = Case
Finite = tuple[str, str, str]


class Noun(NamedTuple):
    """A noun; the oblique singular of a weak noun (n-declension) equals its plural."""

    english: str
    english_plural: str
    german: str
    german_plural: str
    gender: Gender
    weak: bool
    kind: Kind


class Adjective(NamedTuple):
    """An adjective, numeral or quantifier with its German attributive stem."""

    english: str
    german: str
    stem: str
    fits: Kind = NONE
    inflected: bool = True


class Determiner(NamedTuple):
    """A determiner; an ein-word lacks three of the strong endings that its stem takes."""

    english: str
    english_plural: str
    stem: str
    ein_word: bool = False


class Preposition(NamedTuple):
    """A preposition and the case it governs in this use."""

    english: str
    german: str
    case: Case


class Phrase(NamedTuple):
    """An expression that does not inflect; medial ones precede the English main verb."""

    english: str
    german: str
    medial: bool = False


class Modal(NamedTuple):
    """A modal verb; only "want to" inflects and takes do-support in English."""

    english: str
    german: Finite


Choices = tuple[tuple[Preposition, Kind], ...]
HABEN: Finite = ("habe", "hat", "haben")
SEIN: Finite = ("bin", "ist", "sind")
IRREGULAR = {"sein": SEIN, "wissen": ("weiß", "weiß", "wissen")}


@dataclass(frozen=True, eq=False)
class Verb:
    """A verb with its principal parts and its valency.

    Attributes:
        english: Base form, past and participle; what is missing is regular.
        german: Infinitive (a bar ends a separable prefix), third person, "ist" if the Perfekt
            takes this auxiliary, and participle.
        frame: Where English puts objects, particles and prepositions.
        subject: What can be the subject.
        acc: What can be the accusative object, if there is one.
        dat: What can be the dative object, if there is one.
        complements: The prepositional complements, of which every clause has one.
        manners: Prepositional phrases that may tell with whom or for whom.
        placed: Whether a place makes sense.
    """

    english: str
    german: str
    frame: str = "{acc} {dat}"
    subject: Kind = Kind.PERSON
    acc: Kind = NONE
    dat: Kind = NONE
    complements: Choices = ()
    manners: Choices = ()
    placed: bool = False

    def english_parts(self) -> tuple[str, str, str, str]:
        """Returns base form, third person, past and participle."""
        base, *irregular = self.english.split()
        past = irregular[0] if irregular else _suffixed(base, "ed")
        return base, _suffixed(base, "s"), past, irregular[-1] if irregular else past

    def german_parts(self) -> tuple[str, Finite, Finite, str]:
        """Returns separable prefix, present tense without it, auxiliary and participle."""
        infinitive, third, *auxiliary, participle = self.german.split()
        prefix, _, stem = infinitive.rpartition("|")
        finite = IRREGULAR.get(stem, (stem[:-1], third, stem))
        return prefix, finite, SEIN if auxiliary else HABEN, participle


def _suffixed(word: str, suffix: str) -> str:
    """Returns the English word with the suffix -s or -ed in regular spelling."""
    if word[-1] == "y" and word[-2] not in "aeiou":
        return f"{word[:-1]}ie{suffix[-1]}"
    sibilant = suffix == "s" and word.endswith(("s", "ch", "sh", "o"))
    return word + ("e" if sibilant else "") + suffix.removeprefix("e" if word[-1] == "e" else "")


def _entries(text: str) -> Iterator[list[str]]:
    """Yields the words of each comma-separated entry."""
    return map(str.split, text.split(","))


# --- Paradigms ----------------------------------------------------------------------------------


def _paradigm(*rows: str) -> dict[tuple[Case, Gender], str]:
    return {
        (case, gender): form
        for case, row in zip(Case, rows, strict=True)
        for gender, form in zip(Gender, row.split(), strict=True)
    }


# Rows are the cases, columns the genders and the plural.
DEFINITE = _paradigm("der die das die", "den die das die", "dem der dem den")
STRONG = _paradigm("er e es e", "en e es e", "em er em en")
WEAK = _paradigm("e e e en", "en e e en", "en en en en")
# The mixed declension needs no table: an adjective takes the strong ending exactly where the
# ein-word before it has none ("ein alter Mann", but "einem alten Mann").
ENDINGLESS = (
    (NOMINATIVE, Gender.MASCULINE),
    (NOMINATIVE, Gender.NEUTER),
    (ACCUSATIVE, Gender.NEUTER),
)
_FUSED = "in dem im, in das ins, bei dem beim, von dem vom, zu dem zum, zu der zur"
CONTRACTIONS = {f"{word} {article}": fused for word, article, fused in _entries(_FUSED)}

# --- Lexicon ------------------------------------------------------------------------------------

K = Kind

# German nouns with article and plural; an asterisk marks the n-declension.
_NOUNS = {
    K.PERSON: "man der Mann Männer, student der Student Studenten*, uncle der Onkel Onkel,"
    "neighbour der Nachbar Nachbarn*, boy der Junge Jungen*, doctor der Arzt Ärzte,"
    "friend der Freund Freunde, woman die Frau Frauen, teacher die Lehrerin Lehrerinnen,"
    "sister die Schwester Schwestern, aunt die Tante Tanten, child das Kind Kinder,"
    "girl das Mädchen Mädchen",
    K.ANIMAL: "dog der Hund Hunde, cat die Katze Katzen, horse das Pferd Pferde",
    K.FOOD: "apple der Apfel Äpfel, cake der Kuchen Kuchen, tomato die Tomate Tomaten,"
    "egg das Ei Eier",
    K.READING: "letter der Brief Briefe, newspaper die Zeitung Zeitungen, book das Buch Bücher",
    K.OBJECT: "key der Schlüssel Schlüssel, picture das Bild Bilder,present das Geschenk Geschenke",
    K.OBJECT | K.OPENABLE: "suitcase der Koffer Koffer, bag die Tasche Taschen",
    K.DEVICE: "computer der Computer Computer, lamp die Lampe Lampen, phone das Handy Handys",
    K.OPENABLE: "door die Tür Türen, window das Fenster Fenster",
    K.TRANSPORT: "train der Zug Züge, bus der Bus Busse",
    K.VEHICLE: "car das Auto Autos, bicycle das Fahrrad Fahrräder",
    K.FURNITURE: "table der Tisch Tische, bench die Bank Bänke, bed das Bett Betten",
    K.SITE: "station der Bahnhof Bahnhöfe, school die Schule Schulen, museum das Museum Museen,"
    "hotel das Hotel Hotels",
    K.SPACE: "garden der Garten Gärten, city die Stadt Städte, house das Haus Häuser",
    K.SPACE | K.ROOM: "kitchen die Küche Küchen, office das Büro Büros",
}
_IRREGULAR_PLURALS = {"man": "men", "woman": "women", "child": "children"}
_ARTICLES = {"der": Gender.MASCULINE, "die": Gender.FEMININE, "das": Gender.NEUTER}


def _noun(kind: Kind, english: str, article: str, german: str, plural: str) -> Noun:
    english_plural = _IRREGULAR_PLURALS.get(english, _suffixed(english, "s"))
    gender, weak = _ARTICLES[article], plural.endswith("*")
    return Noun(english, english_plural, german, plural.rstrip("*"), gender, weak, kind)


NOUNS = {entry[0]: _noun(kind, *entry) for kind, text in _NOUNS.items() for entry in _entries(text)}

# An irregular attributive stem comes third.
_ADJECTIVES = {
    K.PERSON: "tall groß, friendly freundlich, happy glücklich, rich reich",
    LIVING: "young jung, tired müde müd, clever klug",
    LIVING | THING | LOCATION: "old alt",
    ~NONE: "small klein",
    ~K.PERSON: "big groß",
    K.PERSON | K.SITE: "famous berühmt",
    K.FOOD: "fresh frisch",
    K.FOOD | K.READING | K.SITE: "good gut",
    GOODS: "expensive teuer teur, cheap billig",
    K.OBJECT | K.FURNITURE: "heavy schwer",
    K.OBJECT | K.ANIMAL | LOCATION: "beautiful schön",
    THING | LOCATION: "new neu",
    LOCATION: "quiet ruhig",
    K.SPACE: "dark dunkel dunkl",
    THING: "red rot, green grün",
    THING | K.ANIMAL: "black schwarz, white weiß",
}
ADJECTIVES = {
    english: Adjective(english, german, stem[0] if stem else german, kind)
    for kind, text in _ADJECTIVES.items()
    for english, german, *stem in _entries(text)
}
_NUMERALS = (
    "two zwei, three drei, four vier, five fünf, six sechs, seven sieben, eight acht, nine neun,"
    "ten zehn, eleven elf, twelve zwölf"
)
NUMERALS = tuple(Adjective(en, de, de, inflected=False) for en, de in _entries(_NUMERALS))
# Unlike a determiner, these leave the adjective after them its strong ending.
QUANTITIES = (*NUMERALS, Adjective("many", "viele", "viel"), Adjective("some", "einige", "einig"))

THE, THIS = Determiner("the", "the", "d"), Determiner("this", "these", "dies")
INDEFINITE = Determiner("a", "", "ein", ein_word=True)
EVERY = Determiner("every", "", "jed")
NO = Determiner("", "", "kein", ein_word=True)  # English negates the verb instead
_POSSESSIVES = "my mein, his sein, her ihr, our unser, their ihr"
MY, HIS, HER, OUR, THEIR = POSSESSIVES = tuple(
    Determiner(english, english, stem, ein_word=True) for english, stem in _entries(_POSSESSIVES)
)

IN, INTO = Preposition("in", "in", DATIVE), Preposition("into", "in", ACCUSATIVE)
TO, FROM = Preposition("to", "zu", DATIVE), Preposition("from", "von", DATIVE)
OUT_OF, NEAR = Preposition("out of", "aus", DATIVE), Preposition("near", "bei", DATIVE)
WITH, WITHOUT = Preposition("with", "mit", DATIVE), Preposition("without", "ohne", ACCUSATIVE)
BEHIND = Preposition("behind", "hinter", DATIVE)
NEXT_TO = Preposition("next to", "neben", DATIVE)
IN_FRONT_OF = Preposition("in front of", "vor", DATIVE)
ON, ONTO = Preposition("on", "auf", DATIVE), Preposition("on", "auf", ACCUSATIVE)
UNDER, TO_UNDER = Preposition("under", "unter", DATIVE), Preposition("under", "unter", ACCUSATIVE)
FOR, AWAITING = Preposition("for", "für", ACCUSATIVE), Preposition("for", "auf", ACCUSATIVE)
ABOUT = Preposition("about", "über", ACCUSATIVE)

TRIP, ORIGINS = ((TO, K.SITE),), ((FROM, K.SITE), (OUT_OF, K.SPACE))
DESTINATIONS = (*TRIP, (INTO, K.SPACE))
SITUATED = ((ON, K.FURNITURE), (UNDER, K.FURNITURE))
PLACED = ((ONTO, K.FURNITURE), (TO_UNDER, K.FURNITURE))
TOPICS = ((ABOUT, LIVING | K.READING), (WITH, K.PERSON))
PLACES = (
    *((preposition, K.SITE) for preposition in (NEAR, BEHIND, NEXT_TO, IN_FRONT_OF)),
    *((IN, LOCATION), (IN, K.SPACE)),
)

GIFT, FINDABLE, VISIBLE = K.FOOD | PORTABLE, LIVING | PORTABLE, LIVING | THING
COMPANY = ((WITH, K.PERSON), (WITHOUT, K.PERSON))
BENEFIT = ((FOR, K.PERSON),)
TO_DATIVE, RETURN = "{acc} to {dat}", "{acc} back to {dat}"
BE = Verb("be was been", "sein ist ist gewesen")
WEATHER = (Verb("rain", "regnen regnet geregnet"), Verb("snow", "schneien schneit geschneit"))
_VERBS = (
    Verb("sleep slept", "schlafen schläft geschlafen", subject=LIVING, placed=True),
    Verb("work", "arbeiten arbeitet gearbeitet", placed=True, manners=COMPANY),
    Verb("sing sang sung", "singen singt gesungen", placed=True, manners=COMPANY),
    Verb("cook", "kochen kocht gekocht", placed=True, manners=COMPANY + BENEFIT),
    Verb("get got", "auf|stehen steht ist aufgestanden", "up"),
    Verb("arrive", "an|kommen kommt ist angekommen", subject=K.PERSON | K.TRANSPORT),
    Verb("buy bought", "kaufen kauft gekauft", acc=GOODS, manners=BENEFIT),
    Verb("sell sold", "verkaufen verkauft verkauft", acc=GOODS),
    Verb("see saw seen", "sehen sieht gesehen", acc=VISIBLE, placed=True),
    Verb("read read", "lesen liest gelesen", acc=K.READING, placed=True),
    Verb("eat ate eaten", "essen isst gegessen", acc=K.FOOD, placed=True, manners=COMPANY),
    Verb("find found", "finden findet gefunden", acc=FINDABLE, placed=True),
    Verb("look", "suchen sucht gesucht", "for {acc}", acc=FINDABLE),
    Verb("visit", "besuchen besucht besucht", acc=K.PERSON | K.SITE, manners=COMPANY),
    Verb("meet met", "treffen trifft getroffen", acc=K.PERSON, placed=True),
    Verb("wash", "waschen wäscht gewaschen", acc=K.ANIMAL | K.VEHICLE, placed=True),
    Verb("carry", "tragen trägt getragen", acc=K.OBJECT, complements=DESTINATIONS),
    Verb("place", "legen legt gelegt", acc=PORTABLE, complements=PLACED),
    Verb("open", "auf|machen macht aufgemacht", acc=K.OPENABLE),
    Verb("close", "zu|machen macht zugemacht", acc=K.OPENABLE),
    Verb("invite", "ein|laden lädt eingeladen", acc=K.PERSON),
    Verb("call", "an|rufen ruft angerufen", acc=K.PERSON),
    Verb("look", "an|sehen sieht angesehen", "at {acc}", acc=VISIBLE),
    Verb("pick", "ab|holen holt abgeholt", "{acc} up", acc=K.PERSON),
    Verb("bring brought", "mit|bringen bringt mitgebracht", "{acc} along", acc=GIFT),
    Verb("turn", "ein|schalten schaltet eingeschaltet", "{acc} on", acc=K.DEVICE),
    Verb("turn", "aus|schalten schaltet ausgeschaltet", "{acc} off", acc=K.DEVICE),
    Verb("clean", "auf|räumen räumt aufgeräumt", "{acc} up", acc=K.ROOM),
    Verb("help", "helfen hilft geholfen", dat=K.PERSON, placed=True),
    Verb("thank", "danken dankt gedankt", dat=K.PERSON),
    Verb("answer", "antworten antwortet geantwortet", dat=K.PERSON),
    Verb("listen", "zu|hören hört zugehört", "to {dat}", dat=K.PERSON),
    Verb("follow", "folgen folgt ist gefolgt", subject=LIVING, dat=LIVING),
    Verb("belong", "gehören gehört gehört", "to {dat}", subject=OWNABLE, dat=K.PERSON),
    Verb("give gave given", "geben gibt gegeben", TO_DATIVE, acc=GIFT, dat=K.PERSON),
    Verb("show showed shown", "zeigen zeigt gezeigt", TO_DATIVE, acc=GIFT, dat=K.PERSON),
    Verb("send sent", "schicken schickt geschickt", TO_DATIVE, acc=GIFT, dat=K.PERSON),
    Verb("give gave given", "zurück|geben gibt zurückgegeben", RETURN, acc=PORTABLE, dat=K.PERSON),
    Verb("go went gone", "gehen geht ist gegangen", subject=LIVING, complements=DESTINATIONS),
    Verb("come came come", "kommen kommt ist gekommen", subject=LIVING, complements=ORIGINS),
    Verb("travel travelled", "fahren fährt ist gefahren", complements=TRIP, manners=COMPANY),
    Verb("lie lay lain", "liegen liegt gelegen", subject=PORTABLE, complements=SITUATED),
    Verb("wait", "warten wartet gewartet", complements=((AWAITING, K.PERSON | K.TRANSPORT),)),
    Verb("speak spoke spoken", "sprechen spricht gesprochen", complements=TOPICS),
    Verb("think thought", "nach|denken denkt nachgedacht", complements=TOPICS[:1]),
)
VERBS = {verb.german.split()[0].replace("|", ""): verb for verb in _VERBS}

# Verbs of saying and thinking with the conjunction of their object clause.
THAT, WHETHER = Phrase("that", "dass"), Phrase("whether", "ob")
REPORTS = (
    (Verb("know knew known", "wissen weiß gewusst"), THAT),
    (Verb("say said", "sagen sagt gesagt"), THAT),
    (Verb("believe", "glauben glaubt geglaubt"), THAT),
    (Verb("hope", "hoffen hofft gehofft"), THAT),
    (Verb("ask", "fragen fragt gefragt"), WHETHER),
)
IF, WHEN = Phrase("if", "wenn"), Phrase("when", "wenn")
BECAUSE, ALTHOUGH = Phrase("because", "weil"), Phrase("although", "obwohl")

CAN, WILL = Modal("can", ("kann", "kann", "können")), Modal("will", ("werde", "wird", "werden"))
MUST, MAY = Modal("must", ("muss", "muss", "müssen")), Modal("may", ("darf", "darf", "dürfen"))
SHOULD = Modal("should", ("sollte", "sollte", "sollten"))
WANT = Modal("want to", ("will", "will", "wollen"))
MODALS = (CAN, WILL, MUST, MAY, SHOULD, WANT)


def _phrases(text: str) -> tuple[Phrase, ...]:
    return tuple(Phrase(*entry.strip().split(": ")) for entry in text.split(","))


DAYTIMES = _phrases(
    "in the morning: am Morgen, in the evening: am Abend,"
    "on Monday: am Montag, on Sunday: am Sonntag"
)
TODAY, NOW, EVERY_DAY = _phrases("today: heute, now: jetzt, every day: jeden Tag")
TIMES = {
    Tense.PRESENT: (TODAY, NOW, EVERY_DAY, *DAYTIMES),
    Tense.PAST: (TODAY, *_phrases("yesterday: gestern, last week: letzte Woche"), *DAYTIMES),
    Tense.PERFECT: (TODAY,),
}
MODAL_TIMES = (TODAY, *_phrases("tomorrow: morgen"), *DAYTIMES)
CLOCK = tuple(Phrase(f"at {hour} o'clock", f"um {hour} Uhr") for hour in range(1, 13))
FREQUENCIES = tuple(
    phrase._replace(medial=True)
    for phrase in _phrases("often: oft, always: immer, sometimes: manchmal")
)

# --- Phrases ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pronoun:
    """A pronoun: the English subject and object forms, and the German ones by case."""

    english_forms: str
    german_forms: str
    person: Person = Person.THIRD

    def english(self, case: Case) -> str:
        """Returns the English form for the case."""
        return self.english_forms.split()[case is not NOMINATIVE]

    def german(self, case: Case) -> str:
        """Returns the German form for the case."""
        return self.german_forms.split()[case.value - 1]


@dataclass(frozen=True)
class NounPhrase:
    """A noun with determiner and modifiers; the plural of the indefinite article is none."""

    noun: Noun
    determiner: Determiner = THE
    modifiers: tuple[Adjective, ...] = ()
    plural: bool = False

    @property
    def person(self) -> Person:
        """What a verb agrees with."""
        return Person.PLURAL if self.plural else Person.THIRD

    def english(self, case: Case) -> str:
        """Returns the English phrase, which is the same in every case."""
        noun = self.noun.english_plural if self.plural else self.noun.english
        words = [*(word.english for word in self.modifiers), noun]
        article = self.determiner.english_plural if self.plural else self.determiner.english
        if article == "a" and words[0][0] in "aeiou":
            article = "an"
        return _join(article, *words)

    def german(self, case: Case) -> str:
        """Returns the German phrase, declined."""
        gender = Gender.PLURAL if self.plural else self.noun.gender
        article, ending = decline(self.determiner, case, gender)
        modifiers = (
            word.stem + ending if word.inflected else word.german for word in self.modifiers
        )
        return _join(article, *modifiers, decline_noun(self.noun, case, plural=self.plural))


Nominal = Pronoun | NounPhrase

PRONOUNS = {
    "I": Pronoun("I me", "ich mich mir", Person.FIRST),
    "he": Pronoun("he him", "er ihn ihm"),
    "she": Pronoun("she her", "sie sie ihr"),
    "we": Pronoun("we us", "wir uns uns", Person.PLURAL),
    "they": Pronoun("they them", "sie sie ihnen", Person.PLURAL),
}
IT, WHAT = Pronoun("it it", "es es"), Pronoun("what what", "was was")
WHO = Pronoun("who whom", "wer wen wem")
WH_ADVERBS = {
    Slot.TIME: Phrase("when", "wann"),
    Slot.PLACE: Phrase("where", "wo"),
    Slot.MANNER: Phrase("why", "warum"),
}


def decline(determiner: Determiner, case: Case, gender: Gender) -> tuple[str, str]:
    """Returns the inflected determiner and the ending of an adjective after it."""
    cell = (case, gender)
    if determiner is THE:
        return DEFINITE[cell], WEAK[cell]
    if determiner is INDEFINITE and gender is Gender.PLURAL:
        return "", STRONG[cell]
    if determiner.ein_word and cell in ENDINGLESS:
        return determiner.stem, STRONG[cell]
    return determiner.stem + STRONG[cell], WEAK[cell]


def decline_noun(noun: Noun, case: Case, *, plural: bool = False) -> str:
    """Returns the noun with the n-declension of the singular and the -n of the dative plural."""
    if not plural:
        return noun.german_plural if noun.weak and case is not NOMINATIVE else noun.german
    takes_n = case is DATIVE and not noun.german_plural.endswith(("n", "s"))
    return noun.german_plural + ("n" if takes_n else "")


def prepositional(preposition: Preposition, nominal: Nominal) -> Phrase:
    """Returns the prepositional phrase, contracted with a definite article."""
    german = f"{preposition.german} {nominal.german(preposition.case)}"
    first_two = " ".join(german.split()[:2])
    if isinstance(nominal, NounPhrase) and first_two in CONTRACTIONS:
        german = CONTRACTIONS[first_two] + german.removeprefix(first_two)
    return Phrase(f"{preposition.english} {nominal.english(preposition.case)}", german)


def predicative(adjective: Adjective) -> Phrase:
    """Returns the adjective as the complement of the copula, where it does not inflect."""
    return Phrase(f"very {adjective.english}", f"sehr {adjective.german}")


def _join(*words: str) -> str:
    return " ".join(filter(None, words))


# --- Clauses ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clause:
    """A verb with its arguments by case and its adverbials, to be rendered in either language."""

    verb: Verb
    arguments: Mapping[Case, Nominal]
    adverbials: Mapping[Slot, Phrase] = field(default_factory=dict)
    tense: Tense = Tense.PRESENT
    modal: Modal | None = None
    negated: bool = False

    @property
    def person(self) -> Person:
        """What the finite verb agrees with."""
        return self.arguments[NOMINATIVE].person

    def english(
        self, front: Case | Slot | None = NOMINATIVE, *, interrogative: bool = False
    ) -> str:
        """Renders the clause in English.

        Args:
            front: The constituent at the beginning; none in a yes-no question.
            interrogative: Whether the clause is a question.
        """
        text: dict[Case | Slot, str] = {
            case: nominal.english(case) for case, nominal in self.arguments.items()
        }
        # complement - manner - place - time, the reverse of the German order
        for slot in reversed(Slot):
            if slot in self.adverbials:
                text[slot] = self.adverbials[slot].english
        opening = text.pop(front) if front else ""
        inverted = interrogative and front is not NOMINATIVE
        auxiliary, verb = self._english_verbs(do_support=inverted or self.negated)
        subject = text.pop(NOMINATIVE, "")
        objects = self.verb.frame.format(acc=text.pop(ACCUSATIVE, ""), dat=text.pop(DATIVE, ""))
        time = self.adverbials.get(Slot.TIME)
        medial = text.pop(Slot.TIME, "") if time and time.medial else ""
        head = (auxiliary, subject) if inverted else (subject, auxiliary)
        negation = "not" if self.negated else ""
        words = _join(opening, *head, negation, medial, verb, *objects.split(), *text.values())
        return words.replace("can not", "cannot")

    def _english_verbs(self, *, do_support: bool) -> tuple[str, str]:
        """Returns the auxiliary, if any, and the main verb."""
        base, third, past, participle = self.verb.english_parts()
        singular = self.person is Person.THIRD
        if self.modal is WANT:
            base, third = f"want to {base}", f"wants to {base}"
        elif self.modal:
            return self.modal.english, base
        elif self.tense is Tense.PERFECT:
            return "has" if singular else "have", participle
        elif self.verb is BE:
            return ("am", "is", "are")[self.person], ""
        if do_support:
            return "did" if self.tense is Tense.PAST else "does" if singular else "do", base
        return "", past if self.tense is Tense.PAST else third if singular else base

    def german(self, order: Order = Order.SECOND, front: Case | Slot | None = NOMINATIVE) -> str:
        """Renders the clause in German.

        Args:
            order: The place of the finite verb.
            front: The constituent before the finite verb of a verb-second clause.
        """
        fields = self._german_fields()
        finite, closing = self._german_verbs()
        if order is Order.FINAL:
            # A separable prefix rejoins its verb.
            separable = self.tense is Tense.PRESENT and not self.modal
            return _join(*fields.values(), closing + ("" if separable else " ") + finite)
        opening = fields.pop(front) if order is Order.SECOND and front else ""
        return _join(opening, finite, *fields.values(), closing)

    def _german_fields(self) -> dict[Case | Slot, str]:
        """Returns the constituents in the order of the German middle field."""
        objects = [case for case in (DATIVE, ACCUSATIVE) if case in self.arguments]
        pronouns = [case for case in objects if isinstance(self.arguments[case], Pronoun)]
        order = (NOMINATIVE, *pronouns, Slot.TIME, *objects, *Slot)
        text: dict[Case | Slot, str] = {
            case: nominal.german(case) for case, nominal in self.arguments.items()
        }
        text |= {slot: phrase.german for slot, phrase in self.adverbials.items()}
        if self.negated:
            text[Slot.NEGATION] = "nicht"
            for case in objects:
                nominal = self.arguments[case]
                if isinstance(nominal, NounPhrase) and nominal.determiner is INDEFINITE:
                    text[case] = replace(nominal, determiner=NO).german(case)
                    text[Slot.NEGATION] = ""
        return {key: text[key] for key in order if key in text}

    def _german_verbs(self) -> tuple[str, str]:
        """Returns the finite verb and what closes a main clause: prefix or non-finite verb."""
        prefix, present, auxiliary, participle = self.verb.german_parts()
        if self.modal:
            return self.modal.german[self.person], prefix + present[-1].replace("sind", "sein")
        if self.tense is Tense.PRESENT:
            return present[self.person], prefix
        return auxiliary[self.person], participle


@dataclass(frozen=True)
class Sentence:
    """A statement or question, possibly with a subordinate clause before or after it."""

    main: Clause
    front: Case | Slot | None = NOMINATIVE
    interrogative: bool = False
    conjunction: Phrase | None = None
    subordinate: Clause | None = None
    preposed: bool = False

    def render(self) -> Pair:
        """Returns the sentence in both languages."""
        source = self.main.english(self.front, interrogative=self.interrogative)
        # A preposed clause is the first constituent, so the finite verb comes next.
        order = Order.FIRST if self.preposed or self.front is None else Order.SECOND
        target = self.main.german(order, self.front)
        if self.conjunction and self.subordinate:
            english = f"{self.conjunction.english} {self.subordinate.english()}"
            german = f"{self.conjunction.german} {self.subordinate.german(Order.FINAL)}"
            source = f"{english}, {source}" if self.preposed else f"{source} {english}"
            target = f"{german}, {target}" if self.preposed else f"{target}, {german}"
        stop = "?" if self.interrogative else "."
        return Pair(*(text[0].upper() + text[1:] + stop for text in (source, target)))


# --- Sampling -----------------------------------------------------------------------------------


@functools.cache
def _nouns(kind: Kind) -> tuple[Noun, ...]:
    return tuple(noun for noun in NOUNS.values() if noun.kind & kind)


@functools.cache
def _adjectives(kind: Kind) -> tuple[Adjective, ...]:
    return tuple(adjective for adjective in ADJECTIVES.values() if adjective.fits & kind)


class _Sampler:
    """Draws sentences; a noun occurs at most once in each."""

    def __init__(self, seed: int) -> None:
        # The one method of `Random` whose sequence is the same in every version of Python.
        self._random = random.Random(seed).random
        self._used: list[Noun] = []

    def sentence(self) -> Sentence:
        """Draws a statement, a question or a complex sentence."""
        self._used.clear()
        share = self._random()
        if share < 0.42:
            return self._statement()
        if share < 0.63:
            return self._question()
        if share < 0.75:
            return self._report()
        conditional = share < 0.87
        conjunction = self._pick((IF, WHEN) if conditional else (BECAUSE, ALTHOUGH))
        tenses = (Tense.PRESENT,) if conditional else tuple(Tense)
        main = self._clause(tenses, detail=0.3)
        clause = self._clause(tenses, detail=0.3, modals=() if conditional else MODALS, weather=0.1)
        return Sentence(
            main, conjunction=conjunction, subordinate=clause, preposed=self._chance(0.5)
        )

    def _chance(self, probability: float) -> bool:
        return self._random() < probability

    def _pick(self, options: Sequence[T]) -> T:
        return options[int(self._random() * len(options))]

    def _statement(self) -> Sentence:
        clause = self._clause()
        if Slot.TIME in clause.adverbials or self._chance(0.6):
            return Sentence(clause)
        return Sentence(self._with(clause, Slot.TIME, self._time(clause)), front=Slot.TIME)

    def _question(self) -> Sentence:
        clause = self._clause(negation=0)
        fronts: list[Case | Slot | None] = [None, Slot.MANNER]
        fronts += [case for case in clause.arguments if case is not NOMINATIVE]
        if Kind.PERSON in clause.verb.subject and clause.verb is not BE:
            fronts.append(NOMINATIVE)
        if clause.tense is not Tense.PERFECT:
            fronts.append(Slot.TIME)
        if clause.verb.placed:
            fronts.append(Slot.PLACE)
        front = self._pick((None, *fronts))
        if isinstance(front, Slot):
            clause = self._with(clause, front, WH_ADVERBS[front])
        elif front:
            nominal = clause.arguments[front]
            personal = isinstance(nominal, Pronoun) or nominal.noun.kind & Kind.PERSON
            word = WHO if personal or front is not ACCUSATIVE else WHAT
            clause = replace(clause, arguments={**clause.arguments, front: word})
        return Sentence(clause, front=front, interrogative=True)

    def _report(self) -> Sentence:
        verb, conjunction = self._pick(REPORTS)
        subject = self._nominal(Kind.PERSON)
        tense = self._pick((Tense.PRESENT, Tense.PRESENT, Tense.PAST))
        negated = self._chance(0.2) and _negatable(subject)
        main = Clause(verb, {NOMINATIVE: subject}, tense=tense, negated=negated)
        clause = self._clause(detail=0.4, weather=0.05)
        return Sentence(main, conjunction=conjunction, subordinate=clause)

    @staticmethod
    def _with(clause: Clause, slot: Slot, phrase: Phrase) -> Clause:
        return replace(clause, adverbials={**clause.adverbials, slot: phrase})

    def _clause(
        self,
        tenses: tuple[Tense, ...] = tuple(Tense),
        *,
        modals: tuple[Modal, ...] = MODALS,
        detail: float = 1.0,
        negation: float = 0.4,
        weather: float = 0.0,
    ) -> Clause:
        """Draws a clause; `detail` scales the probability of its optional adverbials."""
        if self._chance(weather):
            return Clause(self._pick(WEATHER), {NOMINATIVE: IT})
        if self._chance(0.1):
            return self._copular_clause()
        verb = self._pick(_VERBS)
        arguments = {NOMINATIVE: self._nominal(verb.subject)}
        for case, kind in ((ACCUSATIVE, verb.acc), (DATIVE, verb.dat)):
            if kind:
                arguments[case] = self._nominal(kind, arguments[NOMINATIVE])
        tense = self._pick(tenses)
        base, _, past, _ = verb.english_parts()
        if past == base and tense is Tense.PAST:
            tense = Tense.PERFECT  # "I read" would be ambiguous
        modal = None
        if tense is Tense.PRESENT and modals and self._chance(0.4):
            modal = self._pick(modals if verb.subject in LIVING else (WILL,))
        clause = Clause(verb, arguments, self._adverbials(verb, detail), tense, modal)
        # "must not" and "may not" do not correspond to "muss nicht" and "darf nicht"
        if len(arguments) < 3 and modal not in (MUST, MAY) and self._chance(negation):
            return replace(clause, negated=all(map(_negatable, arguments.values())))
        if self._chance(0.35 * detail):
            return self._with(clause, Slot.TIME, self._time(clause))
        if self._chance(0.1):
            return self._with(clause, Slot.TIME, self._pick(FREQUENCIES))
        return clause

    def _copular_clause(self) -> Clause:
        subject = self._nominal(self._pick((Kind.PERSON, Kind.PERSON, GOODS, LOCATION)))
        kind = subject.noun.kind if isinstance(subject, NounPhrase) else Kind.PERSON
        complement = predicative(self._pick(_adjectives(kind)))
        negated = self._chance(0.2) and _negatable(subject)
        return Clause(BE, {NOMINATIVE: subject}, {Slot.COMPLEMENT: complement}, negated=negated)

    def _adverbials(self, verb: Verb, detail: float) -> dict[Slot, Phrase]:
        adverbials = {}
        for slot, choices, rate in (
            (Slot.COMPLEMENT, verb.complements, 1.0),
            (Slot.PLACE, PLACES if verb.placed else (), 0.4 * detail),
            (Slot.MANNER, verb.manners, 0.35 * detail),
        ):
            if choices and self._chance(rate):
                preposition, kind = self._pick(choices)
                adverbials[slot] = prepositional(preposition, self._noun_phrase(kind, simple=True))
        return adverbials

    def _time(self, clause: Clause) -> Phrase:
        if clause.verb is BE:
            return self._pick((TODAY, NOW))
        if clause.tense is not Tense.PERFECT and self._chance(0.25):
            return self._pick(CLOCK)
        return self._pick(MODAL_TIMES if clause.modal else TIMES[clause.tense])

    def _nominal(self, kind: Kind, subject: Nominal | None = None) -> Nominal:
        """Draws a noun phrase or, where it can refer to a person, a pronoun."""
        if Kind.PERSON in kind and self._chance(0.3):
            # "I thank me" and "we thank me" would need reflexive pronouns
            first = subject in (PRONOUNS["I"], PRONOUNS["we"])
            return PRONOUNS[self._pick(("he", "she", "they") if first else tuple(PRONOUNS))]
        return self._noun_phrase(kind)

    def _noun_phrase(self, kind: Kind, *, simple: bool = False) -> NounPhrase:
        """Draws a noun phrase; a simple one is a definite or possessive singular."""
        noun = self._pick([noun for noun in _nouns(kind) if noun not in self._used] or _nouns(kind))
        self._used.append(noun)
        adjectives = (self._pick(_adjectives(noun.kind)),) if self._chance(0.35) else ()
        if simple:
            return NounPhrase(noun, self._pick((THE, THE, THE, *POSSESSIVES)), adjectives)
        if self._chance(0.7):
            determiners = (THE,) * 6 + (INDEFINITE,) * 6 + (THIS, EVERY) + POSSESSIVES
            return NounPhrase(noun, self._pick(determiners), adjectives)
        determiner = self._pick((THE, THE, *(INDEFINITE,) * 4, THIS, *POSSESSIVES))
        if determiner is INDEFINITE and self._chance(0.6):
            adjectives = (self._pick(QUANTITIES), *adjectives)
        return NounPhrase(noun, determiner, adjectives, plural=True)


def _negatable(nominal: Nominal) -> bool:
    """Returns whether a negation beside the nominal is unambiguous in scope."""
    return isinstance(nominal, Pronoun) or not (
        nominal.determiner is EVERY or any(word in QUANTITIES for word in nominal.modifiers)
    )


# --- Corpus -------------------------------------------------------------------------------------


def generate(num_pairs: int, seed: int) -> list[Pair]:
    """Generates sentence pairs that all differ in English and in German.

    Args:
        num_pairs: The number of pairs.
        seed: Determines the pairs, in every version of Python alike.
    """
    sampler = _Sampler(seed)
    pairs: list[Pair] = []
    sources: set[str] = set()
    targets: set[str] = set()
    while len(pairs) < num_pairs:
        pair = sampler.sentence().render()
        short = len(pair.source.split()) <= MAX_WORDS
        if short and pair.source not in sources and pair.target not in targets:
            sources.add(pair.source)
            targets.add(pair.target)
            pairs.append(pair)
    return pairs


@functools.cache
def bundled_splits() -> dict[str, list[Pair]]:
    """Returns the train, val and test pairs; no sentence of either language occurs twice."""
    pairs = iter(generate(sum(SPLIT_SIZES.values()), BUNDLED_SEED))
    return {split: list(itertools.islice(pairs, size)) for split, size in SPLIT_SIZES.items()}
