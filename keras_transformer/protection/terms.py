"""Terms: words of a source whose translation is given, marked as ⟦file|soubor⟧."""

import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import regex

from keras_transformer.errors import InputError
from keras_transformer.files import decode_lines, open_binary, read_failure
from keras_transformer.languages import LANGUAGE_TAG, UNSPACED
from keras_transformer.protection.patterns import BEFORE_ENTITY, CUT, NAMED, TEXT_IN_PYTHON
from keras_transformer.registry import PROTECTED_SETS

TERM = r"⟦[^⟦⟧|]+\|([^⟦⟧|]*)⟧"  # of RE2; the group is the translation
TERM_GROUP = "term_of_the_glossary"
LETTER = r"[\p{L}\p{M}\p{N}]"  # a letter, a mark on it, or a digit
ASCII = {"w": "A-Za-z0-9_", "d": "0-9", "s": r"\t\n\f\r "}  # what these classes are in RE2


def in_python(pattern: str) -> str:
    """Returns an expression of RE2, or of `NAMED`, as Python writes it."""
    for text, place in TEXT_IN_PYTHON.items():
        pattern = pattern.replace(text, place)
    pattern = regex.sub(r"\\x\{(\w+)\}", lambda match: f"\\U{match[1]:0>8}", pattern)
    for name, characters in ASCII.items():
        pattern = regex.sub(
            rf"(?<=(?<!\\)\[[^\]]*)\\{name}", characters.replace("\\", r"\\"), pattern
        )
        pattern = pattern.replace(rf"\{name}", f"[{characters}]")
    word = f"[{ASCII['w']}]"
    return pattern.replace(r"\b", f"(?:(?<={word})(?!{word})|(?<!{word})(?={word}))")


_UNSPACED = in_python(f"[{UNSPACED}]")
# No letter or digit touches a term, unless its script has no spaces or its edge is no letter. It
# is no part of an identifier, such as file_name, obj.file, $file, a->file or file(), nor of a path.
BEFORE = (
    r"(?:(?<![\p{L}\p{N}_]\p{M}*|[\p{L}\p{N}_]\.|[$@#\\]|->|::|(?:^|\s)(?:~|\.{1,2})?/\S{0,200})"
    rf"|(?={_UNSPACED})|(?!{LETTER}))"
)
AFTER = rf"(?:(?!{LETTER}|_|\.[\p{{L}}\p{{N}}_]|\(\)|->|::)|(?<={_UNSPACED})|(?<!{LETTER}))"


def term_marker(glossary: Mapping[str, str], protect: Sequence[str] = ()) -> Callable[[str], str]:
    """Returns a function that marks terms in a source, for a model that protects strings.

    It marks complete words, the longest term first, with the same capitals as in the glossary,
    and with their letters composed or decomposed.
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
    # A text may have its letters composed or decomposed.
    forms = {
        unicodedata.normalize(form, term): translation
        for form in ("NFC", "NFD")
        for term, translation in glossary.items()
    }
    glossary = forms | dict(glossary)
    term = rf"{BEFORE}(?P<{TERM_GROUP}>\L<terms>){AFTER}"  # of a list, the longest
    kept = "⟦[^⟦⟧]*⟧", rf"^\s*{LANGUAGE_TAG}"
    expression = "|".join([*kept, *_protected(protect), *([term] if glossary else [])])
    pattern = regex.compile(expression, ignore_unused=True, terms=list(glossary))

    def marked(match: regex.Match[str]) -> str:
        term = match.groupdict().get(TERM_GROUP)
        return f"⟦{term}|{glossary[term]}⟧" if term else match[0]

    cut = regex.compile(in_python(BEFORE_ENTITY))
    return lambda text: pattern.sub(marked, cut.sub(rf"\1{CUT}\2", text)).replace(CUT, "")


def _protected(protect: Sequence[str]) -> Iterator[str]:
    """Yields the model's expressions, then those of all sets, as Python writes them."""
    for pattern in (*(name for name in protect if name not in PROTECTED_SETS), *NAMED.values()):
        written = in_python(pattern)
        with suppress(regex.error):  # a few expressions of RE2 are none of Python's
            regex.compile(written)
            yield f"(?:{written})"


def read_glossary(path: str | Path) -> dict[str, str]:
    """Reads a glossary, also `.gz`: a term and its translation on each line, separated by a tab."""
    with read_failure(f"the glossary {path}"), open_binary(Path(path)) as file:
        lines = list(file)
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
