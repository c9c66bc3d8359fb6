"""Splitting texts, by hand."""

import pytest
import tensorflow as tf

from keras_transformer.search.sentences import cut_rows, split_sentences


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


def test_cut_by_hand():
    tokens = tf.ragged.constant([[1, 2, 3, 4, 5], [], [6, 7], [8, 9, 10, 11]], tf.int32)
    parts, rows = cut_rows(tokens, 2, head_lengths=tf.zeros([4], tf.int32))
    assert parts.to_list() == [[1, 2], [3, 4], [5], [], [6, 7], [8, 9], [10, 11]]
    assert rows.numpy().tolist() == [0, 0, 0, 1, 2, 3, 3]
    parts, rows = cut_rows(tokens, 3, head_lengths=tf.constant([1, 0, 2, 0]))
    assert parts.to_list() == [[1, 2, 3], [1, 4, 5], [], [6, 7], [8, 9, 10], [11]]
    assert rows.numpy().tolist() == [0, 0, 1, 2, 3, 3]
