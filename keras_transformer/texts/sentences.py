"""Splitting texts into sentences, and long sentences into parts, with TensorFlow operations."""

import functools
import re

import regex
import tensorflow as tf
from sacremoses.corpus import NonbreakingPrefixes

from keras_transformer.languages import language_of

SPACE = r"(?:[\t\p{Zs}]|&(?:nbsp|ensp|emsp|thinsp);|&#160;|&#[xX][aA]0;)"
WIDE_STOPS = r"\x{3002}\x{FF01}\x{FF1F}\x{FF61}"  # Chinese and Japanese: no space follows them
_WIDE_CLOSING = r"\"'*\p{Pe}\p{Pf}"
WIDE_END = rf"[{WIDE_STOPS}]+[{_WIDE_CLOSING}]*"
# A comma, or a particle of Japanese, with which a sentence goes on after a quotation.
_AFTER_QUOTE = r"\x{3001}\x{FF0C}\x{3068}\x{3063}\x{3092}\x{304C}\x{306B}"
_EAST_ASIAN = r"\p{Han}\p{Hiragana}\p{Katakana}"
# Entities of HTML.
_QUOTE = r"&(?:[lr]?(?:quot|apos|aquo|[ds]quo)|#(?:34|39|171|187|821[6-9]|822[0-2]));"
_NOTE = r"\[[^\[\]]{1,30}\]|\([^\s()]{1,100}\)|<(?:sup|ref)\b[^<>]*>[^<>]{0,30}</(?:sup|ref)>"
_CLOSING = (
    r"(?:[\"'*_~`\p{Pe}\p{Pf}\p{Pi}\x{B2}\x{B3}\x{B9}\x{2070}-\x{2079}\x{2020}\x{2021}]"
    rf"|{_NOTE}|<[^<>]*>|{_QUOTE})"
)
_SYMBOLS = (
    r"(?:[\p{So}\p{Sk}\x{200D}\x{203C}\x{2049}\x{20E3}\x{FE0F}\x{E0020}-\x{E007F}]|[:;]-?[()DP])"
)
# Georgian has capitals that nobody begins a sentence with.
_START = (
    rf"(?:[*_~`]|<[^<>]*>|{_QUOTE})*"
    r"(?:[\p{Lu}\p{Lt}\p{Lo}\p{N}\p{So}\p{Sc}\p{Sm}\p{Co}\p{Georgian}\x{2022}\x{2013}\x{2014}-]"
    rf"|\p{{Pi}}{SPACE}?[^\s\p{{Z}}]"
    r"|[%$#@\p{Ps}\"'\x{BB}\x{201D}\x{203A}\x{BF}\x{A1}][^\s\p{Z}])"
)
_BREAKING_TAGS = r"</?(?:br|p|li|div|td|th|tr|h[1-6])\b[^<>]*>"

# A full stop that does not end a sentence is \x02 until the text is split. It follows one of these,
# or a word of a language's list:
_ABBREVIATIONS = (
    "Dr|Mr|Mrs|Ms|Mme|Mlle|Prof|Gen|St|Ste|Jr|Sr|Dipl|Ing|Mt|Ft|Nr|Fig|Vol|Mio|Mrd|mln|mld|vs|cf|ed|"
    "eds|ca|[Aa]pprox|bzw|incl|excl"
)
_OF_LANGUAGE = {  # and what the lists leave out
    "de": "Fr|Frl|Fam|Hr|Hrn|geb|med|jur|Jh|lt|gem|mind|zzgl|inkl|exkl|bspw|Hbf|Tsd|\\p{L}*[Ss]tr",
    "fr": "Mgr|Cie|env",
    "es": "Avda|D\u00f1a|Cnel|aprox|Av",
    "pt": "Av|aprox",
    "cs": "mil|n\u00e1m|ul|cca",
    "pl": "mil|tys|ul",
    "ru": "\u0438\u043c|\u0430\u043a\u0430\u0434",
    "uk": "\u0432\u0443\u043b|\u0456\u043c|\u043c\u043b\u043d",
    "vi": "TP",
    "hr": "npr",
}
_BEFORE_NUMBER = (
    "nos|nr|tel|telef|t\u00e9l|fax|p|pp|pag|p\u00e1g|vol|figs?|abb|tab|art|abs|anm|aufl|ausg|bd|blz|kap|"
    "kl|klo|ch|secs?|sek|eqs?|ref|str|al|est|ext|ver|max|min|\u0440\u0438\u0441|jan|janv|feb|f\u00e9vr|mar|m\u00e4r|"
    "apr|avr|abr|jun|jul|juil|aug|ago|sep|sept|oct|okt|nov|dec|d\u00e9c|dez|ene"
)
_MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_FINAL = {"etc", "usw", "usf", "u.s.w", "atd", "apod", "itd", "itp"}  # most often end a sentence
# Languages that do not write "3." for "third".
_WITHOUT_ORDINALS = set("en fr es it pt ca gl ro nl sv ru uk be bg mk el ar fa he hi vi id".split())  # noqa: SIM905
_BEFORE = r"(?:^|[\s\p{Z}\p{Ps}\p{Pi}\x{BB}\"*_>\x02])"  # no apostrophe: "can't"


