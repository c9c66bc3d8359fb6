"""The files of translators: gettext catalogues, XLIFF and TMX, by translate-toolkit."""

import codecs
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import langcodes

from keras_transformer.errors import InputError, as_input_error, needs_extra
from keras_transformer.files import kind_of, open_binary, read_failure
from keras_transformer.languages import is_language

logger = logging.getLogger(__name__)

FILLED = (".po", ".xlf", ".xliff")  # formats whose empty entries `translate` fills
PAIRED = (*FILLED, ".mo", ".tmx")  # formats that hold translations
FORMATS = (*PAIRED, ".pot")
# Entries in which translators write their names: of GNOME, and the contexts of KDE.
CREDITS = re.compile(r"translat(?:ors?|ion)[-_ ]credits?\S*", re.IGNORECASE)
CREDITS_CONTEXTS = ("NAME OF TRANSLATORS", "EMAIL OF TRANSLATORS")
# Of gettext's header; a template has the word itself.
CHARSET = re.compile(rb'^"Content-Type:.*charset=\s*(?!CHARSET\b)([\w.:-]+)', re.MULTILINE)
# Files of a language by its code of two letters. Other codes are words, too: new.po, in.po.
NAMED = re.compile(r"(?:.+\.)?((?!in\.)[a-z]{2}(?:[-_@][^.]+)?)\.[mp]o(?:\.gz)?", re.IGNORECASE)
# Elements of XLIFF and TMX that only mark text; all others are codes, and hold no text.
TEXT_ELEMENTS = ("mrk", "hi")
UNTRANSLATED = ("new", "initial", "needs-translation", "needs-l10n", "needs-adaptation")  # states
XML_LANG = "{http://www.w3.org/XML/1998/namespace}lang"

Texts = tuple[str, str]  # of source and target
Languages = tuple[str | None, str | None]  # of source and target; None if a file does not say


class OtherLanguagesError(InputError):
    """A file has no text of the languages that are asked for."""


def read_catalogue(
    path: Path, source: str, target: str, unnamed: Languages = (None, None)
) -> Callable[[], Iterator[Texts]]:
    """Opens a file of translators, and logs what is left out; returns a function that reads it.

    Only TMX is read as a stream. In a catalogue of one language, `source` may be the messages' own.
    A source and a target without a language have those of `unnamed`; None fits any.
    """
    left_out: Counter[str] = Counter()
    if kind_of(path) == ".tmx":
        total = sum(1 for _ in _memory(path, source, target, left_out))
    else:
        pairs = list(_pairs(path, source, target, left_out, unnamed))
        total = len(pairs)
    reasons = dict.fromkeys(("fuzzy", "empty", *sorted(left_out)))
    listed = ", ".join(f"{left_out[reason]} {reason}" for reason in reasons)
    logger.info("%s: %d pairs; left out: %s", path, total, listed)
    if kind_of(path) == ".tmx":
        return lambda: _memory(path, source, target, Counter())
    return lambda: iter(pairs)


def open_store(path: Path) -> Any:
    """Opens a catalogue or XLIFF, also `.gz`, by translate-toolkit."""
    with needs_extra("localisation"):
        from translate.storage import factory, xliff2
    with read_failure(path), open_binary(path) as file:
        content = file.read()
    with as_input_error(f"Cannot read {path}"):  # errors of XML, of gettext
        if kind_of(path) in (".po", ".pot"):
            content = _as_utf8(content)
        is_xliff_2 = kind_of(path) in (".xlf", ".xliff") and b"xliff:document:2" in content
        kind = xliff2.Xliff2File if is_xliff_2 else factory.getclass(f"x{kind_of(path)}")
        store = kind.parsestring(content)
    store.XMLindent = {"max_level": 0}  # the white space of XLIFF stays, also between segments
    return store


def _as_utf8(content: bytes) -> bytes:
    """Returns gettext's text in UTF-8, because translate-toolkit reads other charsets wrongly."""
    match = CHARSET.search(content)
    charset = match[1].decode() if match else "utf-8"
    text = content.decode(charset)  # strictly: translate-toolkit falls back to Latin-1
    if match is None or codecs.lookup(charset).name == "utf-8":
        return content
    start, end = (len(content[:place].decode(charset)) for place in match.span(1))
    return f"{text[:start]}UTF-8{text[end:]}".encode()


def is_message(unit: Any) -> bool:
    """Returns whether an entry is to be translated."""
    element = getattr(unit, "xmlelement", None)
    around = () if element is None else (element, *element.iterancestors())
    marks = [mark for outer in around if (mark := outer.get("translate"))]  # the nearest counts
    if CREDITS.fullmatch(str(unit.source)) or unit.getcontext() in CREDITS_CONTEXTS:
        return False
    return bool(unit.source) and not (unit.isheader() or unit.isobsolete() or marks[:1] == ["no"])


def own_languages(store: Any, path: Path) -> Languages:
    """Returns a file's languages; the target may be in a name, `cs/LC_MESSAGES` or `cs.po`."""
    folder, named = path.absolute().parent, None
    if folder.name == "LC_MESSAGES":
        named = folder.parent.name
    elif (match := NAMED.fullmatch(path.name)) and langcodes.tag_is_valid(match[1].split("@")[0]):
        named = match[1]
    source, target = store.getsourcelanguage(), store.gettargetlanguage() or named
    # A file of en_GB translates English messages.
    is_variety = is_language(target, "en") and target != "en"
    return source or ("en" if is_variety else None), target


