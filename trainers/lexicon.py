"""The words of the bundled corpus: grammatical categories, word classes, lexicon, declension."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, Flag, IntEnum
from typing import NamedTuple

# --- Grammatical categories ---------------------------------------------------------------------

Case = Enum("Case", "NOMINATIVE ACCUSATIVE DATIVE")
Gender = Enum("Gender", "MASCULINE FEMININE NEUTER PLURAL")  # German plurals have no gender
Person = IntEnum("Person", "FIRST THIRD PLURAL", start=0)  # of verb forms
Tense = Enum("Tense", "PRESENT PAST PERFECT")  # of English: German has the Perfekt for the last two
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
Finite = tuple[str, str, str]  # the forms of a verb in one tense, by `Person`


# --- Word classes -------------------------------------------------------------------------------


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


Choices = tuple[tuple[Preposition, Kind], ...]  # with what nouns a preposition can go
HABEN: Finite = ("habe", "hat", "haben")
SEIN: Finite = ("bin", "ist", "sind")
IRREGULAR = {"sein": SEIN, "wissen": ("weiß", "weiß", "wissen")}


@dataclass(frozen=True)
class Verb:
    """A verb with its principal parts and its valency.

    Attributes:
        english: base form, past and participle; what is missing is regular.
        german: infinitive (a bar ends a separable prefix), third person, "ist" if the Perfekt
            takes this auxiliary, and participle.
        frame: where English puts objects, particles and prepositions.
        subject: what can be the subject.
        acc: what can be the accusative object, if there is one.
        dat: what can be the dative object, if there is one.
        complements: the prepositional complements, of which every clause has one.
        manners: prepositional phrases that may tell with whom or for whom.
        placed: whether a place makes sense.
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

    @property
    def infinitive(self) -> str:
        """The German infinitive."""
        return self.german.split()[0].replace("|", "")

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


# --- Lexicon ------------------------------------------------------------------------------------


def _suffixed(word: str, suffix: str) -> str:
    """Returns the English word with the suffix -s or -ed in regular spelling."""
    if word[-1] == "y" and word[-2] not in "aeiou":
        return f"{word[:-1]}ie{suffix[-1]}"
    sibilant = suffix == "s" and word.endswith(("s", "ch", "sh", "o"))
    return word + ("e" if sibilant else "") + suffix.removeprefix("e" if word[-1] == "e" else "")


def _entries(text: str) -> Iterator[list[str]]:
    """Yields the words of each comma-separated entry."""
    return map(str.split, text.split(","))


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
POSSESSIVES = tuple(
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
VERBS = {verb.infinitive: verb for verb in _VERBS}

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
CONDITIONS, REASONS = (IF, WHEN), (BECAUSE, ALTHOUGH)

CAN, WILL = Modal("can", ("kann", "kann", "können")), Modal("will", ("werde", "wird", "werden"))
MUST, MAY = Modal("must", ("muss", "muss", "müssen")), Modal("may", ("darf", "darf", "dürfen"))
SHOULD = Modal("should", ("sollte", "sollte", "sollten"))
WANT = Modal("want to", ("will", "will", "wollen"))
MODALS = (CAN, WILL, MUST, MAY, SHOULD, WANT)


def _phrases(text: str) -> tuple[Phrase, ...]:
    """Returns the phrases of comma-separated entries."""
    pairs = (entry.strip().split(": ") for entry in text.split(","))
    return tuple(Phrase(english, german) for english, german in pairs)


DAYTIMES = _phrases(
    "in the morning: am Morgen, in the evening: am Abend,"
    "on Monday: am Montag, on Sunday: am Sonntag"
)
TODAY, NOW = _phrases("today: heute, now: jetzt")
TIMES = {
    Tense.PRESENT: (TODAY, NOW, *_phrases("every day: jeden Tag"), *DAYTIMES),
    Tense.PAST: (TODAY, *_phrases("yesterday: gestern, last week: letzte Woche"), *DAYTIMES),
    Tense.PERFECT: (TODAY,),
}
MODAL_TIMES = (TODAY, *_phrases("tomorrow: morgen"), *DAYTIMES)
CLOCK = tuple(Phrase(f"at {hour} o'clock", f"um {hour} Uhr") for hour in range(1, 13))
FREQUENCIES = tuple(
    phrase._replace(medial=True)
    for phrase in _phrases("often: oft, always: immer, sometimes: manchmal")
)

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


# --- Declension ---------------------------------------------------------------------------------


def _paradigm(*rows: str) -> dict[tuple[Case, Gender], str]:
    """Returns the forms of a table with a row for each case and a column for each gender."""
    return {
        (case, gender): form
        for case, row in zip(Case, rows, strict=True)
        for gender, form in zip(Gender, row.split(), strict=True)
    }


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


def contract(phrase: str) -> str:
    """Returns the prepositional phrase with preposition and definite article fused."""
    first_two = " ".join(phrase.split()[:2])
    return CONTRACTIONS.get(first_two, first_two) + phrase.removeprefix(first_two)