@functools.cache
def _stops() -> str:
    """Returns Unicode's Sentence_Terminal, which RE2 does not know, and two that it leaves out."""
    characters = "".join(map(chr, range(0x12000)))
    terminal = regex.findall(
        r"[\p{Sentence_Terminal}--[\u3002\uff01\uff1f\uff61]]", characters, regex.V1
    )
    return "".join(rf"\x{{{ord(stop):x}}}" for stop in (*terminal, "\u2026", "\u037e"))


@functools.cache
def _rules(language: str) -> tuple[tuple[str, str], ...]:
    """Returns patterns and replacements; control codes mark the space between sentences."""
    language = language_of(language)
    words = {_ABBREVIATIONS, _OF_LANGUAGE.get(language, _ABBREVIATIONS)}
    before_number = {f"(?i:{_BEFORE_NUMBER})"}
    for line in NonbreakingPrefixes().words(language):  # English for a language without a list
        word, _, is_before_number = line.partition("#")
        if word not in _FINAL and regex.search(r"\p{L}[\p{L}\p{M}-]", word):
            (before_number if is_before_number else words).add(re.escape(word.strip()))
    listed, numbered = ("|".join(sorted(each)) for each in (words, before_number))
    stops = _stops() + (";" if language == "el" else "")
    of_number = rf"(?:^|[.:!?]{SPACE}+)" if language in _WITHOUT_ORDINALS else _BEFORE
    inner_quote = rf"(?:{SPACE}[\"\p{{Pf}}\p{{Pi}}])?"
    end = rf"[{stops}]+{_CLOSING}*{inner_quote}{_CLOSING}*(?:{SPACE}*{_SYMBOLS}+)*{_CLOSING}*"
    no_start = rf"\x01\s\p{{Z}}{WIDE_STOPS}{_WIDE_CLOSING}"
    return (
        (rf"((?:^|[^\p{{L}}\p{{N}}\p{{M}}])(?:{listed}))\.", "\\1\x02"),
        (rf"({_BEFORE}(?:\p{{L}}{{1,3}}\.-?)*\p{{L}})\.", "\\1\x02"),  # "U.S.", "J.-P.", "Ph.D."
        (rf"({_BEFORE}(?:{numbered}))\.({SPACE}*[+(#]?[\p{{N}}%{{])", "\\1\x02\\2"),
        (rf"({of_number}[0-9]{{1,2}})\.", "\\1\x02"),
        (rf"([0-9](?:st|nd|rd|th))\.({SPACE}*(?:{_MONTHS}))", "\\1\x02\\2"),
        (rf"(^{SPACE}+|{SPACE}+$)", "\x01\\1\x01"),
        (rf"({end})({SPACE}+)({_START})", "\\1\x01\\2\x01\\3"),
        (rf"([{stops}]+{_CLOSING}*{_BREAKING_TAGS})({_START})", "\\1\x01\x01\\2"),
        (rf"({WIDE_END}(?:{SPACE}*{_SYMBOLS}+)*)({SPACE}+)", "\\1\x01\\2\x01"),
        # Chinese and Japanese have no space there; the translation may need one.
        (rf"([{WIDE_STOPS}]+)([^{no_start}])", "\\1\x01 \x01\\2"),
        (rf"({WIDE_END})([^{no_start}{_AFTER_QUOTE}])", "\\1\x01 \x01\\2"),
        (rf"([{_EAST_ASIAN}][!?]+[\p{{Pe}}\p{{Pf}}]*)([{_EAST_ASIAN}])", "\\1\x01 \x01\\2"),
        (rf"({SPACE}*\n(?:\n|{SPACE})*)", "\x01\\1\x01"),
    )


