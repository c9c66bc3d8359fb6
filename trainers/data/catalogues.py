"""The files of translators: gettext catalogues, XLIFF and TMX, by translate-toolkit."""

import logging
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keras_transformer.errors import InputError, needs_extra, one_line

logger = logging.getLogger(__name__)

LANGUAGE = ("{http://www.w3.org/XML/1998/namespace}lang", "lang")  # attributes of TMX


def read_catalogue(path: Path, source: str, target: str) -> list[tuple[str, str]]:
    """Reads the pairs of a file of translators.

    Args:
        path: a file that translate-toolkit reads.
        source: source language. In a catalogue of one language, it may be the messages' own.
        target: target language.

    Raises:
        InputError: if the file cannot be read, or has other languages.
    """
    counts: Counter[str] = Counter()
    pairs = list(_pairs(path, source, target, counts))
    logger.info(
        "%s: %d pairs; left out: %d fuzzy, %d empty",
        *(path, len(pairs), counts["fuzzy"], counts["empty"]),
    )
    return pairs


def open_store(path: Path) -> Any:
    """Opens a file by translate-toolkit."""
    with needs_extra("localisation"):
        from translate.storage import factory, xliff2
    try:
        if path.suffix.lower() in (".xlf", ".xliff") and b"xliff:document:2" in path.read_bytes():
            return xliff2.Xliff2File.parsefile(str(path))
        return factory.getobject(str(path))
    except Exception as error:  # of XML, of gettext, of the file
        raise InputError(f"Cannot read {path}: {one_line(error)}") from error


def is_message(unit: Any) -> bool:
    """Returns whether an entry is to be translated."""
    element = getattr(unit, "xmlelement", None)
    around = () if element is None else (element, *element.iterancestors())
    kept = next((each.get("translate") for each in around if each.get("translate")), "yes")
    return bool(unit.source) and not (unit.isheader() or unit.isobsolete() or kept == "no")


def has_elements(unit: Any) -> bool:
    """Returns whether the source of an entry of XLIFF has inline elements."""
    element = getattr(unit, "xmlelement", None)
    return element is not None and any(len(each) for each in element.iter("{*}source"))


def is_language(code: str | None, wanted: str) -> bool:
    """Returns whether a language's code, such as "pt_BR", is that of a wanted language, "pt"."""
    found, named = (re.split("[-_@.]", each.lower()) for each in (code or "", wanted))
    return found[: len(named)] == named


def _pairs(path: Path, source: str, target: str, counts: Counter[str]) -> Iterator[tuple[str, str]]:
    store = open_store(path)
    if path.suffix.lower() == ".tmx":
        yield from _memory(store, path, source, target, counts)
        return
    own, other = store.getsourcelanguage(), store.gettargetlanguage()
    # A gettext catalogue names one language, and an older one none.
    fits = [not code or is_language(code, name) for code, name in ((own, source), (other, target))]
    is_swapped = not all(fits) and (is_language(other, source) or is_language(own, target))
    wanted = (target, source) if is_swapped else (source, target)
    for code, name in zip((own, other), wanted, strict=True):
        if code and not is_language(code, name):
            raise InputError(f"{path} has the language {code}. Received: {source!r}, {target!r}")
    for unit in store.units:
        if not is_message(unit):
            continue
        if _is_fuzzy(unit):
            counts["fuzzy"] += 1
        elif not unit.target:
            counts["empty"] += 1
        else:
            forms = [forms_of(unit.source), forms_of(unit.target)]
            # Of plural forms, the first and the last ones are translations of each other.
            ends = {(forms[0][0], forms[1][0]): None, (forms[0][-1], forms[1][-1]): None}
            for texts in filter(all, ends):
                pair = [" ".join(text.splitlines()) for text in texts]
                yield (pair[1], pair[0]) if is_swapped else (pair[0], pair[1])


def _is_fuzzy(unit: Any) -> bool:
    """Returns whether a translation waits for a person."""
    element = getattr(unit, "xmlelement", None)
    if element is None:
        return bool(unit.isfuzzy())
    # translate-toolkit also takes what nobody has approved for fuzzy, which most XLIFF has.
    states = [each.get("state", "") for each in element.iter("{*}target", "{*}segment")]
    is_waiting = any(state.startswith("needs") or state in ("new", "initial") for state in states)
    return is_waiting or element.get("approved") == "no"


def _memory(
    store: Any, path: Path, source: str, target: str, counts: Counter[str]
) -> Iterator[tuple[str, str]]:
    """Yields the pairs of a translation memory, which may have many languages."""
    languages = set()
    for unit in store.units:
        texts: dict[str, str] = {}
        for node in unit.getlanguageNodes():
            code = next((node.get(name) for name in LANGUAGE if node.get(name)), "")
            languages.add(code)
            for wanted in (source, target):
                if is_language(code, wanted):
                    texts.setdefault(wanted, " ".join(unit.getNodeText(node).splitlines()))
        if texts.get(source) and texts.get(target):
            yield texts[source], texts[target]
        else:
            counts["empty"] += 1
    for wanted in (source, target):
        if not any(is_language(code, wanted) for code in languages):
            raise InputError(
                f"{path} has the languages {', '.join(sorted(languages)) or 'none'}. "
                f"Received: {wanted!r}"
            )


def forms_of(text: Any) -> list[str]:
    """Returns the singular and the plural forms of a text."""
    return [str(each) for each in getattr(text, "strings", [text])]
