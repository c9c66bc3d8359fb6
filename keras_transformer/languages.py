"""Languages by their codes, and how a model of several languages is asked for them."""

import contextlib
import functools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple, NoReturn, Self

import langcodes
from langcodes.data_dicts import MACROLANGUAGES
from langcodes.tag_parser import LanguageTagError

from keras_transformer.errors import InputError

# ">>deu<<" asks a model of several languages for German, and ">>eng:deu<<" from English.
LANGUAGE_TAG = r">>[^\s<>]+<<"
Asked = str | Sequence[str | None] | None  # languages of texts: the same for all, or one for each
# Scripts without spaces, as ranges of characters for RE2, whose classes \p{...} are slow.
UNSPACED = (
    r"\x{E00}-\x{EFF}\x{1000}-\x{109F}\x{1780}-\x{17FF}\x{3005}-\x{3007}\x{3041}-\x{30FA}"
    r"\x{30FC}-\x{30FF}\x{31F0}-\x{31FF}\x{3400}-\x{9FFF}\x{F900}-\x{FAFF}\x{20000}-\x{3FFFF}"
)
TURKIC = "tr", "az", "azj", "crh", "gag"


@functools.cache
def language_of(code: str) -> str:
    """Returns the shortest code of a language: "en" for "en_US"; else the text in small letters."""
    tag = _parsed(code)
    return str(tag.language) if tag else code.lower()


@functools.cache
def is_language(code: str | None, wanted: str) -> bool:
    """Returns whether a code, such as "pt_BR", is that of a wanted language, "pt"."""
    parts, wanted_parts = (re.split("[-_@.]", text.lower()) for text in (code or "", wanted))
    return parts[: len(wanted_parts)] == wanted_parts


def small_letters(language: str) -> Iterator[tuple[str, str]]:
    """Yields capitals of a language, regular expressions, and their own small letters."""
    if language_of(language) in TURKIC:
        yield from (("\u0130|I\u0307", "i"), ("I", "\u0131"))


def lower_text(text: str, language: str) -> str:
    """Returns a text in small letters, as its language writes them."""
    for capital, small in small_letters(language):
        text = re.sub(capital, small, text)
    return text.lower()


class Languages(NamedTuple):
    """The languages of a model, by the names that it knows."""

    source: str  # of a text that asks for none; "" if it is not known
    target: str  # that it gets then; "" if it is not known
    sources: Sequence[str] = ()  # which a text may name; () for a model of one pair
    targets: Sequence[str] = ()  # which a text may ask for

    @classmethod
    def of(
        cls, defaults: Sequence[str], sources: Sequence[str] = (), targets: Sequence[str] = ()
    ) -> Self:
        """Finds the default source and target among the names, if they are there."""
        source, target = defaults
        if not targets:
            return cls(source, target)
        known = tuple(sources or filter(None, [source])), tuple(targets)
        found = []
        for code, names in zip(defaults, known, strict=True):
            found.append("")
            with contextlib.suppress(InputError):  # such as of "mul"
                found[-1] = find_language(code, names)
        return cls(found[0], found[1], *known)

    def tag(self, source: str | None = None, target: str | None = None) -> str:
        """Returns the tag that asks for languages at the head of a text; "" if there is no choice.

        Args:
            source: a name that the model knows, or a common code, such as "zh-Hans", "pt_BR" and
                "nb"; None or "" for the model's own.
            target: the same. If the model's own language is the other one asked for, it is the
                first that differs.

        Raises:
            InputError: if it is no language of the model.
        """
        if source:
            source = find_language(source, tuple(self.sources or (self.source,)), "source ")
        if target:
            target = find_language(target, tuple(self.targets or (self.target,)), "target ")
        if not (source or target) or not self.targets:
            return ""
        source = source or _first_other(self.source, self.sources, target)
        target = target or _first_other(self.target, self.targets, source)
        if not target:
            return ""
        return f">>{source}:{target}<<" if source else f">>{target}<<"

    def tagged(self, texts: Sequence[str], source: Asked = None, target: Asked = None) -> list[str]:
        """Returns texts with their tags, blank ones as they are.

        The source and the target are those of `tag` for all texts, or a list with one for each.
        """
        columns = []
        for name, asked in (("source", source), ("target", target)):
            column = [asked] * len(texts) if isinstance(asked, str | None) else list(asked)
            if len(column) != len(texts):
                raise InputError(
                    f"`{name}` must be one language, or one for each of {len(texts)} texts. "
                    f"Received: {len(column)}"
                )
            columns.append(column)
        tags = {pair: self.tag(*pair) for pair in set(zip(*columns, strict=True))}
        pairs = zip(*columns, strict=True)
        return [
            f"{tags[pair]} {text}" if tags[pair] and text.strip() else text
            for text, pair in zip(texts, pairs, strict=True)
        ]


