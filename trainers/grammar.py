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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple, TypeVar

from keras_transformer.trainers import lexicon
from keras_transformer.trainers.lexicon import (
    ACCUSATIVE,
    BE,
    DATIVE,
    EVERY,
    INDEFINITE,
    NO,
    NOMINATIVE,
    POSSESSIVES,
    THE,
    THIS,
    Adjective,
    Case,
    Determiner,
    Gender,
    Kind,
    Modal,
    Noun,
    Person,
    Phrase,
    Preposition,
    Pronoun,
    Slot,
    Tense,
    Verb,
)

T = TypeVar("T")

SPLIT_SIZES = {"train": 24_000, "val": 500, "test": 500}
BUNDLED_SEED = 2017
MAX_WORDS = 18  # of an English sentence


class Pair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str


# --- Phrases ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NounPhrase:
    """A noun with determiner and modifiers; the plural of the indefinite article is none."""

    noun: Noun
    determiner: Determiner
    modifiers: tuple[Adjective, ...]
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
        article, ending = lexicon.decline(self.determiner, case, gender)
        modifiers = (
            word.stem + ending if word.inflected else word.german for word in self.modifiers
        )
        return _join(article, *modifiers, lexicon.decline_noun(self.noun, case, plural=self.plural))


Nominal = Pronoun | NounPhrase


def prepositional(preposition: Preposition, phrase: NounPhrase) -> Phrase:
    """Returns the prepositional phrase, contracted with a definite article."""
    german = lexicon.contract(f"{preposition.german} {phrase.german(preposition.case)}")
    return Phrase(f"{preposition.english} {phrase.english(preposition.case)}", german)


def predicative(adjective: Adjective) -> Phrase:
    """Returns the adjective as the complement of the copula, where it does not inflect."""
    return Phrase(f"very {adjective.english}", f"sehr {adjective.german}")


def _join(*words: str) -> str:
    return " ".join(filter(None, words))


# --- Clauses ------------------------------------------------------------------------------------

