"""Languages by their codes."""

import functools
import re

import langcodes
from langcodes.tag_parser import LanguageTagError

LANGUAGE_TAG = r">>[^\s<>]+<<"  # ">>deu<<" asks a model of several languages for German
# Scripts without spaces, as ranges of characters for RE2, whose classes \p{...} are slow.
UNSPACED = (
    r"\x{E00}-\x{EFF}\x{1000}-\x{109F}\x{1780}-\x{17FF}\x{3005}-\x{3007}\x{3041}-\x{30FA}"
    r"\x{30FC}-\x{30FF}\x{31F0}-\x{31FF}\x{3400}-\x{9FFF}\x{F900}-\x{FAFF}\x{20000}-\x{3FFFF}"
)


def language_of(code: str) -> str:
    """Returns the shortest code of a language: "en" of "en_US", "eng" and "eng_Latn".

    A text that is no code of ISO 639 is returned in small letters.
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
