"""`keras-transformer translate --input film.srt`: it translates the text of subtitles."""

import codecs
import html
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keras_transformer.cli.console import say
from keras_transformer.cli.lines import write_new
from keras_transformer.cli.translators import Translate, translate_distinct, warn_truncated
from keras_transformer.errors import InputError
from keras_transformer.files import kind_of, open_binary, read_failure, words_of

NOTES = "♩♪♫♬"  # of a song
# Also as machine translation leaves them: 00: 00: 01;000 -> 00: 00: 02;000.
CLOCK = r"\d+ ?:[\d :.,;]*\d"
TIMES = re.compile(rf"\ufeff?\s*{CLOCK}[-\u2013\u2014\s]+>\s*{CLOCK}")
TAG = re.compile(r"</?[A-Za-z][^<>]*>|<[0-9][0-9:.]*>|\{\\[^{}]*\}")
# A text, and what stands around it: tags, dashes of a dialogue, notes of a song, white space.
PARTS = re.compile(
    rf"((?:{TAG.pattern}|[-\u2010\u2013\u2014\u2022](?=\s*\D)|>>|[{NOTES}\s])*)(.*?)((?:{TAG.pattern}|[{NOTES}\s])*)",
    re.DOTALL,
)
# A line of the next speaker, or of a song.
TURN = re.compile(
    rf"(?:{TAG.pattern}|\s)*(?:[-\u2010\u2013\u2014\u2022]\s*\D|>>|[{NOTES}]|"
    r"[A-Z][A-Z0-9 .']{1,30}:\s)|<v[ .]"
)


def translate_subtitles(
    path: Path, output: Path, translate: Translate, keeps_tags: bool = False
) -> None:
    """Translates the text of subtitles; numbers, times and all other blocks stay as they are.

    Tags around a text stay. Those inside it go to a model that keeps them, or else are lost.
    """
    lines, encoding = _read(path)
    is_vtt = kind_of(path) == ".vtt"
    groups = [group for group in _texts(lines, is_vtt) if group]
    if not groups:
        raise InputError(f"{path} holds no subtitles")
    parts = [_parts(" ".join(lines[n].strip() for n in group), keeps_tags) for group in groups]
    texts = [
        html.unescape(text) if is_vtt and not TAG.search(text) else text for _, text, _ in parts
    ]
    with_letters = (text for text in texts if any(map(str.isalpha, text)))
    translations, num_truncated = translate_distinct(with_letters, translate)
    new: dict[int, str | None] = dict(enumerate(lines))
    for group, (before, source, after), text in zip(groups, parts, texts, strict=True):
        translation = " ".join(words_of(translations.get(text, "")))
        if not translation:
            continue
        if is_vtt and not TAG.search(source):
            translation = html.escape(translation, quote=False)
        width = max(len(TAG.sub("", lines[n].strip())) for n in group)
        written = _wrapped(before + translation + after, len(group), width)
        ends = ["\r" if lines[n].endswith("\r") else "" for n in (group[0], group[-1])]
        written = [line + ends[0] for line in written[:-1]] + [written[-1] + ends[1]]
        new.update(dict.fromkeys(group) | dict(zip(group, written, strict=False)))
    write_new(output, "\n".join(t for t in new.values() if t is not None).encode(encoding))
    say(f"Translation: {len(groups):,} subtitles and turns: {output}")
    kept = ["".join(new[n] or "" for n in group) for group in groups]
    tags = [sum(len(TAG.findall(lines[n])) for n in group) for group in groups]
    if lost := sum(len(TAG.findall(t)) < n for t, n in zip(kept, tags, strict=True)):
        say(f"warning: {lost:,} of them have lost tags")
    warn_truncated(num_truncated, "of them")


def _read(path: Path) -> tuple[list[str], str]:
    """Returns the lines of a file, and its encoding; a byte order mark is text."""
    with read_failure(path), open_binary(path) as file:
        content = file.read()
    marks = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
    encoding = marks.get(content[:2], "utf-8")
    try:
        return content.decode(encoding).split("\n"), encoding
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}, line {number}: not valid {encoding.upper()}") from error


def _texts(lines: list[str], is_vtt: bool) -> Iterator[list[int]]:
    """Yields the numbers of the lines of each text."""
    group: list[int] | None = None  # None outside of subtitles
    for number, line in enumerate(lines):
        if TIMES.match(line):
            if group and lines[group[-1]].strip().isdigit():  # of this subtitle
                group.pop()
            yield group or []
            group = []
        elif group is not None and not line.strip():
            yield group
            group = None if is_vtt else []  # in SubRip, empty lines may stand in a text
        elif group is not None:
            if TURN.match(line):
                yield group
                group = []
            group.append(number)
    yield group or []


def _parts(text: str, keeps_tags: bool) -> tuple[str, str, str]:
    """Returns what stands before a text, the text to translate, and what stands after it."""
    match = PARTS.fullmatch(text)
    before, inner, after = match.groups() if match else ("", text, "")
    if not TAG.search(inner):
        return before, inner, after
    if keeps_tags:
        start = re.sub(r"^((?:\{\\[^{}]*\}|\s)*).*", r"\1", text, flags=re.DOTALL)
        return start, text[len(start) :], ""
    # Tags that need no end stay, and so does the dash; of the others, one half may be inside.
    before = TAG.sub(lambda tag: tag[0] if tag[0].startswith(("<v", "{")) else "", before)
    inner = TAG.sub("", re.sub("<br[^<>]*>", " ", inner, flags=re.IGNORECASE))
    return before, " ".join(inner.split()), TAG.sub("", after)


def _wrapped(text: str, count: int, width: int) -> list[str]:
    """Breaks a text at spaces into at most `count` lines of similar lengths."""
    if count == 1 or len(TAG.sub("", text)) <= width:
        return [text]
    joined = TAG.sub(lambda tag: tag[0].replace(" ", "\0"), text)  # no break inside of a tag
    options: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
    for size in range(max(1, len(text) // count), len(text) + 1):
        lines = textwrap.wrap(joined, size, **options)
        if len(lines) <= count:
            break
    return [line.replace("\0", " ") for line in lines]
