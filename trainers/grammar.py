"""The bundled corpus: synthetic English-German sentence pairs from a small transfer grammar.

The sentences are *synthetic*: a grammar draws who does what to whom, when and where, and renders
this clause in English and in German. The pairs show how the two languages differ: gender, case,
adjective declension, separable verbs, verb-second and verb-final order. `words.toml` has the words.
A tiny model learns the corpus within minutes, without a download. BLEU on it shows whether the
implementation works, and nothing about real text.

Every English sentence has one German translation. The grammar leaves out words with several, such
as "you" (du, ihr, Sie) and "it".
"""

import functools
import itertools
import random
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from pathlib import Path
from typing import NamedTuple, TypeVar

SPLIT_SIZES = {"train": 24_000, "val": 500, "test": 500}
SEED = 2017
MAX_WORDS = 16  # of an English sentence

Case = IntEnum("Case", "NOMINATIVE ACCUSATIVE DATIVE", start=0)
Gender = IntEnum("Gender", "MASCULINE FEMININE NEUTER PLURAL", start=0)  # a plural has no gender
Person = IntEnum("Person", "FIRST THIRD PLURAL", start=0)  # the forms of a verb
Slot = Enum("Slot", "TIME OFTEN NEGATION MANNER PLACE COMPLEMENT")  # adverbials, in German order
NOMINATIVE, ACCUSATIVE, DATIVE = Case
Role = Case | Slot
T = TypeVar("T")

# --- Words, as `words.toml` explains them ---------------------------------------------------------


class Pair(NamedTuple):
    """An English phrase or sentence, and its German translation."""

    source: str
    target: str


class Noun(NamedTuple):
    """A noun; a star at its German plural marks the n-declension."""

    kind: str
    english: str
    english_plural: str
    article: str
    german: str
    german_plural: str


class Adjective(NamedTuple):
    """An adjective, numeral or quantifier, and the nouns that it fits."""

    nouns: str
    english: str
    german: str
    stem: str = ""


class Verb(NamedTuple):
    """A verb and what goes with it."""

    en: str
    de: str
    subject: str = "person"
    acc: str = ""
    dat: str = ""
    frame: str = "{acc} {dat}"
    complement: str = ""
    place: bool = False
    company: bool = False


class Nominal(NamedTuple):
    """A pronoun or a noun phrase, with its English forms (subject, object) and German cases."""

    english: Sequence[str]
    german: Sequence[str]
    person: Person  # what a verb agrees with
    kind: str = ""  # of the noun
    negative: Sequence[str] = ()  # with "kein", which negates a clause with an indefinite phrase
    is_negatable: bool = True  # whether a negated clause has one meaning only


WORDS = tomllib.loads(Path(__file__).with_name("words.toml").read_text("utf-8"))
NOUNS = {
    entry.split()[0]: Noun(kind, *entry.split())
    for kind, entries in WORDS["nouns"].items()
    for entry in entries
}
ADJECTIVES = {
    entry.split()[0]: Adjective(nouns, *entry.split())
    for nouns, entries in WORDS["adjectives"].items()
    for entry in entries
}
QUANTITIES = [name for name, word in ADJECTIVES.items() if word.nouns in ("numeral", "quantity")]
VERBS = {name: Verb(**entry) for name, entry in WORDS["verbs"].items()}
REPORTS = {name: Verb(**entry) for name, entry in WORDS["reports"].items()}
MODALS = {name: text.split() for name, text in WORDS["modals"].items()}
PRONOUNS = {
    name: Nominal(forms[:2], forms[2:5], Person[forms[5]])
    for name, forms in ((name, text.split()) for name, text in WORDS["pronouns"].items())
}
HABEN, SEIN = ("habe", "hat", "haben"), ("bin", "ist", "sind")
IRREGULAR = {"sein": SEIN, "wissen": ("weiß", "weiß", "wissen")}


@functools.cache
def kinds(names: str) -> frozenset[str]:
    """Returns the kinds of nouns in a set of `words.toml`."""
    groups = WORDS["groups"]
    return frozenset(kind for name in names.split() for kind in groups.get(name, name).split())


