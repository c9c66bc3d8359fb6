"""What is protected: regular expressions of RE2, the engine of TensorFlow's string operations."""

from collections import Counter
from collections.abc import Iterable, Sequence

import regex
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.languages import UNSPACED
from keras_transformer.registry import PROTECTED_SETS

LAST = "options"  # after the words of foreign scripts, which may have hyphens
MIN_SOURCE_SHARE = 0.01  # a script with a larger share of the source's letters is not foreign

_PRINTF = (
    r"%(?:[0-9]+\$)?[-+#0']*(?:[0-9]+|\*)?(?:\.(?:[0-9]+|\*)?)?(?:hh|ll|[hlLqjzt])?"
    r"[diouxXeEfFgGaAcsSpnm@]"
)
CUT = chr(0x10FF21)  # ends an address, in no text
_BRACES = r"\{[^{}\s]*\}"  # a placeholder, also within an address
# All but letters, marks and digits of scripts with spaces, and the underscore, in ranges of
# characters, because the classes \p{...} make RE2 slow.
_OTHERS = (
    r"\x{00}-\x{2F}\x{3A}-\x{40}\x{5B}-\x{5E}\x{60}\x{7B}-\x{A9}\x{AB}-\x{B4}\x{B6}-\x{B9}"
    r"\x{BB}-\x{BF}\x{D7}\x{F7}\x{37E}\x{387}\x{55A}-\x{55F}\x{589}\x{58A}\x{5BE}\x{5C0}\x{5C3}"
    r"\x{5F3}\x{5F4}\x{60C}\x{60D}\x{61B}-\x{61F}\x{66A}-\x{66D}\x{6D4}\x{700}-\x{70D}\x{964}"
    r"\x{965}\x{E00}-\x{EFF}\x{1000}-\x{109F}\x{1360}-\x{1368}\x{166E}\x{1780}-\x{180A}"
    r"\x{2000}-\x{2BFF}\x{2E00}-\x{A4CF}\x{E000}-\x{FAFF}\x{FD3E}\x{FD3F}\x{FE10}-\x{FE6F}"
    r"\x{FEFF}-\x{FFFF}\x{1F000}-\x{10FFFF}"
)
SPACED = rf"[^{_OTHERS}]"
# In an address, letters without spaces follow each other, and what begins a part of it.
_LABEL = rf"(?:[{UNSPACED}](?:[{UNSPACED}]|{SPACED}|-)*|(?:{SPACED}|-)+)"
_HOST = rf"{_LABEL}(?:\.{_LABEL})*"
_PART = (
    rf"[:?!'*,;.]*(?:{_BRACES}|\([^\s()]*\)|\[[^\s\[\]]*\]|&amp;"
    rf"|[/=#][{UNSPACED}](?:[{UNSPACED}]|{SPACED}|[~%+\x{{B7}}\x{{30FB}}-])*"
    rf"|{SPACED}|\x{{2013}}{SPACED}"  # a range of years
    r"|[~/#@$&+=%\x{B7}\x{30FB}\x{200C}-])"  # it does not end in punctuation
)
_SCHEME = r"(?i:(?:https?|s?ftps?|wss?|git|ssh|irc|file)://|www\.)"
_MAIL = rf"(?:[{UNSPACED}]+|{SPACED}(?:{SPACED}|[.+%&'-])*)@{_LABEL}(?:\.{_LABEL})+"
# An address ends before an entity, but not before &amp;. RE2 cannot look ahead.
_NO_AMP = r"(?:[B-Zb-zA]|a[A-Za-ln-z0-9]|am[A-Za-oq-z0-9]|amp[A-Za-z0-9])[A-Za-z0-9]*"
BEFORE_ENTITY = rf"({_SCHEME}[^\s<>\"]*?)(&(?:#[0-9]+|#[xX][0-9A-Fa-f]+|{_NO_AMP});)"
# What programs put in place of placeholders and tags: [X14X], [[1]], __T12__, @@1@@, {1>, <1].
_MASK = (
    r"\[{1,3}[A-Za-z_]*[0-9]+[A-Za-z_]*\]{1,3}|\[\[[^\s\[\]]+\]\]|\[%[^\s\[\]]+\]"
    r"|\x{27E6}[A-Za-z_]*[0-9]+[A-Za-z_]*\x{27E7}|[{\[]/?[0-9]+[}\]>]|<[0-9]+[}\]]"
    r"|__[A-Za-z]*_?[0-9]+__|__[A-Za-z]+(?:_[A-Za-z0-9]+)*__|##[A-Z0-9_]+##|@@\w+@@|%%\w+%%"
    r"|%[A-Z][A-Z0-9_]+%|%[A-Za-z]\w+%\B|@[A-Z][A-Z0-9_]+@|#[A-Z][A-Z0-9_]+#|#[0-9]+#"
    r"|\${1,2}[A-Za-z_]\w*\${1,2}"
)
_VALUE = r"(?:=(?:\"[^\"\s]*\"|'[^'\s]*'|<[^<>\s]*>|[.,:|]?[\w/%{}$@~+*-])+|\[=[^\s\[\]]*\])?"
_EMOJI = r"[\p{So}\x{2190}-\x{21FF}\x{25FB}-\x{25FE}\x{203C}\x{2049}\x{3030}\x{1F000}-\x{1FAFF}]"
_EMOJI_MARKS = r"[\x{FE0E}\x{FE0F}\x{20E3}\x{1F3FB}-\x{1F3FF}\x{E0020}-\x{E007F}]"
# What is found and stays text, so that nothing is found in it.
# A percentage with letters after it, such as 50%iger and 80%-ige, is text and no placeholder.
PERCENTAGE = r"[0-9]+(?:[.,][0-9]+)*%(?:-\p{L}|\p{L}\p{L})\p{L}*"