def languages_of(unit: Any, store: Languages) -> Languages:
    """Returns the languages of an entry's source and target; of gettext, those of its store."""
    element = getattr(unit, "xmlelement", None)
    if element is None:
        return store
    around = list(element.iterancestors("{*}file", "{*}xliff"))
    sides = ("source-language", "srcLang"), ("target-language", "trgLang")
    source, target = (
        next((code for outer in around for name in names if (code := outer.get(name))), None)
        for names in sides
    )
    return source, target


def is_swapped(codes: Languages, source: str, target: str) -> bool | None:
    """Returns whether text goes from target to source; None if neither.

    A missing code fits any language.
    """
    for names in ((source, target), (target, source)):
        pairs = zip(codes, names, strict=True)
        if all(not code or is_language(code, name) for code, name in pairs):
            return names != (source, target)
    return None


def sides_of(unit: Any) -> list[Any]:
    """Returns the elements of XLIFF that hold the text of an entry, and not of alternatives."""
    element = getattr(unit, "xmlelement", None)
    # A plural is a group of units.
    units = [] if element is None else [element, *element.iterchildren("{*}trans-unit")]
    names = ("{*}source", "{*}seg-source", "{*}target")
    return [side for part in units for side in part.iterchildren(*names)]


def is_untranslated(unit: Any) -> bool:
    """Returns whether an entry has no translation; a copy of the source may stand for it."""
    is_new = any(state in UNTRANSLATED for state in _states(unit))
    return not unit.target or (is_new and unit.target == unit.source)


def forms_of(text: Any) -> list[str]:
    """Returns the singular and the plural forms of a text."""
    return list(map(str, getattr(text, "strings", [text])))


def _pairs(
    path: Path, source: str, target: str, left_out: Counter[str], unnamed: Languages
) -> Iterator[Texts]:
    store = open_store(path)
    own = own_languages(store, path)
    others: set[str] = set()
    total = 0
    for unit in filter(is_message, store.units):
        total += 1
        one, other = languages_of(unit, own)
        codes = one or unnamed[0], other or unnamed[1]
        swapped = is_swapped(codes, source, target)
        if swapped is None:
            named = set(filter(None, codes))
            foreign = {code for code in named if is_swapped((code, None), source, target) is None}
            others |= foreign or named
            left_out["of other languages"] += 1
        elif is_untranslated(unit):
            left_out["empty"] += 1
        elif _is_fuzzy(unit):
            left_out["fuzzy"] += 1
        elif any(map(_has_codes, sides_of(unit))):
            left_out["with inline codes"] += 1
        else:
            forms = forms_of(unit.source), forms_of(unit.target)
            # Of plural forms, the first and the last ones are translations of each other.
            ends = ((forms[0][place], forms[1][place]) for place in (0, -1))
            for texts in dict.fromkeys(ends):
                pair = " ".join(texts[0].splitlines()), " ".join(texts[1].splitlines())
                if all(texts):
                    yield pair[::-1] if swapped else pair
                else:
                    left_out["empty"] += 1
    if 0 < total == left_out["of other languages"]:
        raise OtherLanguagesError(
            f"{path} has the language {', '.join(sorted(others))}. Received: {source!r}, {target!r}"
        )


def _states(unit: Any) -> list[str]:
    return [part.get("state", "") for side in sides_of(unit) for part in (side, side.getparent())]


def _is_fuzzy(unit: Any) -> bool:
    """Returns whether a translation waits for a person."""
    element = getattr(unit, "xmlelement", None)
    if element is None:
        return bool(unit.isfuzzy())
    # translate-toolkit also takes what nobody has approved for fuzzy, which most XLIFF has.
    is_waiting = any(s.startswith("needs") or s in UNTRANSLATED for s in _states(unit))
    return is_waiting or element.get("approved") == "no"


def _has_codes(side: Any) -> bool:
    names = (element.tag.rpartition("}")[2] for element in side.iterdescendants("{*}*"))
    return any(name not in TEXT_ELEMENTS for name in names)


def _memory(path: Path, source: str, target: str, left_out: Counter[str]) -> Iterator[Texts]:
    """Yields the pairs of a translation memory, which may have many languages."""
    with needs_extra("localisation"):
        from lxml import etree
    languages: set[str] = set()
    damaged = as_input_error(f"Cannot read {path}", etree.XMLSyntaxError)
    with damaged, read_failure(path), open_binary(path) as file:
        for _, unit in etree.iterparse(file, tag="{*}tu", resolve_entities=False):
            yield from _pair_of(unit, source, target, languages, left_out)
            unit.clear()
            while unit.getprevious() is not None:
                del unit.getparent()[0]
    for language in (source, target):
        if not any(is_language(code, language) for code in languages):
            raise OtherLanguagesError(
                f"{path} has the languages {', '.join(sorted(languages)) or 'none'}. "
                f"Received: {language!r}"
            )


def _pair_of(
    unit: Any, source: str, target: str, languages: set[str], left_out: Counter[str]
) -> Iterator[Texts]:
    """Yields the pair of a unit of TMX: the first texts of both languages that have no codes."""
    texts: dict[str, str] = {}
    has_codes = False
    for variant in unit.iterchildren("{*}tuv"):
        code = variant.get(XML_LANG) or variant.get("lang") or ""
        languages.add(code)
        names = [language for language in (source, target) if is_language(code, language)]
        for segment in variant.iterchildren("{*}seg") if names else ():
            if _has_codes(segment):
                has_codes = True
                continue
            text = segment.xpath("string(.)") if len(segment) else segment.text or ""
            text = " ".join(text.splitlines())
            for language in names if text else ():
                if texts.setdefault(language, text) != text:
                    left_out["further variants"] += 1
    if texts.get(source) and texts.get(target):
        yield texts[source], texts[target]
    else:
        left_out["with inline codes" if has_codes else "empty"] += 1
