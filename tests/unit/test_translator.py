"""Texts in, translations out, by a model that was trained for five updates."""

import math

import numpy as np
import pytest

from keras_transformer.config import DecodingOptions
from keras_transformer.errors import InputError
from keras_transformer.texts.texts import TextSearch
from keras_transformer.tokenizers import SentencePieceTokenizer
from keras_transformer.translator import Translator

TEXTS = ["red dog", "", "one two red dog cat .", "öl", "dog " * 11, " \t\u3000", "one", "two cat ."]


@pytest.fixture(scope="module")
def one_by_one(tiny_translator):
    return [tiny_translator.translate([text])[0] for text in TEXTS]


def assert_close(actual, expected):
    for one, other in zip(actual, expected, strict=True):
        assert (one.text, one.truncated) == (other.text, other.truncated)
        assert one.score == pytest.approx(other.score, abs=1e-4)


def test_one_by_one_is_batch_in_any_order(tiny_translator, one_by_one):
    assert len({translation.score for translation in one_by_one}) == len(TEXTS) - 1  # both empty
    assert_close(tiny_translator.translate(TEXTS), one_by_one)
    backwards = tiny_translator.translate(reversed(TEXTS), batch_size=3)
    assert_close(backwards[::-1], one_by_one)


def test_a_sample_depends_on_its_text_and_the_seed(tiny_translator):
    options = {"sample_from": 9, "temperature": 1.3}
    together = tiny_translator.translate(TEXTS, sample_seed=2, **options)
    assert_close(
        tiny_translator.translate(TEXTS[::-1], batch_size=2, sample_seed=2, **options),
        together[::-1],
    )
    other = tiny_translator.translate(TEXTS, sample_seed=3, **options)
    assert [each.text for each in other] != [each.text for each in together]
    assert together[1].text == ""
    with pytest.raises(InputError, match="`sample_from` needs a `beam_size` of 1"):
        tiny_translator.translate(TEXTS, beam_size=2, **options)
    with pytest.raises(InputError, match="`temperature` and `sample_seed` need `sample_from`"):
        tiny_translator.translate(TEXTS, temperature=1.3)


def test_another_seed_needs_no_other_graph(tiny_translator, monkeypatch):
    traced, translate = [], TextSearch.translate
    monkeypatch.setattr(
        TextSearch, "translate", lambda *args: traced.append(args) or translate(*args)
    )
    seeds = [tiny_translator.translate(["dog"], sample_from=8, sample_seed=n) for n in range(4, 14)]
    assert len(traced) == 1
    assert len({found.text for (found,) in seeds}) > 1


def test_blank_texts_have_an_empty_translation(tiny_translator):
    translations = tiny_translator.translate(["", " ", " \t\r\n\u00a0\u3000"])
    assert translations == [("", 0.0, False, (("", 0.0),), ())] * 3


def test_long_text_is_truncated(tiny_translator):
    long = "one two " * 12_500
    assert len(long) == 100_000
    start = "one two " * 2_000  # is cut at the same token
    short, *cut = tiny_translator.translate(["one two", long, start])
    assert not short.truncated
    assert [translation.truncated for translation in cut] == [True, True]
    assert_close(cut[:1], cut[1:])


def test_a_prefix_is_continued(tiny_translator, one_by_one):
    best = tiny_translator.translate
    assert_close(best(TEXTS, prefixes=[""] * len(TEXTS)), one_by_one)
    prefixes = ["ei", "zwei ", "grünHund", "  ö \u2581", "日本 Hu", "o\u0308", "eins\n", "<b>😀"]
    kept = ["ei", "zwei ", "grünHund", "ö _", "日本 Hu", "ö", "eins ", "<b>😀"]
    for found, prefix in zip(best(TEXTS, prefixes=prefixes), kept, strict=True):
        assert f"{found.text} ".startswith(prefix)
    for prefix, is_upper in ("Zwei", False), ("ZWEI", True):  # of a source in capitals
        (found,) = best(["RED DOG ÖL TWO"], prefixes=[prefix])
        assert found.text.startswith(prefix)
        assert found.text.isupper() == is_upper
    long = best(["one"], prefixes=["zwei " * 500])[0]
    assert long.truncated


