"""`keras-transformer translate --input messages.po`: it fills the empty entries of a file."""

import itertools
import re
from collections import Counter
from pathlib import Path
from typing import Any

from keras_transformer.cli.console import say
from keras_transformer.cli.lines import write_new
from keras_transformer.cli.translators import Translate, translate_distinct, warn_truncated
from keras_transformer.errors import InputError
from keras_transformer.languages import Languages, find_language, is_language
from keras_transformer.trainers.data.catalogues import (
    forms_of,
    is_message,
    is_untranslated,
    languages_of,
    open_store,
    sides_of,
)

CHECKS = {"emails", "printf", "pythonbraceformat", "urls", "variables", "xmltags"}
LINE = re.compile(r"(\s*)(\S.*?)?(\s*)", re.DOTALL)


def fill_catalogue(
    path: Path,
    output: Path,
    translate: Translate,
    known: Languages | None = None,
    asked: tuple[str | None, str | None] = (None, None),
) -> None:
    """Translates the entries of a file that have no translation, and writes a new file.

    The file is a gettext catalogue or XLIFF, also `.gz`. Empty plural forms are filled too. A copy
    of the source is no translation where XLIFF says that the entry is new. A model of several
    languages is asked for those that the file names, or else for the source and target in `asked`.
    Entries of other languages than the model's, or than those in `asked`, stay as they are. The
    filled entries are marked as fuzzy, because a person should read them. Lines of an entry are
    translated one by one, and keep the white space around them.
    """
    store = open_store(path)
    empty = [
        unit
        for unit in store.units
        if is_message(unit) and not all(_written(unit)[: _num_forms(unit, store)])
    ]
    fitting = _fitting(path, empty, store, known, asked)
    units = [(unit, tag) for unit, tag in fitting if not any(map(len, sides_of(unit)))]
    lines = [(_split(form), tag) for unit, tag in units for form in forms_of(unit.source)]
    texts = (tag + text for form, tag in lines for _, text, _ in form if text)
    translations, num_truncated = translate_distinct(texts, translate)
    num_different = 0
    for unit, tag in units:
        _fill(unit, tag, _num_forms(unit, store), translations)
        num_different += _differs(unit)
    write_new(output, bytes(store))
    say(f"Translation: {len(units):,} empty entries, which are now fuzzy: {output}")
    if num_left := len(fitting) - len(units):
        say(f"warning: {num_left:,} entries with inline elements are left empty")
    warn_truncated(num_truncated, "lines")
    if num_different:
        say(
            f"warning: in {num_different:,} of them, placeholders, tags or addresses differ from "
            "the source; a model that was trained with --protect keeps them"
        )


def _fill(unit: Any, tag: str, num_forms: int, translations: dict[str, str]) -> None:
    """Writes the forms that an entry has not, and marks it as fuzzy."""
    forms = [
        "\n".join(
            before + translations.get(tag + text, "") + after
            for before, text, after in _split(form)
        )
        for form in forms_of(unit.source)
    ]
    if unit.hasplural():  # the singular, then the plural; of one form only, the plural
        new = [forms[0], *forms[-1:] * max(num_forms - 1, 1)][-num_forms:]
        pairs = itertools.zip_longest(_written(unit)[:num_forms], new, fillvalue="")
        unit.target = [own or other for own, other in pairs]
    else:
        unit.target = forms[0]
    for part in (unit, *getattr(unit, "units", ())):  # those of a plural in XLIFF
        part.markfuzzy(True)


def _fitting(
    path: Path,
    units: list[Any],
    store: Any,
    known: Languages | None,
    asked: tuple[str | None, str | None],
) -> list[tuple[Any, str]]:
    """Returns the entries that the model can translate and what asks for it; warns of others."""
    own = store.getsourcelanguage(), store.gettargetlanguage()
    codes = [languages_of(unit, own) for unit in units]
    if known is None and len(set(codes)) > 1:
        raise InputError(
            f"{path} has several languages, and the server does not say which are its own"
        )
    fitting, others = [], Counter[tuple[str | None, str]]()
    for unit, sides in zip(units, codes, strict=True):
        reasons = [(code, _misfit(known, asked, side, code)) for side, code in enumerate(sides)]
        others.update((code, reason) for code, reason in reasons if reason)
        if not any(reason for _, reason in reasons):
            wanted = (code or option for code, option in zip(sides, asked, strict=True))
            tag = known.tag(*wanted) if known and known.targets else ""
            fitting.append((unit, f"{tag} " if tag else ""))
    for (code, reason), count in others.items():
        say(
            f"warning: {path} has the language {code}, and {reason}: {count:,} entries stay as "
            "they are"
        )
    return fitting


def _misfit(
    known: Languages | None, asked: tuple[str | None, str | None], side: int, code: str | None
) -> str:
    """Returns why a text with this code of the source (0) or target (1) must not be translated."""
    if known is None or code is None:
        return ""
    if not known.targets:
        return "" if is_language(code, known[side]) else f"the model has {known[side]}"
    names, option = tuple(known[2 + side]), asked[side]
    try:
        name = find_language(code, names)
    except InputError:
        return f"the model has {len(names)} others"
    if option and find_language(option, names) != name:
        return f"--{('source', 'target')[side]} is {option}"
    return ""


def _split(text: str) -> list[tuple[str, str, str]]:
    """Returns the lines of a text, each with the white space before and after it."""
    matches = (LINE.fullmatch(line) for line in text.split("\n"))
    return [(m[1], m[2] or "", m[3]) for m in matches if m is not None]


def _written(unit: Any) -> list[str]:
    """Returns the forms of an entry's translation."""
    if is_untranslated(unit) and not unit.hasplural():
        return [""]
    return forms_of("" if unit.target is None else unit.target)


def _num_forms(unit: Any, store: Any) -> int:
    """Returns the number of plural forms: the header's, or else as many as the entry has."""
    header = getattr(store, "getheaderplural", lambda: None)()
    number = header[0] if header else None
    return int(number) if number and number.isdecimal() else max(2, len(_written(unit)))


def _differs(unit: Any) -> bool:
    from translate.filters.checks import StandardChecker

    return bool(CHECKS & StandardChecker().run_filters(unit).keys())
