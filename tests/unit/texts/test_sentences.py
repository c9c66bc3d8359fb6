"""Splitting texts, by hand."""

import pytest
import tensorflow as tf

from keras_transformer.texts.sentences import are_blank, cut_rows, may_split, split_sentences


@pytest.mark.parametrize(
    ("text", "segments"),
    [
        ("One. Two!  Three?", ["One.", " ", "Two!", "  ", "Three?"]),
        ('He said "Go." She went.', ['He said "Go."', " ", "She went."]),
        ("Dr. Lee met Mr. Wu at 3. They", ["Dr. Lee met Mr. Wu at 3. They"]),
        ("on 3. October 2020. Then", ["on 3. October 2020.", " ", "Then"]),
        ("e.g. This, z. B. Das", ["e.g. This, z. B. Das"]),
        ("The U.S. Army left. It", ["The U.S. Army left.", " ", "It"]),
        ("I can't. You can\u2019t. He", ["I can't.", " ", "You can\u2019t.", " ", "He"]),
        ("It costs 3.50. At 10:30. So", ["It costs 3.50.", " ", "At 10:30.", " ", "So"]),
        ("COVID-19. Fiance\u0301e. So", ["COVID-19.", " ", "Fiance\u0301e.", " ", "So"]),
        ("No. He met 'Dr. No' at No. 5", ["No.", " ", "He met 'Dr. No' at No. 5"]),
        ("No! Yes!! Oh?! Ah", ["No!", " ", "Yes!!", " ", "Oh?!", " ", "Ah"]),
        ("a.b.c 3.14 www.x.org. New", ["a.b.c 3.14 www.x.org.", " ", "New"]),
        ("Well... he left. \u00c4rger", ["Well... he left.", " ", "\u00c4rger"]),
        ("one\r\ntwo\n\n three", ["one", "\n", "two", "\n\n ", "three"]),
        ("\u4f60\u597d\u3002\u518d\u89c1", ["\u4f60\u597d\u3002", " ", "\u518d\u89c1"]),
        (
            "\u0645\u0627\u061f \u0646\u0639\u0645",
            ["\u0645\u0627\u061f", " ", "\u0646\u0639\u0645"],
        ),
        ("你好!我是李?)好 A!B", ["你好!", " ", "我是李?)", " ", "好 A!B"]),
        ("「だめ。」と言った。「何。」、", ["「だめ。」と言った。", " ", "「何。」、"]),
        ("「やあ。」彼は", ["「やあ。」", " ", "彼は"]),
        ("a\x01b\x02c", ["a b c"]),
        ("  One. Two\t", ["  ", "One.", " ", "Two", "\t"]),
        ("  \n x ", ["  ", "\n ", "x", " "]),
        ("", [""]),
    ],
)
def test_sentences_by_hand(text, segments):
    (found,) = split_sentences(tf.constant([text])).to_list()
    found = [segment.decode() for segment in found if segment or not text]
    assert found == segments


