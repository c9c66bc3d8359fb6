"""Texts in, translations out, by a model that has learnt next to nothing."""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest

from keras_transformer.errors import InputError
from keras_transformer.tokenizer import SentencePieceTokenizer
from keras_transformer.translator import DecodingOptions, Translator, _batches

TEXTS = ["red dog", "", "one two red dog cat .", "öl", "dog " * 11, " \t\u3000", "one", "two cat ."]


@pytest.fixture(scope="module")
def one_by_one(tiny_translator):
    return [tiny_translator.translate([text])[0] for text in TEXTS]


def assert_close(actual, expected):
    assert [translation.text for translation in actual] == [
        translation.text for translation in expected
    ]
    assert [translation.score for translation in actual] == pytest.approx(
        [translation.score for translation in expected], abs=1e-4
    )
    assert [translation.truncated for translation in actual] == [
        translation.truncated for translation in expected
    ]


@pytest.mark.parametrize("batch_size", [3, 64])
def test_one_by_one_is_batch(tiny_translator, one_by_one, batch_size):
    assert_close(tiny_translator.translate(TEXTS, batch_size=batch_size), one_by_one)


def test_order_is_kept(tiny_translator, one_by_one):
    assert len({translation.score for translation in one_by_one}) == len(TEXTS) - 1  # both empty
    reversed_texts = tiny_translator.translate(TEXTS[::-1], batch_size=3)
    assert_close(reversed_texts[::-1], one_by_one)


def test_old_graphs_are_dropped(tiny_translator, monkeypatch):
    translator = Translator(tiny_translator.model, tiny_translator.tokenizer)
    monkeypatch.setattr("keras_transformer.translator.MAX_GRAPHS", 2)
    made = [translator._traced(key, lambda: 1) for key in ("a", "b", "a", "c", "a", "b")]
    assert made[0] is made[2] is made[4]
    assert made[1] is not made[5]
    assert list(translator._graphs) == ["a", "b"]


@pytest.mark.parametrize("text", ["", " ", " \t\r\n\u00a0\u3000"])
def test_blank_text_has_an_empty_translation(tiny_translator, text):
    (translation,) = tiny_translator.translate([text])
    assert translation == ("", 0.0, False, (("", 0.0),))


def test_no_text(tiny_translator):
    calls = []
    assert tiny_translator.translate([], progress=calls.append) == []
    assert calls == []


def test_long_text_is_truncated(tiny_translator):
    long = "one two " * 12_500
    assert len(long) == 100_000
    start = "one two " * 2_000  # is cut at the same token
    short, *cut = tiny_translator.translate(["one two", long, start])
    assert not short.truncated
    assert [translation.truncated for translation in cut] == [True, True]
    assert_close(cut[:1], cut[1:])


@pytest.mark.parametrize(
    "text",
    [
        "😀😀🏳️‍🌈",
        "\x00\x01\x1b[31m\x7f\u200e",
        "שלום עולם مرحبا \u202eabc\u202c",
        "\ufffd",
        "\u2581",
    ],
)
def test_unusual_text(tiny_translator, text):
    (translation,) = tiny_translator.translate([text])
    assert math.isfinite(translation.score)
    assert translation.score <= 0
    assert not translation.truncated
    translation.text.encode()  # valid Unicode


def test_lone_surrogate_reads_as_question_mark(tiny_translator):
    assert_close(
        tiny_translator.translate(["a\ud800b", "\udfff"]), tiny_translator.translate(["a?b", "?"])
    )


@pytest.mark.parametrize(("beam_size", "num_best"), [(1, 1), (4, 1), (4, 3), (4, 4)])
def test_hypotheses_are_sorted(tiny_translator, beam_size, num_best):
    translations = tiny_translator.translate(TEXTS, beam_size=beam_size, num_best=num_best)
    for text, translation in zip(TEXTS, translations, strict=True):
        scores = [hypothesis.score for hypothesis in translation.hypotheses]
        assert len(scores) == (num_best if text.strip() else 1)
        assert scores == sorted(scores, reverse=True)
        assert translation.hypotheses[0] == (translation.text, translation.score)


@pytest.mark.parametrize("num_best", [0, 3])
def test_wrong_number_of_hypotheses(tiny_translator, num_best):
    message = f"`num_best` must be .* at most `beam_size`. Received: num_best={num_best}"
    with pytest.raises(InputError, match=message):
        tiny_translator.translate(["x"], beam_size=2, num_best=num_best)


