"""HTML for a model of texts: what is translated, and what stays as it is."""

import html
import re
from collections.abc import Callable, Sequence
from itertools import pairwise

from keras_transformer.export.rows import Row

# Only a model that protects tags and entities writes these three, each of them once.
_PARTS = ('<q7 k="0">', "&#8258;", "</q7>")
PROBE = "".join(_PARTS)
# Comments and tags, whose attributes may have ">" and quotes without an end.
MARKUP = re.compile(
    r"(<!--.*?-->|<[/!?a-z0-9](?:\"[^\"]*\"|'[^']*'|[^'\"<>])*>|</?[a-z0-9][^<>]*>|<[!?][^<>]*>)",
    re.DOTALL | re.IGNORECASE,
)
# The beginning of an element that stays as it is.
KEPT = re.compile(
    r"<(?:(?:script|style|code|kbd|samp|math|svg)\b|[^>]*?\s(?:translate\s*=\s*[\"']?no\b"
    r"|class\s*=\s*(?:\"[^\"]*|'[^']*|)\bnotranslate\b))",
    re.IGNORECASE,
)
# In kept elements, noncharacters of Unicode stand for what a mark of a term must not have.
_OF_MARKS, _STAND_INS = "\u27e6|\u27e7", "\ufdd0\ufdd1\ufdd2"
TAG = re.compile(r"<(/?)([a-z0-9]+)")
# Elements inside a paragraph, and those whose white space is text.
INLINE = re.compile(
    r"<(?:!--|/?(?:a|abbr|b|bdi|bdo|cite|code|data|del|dfn|em|font|i|img|ins|kbd|label|mark|math|q|s"
    r"|samp|small|span|strong|su[bp]|svg|time|tt|u|var|wbr)\b)",
    re.IGNORECASE,
)
PREFORMATTED = {"pre", "textarea"}
# Elements that may leave out their end tag, and the start tags that end them.
ENDED_BY = {
    **{name: {name} for name in ("li", "option", "p", "tr")},
    **{name: {"dd", "dt"} for name in ("dd", "dt")},
    **{name: {"td", "th", "tr"} for name in ("td", "th")},
}
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "wbr"}


def is_kept(translation: str) -> bool:
    """Returns whether the translation of `PROBE` is that of a model that protects tags."""
    return all(translation.count(part) == 1 for part in _PARTS)


def split(text: str) -> list[str]:
    """Returns text and markup in turns; an element that stays as it is is one piece of markup."""
    first, *rest = MARKUP.split(text)
    pieces = [first]
    kept: list[str] = []  # the names of an element that stays, and of those open in it
    for markup, after in zip(rest[::2], rest[1::2], strict=True):
        tag = TAG.match(markup.lower())
        if tag and kept and _is_ended(kept, *tag.groups()):
            kept = []
        if kept:
            pieces[-2] += markup
        else:
            pieces += [markup, ""]
        if tag and tag[1] and tag[2] in kept:
            while kept.pop() != tag[2]:
                pass
        elif (
            tag
            and (kept or KEPT.match(markup))
            and not (tag[1] or tag[2] in VOID or markup.endswith("/>"))
        ):
            kept.append(tag[2])
        pieces[-2 if kept else -1] += after
    _join_lines(pieces)
    return pieces


def _is_ended(kept: list[str], slash: str, name: str) -> bool:
    """Returns whether a tag ends a kept element that leaves out its end tag."""
    first, *others = kept
    if slash:  # of an element around it
        return first in ENDED_BY and name not in kept
    return name in ENDED_BY.get(first, set()) and all(other in ENDED_BY for other in others)


def _join_lines(pieces: list[str]) -> None:
    """Makes white space inside a paragraph one space: a line break would end the sentence."""
    is_preformatted = False
    for number, (before, after) in enumerate(pairwise(["", *pieces[1::2], ""])):
        tag = TAG.match(before.lower())
        if tag and tag[2] in PREFORMATTED:
            is_preformatted = not (tag[1] or KEPT.match(before))
        if not is_preformatted:
            start = r"(?<![ \t\n\f\r])" if INLINE.match(before) else r"(?<=\S)"
            end = "" if INLINE.match(after) else r"(?=\S)"
            text = pieces[2 * number]
            pieces[2 * number] = re.sub(rf"{start}[ \t\n\f\r]+{end}", " ", text)


def with_marks(text: str) -> str:
    """Marks elements that stay as they are, for a model that protects tags and terms.

    `without_stand_ins` completes its translation.
    """
    pieces, stand_ins = split(text), str.maketrans(_OF_MARKS, _STAND_INS)
    for place in range(1, len(pieces), 2):
        if KEPT.match(pieces[place]):
            pieces[place] = f"⟦{place}|{pieces[place].translate(stand_ins)}⟧"
    return "".join(pieces)


def without_stand_ins(text: str) -> str:
    """Completes the translation of a text that `with_marks` has marked."""
    return text.translate(str.maketrans(_STAND_INS, _OF_MARKS))


def translate_between_tags(
    translate: Callable[[list[str]], list[Row]], texts: Sequence[str]
) -> list[Row]:
    """Translates the texts between markup one by one."""
    rows = list(map(split, texts))
    places = [
        (row, place)
        for row in rows
        for place in range(0, len(row), 2)
        if any(map(str.isalpha, html.unescape(row[place])))
    ]
    translations = translate([html.unescape(row[place]) for row, place in places])
    for (row, place), translated in zip(places, translations, strict=True):
        row[place] = html.escape(translated["translation"], quote=False)
    return [{"translation": "".join(row)} for row in rows]