# With the code of the language; | stands where a sentence ends.
@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("de", "\u201eDas ist gut.\u201c|Dann ging er."),
        ("de", "\u00bbDas ist gut!\u00ab|\u201aJa.\u2018|Dann ging er."),
        ("de", "\u201eGut\u201c, sagte er.|\u201eDann gehe ich.\u201c"),
        ("fr", "\u00ab\u00a0C'est bien.\u00a0\u00bb|Puis il part."),
        ("fr", "\u00ab C'est bien\u202f! \u00bb|Puis Mme. Durand et M. Leroy partent.|Bien."),
        ("fr", "\u00ab Oui. \u00bb|\u00ab Non. \u00bb"),
        ("ka", "\u10d3\u10d8\u10d0\u10ee.|\u10d0\u10e0\u10d0."),
        ("en", "1. He scored 42.|2. She, Ph.D. (cf. Lee et al. (2019)), left in 3.|Then"),
        ("eng_Latn", "See chapter 5.|He said no.|5 left No. 5."),
        ("deu", "Die Nr. 5 ist da.|Dann"),
        ("hy", "\u0531\u0575\u0578\u0589|\u0548\u0579\u0589"),
        ("am", "\u12a0\u12ce\u1362|\u12a0\u12ed\u1362"),
        ("hi", "\u0939\u093e\u0901\u0965|\u0928\u0939\u0940\u0902\u0964"),
        ("el", "\u039d\u03b1\u03b9;|\u038c\u03c7\u03b9\u037e|\u039d\u03b1\u03b9."),
        ("en", "Yes; No"),
        (
            "en",
            "Two dogs play! \U0001f600|The \U0001f468\u200d\U0001f467.|Go :-) on. \u2764\ufe0f|I.",
        ),
        (
            "en",
            "**Two play.**|*Yes.*|No.[1]|He left.\u00b9|<b>Two.</b>|<i>He</i>.|&quot;Ox.&quot;|C",
        ),
        ("en", "One two.<br>|Three.</p><p>|Four"),
        ("en", "Cannot open %s.|Try %d.|See http://a.org/x.|Use -v.|Open {a}.|%s failed.|Try %1."),
        ("en", "On Nov. 29, approx. 5 of Gen. Smith's men read pp. 12 ff.|Call Tel. 030.|Dr. No"),
        ("en", "On the 23rd. May.|On the 23rd.|He, Mr. J.-P. Lee, left (e.g. The end, No. 5)."),
        ("de", "Die 5 Mio. Euro bzw. 3 Mrd. Dollar usw.|Dann kam z. B. Frau Dr. Lee am 3. Mai."),
        ("cs", "Viz obr. 3 a tzv. Praha.|Pak"),
        ("de", "Er ging.|\u203aGut.\u2039"),
        (
            "de",
            "In der Hauptstr. 12 wohnt Fam. Lee zzgl. Hund.|Er kostet \u20ac5.|\u20ac6 sind viel.",
        ),
        ("en", "I changed my mind.|Then he left."),
        ("en", "Two dogs play.<sup>1</sup>|The end.&#8221;|A [link.](http://a.org)|See ext. 42."),
        ("fr", "Le 5 d\u00e9c. 1999, T\u00e9l. 01.|Bien."),
        ("xx", "Mr. Lee left.|Gen. Smith"),
    ],
)
def test_ends_of_sentences(language, text):
    spaced = text.replace("|", " ").replace("> Three", ">Three").replace("> Four", ">Four")
    (found,) = split_sentences(tf.constant([spaced]), language).to_list()
    assert [part.decode() for part in found if part.strip()] == text.split("|")
    assert b"".join(found).decode() == spaced


def test_what_is_split_may_be_split():
    inner = [
        "Hi. There",
        "Hi.<br>There",
        "Hi.&nbsp;There",
        "Hi?\u201d B",
        "Hi\u3002There",
        "Hi;\nB",
    ]
    texts = tf.constant([*inner, "a.org/b?c=d;e", "%s", "{a b}"])
    is_split = [len(row) > 1 for row in split_sentences(texts, "el").to_list()]
    assert is_split == [True] * len(inner) + [False] * 3
    assert may_split(texts).numpy().tolist() == is_split


def test_an_entity_is_space():
    (found,) = split_sentences(tf.constant(["One two.&nbsp;Three &#160; "])).to_list()
    assert [part for part in found if part] == [b"One two.", b"&nbsp;", b"Three", b" &#160; "]
    texts = tf.boolean_mask(found, ~are_blank(found)).numpy().tolist()
    assert texts == [b"One two.", b"Three"]


def test_cut_by_hand():
    tokens = tf.ragged.constant([[1, 2, 3, 4, 5], [], [6, 7], [8, 9, 10, 11]], tf.int32)
    parts, rows = cut_rows(tokens, 2, head_lengths=tf.zeros([4], tf.int32))
    assert parts.to_list() == [[1, 2], [3, 4], [5], [], [6, 7], [8, 9], [10, 11]]
    assert rows.numpy().tolist() == [0, 0, 0, 1, 2, 3, 3]
    parts, rows = cut_rows(tokens, 3, head_lengths=tf.constant([1, 0, 2, 0]))
    assert parts.to_list() == [[1, 2, 3], [1, 4, 5], [], [6, 7], [8, 9, 10], [11]]
    assert rows.numpy().tolist() == [0, 0, 1, 2, 3, 3]
