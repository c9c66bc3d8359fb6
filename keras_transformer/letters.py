"""Letters of any script in Matplotlib's pictures: which fonts have them, what stands for others."""

import functools
import unicodedata
from collections.abc import Sequence

from keras_transformer.errors import InputError

NEEDS_MATPLOTLIB = "Plots need Matplotlib: pip install 'keras3-transformer[plots]'"
BASE_FONT = "DejaVu Sans"  # comes with Matplotlib


def printable(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Finds fonts that have all the characters of texts.

    Args:
        texts: of any characters.

    Returns:
        families, the first for most characters, and the texts, with the code point of a character
        that no font has, such as <4F60>, in its place.
    """
    visible = ["".join(map(_visible, text)).strip(" ") or "␣" for text in texts]
    families, missing = find_fonts(frozenset("".join(visible)))
    names = {ord(character): _name(character) for character in missing}
    return families, [text.translate(names) for text in visible]


def _name(character: str) -> str:
    """What stands for a character that no font has; nothing for a mark on another."""
    return "" if unicodedata.category(character) in ("Mn", "Cf") else f"<{ord(character):04X}>"


def _visible(character: str) -> str:
    """A space for white space and control characters, nothing for marks of direction."""
    category = unicodedata.category(character)
    if category == "Cf" and character not in "\u200c\u200d":  # joiners shape letters
        return ""
    return " " if category in ("Cc", "Zs", "Zl", "Zp") else character


@functools.lru_cache(maxsize=256)
def find_fonts(characters: frozenset[str]) -> tuple[list[str], frozenset[str]]:
    """Families that together have the characters, and the characters that none has."""
    try:
        from matplotlib import font_manager
    except ImportError as error:
        raise InputError(NEEDS_MATPLOTLIB) from error

    families, missing = [BASE_FONT], characters - _characters_of(BASE_FONT, characters)
    if missing:
        names = {
            entry.name
            for entry in font_manager.fontManager.ttflist
            if (entry.style, entry.weight) in (("normal", 400), ("normal", "normal"))
        }
        # Families made to go together first; then by name, so that pictures are the same again.
        for name in sorted(names, key=lambda name: (not name.startswith("Noto Sans"), name)):
            if found := _characters_of(name, missing):
                families.append(name)
                missing -= found
            if not missing:
                break
    return families, missing


def _characters_of(family: str, characters: frozenset[str]) -> frozenset[str]:
    """Those of some characters that a family has; none if it cannot be drawn."""
    from matplotlib import font_manager

    try:
        path = font_manager.findfont(
            font_manager.FontProperties(family=[family]), fallback_to_default=False
        )
        font = font_manager.get_font(path)
    except (ValueError, RuntimeError, OSError):
        return frozenset()
    if not font.scalable or family.startswith("Last Resort"):  # pictures; a box for everything
        return frozenset()
    charmap = font.get_charmap()
    return frozenset(character for character in characters if ord(character) in charmap)