PREFIXES_IN_CAPITALS = {  # whether capitals follow, as the prefix is one in capitals
    "STRAẞE": True, "ŞEHİR": True, "Ϊ́ΔΙΟΣ": True, "ß": False, "ⅷ": False, "AⅧ": True, "": True,
}  # fmt: skip


def test_a_prefix_in_capitals_is_kept_byte_for_byte(tiny_translator):
    texts = ["RED DOG ÖL TWO"] * len(PREFIXES_IN_CAPITALS)
    found = tiny_translator.translate(texts, prefixes=PREFIXES_IN_CAPITALS, beam_size=1)
    for (prefix, is_upper), (text, *_) in zip(PREFIXES_IN_CAPITALS.items(), found, strict=True):
        assert text.startswith(prefix)
        assert (text == text.upper()) == is_upper


def test_white_space_of_a_prefix_is_all_that_there_is(tiny_translator):
    spaces = ["\u3000", "\u00a0", "\u3000 "]
    prefixes = [f"eins{space}" for space in spaces]
    results = tiny_translator.translate(["red dog"] * len(spaces), prefixes=prefixes)
    for result, prefix in zip(results, prefixes, strict=True):
        assert result.text.startswith(prefix)
        assert result.text[len(prefix) :].strip()
        assert not result.text.startswith(f"{prefix} ")


def test_a_prefix_that_no_result_has(tiny_translator):
    free = tiny_translator.translate(["red dog", "red dog"])
    assert_close(
        tiny_translator.translate(["red dog"] * 2, prefixes=["\ufffd", "\ufffd\ufffd"]), free
    )


def test_words(tiny_translator):
    texts = [*TEXTS, "日本 \ufffd"]
    for found in tiny_translator.translate(texts, words=True, length_penalty=0, beam_size=1):
        assert " ".join(word.text for word in found.words) == found.text
        log_prob = sum(math.log(word.probability) for word in found.words)
        assert log_prob >= found.score - 1e-4  # the end symbol is no word
    given = tiny_translator.translate(["red dog"], prefixes=["rot Hund "], words=True)[0]
    alone = tiny_translator.translate(["red dog"], prefixes=["rot Hund"], words=True)[0]
    assert [word.probability for word in given.words[:1]] == pytest.approx(
        [word.probability for word in alone.words[:1]], rel=1e-4
    )


def test_sentences_are_translated_one_by_one(tiny_translator):
    texts = ["One two. Red dog!\n Two cat.", "Red dog.", " ", "dog " * 600]
    found = tiny_translator.translate(texts, sentences=True, num_best=3, words=True)
    options = {"num_best": 3, "words": True}
    one, red, two, single = tiny_translator.translate(
        ["One two.", "Red dog!", "Two cat.", "Red dog."], **options
    )
    assert found[0].text == f"{one.text} {red.text}\n {two.text}"
    assert len(found[0].hypotheses) == 1
    assert [word.text for word in found[0].words] == [
        word.text for part in (one, red, two) for word in part.words
    ]
    assert found[0].score == pytest.approx(one.score + red.score + two.score, abs=1e-3)
    assert [each.text for each in found[1].hypotheses] == [each.text for each in single.hypotheses]
    assert (found[2].text, found[2].words) == (" ", ())
    assert not found[3].truncated
    with pytest.raises(InputError, match="either `prefixes` or `sentences`"):
        tiny_translator.translate(["dog"], sentences=True, prefixes=["H"])


def test_lone_surrogate_reads_as_question_mark(tiny_translator):
    assert_close(
        tiny_translator.translate(["a\ud800b", "\udfff"]), tiny_translator.translate(["a?b", "?"])
    )