def _first_other(default: str, names: Sequence[str], other: str | None) -> str:
    """Returns the default, or of the names the first that is another, if there is one."""
    return next((name for name in (default, *names) if name != other), default)


@functools.lru_cache(4_096)
def find_language(wanted: str, names: tuple[str, ...], side: str = "") -> str:
    """Returns which of a model's names stands for a language: "zho_Hans" for "zh" and "zh_CN".

    Codes may be those of ISO 639 and BCP 47. Another region is no other language, and another
    script is one. Of the parts of a macrolanguage, such as "ps", the names may have one only.

    Raises:
        InputError: if there is none. The `side` is a word of its message.
    """
    exact = [name for name in names if _plain(name) == _plain(wanted)]
    tag = _parsed(wanted)
    known = {name: other for name in names if (other := _parsed(name)) is not None}
    if exact or tag is None:
        return exact[0] if exact else _refuse(wanted, names, side)
    written = {name: _written(tag).distance(_written(other)) for name, other in known.items()}
    near = [name for name in known if written[name] <= 1]  # 1: "no" and "nb"
    if not near and tag.script is None:  # "ko" and "kor_Hang", "ps" and "pbt_Arab"
        of_language = [
            name
            for name, other in known.items()
            if tag.language in (other.language, MACROLANGUAGES.get(str(other.language)))
        ]
        near = of_language if len(of_language) == 1 else []
    if not near:
        _refuse(wanted, names, side)
    return min(near, key=lambda name: (written[name], tag.distance(known[name])))


def common_codes(names: tuple[str, ...]) -> dict[str, str]:
    """Returns a code for each name, "en" for "eng_Latn", which `find_language` understands.

    Where names share a language, their codes have scripts.
    """
    tags = {name: tag.prefer_macrolanguage() for name in names if (tag := _parsed(name))}
    languages = Counter(tag.language for tag in tags.values())
    codes = dict(zip(names, names, strict=True))
    for name, tag in tags.items():
        code = str(tag.language if languages[tag.language] == 1 else tag)
        with contextlib.suppress(InputError):
            codes[name] = code if find_language(code, names) == name else name
    return codes


def _plain(code: str) -> str:
    return code.lower().replace("_", "-")


def _parsed(code: str) -> langcodes.Language | None:
    try:
        tag = langcodes.Language.get(re.split("[.@]", code)[0])
    except LanguageTagError:
        return None
    return tag if tag.language else None


def _written(tag: langcodes.Language) -> langcodes.Language:
    """Returns a language with its script, and without a region."""
    tag = tag.prefer_macrolanguage().maximize()
    return langcodes.Language.make(language=tag.language, script=tag.script)


def _refuse(wanted: str, names: Sequence[str], side: str) -> NoReturn:
    tag = _parsed(wanted)

    def distance(name: str) -> tuple[int, float]:
        other = _parsed(name)
        apart = tag.distance(other, ignore_script=True) if tag and other else 0
        return apart, -SequenceMatcher(None, wanted.lower(), name.lower()).ratio()

    nearest = sorted(filter(None, names), key=distance)
    if len(nearest) > 6:
        nearest[5:] = [f"and {len(nearest) - 5} others"]
    raise InputError(f"There is no {side}language {wanted!r}, but {', '.join(nearest) or 'none'}")
