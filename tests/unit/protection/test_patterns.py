"""What is protected."""

import pytest
import regex
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.protection.patterns import (
    BEFORE_ENTITY,
    CUT,
    NAMED,
    check,
    foreign_scripts,
    pattern_of,
)
from keras_transformer.protection.terms import in_python
from keras_transformer.protection.wrapper import _Protected
from keras_transformer.registry import PROTECTED_SETS


def found(names, text):
    pattern = pattern_of(names, [("source", "target")])
    shown = _Protected(tf.constant([text]), pattern)
    return shown.replaced("⟦" + shown.strings + "⟧").numpy()[0].decode()


def found_in_python(names, text):
    pattern = "|".join(in_python(NAMED[name]) for name in names)
    marked = regex.sub(in_python(BEFORE_ENTITY), rf"\1{CUT}\2", text)
    shown = regex.sub(pattern, lambda match: shown_as(match[0]), marked)
    return shown.replace(CUT, "")


def shown_as(match):
    is_text = regex.fullmatch(r"[\s.!?…]*-+|%", match)
    return match if is_text else f"⟦{match}⟧"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "placeholders",
            "'⟦%s⟧' ⟦%1$d⟧ ⟦%-5.2f⟧ ⟦%d⟧⟦%%⟧ ⟦%(name)s⟧ ⟦%ld⟧ ⟦%zu⟧ ⟦%.*s⟧ ⟦%1⟧, ⟦%L2⟧",
        ),
        ("placeholders", "⟦%@⟧ %50 ⟦%PATH%⟧ sha256⟦%s⟧"),
        ("placeholders", "⟦{}⟧ ⟦{0}⟧, ⟦{name}⟧ ⟦${x}⟧ ⟦{{ user.name }}⟧ ⟦{n:d}⟧ ⟦%{x}⟧."),
        (
            "placeholders",
            "⟦%path%⟧ ⟦%s⟧foo⟦%s⟧ ⟦#{x}⟧ ⟦@{x}⟧ ⟦${{x}}⟧ ⟦{{{x}}}⟧ ⟦$$VAR$$⟧ ⟦{ name }⟧",
        ),
        (
            "urls",
            "⟦sftp://h/x⟧ ⟦https://a.org/Col·lecció?q[]=1⟧ ⟦https://a.org/ゼロ・ウィング⟧ です",
        ),
        ("urls", "⟦o'brien@a.ie⟧ [⟦https://a.org⟧] ⟦info@müller.de⟧"),
        ("options", "⟦-D⟧ NAME=VALUE  define. -I think"),
        ("placeholders", "100 % of it, {one two} and a % b %."),
        ("tags", "⟦<b>⟧Save⟦</b>⟧⟦<br/>⟧⟦<a href='x y'>⟧a⟦&amp;⟧b⟦&#215;⟧⟦&#xD7;⟧⟦<!-- a > b -->⟧"),
        ("tags", "⟦<!-- c < <d\n<!e> <-->⟧ <!-- ⟦<!-- -->⟧"),
        ("urls", f"⟦{'a' * 73}@a.org⟧"),
        ("tags", "1 < 2 > 0 & c; AT&T <3 ⟦<0>⟧a⟦</0>⟧ ⟦<!DOCTYPE html>⟧"),
        ("urls", "⟦http://a.org/Käse_(b)⟧, [a](⟦http://a.org⟧)[b] ⟦http://a.org/%C3%A4⟧"),
        ("urls", "(⟦https://a.org/b?c=d&e⟧), ⟦www.a.org⟧. ⟦me.you+x@mail.a.org⟧! at: b @ c, ftp"),
        ("urls", "⟦https://a.org/{id}⟧ ⟦http://a.org/q={x}&y⟧。请⟦https://a.org⟧。"),
        (
            "urls",
            "⟦https://ru.wikipedia.org/wiki/Окно⟧, (⟦https://пример.рф/путь⟧). ⟦www.пример.рф⟧!",
        ),
        (
            "urls",
            "⟦info@müller.de⟧ ⟦müller@example.de⟧; ⟦имя@почта.рф⟧ ⟦http://el.org/Αθήνα?q=ñ#é⟧.",
        ),
        ("urls", "⟦https://hi.org/wiki/हिन्दी⟧ ⟦https://ar.org/القاهرة⟧، ⟦http://例え.jp/パス/a⟧"),
        (
            "urls",
            "请看⟦https://a.org/路径⟧。⟦https://a.org⟧是 ⟦https://a.org/a/b⟧查看 联系⟦me@a.org⟧吧",
        ),
        ("urls", "⟦https://a.org/2019\u201320_season⟧ \u2013 ⟦http://b.org⟧\u2013 ⟦c@a.org⟧"),
        ("urls", "⟦用户@例子.中国⟧ ⟦https://zh.org/wiki/北京_2008?a=大&b=小⟧。⟦ftp://a.org⟧の"),
        ("urls", "See &lt;⟦https://a.org/⟧&gt; now ⟦https://a.org⟧&nbsp;now"),
        (
            "urls",
            "&quot;⟦https://a.org/?a=1&amp;b=2&lt=3&c⟧&quot; ⟦www.a.org/&amp;⟧ ⟦http://a.org/b⟧&#8217;s",
        ),
        (
            "urls",
            "⟦https://a.org?x&ampx=1⟧&#x27; ⟦https://a.org/a;b=1⟧&raquo; ⟦https://b.org⟧&amps;",
        ),
        (
            "placeholders",
            "⟦[X14X]⟧ ⟦__T12__⟧, ⟦$VAR$⟧ ⟦[[1]]⟧. ⟦__PH_3__⟧ ⟦[[[A_0]]]⟧ "
            "⟦{1>⟧a b⟦<1}⟧ ⟦[2}⟧c⟦{2]⟧ [a] a[i] x",
        ),
        (
            "placeholders",
            "⟦[%1$s:name]⟧ ⟦@@1@@⟧ ⟦##TAG_1##⟧ ⟦%%USER%%⟧ ⟦@VAR@⟧ ⟦{xx0xx}⟧ "
            "⟦$(x)⟧ ⟦$user$⟧ $5 and $6, a_b __a b__ ⟦#1#⟧ #1 ⟦__name_of__⟧",
        ),
        (
            "options",
            "⟦-h⟧, ⟦--help⟧: ⟦-o⟧ FILE (⟦--output=FILE⟧) ⟦--dry-run⟧. "
            "“⟦-O2⟧” [⟦-v⟧|⟦--no-color=auto⟧] ⟦--f[=WHEN]⟧ ⟦--[no-]color⟧ ⟦--FORCE⟧",
        ),
        (
            "options",
            "well-known e-mail -5 - a -- b --- "
            "dogs--and café-h Menü-Leiste -Two -d'accord -été a_-b x-",
        ),
        ("options", "-I think. -A dog. ⟦-I⟧, 3-a ⟦--sort='a b'⟧".replace("='a b'⟧", "⟧='a b'")),
        ("symbols", "⟦👩‍👩‍👧⟧⟦👍🏽⟧ ⟦🇨🇿⟧⟦🇩🇪⟧ ⟦1️⃣⟧ 5 ⟦°⟧C ⟦©⟧ a ⟦→⟧ b ⟦❤️⟧ ⟦‼⟧ ⟦◾⟧ + - = ,"),
        ("foreign", "an ⟦אור גדול⟧ and a ⟦日本語⟧, b ⟦Ελληνικά⟧!"),
        ("foreign", "⟦コーヒー⟧, ⟦ﾊﾟｰﾃｨｰ⟧: ⟦می\u200cخ⟧, ⟦क्\u200dष⟧; ⟦كـتب⟧"),
    ],
)
def test_sets(name, text):
    plain = text.replace("⟦", "").replace("⟧", "")
    assert found([name], plain) == text
    if name in NAMED:
        assert found_in_python([name], plain) == text


def test_an_entity_after_an_address_is_protected():
    assert found(["tags", "urls"], "&lt;https://a.org/&gt;") == "⟦&lt;⟧⟦https://a.org/⟧⟦&gt;⟧"
    own = found(["urls", "&lt;[^ ]*&gt;"], "&lt;https://a.org/&gt;")
    assert own == "⟦&lt;https://a.org/&gt;⟧"


def test_options_and_other_sets():
    text = "a-https://a.org -h-%s x-{a} אור-גדול"
    names = ["urls", "placeholders", "options", "foreign"]
    assert found(names, text) == "a-⟦https://a.org⟧ ⟦-h⟧-⟦%s⟧ x-⟦{a}⟧ ⟦אור-גדול⟧"


def test_an_own_pattern_comes_first():
    assert found(["tags", "[A-Z]+-[0-9]+", "<x[^>]*>y"], "AB-12 <b><x>y") == "⟦AB-12⟧ ⟦<b>⟧⟦<x>y⟧"


def test_every_set_has_a_name():
    assert set(PROTECTED_SETS) == {*NAMED, "foreign"}


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