def translated(text: str) -> Pair:
    """Returns the pair of "English: German"."""
    return Pair(*text.split(": "))


def join(*words: str) -> str:
    """Returns the words that are not empty, with spaces between them."""
    return " ".join(filter(None, words))


# --- Noun phrases ---------------------------------------------------------------------------------

# A row for each case, a form for each gender.
_DEFINITE = ("der die das die", "den die das die", "dem der dem den")
_STRONG = ("er e es e", "en e es e", "em er em en")
_WEAK = ("e e e en", "en e e en", "en en en en")
_FUSED = {"in dem": "im", "in das": "ins", "bei dem": "beim", "von dem": "vom", "zu dem": "zum"}
_FUSED["zu der"] = "zur"


def noun_phrase(
    name: str, determiner: str = "the", modifiers: Sequence[str] = (), *, plural: bool = False
) -> Nominal:
    """Returns the noun phrase of an English noun, with adjectives and quantities."""
    noun = NOUNS[name]
    article = WORDS["determiners"][determiner][plural]
    words = [*modifiers, noun.english_plural if plural else name]
    english = join("an" if article == "a" and words[0][0] in "aeiou" else article, *words)
    german = [_german(noun, determiner, modifiers, case, plural) for case in Case]
    negative = [_german(noun, "no", modifiers, case, plural) for case in Case]
    return Nominal(
        (english, english),
        german,
        Person.PLURAL if plural else Person.THIRD,
        noun.kind,
        negative if determiner == "a" else (),
        determiner != "every" and not set(modifiers) & set(QUANTITIES),
    )


def _german(noun: Noun, determiner: str, modifiers: Sequence[str], case: Case, plural: bool) -> str:
    gender = Gender.PLURAL if plural else Gender(("der", "die", "das").index(noun.article))
    article, ending = decline(WORDS["determiners"][determiner][2], case, gender)
    adjectives = [
        word.german if word.nouns == "numeral" else (word.stem or word.german) + ending
        for word in (ADJECTIVES[name] for name in modifiers)
    ]
    form = noun.german_plural.rstrip("*")
    if plural:
        form += "n" if case is DATIVE and not form.endswith(("n", "s")) else ""
    elif case is NOMINATIVE or not noun.german_plural.endswith("*"):
        form = noun.german
    return join(article, *adjectives, form)


@functools.cache
def decline(stem: str, case: Case, gender: Gender) -> tuple[str, str]:
    """Returns the German determiner with the stem, and the ending of an adjective after it."""
    definite, strong, weak = (row[case].split()[gender] for row in (_DEFINITE, _STRONG, _WEAK))
    if stem == "d":
        return definite, weak
    if stem == "ein" and gender is Gender.PLURAL:
        return "", strong
    # "ein alter Mann" and "ein altes Kind", but "dieser alte Mann" and "einem alten Mann"
    is_bare = definite == "das" or (definite == "der" and case is NOMINATIVE)
    if is_bare and stem not in ("dies", "jed"):
        return stem, strong
    return stem + strong, weak


def prepositional(preposition: str, nominal: Nominal) -> Pair:
    """Returns a prepositional phrase; a German article may fuse with the preposition."""
    english, german = translated(preposition)
    word, case, *_ = german.split()
    article, *rest = nominal.german[Case[case]].split()
    start = _FUSED.get(f"{word} {article}", f"{word} {article}")
    return Pair(join(english, nominal.english[1]), join(start, *rest))