def _hyphens(letter: str, group: str) -> str:
    """Hyphens within a word, before one with an apostrophe or accents, and of speech: -I think."""
    return (
        rf"{letter}-+|-{{1,2}}({group}[A-Za-z]+(?:['\x{{2019}}]{SPACED}|[^0-9A-Za-z_{_OTHERS}]))"
        rf"|(?:^|[.!?\x{{2026}}\n])\s*-({group}[A-Z] [^0-9A-Z_{_OTHERS}])"
    )


HYPHENS = _hyphens(SPACED, "?:")
TEXT = rf"{PERCENTAGE}|{HYPHENS}"
# The same in Python, which can look around: only what could begin something, because terms may
# stand in the rest.
TEXT_IN_PYTHON = {
    PERCENTAGE: r"(?<=[0-9])%(?=-\p{L}|\p{L}\p{L})",
    HYPHENS: _hyphens(f"(?<={SPACED})", "?="),
}
# In the order in which they are tried at the same place.
NAMED = {
    # Tags, comments and entities of XML and HTML. A comment ends before the next one, so that the
    # time for one without an end is not quadratic.
    "tags": r"<!--(?:[^<]|<[^!]|<![^-])*?<?-->|</?[A-Za-z][\w:.-]*(?:[\s/][^<>]*)?>|<[!?][^<>]*>"
    r"|</?[0-9]+ ?/?>|&(?:#[0-9]+|#[xX][0-9A-Fa-f]+|[A-Za-z][A-Za-z0-9]*);",
    # Addresses of web and mail, without the punctuation after them.
    "urls": rf"{_SCHEME}(?:{_HOST}|{_PART})(?:{_PART})*|{_MAIL}",
    # %PATH%, %(name)s, %1$d, %-5.2f, %%, %1, {{name}}, {% if x %}, {0}, {name}, {}, ${x}, %{x}.
    "placeholders": rf"{PERCENTAGE}|{_MASK}"
    rf"|%\([\w.]+\)[-+#0 ]*[0-9]*(?:\.[0-9]+)?[A-Za-z]|{_PRINTF}|%%|%L?[1-9]\b"
    rf"|\$?\{{\{{[^{{}}]*\}}\}}|\{{\{{\{{[^{{}}]*\}}\}}\}}|\{{%[^{{}}]*%\}}|\$\([\w.]+\)"
    rf"|[%$#@]?{_BRACES}|[%$#@]?\{{ ?[\w.]+ ?\}}",
    # Flags, keys such as 1 in a box, and symbols with the marks that belong to them.
    "symbols": rf"[\x{{1F1E6}}-\x{{1F1FF}}]{{2}}|[0-9#*]\x{{FE0F}}?\x{{20E3}}"
    rf"|{_EMOJI}{_EMOJI_MARKS}*(?:\x{{200D}}{_EMOJI}{_EMOJI_MARKS}*)*",
    # --help, -h, -O2, --output=FILE, --color[=WHEN], --[no-]color, --FORCE.
    "options": rf"{HYPHENS}|--(?:\[no-\])?[a-z][A-Za-z0-9]*(?:[-_.][A-Za-z0-9]+)*{_VALUE}"
    rf"|--[A-Z][A-Z0-9]+(?:[-_][A-Z0-9]+)*{_VALUE}"
    rf"|-[A-Za-z][0-9]*\b{_VALUE}",
}
# Scripts of RE2 that are written today or often quoted.
SCRIPTS = (
    "Arabic Armenian Bengali Cyrillic Devanagari Ethiopic Georgian Greek Gujarati Gurmukhi Han "
    "Hangul Hebrew Hiragana Kannada Katakana Khmer Lao Latin Malayalam Mongolian Myanmar Oriya "
    "Runic Sinhala Syriac Tamil Telugu Thaana Thai Tibetan Tifinagh"
)