def split_sentences(texts: tf.Tensor, language: str = "") -> tf.RaggedTensor:
    """Splits texts, string [B], into sentences and the white space between and around them.

    A sentence ends at a line break, or at a full stop, question mark or exclamation mark of any
    script that is followed by white space and then by a letter that is not lower-case, a digit, a
    symbol or an opening mark. Quotation marks, markup and emoji that follow belong to its end. The
    full stop of a known abbreviation, of a single letter or of a number of one or two digits does
    not end a sentence. The lists are those of Moses; a language without one has the English list.

    Returns string [B, (segments)]. Joined, the segments of a row are its text, with one form of
    line break, and with a space after a Chinese or Japanese full stop that more text follows.
    """
    texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
    texts = tf.strings.regex_replace(texts, r"\r\n?|[\x0b\x0c\x{85}\x{2028}\x{2029}]", "\n")
    texts = tf.strings.regex_replace(texts, r"[\x00-\x08\x0e-\x1f\x7f]", " ")
    for pattern, replacement in _rules(language):
        texts = tf.strings.regex_replace(texts, pattern, replacement)
    segments = tf.strings.split(texts, "\x01")
    return segments.with_values(tf.strings.regex_replace(segments.values, "\x02", "."))


def may_split(texts: tf.Tensor) -> tf.Tensor:
    """Returns whether each text, string [P], may be split, or loses its control characters."""
    inside = (
        rf"[\p{{Cc}}\x{{2028}}\x{{2029}}]|[{_stops()};].*[\s\p{{Z}}&<{_EAST_ASIAN}]|[{WIDE_STOPS}]."
    )
    return tf.strings.regex_full_match(texts, f"(?s).*(?:{inside}).*")


def are_blank(texts: tf.Tensor) -> tf.Tensor:
    """Returns whether each text, of any shape, is empty or only white space."""
    return tf.strings.regex_full_match(texts, rf"(?:{SPACE}|[\s\p{{Z}}])*")


def cut_rows(
    tokens: tf.RaggedTensor, max_tokens: int, head_lengths: tf.Tensor
) -> tuple[tf.RaggedTensor, tf.Tensor]:
    """Cuts rows of tokens, int32 [R, (tokens)], into parts, [P, (tokens)], P >= R, and their rows.

    Parts have at most `max_tokens`, and repeat the head of their row, int32 [R] tokens. A row
    without tokens is one part.
    """
    is_head = tf.ragged.range(tokens.row_lengths()) < tf.cast(head_lengths, tf.int64)[:, None]
    heads = tf.ragged.boolean_mask(tokens, is_head)
    tokens = tf.ragged.boolean_mask(tokens, ~is_head)
    longest = tf.maximum(max_tokens - heads.row_lengths(), 1)  # [R], without the head
    lengths = tokens.row_lengths()  # [R]
    num_parts = tf.maximum((lengths + longest - 1) // longest, 1)  # [R]
    row_of_part = tf.repeat(tf.range(tokens.nrows()), num_parts)  # [P]
    first_part = tf.cumsum(num_parts, exclusive=True)  # [R]
    number = tf.range(tf.size(row_of_part, tf.int64)) - tf.gather(first_part, row_of_part)
    longest = tf.gather(longest, row_of_part)  # [P]
    tokens_left = tf.gather(lengths, row_of_part) - number * longest
    part_lengths = tf.clip_by_value(tokens_left, 0, longest)  # [P]
    parts = tf.RaggedTensor.from_row_lengths(tokens.values, part_lengths)
    return tf.concat([tf.gather(heads, row_of_part), parts], axis=1), row_of_part
