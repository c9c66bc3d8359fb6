"""Characters that nobody sees, which a source is read without."""

import regex
import tensorflow as tf

# A flag with its tags, and a symbol with what chooses its look.
_KEPT = r"\U0001F3F4[\U000E0020-\U000E007F]+|[^\p{L}\p{M}\p{Z}\p{C}][\uFE00-\uFE0F]"
# What Unicode ignores by default, and the marks of annotations; but not the joiners U+200C and
# U+200D and Mongolian's selectors, with which words are written. U+200B is among them: Thai and
# Khmer are written with it and without it, and other text has it by accident, also within words.
_INVISIBLE = (
    r"[\u00AD\u034F\u061C\u115F\u1160\u17B4\u17B5\u180E\u200B\u200E\u200F\u202A-\u202E\u2060-\u206F"
    r"\u3164\uFE00-\uFE0F\uFEFF\uFFA0\uFFF0-\uFFFB"
    r"\U0001BCA0-\U0001BCA3\U0001D173-\U0001D17A\U000E0000-\U000E0FFF]"
)
_PATTERN = regex.compile(f"({_KEPT})|{_INVISIBLE}")
_OF_RE2 = regex.sub(r"\\[uU]([0-9A-F]+)", r"\\x{\1}", _PATTERN.pattern)


def visible(texts: tf.Tensor) -> tf.Tensor:
    """Returns texts, string of any shape and valid UTF-8, without invisible characters."""
    return tf.strings.regex_replace(texts, _OF_RE2, r"\1")


def visible_text(text: str) -> str:
    """Returns what `visible` returns."""
    return _PATTERN.sub(r"\1", text)


def without(texts: tf.Tensor, mark: str) -> tf.Tensor:
    """Returns texts without a mark, and without a space that has no word on both sides then."""
    run = f"[ {mark}]*{mark}[ {mark}]*"
    for pattern, replacement in (
        (f"^{run}|{run}$", ""),
        (f"[ {mark}]* {mark}[ {mark}]*|[ {mark}]*{mark} [ {mark}]*", " "),
        (mark, ""),
    ):
        texts = tf.strings.regex_replace(texts, pattern, replacement)
    return texts