def check(protect: Sequence[str]) -> None:
    """Raises `InputError` unless each is the name of a set, or a regular expression of RE2."""
    expected = f"`protect` must be names of {', '.join(PROTECTED_SETS)}, or regular expressions"
    for pattern in (name for name in protect if name not in PROTECTED_SETS):
        if regex.fullmatch(r"[\w\s,]*", pattern):
            raise InputError(
                f"{expected}, in which a word stands in parentheses. Received: {pattern!r}"
            )
        try:
            is_empty = bool(tf.strings.regex_full_match("", f"(?:{pattern})"))
        except tf.errors.InvalidArgumentError as error:
            raise InputError(f"{expected} of RE2. Received: {pattern!r}") from error
        if is_empty:
            raise InputError(f"`protect` must not match an empty string. Received: {pattern!r}")


def pattern_of(protect: Sequence[str], pairs: Iterable[tuple[str, str]]) -> str:
    """Returns one regular expression for all; training pairs decide what is foreign."""
    parts = [f"(?:{pattern})" for pattern in protect if pattern not in PROTECTED_SETS]
    parts += [pattern for name, pattern in NAMED.items() if name in protect and name != LAST]
    foreign = foreign_scripts(pairs) if "foreign" in protect else []
    if letters := "".join(rf"\p{{{script}}}" for script in foreign):
        # A word of letters, marks on them, letters of several scripts, such as ー, and joiners;
        # words that follow are part of it.
        word = rf"[{letters}][{letters}\p{{M}}\p{{Lm}}\x{{200C}}\x{{200D}}]*"
        parts.append(rf"{word}(?:[ '\x{{2019}}-]?{word})*")
    return "|".join([*parts, *([NAMED[LAST]] if LAST in protect else [])])


def without_text(pattern: str) -> str:
    """Returns a pattern of `pattern_of` without the alternatives that find text."""
    return pattern.replace(f"{PERCENTAGE}|", "").replace(f"{HYPHENS}|", "")


def foreign_scripts(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Returns the scripts that are neither in the targets nor frequent in the sources."""
    sources: Counter[str] = Counter()
    targets: set[str] = set()
    for source, target in pairs:
        sources.update(source)
        targets.update(target)
    of_script = {script: regex.compile(rf"\p{{Script={script}}}") for script in SCRIPTS.split()}
    in_source = {
        script: sum(count for letter, count in sources.items() if pattern.match(letter))
        for script, pattern in of_script.items()
    }
    fewest = MIN_SOURCE_SHARE * sum(in_source.values())
    return [
        script
        for script, pattern in of_script.items()
        if in_source[script] <= fewest and not any(map(pattern.match, targets))
    ]