def test_hypotheses_are_sorted(tiny_translator):
    translations = tiny_translator.translate(TEXTS, num_best=3)
    for text, translation in zip(TEXTS, translations, strict=True):
        scores = [hypothesis.score for hypothesis in translation.hypotheses]
        assert 1 <= len(scores) <= (3 if text.strip() else 1)
        assert len({hypothesis.text for hypothesis in translation.hypotheses}) == len(scores)
        assert scores == sorted(scores, reverse=True)
        assert translation.hypotheses[0] == (translation.text, translation.score)


def test_progress_counts_all_texts(tiny_translator):
    calls = []
    tiny_translator.translate(TEXTS, batch_size=3, progress=calls.append)
    assert calls == [3, 3, 2]
    assert tiny_translator.translate([], progress=calls.append) == []
    assert len(calls) == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [("beam_size", 0), ("length_penalty", math.nan), ("batch_size", "3"), ("num_best", 1.5)],
)
def test_options_out_of_range(tiny_translator, name, value):
    for texts in (["one"], []):
        with pytest.raises(InputError, match=f"`{name}`.*Received: {name}={value!r}"):
            tiny_translator.translate(texts, **{name: value})


def test_what_cannot_be_translated(tiny_translator):
    with pytest.raises(InputError, match=r"`num_best` must be .*: num_best=5, beam_size=4"):
        tiny_translator.translate(["one"], beam_size=4, num_best=5)
    with pytest.raises(InputError, match="Unknown setting beam"):
        tiny_translator.translate(["one"], beam=4)
    for texts in ("one two", b"one", None, ["text", None], ["text", b"text"]):
        with pytest.raises(InputError, match="`texts` must be"):
            tiny_translator.translate(texts)


def test_foreign_tokenizer(tiny_translator):
    tokenizer = SentencePieceTokenizer.train(["ab ba abba"], 265)
    with pytest.raises(InputError, match=r"`model` and `tokenizer`"):
        Translator(tiny_translator.model, tokenizer)


# Attention.


@pytest.mark.parametrize("target", ["Katze rot eins", None])
def test_attention_is_the_models(tiny_translator, target):
    model, tokenizer = tiny_translator.model, tiny_translator.tokenizer
    found = tiny_translator.attention("red dog", target)
    vocabulary = list(tokenizer.source.pieces(np.arange(tokenizer.vocab_size)).numpy())
    source_ids, target_ids, decoder_ids = (
        np.array([[vocabulary.index(piece.encode()) for piece in pieces]], np.int32)
        for pieces in found[:3]
    )
    assert found.decoder_pieces == ("<s>", *found.target_pieces[:-1])
    (text,) = tokenizer.source.detokenize(target_ids).numpy()
    assert text.decode() == (target or tiny_translator.translate(["red dog"])[0].text)
    expected = model.attention_scores(source_ids, decoder_ids)
    for actual, layers in zip(found[3:], expected, strict=True):
        np.testing.assert_allclose(actual, [layer[0] for layer in layers], atol=1e-5)


def test_attention_of_a_blank_and_of_a_long_source(tiny_translator):
    found = tiny_translator.attention(" \t")
    assert found[:3] == (("</s>",), ("</s>",), ("<s>",))
    assert [scores.shape for scores in found[3:]] == [(1, 2, 1, 1), (2, 2, 1, 1), (2, 2, 1, 1)]
    options = DecodingOptions(max_source_length=11)
    short = Translator(tiny_translator.model, tiny_translator.tokenizer, options)
    found = short.attention("dog " * 50, "rot")
    assert len(found.source_pieces) == found.cross.shape[-1] == 11


def test_attention_of_no_strings(tiny_translator):
    for arguments, name in (((["red"],), "source"), (("a", 3), "target")):
        with pytest.raises(InputError, match=f"`{name}` must be"):
            tiny_translator.attention(*arguments)