def test_progress_counts_all_texts(tiny_translator):
    calls = []
    tiny_translator.translate(TEXTS, batch_size=3, progress=calls.append)
    assert calls == [3, 3, 2]


@pytest.mark.parametrize(
    ("num_bytes", "batch_size", "expected"),
    [
        ([5, 7, 3, 11, 2], 2, [[3, 1], [0, 2], [4]]),
        ([0, 0, 0], 2, [[0, 1], [2]]),
        ([], 64, []),
    ],
)
def test_batches_by_hand(num_bytes, batch_size, expected):
    assert list(_batches(num_bytes, batch_size)) == expected


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_batches_cover_all_rows_once(batch_size):
    num_bytes = [(i * i * 7919) % 20_011 for i in range(137)]
    batches = list(_batches(num_bytes, batch_size))
    assert sorted(itertools.chain(*batches)) == list(range(137))
    for rows in batches:
        assert 1 <= len(rows) <= batch_size


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_size": 0}, "`beam_size` must be at least 1. Received: beam_size=0"),
        ({"alpha": -0.1}, "`alpha` must be at least 0. Received: alpha=-0.1"),
        ({"alpha": math.nan}, "`alpha` must be at least 0. Received: alpha=nan"),
        ({"max_source_length": 1}, "`max_source_length` must be at least 2. Received: .*=1"),
        ({"batch_size": 0}, "`batch_size` must be at least 1. Received: batch_size=0"),
        ({"batch_size": 2.5}, "`batch_size` must be an integer. Received: batch_size=2.5"),
        ({"num_best": "2"}, "`num_best` must be an integer. Received: num_best='2'"),
        ({"num_best": 99}, "`num_best` must be .* at most `beam_size`. Received: num_best=99, "),
    ],
)
def test_wrong_options(tiny_translator, options, message):
    for texts in (["one"], []):
        with pytest.raises(InputError, match=message):
            tiny_translator.translate(texts, **options)


def test_wrong_extra_length():
    with pytest.raises(InputError, match=r"`extra_length` must be at least 0\. Received: .*=-1"):
        DecodingOptions(extra_length=-1)


def test_numbers_of_numpy_are_plain():
    options = DecodingOptions(beam_size=np.int64(3), alpha=np.float32(0.5), extra_length=np.int8(7))
    assert json.dumps(dataclasses.asdict(options)) == json.dumps(
        {"beam_size": 3, "alpha": 0.5, "extra_length": 7, "max_source_length": 512}
    )


@pytest.mark.parametrize(
    ("name", "value"), [("beam_size", "4"), ("beam_size", 2.5), ("max_source_length", None)]
)
def test_options_of_wrong_types(name, value):
    with pytest.raises(InputError, match=rf"`{name}` must be an integer\. .*: {name}={value!r}"):
        DecodingOptions(**{name: value})


def test_alpha_is_a_number():
    with pytest.raises(InputError, match=r"`alpha` must be a number\. Received: alpha='1'"):
        DecodingOptions(alpha="1")


@pytest.mark.parametrize("texts", ["one two", b"one", None, 3])
def test_what_is_no_list_is_an_error(tiny_translator, texts):
    with pytest.raises(InputError, match=rf"`texts` must be a list of strings\. .*: {texts!r}$"):
        tiny_translator.translate(texts)


def test_texts_may_come_from_a_generator(tiny_translator, one_by_one):
    assert_close(tiny_translator.translate(text for text in TEXTS), one_by_one)


@pytest.mark.parametrize("row", [None, b"text", float("nan")])
def test_what_is_no_string_is_an_error(tiny_translator, row):
    with pytest.raises(InputError, match=rf"must be strings\. Received, in row 1: {row!r}"):
        tiny_translator.translate(["text", row])


def test_foreign_tokenizer(tiny_translator):
    tokenizer = SentencePieceTokenizer.train(["ab ba abba"], 265)
    with pytest.raises(InputError, match=r"must have one size\. Received: 290 and 265"):
        Translator(tiny_translator.model, tokenizer)


def test_options_are_traced_once(tiny_translator, monkeypatch):
    tiny_translator.translate(["one"])

    def fail(*args):
        raise AssertionError("traced again")

    monkeypatch.setattr("keras_transformer.translator.translate_texts", fail)
    assert tiny_translator.translate(["a much longer text", "one"], beam_size=4)
    with pytest.raises(AssertionError, match="traced again"):
        tiny_translator.translate(["one"], beam_size=2, alpha=0.25)
