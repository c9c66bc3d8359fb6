"""Attention of a text and its translation, by the model's own parts on ids made by hand."""

import numpy as np
import pytest
from layer_weights import randomize

from keras_transformer.config import BOS_ID, EOS_ID, TransformerConfig
from keras_transformer.errors import InputError
from keras_transformer.model.transformer import Transformer
from keras_transformer.tokenizers import SentencePieceTokenizer
from keras_transformer.translator import DecodingOptions, Translator

TEXTS = ["red dog and cat", "rot Hund und Katze", "öl dog red cats"] * 3
SIZES = {"d_model": 15, "d_ff": 17, "num_heads": 3, "num_encoder_layers": 1, "dropout_rate": 0.5}


@pytest.fixture(scope="module")
def translator():
    tokenizer = SentencePieceTokenizer.train(TEXTS, 285)
    config = TransformerConfig(
        vocab_size=tokenizer.vocab_size,
        num_decoder_layers=2,
        attention_dropout_rate=0.5,
        feed_forward_dropout_rate=0.5,
        **SIZES,
    )
    options = DecodingOptions(beam_size=3, extra_length=5, max_source_length=11)
    return Translator(randomize(Transformer(config)), tokenizer, options)


def ids_of(translator, text):
    (ids,) = translator.tokenizer.tokenize([text]).to_list()
    return [*ids, EOS_ID]


def check(attention, translator, source_ids, target_ids):
    decoder_ids = [BOS_ID, *target_ids[:-1]]
    expected = translator.model.attention_scores(np.array([source_ids]), np.array([decoder_ids]))
    for actual, layers in zip(attention[3:], expected, strict=True):
        assert actual.dtype == np.float32
        assert actual.shape == (len(layers), *layers[0].shape[1:])
        for layer, scores in zip(actual, layers, strict=True):
            np.testing.assert_allclose(layer, scores[0], atol=1e-5)
        np.testing.assert_allclose(actual.sum(axis=-1), 1, atol=1e-5)


def test_given_target(translator):
    attention = translator.attention("red dog", "Katze und rot")
    source_ids, target_ids = ids_of(translator, "red dog"), ids_of(translator, "Katze und rot")
    sizes = [len(source_ids), len(target_ids)]
    assert sizes[0] != sizes[1]
    check(attention, translator, source_ids, target_ids)
    assert [len(attention.source_pieces), len(attention.target_pieces)] == sizes
    assert attention.source_pieces[-1] == attention.target_pieces[-1] == "</s>"
    assert attention.decoder_pieces == ("<s>", *attention.target_pieces[:-1])
    for pieces, text in (
        (attention.source_pieces, "reddog"),
        (attention.target_pieces, "Katzeundrot"),
    ):
        assert "".join(pieces[:-1]).replace("▁", "") == text


def test_own_translation_is_what_translate_finds(translator):
    attention = translator.attention("red dog")
    vocabulary = translator.tokenizer.pieces(np.arange(translator.tokenizer.vocab_size)).numpy()
    ids = [list(vocabulary).index(piece.encode()) for piece in attention.target_pieces]
    (text,) = translator.tokenizer.detokenize(np.array([ids], np.int32)).numpy()
    (translation,) = translator.translate(["red dog"])
    assert text.decode() == translation.text
    check(attention, translator, ids_of(translator, "red dog"), ids)


def test_blank_source(translator):
    attention = translator.attention(" \t")
    assert attention[:3] == (("</s>",), ("</s>",), ("<s>",))
    assert [scores.shape for scores in attention[3:]] == [(1, 3, 1, 1), (2, 3, 1, 1), (2, 3, 1, 1)]


def test_long_source_is_cut(translator):
    attention = translator.attention("dog " * 50, "rot")
    assert len(attention.source_pieces) == attention.cross.shape[-1] == 11


def test_lone_surrogate_reads_as_question_mark(translator):
    assert translator.attention("\ud800", "x")[:3] == translator.attention("?", "x")[:3]


@pytest.mark.parametrize(("arguments", "name"), [((["red"],), "source"), (("a", 3), "target")])
def test_no_strings(translator, arguments, name):
    with pytest.raises(InputError, match=f"`{name}` must be"):
        translator.attention(*arguments)
