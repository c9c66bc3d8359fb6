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
from keras_transformer.languages import Languages, is_language
from keras_transformer.trainers.data import catalogues

CHECKS = {"emails", "printf", "pythonbraceformat", "urls", "variables", "xmltags"}
LINE = re.compile(r"(\s*)(\S.*?)?(\s*)", re.DOTALL)


def fill_catalogue(
    path: Path,
    output: Path,
    translate: Translate,
    known: Languages | None = None,
    asked: tuple[str | None, str | None] = (None, None),
) -> None:
    """Translates the entries that have no translation, marks them as fuzzy, and writes a new file.

    A model of several languages is asked for those that the file names, or else for those in
    `asked`. Lines of an entry are translated one by one, and keep the white space around them.
    """
    store = catalogues.open_store(path)
    empty = [
        unit for unit in store.units if catalogues.is_message(unit) and not _is_filled(unit, store)
    ]
    own = catalogues.own_languages(store, path)
    codes = [catalogues.languages_of(unit, own) for unit in empty]
    tags = _tags(path, Counter(codes), known, asked)
    fitting = [(unit, tags[pair]) for unit, pair in zip(empty, codes, strict=True) if pair in tags]
    units = [(unit, tag) for unit, tag in fitting if not any(map(len, catalogues.sides_of(unit)))]
    lines = [
        (_split(form), tag) for unit, tag in units for form in catalogues.forms_of(unit.source)
    ]
    texts = (
        tag + text for form, tag in lines for _, text, _ in form if any(map(str.isalpha, text))
    )
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
            before + translations.get(tag + text, text) + after
            for before, text, after in _split(form)
        )
        for form in catalogues.forms_of(unit.source)
    ]
    if unit.hasplural():  # the singular, then the plural; of one form only, the plural
        new = [forms[0], *forms[-1:] * max(num_forms - 1, 1)][-num_forms:]
        pairs = itertools.zip_longest(_written(unit)[:num_forms], new, fillvalue="")
        unit.target = [own or other for own, other in pairs]
    else:
        unit.target = forms[0]
    for part in (unit, *getattr(unit, "units", ())):  # those of a plural in XLIFF
        part.markfuzzy(True)


def _tags(
    path: Path,
    codes: Counter[tuple[str | None, str | None]],
    known: Languages | None,
    asked: tuple[str | None, str | None],
) -> dict[tuple[str | None, str | None], str]:
    """Returns what asks the model for each pair of codes that it has; warns of the others."""
    if known is None:
        if len(codes) > 1:
            raise InputError(
                f"{path} has several languages, and the server does not say which are its own"
            )
        return dict.fromkeys(codes, "")
    tags = {}
    for pair, count in codes.items():
        wanted = {}
        try:
            for side, code, option in zip(("source", "target"), pair, asked, strict=True):
                own = getattr(known, side)
                if code and not known.targets:  # as training reads it: "zh_Hant" is "zh"
                    if not is_language(code, own):
                        raise InputError(f"There is no {side} language {code!r}, but {own}")
                    code = own
                if code and option and known.tag(**{side: code}) != known.tag(**{side: option}):
                    raise InputError(f"--{side} is {option}, and not {code}")
                wanted[side] = code or option
            tag = known.tag(**wanted)
            tags[pair] = f"{tag} " if tag else ""
        except InputError as error:
            say(f"warning: {path}: {error}: {count:,} entries stay as they are")
    return tags


def _split(text: str) -> list[tuple[str, str, str]]:
    """Returns the lines of a text, each with the white space before and after it."""
    matches = (LINE.fullmatch(line) for line in text.split("\n"))
    return [(m[1], m[2] or "", m[3]) for m in matches if m is not None]


def _written(unit: Any) -> list[str]:
    """Returns the forms of an entry's translation."""
    if catalogues.is_untranslated(unit) and not unit.hasplural():
        return [""]
    return catalogues.forms_of("" if unit.target is None else unit.target)


def _is_filled(unit: Any, store: Any) -> bool:
    number = _num_forms(unit, store) if unit.hasplural() else 1
    forms = _written(unit)[:number]
    return len(forms) == number and all(forms)


def _num_forms(unit: Any, store: Any) -> int:
    """Returns the number of plural forms: the header's, or else as many as the entry has."""
    header = getattr(store, "getheaderplural", lambda: None)()
    number = header[0] if header else None
    return int(number) if number and number.isdecimal() else max(2, len(_written(unit)))


def _differs(unit: Any) -> bool:
    from translate.filters.checks import StandardChecker

    return bool(CHECKS & StandardChecker().run_filters(unit).keys())
