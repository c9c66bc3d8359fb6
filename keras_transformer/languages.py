"""Languages by their codes."""

import functools
import re

import langcodes
from langcodes.tag_parser import LanguageTagError


def language_of(code: str) -> str:
    """Returns the shortest code of a language: "en" of "en_US", "eng" and "eng_Latn".

    Args:
        code: an ISO 639 code, also with a script, a region or an encoding; another text is returned
            as it is, in small letters.
    """
    tag = re.split("[.@]", code)[0].replace("_", "-")
    try:
        return langcodes.Language.get(tag).language or tag
    except LanguageTagError:
        return code.lower()


@functools.cache
def is_language(code: str | None, wanted: str) -> bool:
    """Returns whether a code, such as "pt_BR", is that of a wanted language, "pt"."""
    parts, wanted_parts = (re.split("[-_@.]", text.lower()) for text in (code or "", wanted))
    return parts[: len(wanted_parts)] == wanted_parts