# --- Clauses --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clause:
    """A verb with its arguments by case and its adverbials.

    The tense is "present", "past" or "perfect", of which the last two are a German Perfekt, or a
    modal verb.
    """

    verb: Verb
    arguments: Mapping[Case, Nominal]
    adverbials: Mapping[Slot, Pair] = field(default_factory=dict)
    tense: str = "present"
    is_negated: bool = False

    def with_adverbial(self, slot: Slot, phrase: Pair) -> "Clause":
        """Returns the clause with the phrase in the slot."""
        return replace(self, adverbials={**self.adverbials, slot: phrase})

    def english(self, front: Role | None = NOMINATIVE, *, is_question: bool = False) -> str:
        """Returns the English clause; `front` is its first constituent, if it is not the verb."""
        text: dict[Role, str] = {
            case: nominal.english[case is not NOMINATIVE]
            for case, nominal in self.arguments.items()
        }
        for slot in reversed(Slot):  # complement, place, manner, time
            if slot in self.adverbials:
                text[slot] = self.adverbials[slot].source
        opening = "" if front is None else text.pop(front)
        is_inverted = is_question and front is not NOMINATIVE
        auxiliary, verb = self._english_verbs(do_support=is_inverted or self.is_negated)
        subject, often = text.pop(NOMINATIVE, ""), text.pop(Slot.OFTEN, "")
        objects = self.verb.frame.format(acc=text.pop(ACCUSATIVE, ""), dat=text.pop(DATIVE, ""))
        head = (auxiliary, subject) if is_inverted else (subject, auxiliary)
        negation = "not" if self.is_negated else ""
        words = join(opening, *head, negation, often, verb, *objects.split(), *text.values())
        return words.replace("can not", "cannot")

    def _english_verbs(self, *, do_support: bool) -> tuple[str, str]:
        """Returns the auxiliary, if any, and the main verb."""
        base, third, past, participle = self.verb.en.split()
        person = self.arguments[NOMINATIVE].person
        is_third = person is Person.THIRD
        if self.tense in MODALS:
            return self.tense, base
        if self.tense == "perfect":
            return "has" if is_third else "have", participle
        if base == "be":
            return ("am", "is", "are")[person], ""
        if do_support:
            return "did" if self.tense == "past" else "does" if is_third else "do", base
        return "", past if self.tense == "past" else third if is_third else base

    def german(self, front: Role | None = NOMINATIVE, *, is_final: bool = False) -> str:
        """Returns the German clause: the verb comes last, or after `front`, or first without it."""
        objects = [case for case in (DATIVE, ACCUSATIVE) if case in self.arguments]
        pronouns = [case for case in objects if not self.arguments[case].kind]
        negated = [case for case in objects if self.is_negated and self.arguments[case].negative]
        text: dict[Role, str] = {
            case: (nominal.negative if case in negated else nominal.german)[case]
            for case, nominal in self.arguments.items()
        }
        text |= {slot: phrase.target for slot, phrase in self.adverbials.items()}
        text[Slot.NEGATION] = "nicht" if self.is_negated and not negated else ""
        # The first mention of a constituent is its place: pronouns precede the time.
        order = (NOMINATIVE, *pronouns, Slot.TIME, Slot.OFTEN, *objects, *Slot)
        fields = {role: text[role] for role in order if role in text}
        finite, closing = self._german_verbs()
        if is_final:
            separator = "" if self.tense == "present" else " "  # a prefix rejoins its verb
            return join(*fields.values(), closing + separator + finite)
        opening = "" if front is None else fields.pop(front)
        return join(opening, finite, *fields.values(), closing)

    def _german_verbs(self) -> tuple[str, str]:
        """Returns the finite verb, and the prefix or non-finite verb that closes a main clause."""
        infinitive, third, *auxiliary, participle = self.verb.de.split()
        prefix, _, stem = infinitive.rpartition("|")
        person = self.arguments[NOMINATIVE].person
        if self.tense in MODALS:
            return MODALS[self.tense][person], prefix + stem
        if self.tense == "present":
            return IRREGULAR.get(stem, (stem[:-1], third, stem))[person], prefix
        return (SEIN if auxiliary else HABEN)[person], participle

    def sentence(self, front: Role | None = NOMINATIVE, *, is_question: bool = False) -> Pair:
        """Returns the clause as a sentence."""
        return _punctuated(
            self.english(front, is_question=is_question), self.german(front), "?" * is_question
        )

    def with_clause(self, conjunction: str, clause: "Clause", *, is_preposed: bool = False) -> Pair:
        """Returns the sentence with a subordinate clause, which may come first."""
        english, german = translated(conjunction)
        english = join(english, clause.english())
        german = join(german, clause.german(is_final=True))
        if is_preposed:  # it is the first constituent: the finite verb comes next
            return _punctuated(f"{english}, {self.english()}", f"{german}, {self.german(None)}")
        return _punctuated(f"{self.english()} {english}", f"{self.german()}, {german}")


