"""Terms: words of a source whose translation is given, marked as ⟦file|soubor⟧."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import regex

from keras_transformer.errors import InputError
from keras_transformer.files import decode_lines
from keras_transformer.protection import PROTECTS
from keras_transformer.protection.patterns import NAMED, PERCENTAGE

TERM = r"⟦[^⟦⟧|]+\|([^⟦⟧|]*)⟧"  # of RE2; the group is the translation
TERM_GROUP = "term_of_the_glossary"
LETTER = r"[\p{L}\p{M}\p{N}]"  # a letter, a mark on it, or a digit
UNSPACED = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"
PERCENT = r"(?<=[0-9])%(?=-\p{L}|\p{L}\p{L})"  # begins no placeholder; see `PERCENTAGE`
# No letter or digit touches a term, unless its script has no spaces or its edge is no letter.
BEFORE = rf"(?:(?<![\p{{L}}\p{{N}}]\p{{M}}*)|(?={UNSPACED})|(?!{LETTER}))"
AFTER = rf"(?:(?!{LETTER})|(?<={UNSPACED})|(?<!{LETTER}))"


def term_marker(glossary: Mapping[str, str], protect: Sequence[str] = ()) -> Callable[[str], str]:
    """Returns a function that marks terms in a source, for a model that protects strings.

    It marks complete words, the longest term first, with the same capitals as in the glossary.
    In a script without spaces, a term may stand anywhere. Marks that are there already stay, and
    so do tags, addresses and placeholders.

    Args:
        glossary: translations by term.
        protect: what the model protects; no terms are marked in what its regular expressions find.

    Raises:
        InputError: if a term is empty, or it or its translation has one of the characters ⟦|⟧.

    Example:
        >>> from keras_transformer.protection.terms import term_marker
        >>> mark_terms = term_marker({"file": "soubor"})
        >>> mark_terms("Delete file or profile?")
        'Delete ⟦file|soubor⟧ or profile?'
    """
    for term, translation in glossary.items():
        if not term.strip() or regex.search("[⟦|⟧]", term + translation):
            raise InputError(
                "`glossary` must have terms that are not empty, and none of the characters ⟦|⟧. "
                f"Received: {term!r}: {translation!r}"
            )
    term = rf"{BEFORE}(?P<{TERM_GROUP}>\L<terms>){AFTER}"  # of a list, the longest
    expression = "|".join(["⟦[^⟦⟧]*⟧", *_protected(protect), *([term] if glossary else [])])
    pattern = regex.compile(expression, ignore_unused=True, terms=list(glossary))

    def marked(match: regex.Match[str]) -> str:
        found = match.groupdict().get(TERM_GROUP)
        return f"⟦{found}|{glossary[found]}⟧" if found else match[0]

    return lambda text: pattern.sub(marked, text)


def _protected(protect: Sequence[str]) -> Iterator[str]:
    """Yields the model's expressions, then those of all sets, as Python writes them."""
    for pattern in (*(each for each in protect if each not in PROTECTS), *NAMED.values()):
        pattern = pattern.replace(PERCENTAGE, PERCENT)
        characters = regex.sub(r"\\x\{(\w+)\}", lambda match: f"\\U{match[1]:0>8}", pattern)
        written = regex.sub(r"(?<=(?<!\\)\[[^\]]*)\\w", "0-9A-Za-z_", characters)
        written = written.replace(r"\w", "[0-9A-Za-z_]")  # which is ASCII's in RE2
        with suppress(regex.error):  # a few expressions of RE2 are none of Python's
            regex.compile(written)
            yield f"(?:{written})"


def read_glossary(path: str | Path) -> dict[str, str]:
    """Reads a glossary: a term and its translation on each line, separated by a tab.

    Raises:
        InputError: if the file cannot be read, a line has not two columns, or a term has two
            translations.
    """
    try:
        lines = Path(path).read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise InputError(f"Cannot read the glossary {path}: {error.strerror}") from error
    glossary: dict[str, str] = {}
    for number, line in enumerate(decode_lines(lines, path), start=1):
        columns = line.split("\t")
        if not line.strip():
            continue
        if len(columns) != 2 or not all(map(str.strip, columns)):
            raise InputError(
                f"{path}, line {number}: a line must have a term, a tab and its translation. "
                f"Received: {line[:40]!r}"
            )
        term, translation = map(str.strip, columns)
        if glossary.setdefault(term, translation) != translation:
            raise InputError(f"{path}, line {number}: {term!r} has another translation before")
    return glossary