Order = Enum("Order", "FIRST SECOND FINAL")  # the place of the German finite verb


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

    def with_adverbial(self, slot: Slot, phrase: Phrase) -> "Clause":
        """Returns the clause with the phrase in the slot."""
        return replace(self, adverbials={**self.adverbials, slot: phrase})

    def english(
        self, front: Case | Slot | None = NOMINATIVE, *, interrogative: bool = False
    ) -> str:
        """Renders the clause in English.

        Args:
            front: the constituent at the beginning; none in a yes-no question.
            interrogative: whether the clause is a question.
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
        if self.modal is lexicon.WANT:
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
            order: the place of the finite verb.
            front: the constituent before the finite verb of a verb-second clause.
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
        # The first mention of a constituent is its place: pronouns precede the time.
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
            return self.modal.german[self.person], self.verb.infinitive
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

# Repetition makes a determiner more frequent.
DEFINITE_DETERMINERS = (THE,) * 3 + POSSESSIVES
SINGULAR_DETERMINERS = (THE,) * 6 + (INDEFINITE,) * 6 + (THIS, EVERY) + POSSESSIVES
PLURAL_DETERMINERS = (THE,) * 2 + (INDEFINITE,) * 4 + (THIS,) + POSSESSIVES


@functools.cache
def _nouns(kind: Kind) -> tuple[Noun, ...]:
    return tuple(noun for noun in lexicon.NOUNS.values() if noun.kind & kind)


@functools.cache
def _adjectives(kind: Kind) -> tuple[Adjective, ...]:
    return tuple(adjective for adjective in lexicon.ADJECTIVES.values() if adjective.fits & kind)


class Sampler:
    """Draws sentences; a noun recurs in one only where no other of its kind is left."""

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
        if share < 0.87:
            return self._complex(lexicon.CONDITIONS, tenses=(Tense.PRESENT,), modals=())
        return self._complex(lexicon.REASONS, tenses=tuple(Tense), modals=lexicon.MODALS)

    def _chance(self, probability: float) -> bool:
        return self._random() < probability

    def _pick(self, options: Sequence[T]) -> T:
        return options[int(self._random() * len(options))]

    def _statement(self) -> Sentence:
        clause = self._clause()
        if Slot.TIME in clause.adverbials or self._chance(0.6):
            return Sentence(clause)
        return Sentence(clause.with_adverbial(Slot.TIME, self._time(clause)), front=Slot.TIME)

    def _question(self) -> Sentence:
        clause = self._clause(negation=0)
        fronts: list[Case | Slot | None] = [None, None, Slot.MANNER]
        fronts += [case for case in clause.arguments if case is not NOMINATIVE]
        if Kind.PERSON in clause.verb.subject and clause.verb is not BE:
            fronts.append(NOMINATIVE)
        if clause.tense is not Tense.PERFECT:
            fronts.append(Slot.TIME)
        if clause.verb.placed:
            fronts.append(Slot.PLACE)
        front = self._pick(fronts)
        if isinstance(front, Slot):
            clause = clause.with_adverbial(front, lexicon.WH_ADVERBS[front])
        elif front:
            nominal = clause.arguments[front]
            personal = isinstance(nominal, Pronoun) or nominal.noun.kind & Kind.PERSON
            word = lexicon.WHO if personal or front is not ACCUSATIVE else lexicon.WHAT
            clause = replace(clause, arguments={**clause.arguments, front: word})
        return Sentence(clause, front=front, interrogative=True)

    def _report(self) -> Sentence:
        verb, conjunction = self._pick(lexicon.REPORTS)
        subject = self._nominal(Kind.PERSON)
        tense = self._pick((Tense.PRESENT, Tense.PRESENT, Tense.PAST))
        negated = self._chance(0.2) and _negatable(subject)
        main = Clause(verb, {NOMINATIVE: subject}, tense=tense, negated=negated)
        clause = self._clause(detail=0.4, weather=0.05)
        return Sentence(main, conjunction=conjunction, subordinate=clause)

    def _complex(
        self, conjunctions: Sequence[Phrase], tenses: Sequence[Tense], modals: Sequence[Modal]
    ) -> Sentence:
        conjunction = self._pick(conjunctions)
        main = self._clause(tenses, detail=0.3)
        clause = self._clause(tenses, modals=modals, detail=0.3, weather=0.1)
        preposed = self._chance(0.5)
        return Sentence(main, conjunction=conjunction, subordinate=clause, preposed=preposed)

    def _clause(
        self,
        tenses: Sequence[Tense] = tuple(Tense),
        *,
        modals: Sequence[Modal] = lexicon.MODALS,
        detail: float = 1.0,
        negation: float = 0.4,
        weather: float = 0.0,
    ) -> Clause:
        """Draws a clause.

        Args:
            tenses: what to choose from.
            modals: what to choose from in the present tense.
            detail: scales the probability of optional adverbials.
            negation: probability of a negation, where one is unambiguous.
            weather: probability of a clause about the weather.
        """
        if self._chance(weather):
            return Clause(self._pick(lexicon.WEATHER), {NOMINATIVE: lexicon.IT})
        if self._chance(0.1):
            return self._copular_clause()
        verb = self._pick(tuple(lexicon.VERBS.values()))
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
            modal = self._pick(modals if verb.subject in lexicon.LIVING else (lexicon.WILL,))
        clause = Clause(verb, arguments, self._adverbials(verb, detail), tense, modal)
        # "must not" and "may not" do not correspond to "muss nicht" and "darf nicht"
        negatable = len(arguments) < 3 and modal not in (lexicon.MUST, lexicon.MAY)
        if negatable and self._chance(negation):
            return replace(clause, negated=all(map(_negatable, arguments.values())))
        if self._chance(0.35 * detail):
            return clause.with_adverbial(Slot.TIME, self._time(clause))
        if self._chance(0.1):
            return clause.with_adverbial(Slot.TIME, self._pick(lexicon.FREQUENCIES))
        return clause

    def _copular_clause(self) -> Clause:
        kinds = (Kind.PERSON, Kind.PERSON, lexicon.GOODS, lexicon.LOCATION)
        subject = self._nominal(self._pick(kinds))
        kind = subject.noun.kind if isinstance(subject, NounPhrase) else Kind.PERSON
        complement = predicative(self._pick(_adjectives(kind)))
        negated = self._chance(0.2) and _negatable(subject)
        return Clause(BE, {NOMINATIVE: subject}, {Slot.COMPLEMENT: complement}, negated=negated)

    def _adverbials(self, verb: Verb, detail: float) -> dict[Slot, Phrase]:
        adverbials = {}
        for slot, choices, rate in (
            (Slot.COMPLEMENT, verb.complements, 1.0),
            (Slot.PLACE, lexicon.PLACES if verb.placed else (), 0.4 * detail),
            (Slot.MANNER, verb.manners, 0.35 * detail),
        ):
            if choices and self._chance(rate):
                preposition, kind = self._pick(choices)
                adverbials[slot] = prepositional(preposition, self._noun_phrase(kind, simple=True))
        return adverbials

    def _time(self, clause: Clause) -> Phrase:
        if clause.verb is BE:
            return self._pick((lexicon.TODAY, lexicon.NOW))
        if clause.tense is not Tense.PERFECT and self._chance(0.25):
            return self._pick(lexicon.CLOCK)
        return self._pick(lexicon.MODAL_TIMES if clause.modal else lexicon.TIMES[clause.tense])

    def _nominal(self, kind: Kind, subject: Nominal | None = None) -> Nominal:
        """Draws a noun phrase or, where it can refer to a person, a pronoun."""
        if Kind.PERSON in kind and self._chance(0.3):
            # "I thank me" and "we thank me" would need reflexive pronouns
            first = subject in (lexicon.PRONOUNS["I"], lexicon.PRONOUNS["we"])
            names = ("he", "she", "they") if first else tuple(lexicon.PRONOUNS)
            return lexicon.PRONOUNS[self._pick(names)]
        return self._noun_phrase(kind)

    def _noun_phrase(self, kind: Kind, *, simple: bool = False) -> NounPhrase:
        """Draws a noun phrase; a simple one is a definite or possessive singular."""
        noun = self._pick([noun for noun in _nouns(kind) if noun not in self._used] or _nouns(kind))
        self._used.append(noun)
        adjectives = (self._pick(_adjectives(noun.kind)),) if self._chance(0.35) else ()
        if simple:
            return NounPhrase(noun, self._pick(DEFINITE_DETERMINERS), adjectives)
        if self._chance(0.7):
            return NounPhrase(noun, self._pick(SINGULAR_DETERMINERS), adjectives)
        determiner = self._pick(PLURAL_DETERMINERS)
        if determiner is INDEFINITE and self._chance(0.6):
            adjectives = (self._pick(lexicon.QUANTITIES), *adjectives)
        return NounPhrase(noun, determiner, adjectives, plural=True)


def _negatable(nominal: Nominal) -> bool:
    """Returns whether a negation beside the nominal is unambiguous in scope."""
    return isinstance(nominal, Pronoun) or not (
        nominal.determiner is EVERY or any(word in lexicon.QUANTITIES for word in nominal.modifiers)
    )


# --- Corpus -------------------------------------------------------------------------------------


def generate(num_pairs: int, seed: int) -> list[Pair]:
    """Generates sentence pairs that all differ in English and in German.

    Args:
        num_pairs: number of pairs.
        seed: determines the pairs, in every version of Python alike.
    """
    sampler = Sampler(seed)
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