def _punctuated(english: str, german: str, stop: str = "") -> Pair:
    return Pair(*(text[0].upper() + text[1:] + (stop or ".") for text in (english, german)))


# --- Sampling -------------------------------------------------------------------------------------

# Repetition makes a choice more frequent. The present tense has the most forms to learn.
_POSSESSIVES = ("my", "his", "her", "our", "their")
_DEFINITES = ("the",) * 8 + _POSSESSIVES
_SINGULARS = ("the",) * 6 + ("a",) * 6 + ("this", "every", *_POSSESSIVES)
_PLURALS = ("the",) * 2 + ("a",) * 4 + ("this", *_POSSESSIVES)
_TENSES = ("present",) * 5 + ("past",) * 2 + ("perfect",) * 2 + tuple(MODALS)


class Sampler:
    """Draws sentences; a noun recurs in one only if no other noun fits."""

    def __init__(self, seed: int) -> None:
        # Of its methods, `random` alone has the same sequence in every version of Python.
        self._random = random.Random(seed).random
        self._used: list[str] = []

    def sentence(self) -> Pair:
        """Draws a statement, a question or a complex sentence."""
        self._used.clear()
        share = self._random()
        if share < 0.45:
            return self._statement()
        if share < 0.7:
            return self._question()
        if share < 0.8:
            name = self._pick(list(REPORTS))
            tense = self._pick(("present", "present", "past"))
            main = Clause(REPORTS[name], {NOMINATIVE: self._nominal("person")}, tense=tense)
            return main.with_clause(REPORTS[name].complement, self._clause(detail=0.4))
        name, tenses = ("condition", ("present",)) if share < 0.9 else ("reason", _TENSES)
        main, clause = (self._clause(tenses, detail=0.3) for _ in range(2))
        conjunction = self._pick(WORDS["conjunctions"][name])
        return main.with_clause(conjunction, clause, is_preposed=self._chance(0.5))

    def _chance(self, probability: float) -> bool:
        return self._random() < probability

    def _pick(self, options: Sequence[T]) -> T:
        return options[int(self._random() * len(options))]

    def _statement(self) -> Pair:
        clause = self._clause()
        if Slot.TIME in clause.adverbials or self._chance(0.7):
            return clause.sentence()
        return clause.with_adverbial(Slot.TIME, self._time(clause.tense)).sentence(Slot.TIME)

    def _question(self) -> Pair:
        clause = self._clause(negation=0)
        if self._chance(0.5):
            return clause.sentence(None, is_question=True)
        fronts: list[Role] = [Slot.MANNER, *clause.arguments]
        fronts += [Slot.TIME] * (clause.tense != "perfect") + [Slot.PLACE] * clause.verb.place
        front = self._pick(fronts)
        if isinstance(front, Slot):
            clause = clause.with_adverbial(front, translated(WORDS["questions"][front.name]))
        else:
            is_thing = front is not DATIVE and clause.arguments[front].kind not in ("", "person")
            asked = {**clause.arguments, front: PRONOUNS["what" if is_thing else "who"]}
            clause = replace(clause, arguments=asked)
        return clause.sentence(front, is_question=True)

    def _clause(
        self, tenses: Sequence[str] = _TENSES, *, detail: float = 1.0, negation: float = 0.4
    ) -> Clause:
        """Draws a clause; `detail` scales the probability of optional adverbials."""
        verb = VERBS["be"] if self._chance(0.08) else self._pick(list(VERBS.values()))
        arguments = {NOMINATIVE: self._nominal(verb.subject)}
        for case, names in ((ACCUSATIVE, verb.acc), (DATIVE, verb.dat)):
            if names:
                arguments[case] = self._nominal(names, arguments[NOMINATIVE])
        tense = "present" if verb is VERBS["be"] else self._pick(tenses)
        if tense in MODALS and not kinds(verb.subject) <= kinds("living"):
            tense = "will"
        adverbials = self._adverbials(verb, arguments[NOMINATIVE], detail)
        clause = Clause(verb, arguments, adverbials, tense)
        # "must not" is not "muss nicht".
        if len(arguments) < 3 and tense != "must" and self._chance(negation):
            is_negated = all(nominal.is_negatable for nominal in arguments.values())
            return replace(clause, is_negated=is_negated)
        if self._chance(0.3 * detail):
            return clause.with_adverbial(Slot.TIME, self._time(tense))
        if self._chance(0.1):
            often = translated(self._pick(WORDS["times"]["often"]))
            return clause.with_adverbial(Slot.OFTEN, often)
        return clause

    def _adverbials(self, verb: Verb, subject: Nominal, detail: float) -> dict[Slot, Pair]:
        if verb is VERBS["be"]:
            adjective = ADJECTIVES[self._adjective(subject.kind or "person")]
            very, sehr = self._pick((("", ""), ("very ", "sehr ")))
            return {Slot.COMPLEMENT: Pair(very + adjective.english, sehr + adjective.german)}
        adverbials = {}
        for slot, name, probability in (
            (Slot.COMPLEMENT, verb.complement, 1.0),
            (Slot.PLACE, "places" if verb.place else "", 0.4 * detail),
            (Slot.MANNER, "company" if verb.company else "", 0.35 * detail),
        ):
            if name and self._chance(probability):
                preposition = self._pick(WORDS["prepositions"][name])
                nouns = " ".join(translated(preposition).target.split()[2:])
                noun, modifiers = self._noun(nouns)
                phrase = noun_phrase(noun, self._pick(_DEFINITES), modifiers)
                adverbials[slot] = prepositional(preposition, phrase)
        return adverbials

    def _time(self, tense: str) -> Pair:
        if tense != "perfect" and self._chance(0.25):
            hour = 1 + int(12 * self._random())
            return Pair(f"at {hour} o'clock", f"um {hour} Uhr")
        return translated(self._pick(WORDS["times"]["modal" if tense in MODALS else tense]))

    def _nominal(self, names: str, subject: Nominal | None = None) -> Nominal:
        """Draws a noun phrase or, for a person, perhaps a pronoun."""
        if "person" in kinds(names) and self._chance(0.3):
            # "I thank me" and "we thank me" need reflexive pronouns.
            is_first = subject in (PRONOUNS["I"], PRONOUNS["we"])
            choices = ("he", "she", "they") if is_first else ("I", "he", "she", "we", "they")
            return PRONOUNS[self._pick(choices)]
        noun, modifiers = self._noun(names)
        if self._chance(0.65):
            return noun_phrase(noun, self._pick(_SINGULARS), modifiers)
        determiner = self._pick(_PLURALS)
        if determiner == "a" and self._chance(0.6):
            modifiers = [self._pick(QUANTITIES), *modifiers]
        return noun_phrase(noun, determiner, modifiers, plural=True)

    def _noun(self, names: str) -> tuple[str, list[str]]:
        """Draws a noun and perhaps an adjective."""
        options = [name for name, noun in NOUNS.items() if noun.kind in kinds(names)]
        name = self._pick([name for name in options if name not in self._used] or options)
        self._used.append(name)
        return name, [self._adjective(NOUNS[name].kind)] if self._chance(0.3) else []

    def _adjective(self, kind: str) -> str:
        return self._pick([name for name, word in ADJECTIVES.items() if kind in kinds(word.nouns)])


# --- Corpus ---------------------------------------------------------------------------------------


def generate(num_pairs: int, seed: int) -> list[Pair]:
    """Generates sentence pairs, none of which shares a sentence with another."""
    sampler = Sampler(seed)
    pairs: list[Pair] = []
    seen: set[str] = set()
    while len(pairs) < num_pairs:
        pair = sampler.sentence()
        if len(pair.source.split()) <= MAX_WORDS and seen.isdisjoint(pair):
            seen.update(pair)
            pairs.append(pair)
    return pairs


@functools.cache
def bundled_splits() -> dict[str, list[Pair]]:
    """Returns the train, val and test pairs; no sentence occurs in two pairs."""
    pairs = iter(generate(sum(SPLIT_SIZES.values()), SEED))
    return {split: list(itertools.islice(pairs, size)) for split, size in SPLIT_SIZES.items()}
