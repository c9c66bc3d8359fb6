"""What is protected: regular expressions of RE2, the engine of TensorFlow's string operations."""

from collections import Counter
from collections.abc import Iterable, Sequence

import regex
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.protection import PROTECTS

FOREIGN = "foreign"
MIN_SOURCE_SHARE = 0.01  # a script with a larger share of the source's letters is not foreign

_PRINTF = (
    r"%(?:[0-9]+\$)?[-+#0']*(?:[0-9]+|\*)?(?:\.(?:[0-9]+|\*)?)?(?:hh|ll|[hlLqjzt])?"
    r"[diouxXeEfFgGaAcsSpnm@]"
)
_BRACES = r"\{[^{}\s]*\}"  # a placeholder, also within an address
_PARTS = rf"{_BRACES}|\([^\s()]*\)|[\w\p{{Latin}}~/#@$&+=%-]"
_ADDRESS = rf"(?:{_PARTS}|[:?!'*,;.])*(?:{_PARTS})"  # it does not end in punctuation
_EMOJI = r"[\p{So}\x{2190}-\x{21FF}\x{25FB}-\x{25FE}\x{203C}\x{2049}\x{3030}\x{1F000}-\x{1FAFF}]"
_EMOJI_MARKS = r"[\x{FE0E}\x{FE0F}\x{20E3}\x{1F3FB}-\x{1F3FF}\x{E0020}-\x{E007F}]"
# A percentage with letters after it, such as 50%iger and 80%-ige, is text and no placeholder.
PERCENTAGE = r"[0-9]+(?:[.,][0-9]+)*%(?:-\p{L}|\p{L}\p{L})\p{L}*"
# In the order in which they are tried at the same place.
NAMED = {
    # Tags, comments and entities of XML and HTML. A comment ends before the next one, so that the
    # time for one without an end is not quadratic.
    "tags": r"<!--(?:[^<]|<[^!]|<![^-])*?<?-->|</?[A-Za-z][\w:.-]*(?:[\s/][^<>]*)?>|<[!?][^<>]*>"
    r"|</?[0-9]+ ?/?>|&(?:#[0-9]+|#[xX][0-9A-Fa-f]+|[A-Za-z][A-Za-z0-9]*);",
    # Addresses of web and mail, without the punctuation after them.
    "urls": rf"(?i:(?:https?|ftps?|file)://|www\.){_ADDRESS}"
    r"|[A-Za-z0-9][\w.+-]{0,63}@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+",
    # %PATH%, %(name)s, %1$d, %-5.2f, %%, %1, {{name}}, {% if x %}, {0}, {name}, {}, ${x}, %{x}.
    "placeholders": rf"{PERCENTAGE}|%[A-Z][A-Z0-9_]+%"
    rf"|%\([\w.]+\)[-+#0 ]*[0-9]*(?:\.[0-9]+)?[A-Za-z]|{_PRINTF}|%%|%L?[1-9]\b"
    rf"|\{{\{{[^{{}}]*\}}\}}|\{{%[^{{}}]*%\}}|[%$]?{_BRACES}",
    # Flags, keys such as 1 in a box, and symbols with the marks that belong to them.
    "symbols": rf"[\x{{1F1E6}}-\x{{1F1FF}}]{{2}}|[0-9#*]\x{{FE0F}}?\x{{20E3}}"
    rf"|{_EMOJI}{_EMOJI_MARKS}*(?:\x{{200D}}{_EMOJI}{_EMOJI_MARKS}*)*",
}
# Scripts of RE2 that are written today or often quoted.
SCRIPTS = (
    "Arabic Armenian Bengali Cyrillic Devanagari Ethiopic Georgian Greek Gujarati Gurmukhi Han "
    "Hangul Hebrew Hiragana Kannada Katakana Khmer Lao Latin Malayalam Mongolian Myanmar Oriya "
    "Runic Sinhala Syriac Tamil Telugu Thaana Thai Tibetan Tifinagh"
)


def check(protect: Sequence[str]) -> None:
    """Raises `InputError` unless each is the name of a set, or a regular expression of RE2."""
    for each in protect:
        if each in PROTECTS:
            continue
        if regex.fullmatch(r"[\w\s,]*", each):
            raise InputError(
                f"`protect` must be names of {', '.join(PROTECTS)}, or regular expressions, "
                f"in which a word stands in parentheses. Received: {each!r}"
            )
        try:
            is_empty = bool(tf.strings.regex_full_match("", f"(?:{each})"))
        except tf.errors.InvalidArgumentError as error:
            raise InputError(
                f"`protect` must be names of {', '.join(PROTECTS)}, or regular expressions of RE2. "
                f"Received: {each!r}"
            ) from error
        if is_empty:
            raise InputError(f"`protect` must not match an empty string. Received: {each!r}")


def pattern_of(protect: Sequence[str], pairs: Iterable[tuple[str, str]]) -> str:
    """Returns one regular expression.

    Args:
        protect: names of sets, and regular expressions.
        pairs: training pairs, which decide what is foreign.
    """
    own = [f"(?:{each})" for each in protect if each not in PROTECTS]
    named = [pattern for name, pattern in NAMED.items() if name in protect]
    foreign = foreign_scripts(pairs) if FOREIGN in protect else []
    letters = "".join(rf"\p{{{script}}}" for script in foreign)
    # A word of letters and the marks on them; words that follow are part of it.
    runs = [rf"[{letters}][{letters}\p{{M}}]*(?:[ '\x{{2019}}-]?[{letters}][{letters}\p{{M}}]*)*"]
    return "|".join([*own, *named, *(runs if foreign else [])])


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
