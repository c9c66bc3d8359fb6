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
from keras_transformer.languages import is_language
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
    path: Path, output: Path, translate: Translate, languages: tuple[str, str] | None = None
) -> None:
    """Translates the entries of a file that have no translation, and writes a new file.

    The file is a gettext catalogue or XLIFF, also `.gz`. Empty plural forms are filled too. A copy
    of the source is no translation where XLIFF says that the entry is new. Entries of other
    languages than the model's `languages` stay as they are. The filled entries are marked as fuzzy,
    because a person should read them. Lines of an entry are translated one by one, and keep the
    white space around them.
    """
    store = open_store(path)
    empty = [
        unit
        for unit in store.units
        if is_message(unit) and not all(_written(unit)[: _num_forms(unit, store)])
    ]
    fitting = _fitting(path, empty, store, languages)
    units = [unit for unit in fitting if not any(map(len, sides_of(unit)))]
    lines = [_split(form) for unit in units for form in forms_of(unit.source)]
    texts = (text for form in lines for _, text, _ in form if text)
    translations, num_truncated = translate_distinct(texts, translate)
    num_different = 0
    for unit in units:
        _fill(unit, _num_forms(unit, store), translations)
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


def _fill(unit: Any, num_forms: int, translations: dict[str, str]) -> None:
    """Writes the forms that an entry has not, and marks it as fuzzy."""
    forms = [
        "\n".join(
            before + translations.get(text, "") + after for before, text, after in _split(form)
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
    path: Path, units: list[Any], store: Any, languages: tuple[str, str] | None
) -> list[Any]:
    """Returns the entries with the languages of the model, and warns of others."""
    own = store.getsourcelanguage(), store.gettargetlanguage()
    codes = [languages_of(unit, own) for unit in units]
    if languages is None and len(set(codes)) > 1:
        raise InputError(
            f"{path} has several languages, and the server does not say which are its own"
        )
    fitting, others = [], Counter[tuple[str, str | None]]()
    for unit, sides in zip(units, codes, strict=True):
        pairs = zip(sides, languages or sides, strict=True)
        different = [(code, name) for code, name in pairs if code and not is_language(code, name)]
        others.update(different)
        fitting += [] if different else [unit]
    for (code, name), count in others.items():
        say(
            f"warning: {path} has the language {code}, and the model has {name}: {count:,} entries "
            "stay as they are"
        )
    return fitting


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
