"""What is protected."""

import pytest
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.protection import PROTECTS
from keras_transformer.protection.patterns import NAMED, check, foreign_scripts, pattern_of


def found(names, text):
    pattern = pattern_of(names, [("source", "target")])
    return tf.strings.regex_replace(text, f"(?:{pattern})", "⟦\\0⟧").numpy().decode()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "placeholders",
            "'⟦%s⟧' ⟦%1$d⟧ ⟦%-5.2f⟧ ⟦%d⟧⟦%%⟧ ⟦%(name)s⟧ ⟦%ld⟧ ⟦%zu⟧ ⟦%.*s⟧ ⟦%1⟧, ⟦%L2⟧",
        ),
        ("placeholders", "⟦%@⟧ %50 ⟦%PATH%⟧ sha256⟦%s⟧"),
        ("placeholders", "⟦{}⟧ ⟦{0}⟧, ⟦{name}⟧ ⟦${x}⟧ ⟦{{ user.name }}⟧ ⟦{n:d}⟧ ⟦%{x}⟧."),
        ("placeholders", "100 % of it, {one two} and a % b %."),
        (
            "tags",
            "⟦<b>⟧Save⟦</b>⟧⟦<br/>⟧⟦<a href='x y'>⟧a⟦&amp;⟧b⟦&#215;⟧⟦&#xD7;⟧⟦<!-- a > b -->⟧",
        ),
        ("tags", "⟦<!-- c < <d\n<!e> <-->⟧ <!-- ⟦<!-- -->⟧"),
        ("urls", f"{'a' * 9}⟦{'a' * 64}@a.org⟧"),
        ("tags", "1 < 2 > 0 & c; AT&T <3 ⟦<0>⟧a⟦</0>⟧ ⟦<!DOCTYPE html>⟧"),
        ("urls", "⟦http://a.org/Käse_(b)⟧, [a](⟦http://a.org⟧)[b] ⟦http://a.org/%C3%A4⟧"),
        (
            "urls",
            "(⟦https://a.org/b?c=d&e⟧), ⟦www.a.org⟧. ⟦me.you+x@mail.a.org⟧! at: b @ c, ftp",
        ),
        (
            "urls",
            "⟦https://a.org/{id}⟧ ⟦http://a.org/q={x}&y⟧。请⟦https://a.org⟧。",
        ),
        ("symbols", "⟦👩‍👩‍👧⟧⟦👍🏽⟧ ⟦🇨🇿⟧⟦🇩🇪⟧ ⟦1️⃣⟧ 5 ⟦°⟧C ⟦©⟧ a ⟦→⟧ b ⟦❤️⟧ ⟦‼⟧ ⟦◾⟧ + - = ,"),
        ("foreign", "an ⟦אור גדול⟧ and a ⟦日本語⟧, b ⟦Ελληνικά⟧!"),
    ],
)
def test_sets(name, text):
    plain = text.replace("⟦", "").replace("⟧", "")
    assert found([name], plain) == text


def test_an_own_pattern_comes_first():
    assert found(["tags", "[A-Z]+-[0-9]+", "<x[^>]*>y"], "AB-12 <b><x>y") == "⟦AB-12⟧ ⟦<b>⟧⟦<x>y⟧"


def test_every_set_has_a_name():
    assert set(PROTECTS) == {*NAMED, "foreign"}


def test_foreign_scripts():
    pairs = [("hello, Ωmega " * 40, "привет, мир"), ("d", "нет")]
    foreign = foreign_scripts(pairs)
    assert not {"Latin", "Cyrillic", "Greek"} & {*foreign}
    assert {"Han", "Hebrew"} < {*foreign}
    assert "Greek" in foreign_scripts([("hello " * 40 + "Ω", "привет")])


@pytest.mark.parametrize(
    ("protect", "message"),
    [
        (["tags", "(a"], r"must be names of tags, .*, or regular expressions.*Received: '\(a'"),
        (["tags,url"], r"must be names of tags, .* in parentheses\. Received: 'tags,url'"),
        (["x*"], r"must not match an empty string\. Received: 'x\*'"),
    ],
)
def test_bad_patterns(protect, message):
    with pytest.raises(InputError, match=message):
        check(protect)
