"""Models for other engines: CTranslate2's own results, and files that transformers wrote."""

import dataclasses
import json

import ctranslate2
import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from layer_weights import randomize
from marian_models import extract

from keras_transformer.errors import InputError
from keras_transformer.export.engines import export_ctranslate2, export_marian
from keras_transformer.model.transformer import Transformer
from keras_transformer.texts.texts import TextSearch
from keras_transformer.tokenizers import SentencePieceTokenizer, WordPieceTokenizer
from keras_transformer.trainers.models.importing import import_marian
from keras_transformer.trainers.models.opennmt import import_opennmt
from keras_transformer.trainers.models.published import import_model
from keras_transformer.trainers.models.tensors import read_tensors
from keras_transformer.translator import Translator

TEXTS = ["The girl listens to her woman.", "Did they go to school at 5 o'clock?", "No.", "öl 東"]


@pytest.fixture(scope="module")
def swish(tmp_path_factory):
    folder = extract("marian", tmp_path_factory.mktemp("marian"))
    return Translator.of(import_marian(folder / "swish", folder / "run", "en", "de"))


@pytest.fixture(scope="module", params=["shared", "separate"])
def huggingface(request, tmp_path_factory):
    """A folder of transformers, and the translator that was imported from it."""
    folder = extract("huggingface", tmp_path_factory.mktemp("huggingface")) / request.param
    # With another target, the tokenizer would add its tag.
    target = "mul" if request.param == "shared" else None
    run = import_marian(folder, folder / "run", target=target, like="huggingface")
    return folder, Translator.of(run)


def translate(folder, texts, **options):
    """The program of docs/howto/published-models.md."""
    source = sentencepiece.SentencePieceProcessor(str(folder / "source.spm"))
    target = sentencepiece.SentencePieceProcessor(str(folder / "target.spm"))
    engine = ctranslate2.Translator(str(folder))
    found = engine.translate_batch(source.encode(texts, out_type=str), **options)
    return [target.decode(result.hypotheses[0]) for result in found]


def greedy(folder, texts=TEXTS):
    return translate(folder, texts, beam_size=1, disable_unk=True, max_decoding_length=90)


def ours(translator, texts=TEXTS):
    return [each.text for each in translator.translate(texts, beam_size=1)]


def test_ctranslate2_translates_alike(swish, tmp_path):
    export_ctranslate2(swish, tmp_path / "swish")
    assert greedy(tmp_path / "swish") == ours(swish)
    config = json.loads((tmp_path / "swish/config.json").read_text())
    assert config["layer_norm_epsilon"] == 1e-9


def assert_same_log_probabilities(translator, folder):
    """CTranslate2 scores translations as the model does."""
    export_ctranslate2(translator, folder)
    source, target = (
        sentencepiece.SentencePieceProcessor(str(folder / f"{side}.spm"))
        for side in ("source", "target")
    )
    targets = TEXTS[::-1]
    found = ctranslate2.Translator(str(folder)).score_batch(
        source.encode(TEXTS, out_type=str), target.encode(targets, out_type=str)
    )
    model, tokenizer = translator.model, translator.tokenizer
    texts = tf.constant(TEXTS), tf.constant(targets)
    expected = TextSearch(model, tokenizer, translator.defaults).score(*texts)
    sums = [sum(result.log_probs) for result in found]
    np.testing.assert_allclose(sums, expected.log_probs, rtol=1e-3)


def test_ctranslate2_of_an_imported_model(huggingface, tmp_path):
    assert_same_log_probabilities(huggingface[1], tmp_path / "x")


@pytest.mark.parametrize("name", ["all", "none", "target"])
def test_ctranslate2_of_a_model_of_opennmt(name, tmp_path):
    folder = extract("opennmt", tmp_path) / name
    files = [folder / f"{side}.model" for side in ("source", "target")] if name == "none" else []
    run = import_opennmt(folder / "run", tmp_path / "run", "en", "de", sentencepiece=files)
    assert_same_log_probabilities(Translator.of(run), tmp_path / "ct2")


@pytest.mark.parametrize(("name", "tags"), [("m2m", (">>en<<", ">>cs<<")), ("small", (">>cs<<",))])
def test_ctranslate2_of_many_languages(name, tags, tmp_path):
    """As the page says: a source begins with its token, and a translation perhaps too."""
    run = import_model(extract("multilingual", tmp_path) / name, tmp_path / "run", "en", "cs")
    translator = Translator.of(run)
    export_ctranslate2(translator, tmp_path / "ct2")
    processor = sentencepiece.SentencePieceProcessor(str(tmp_path / "ct2/source.spm"))
    pieces = [[tags[0], *row] for row in processor.encode(TEXTS[:3], out_type=str)]
    given = [list(tags[1:])] * 3
    found = ctranslate2.Translator(str(tmp_path / "ct2")).translate_batch(
        pieces, given, beam_size=1, disable_unk=True
    )
    texts = [processor.decode(row.hypotheses[0][len(tags) - 1 :]) for row in found]
    assert texts == ours(translator, TEXTS[:3])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"position_encoding": "learned", "max_length": 70},
        {"scale_embeddings": False, "first_position": 2},
        {"scale_attention": False},
        {"norm_first": True, "activation": "gelu"},
    ],
)
def test_ctranslate2_of_a_model_of_the_paper(changes, tiny_translator, tmp_path):
    model = Transformer(dataclasses.replace(tiny_translator.model.config, **changes))
    translator = Translator(randomize(model), tiny_translator.tokenizer)
    assert_same_log_probabilities(translator, tmp_path / "x")


def test_quantized_weights_are_smaller(swish, tmp_path):
    for quantization in ("float32", "int8"):
        export_ctranslate2(swish, tmp_path / quantization, quantization)
    sizes = [(tmp_path / name / "model.bin").stat().st_size for name in ("float32", "int8")]
    assert sizes[1] < 0.75 * sizes[0]  # the table of positions stays float32
    assert len(greedy(tmp_path / "int8")) == len(TEXTS)


def test_huggingface_folder_holds_what_transformers_wrote(huggingface, tmp_path):
    folder, translator = huggingface
    export_marian(translator, tmp_path / "x", "en", "de")
    is_shared = folder.name == "shared"
    before, after = (
        {name: np.asarray(tensor) for name, tensor in read_tensors(path).items()}
        for path in (
            folder / ("model.safetensors" if is_shared else "pytorch_model.bin"),
            tmp_path / "x/model.safetensors",
        )
    )
    vocabularies = [
        json.loads((path / ("vocab.json" if is_shared else "target_vocab.json")).read_text("utf-8"))
        for path in (folder, tmp_path / "x")
    ]
    common = [piece for piece in vocabularies[0] if piece != "<pad>"]
    rows = [[vocabulary[piece] for piece in common] for vocabulary in vocabularies]
    for name, weight in after.items():
        if name == "final_logits_bias":
            np.testing.assert_allclose(weight[0, rows[1]], before[name][0, rows[0]], rtol=1e-6)
        elif name == "model.encoder.embed_tokens.weight":
            assert weight.shape[1] == before[name].shape[1]
        elif "embed" in name or "shared" in name or "lm_head" in name:
            np.testing.assert_allclose(weight[rows[1]], before[name][rows[0]], rtol=1e-6)
        else:
            np.testing.assert_allclose(weight, before[name], rtol=1e-6)
    configs = [json.loads((path / "config.json").read_text()) for path in (folder, tmp_path / "x")]
    for name, value in configs[0].items():
        if name in configs[1] and "vocab_size" not in name and "_id" not in name:
            assert name in ("max_position_embeddings", "tie_word_embeddings") or (
                configs[1][name] == value
            ), name


def test_huggingface_folder_comes_back(huggingface, tmp_path):
    _, translator = huggingface
    options = dataclasses.replace(translator.defaults, no_repeat_ngram=4)
    translator = Translator(translator.model, translator.tokenizer, options)
    export_marian(translator, tmp_path / "x", *translator.tokenizer.languages)
    again = Translator.of(import_marian(tmp_path / "x", tmp_path / "run", like="huggingface"))
    assert ours(again, TEXTS[:2]) == ours(translator, TEXTS[:2])
    assert again.defaults == translator.defaults


def test_options_come_back(huggingface, tmp_path):
    _, translator = huggingface
    changes = {"scale_embeddings": False, "activation": "gelu"}
    config = dataclasses.replace(translator.model.config, **changes)
    export_marian(Translator(Transformer(config), translator.tokenizer), tmp_path / "x", "en", "de")
    again = import_marian(tmp_path / "x", tmp_path / "run", like="huggingface").config
    assert {name: getattr(again, name) for name in changes} == changes


def test_what_cannot_be_converted(swish, tiny_translator, tmp_path):
    (tmp_path / "full").mkdir()
    with pytest.raises(InputError, match="full exists already"):
        export_ctranslate2(swish, tmp_path / "full")
    config, tokenizer = tiny_translator.model.config, tiny_translator.tokenizer
    changes = [{"d_k": 3}, {"position_encoding": "learned"}, {"scale_attention": False}]
    heads, learned, unscaled, pre_norm = (
        Translator(Transformer(dataclasses.replace(config, **change)), tokenizer)
        for change in [*changes, {"norm_first": True}]
    )
    with pytest.raises(InputError, match=r"`d_k` and `d_v` must be 8\. Received: d_k=3, d_v=None"):
        export_ctranslate2(heads, tmp_path / "x")
    with pytest.raises(InputError, match="cannot have learned positions"):
        export_marian(learned, tmp_path / "x", "en", "de")
    with pytest.raises(InputError, match=r"cannot leave out 1 / sqrt\(d_k\)"):
        export_marian(unscaled, tmp_path / "x", "en", "de")
    with pytest.raises(InputError, match="cannot have `norm_first`"):
        export_marian(pre_norm, tmp_path / "x", "en", "de")
    words = WordPieceTokenizer.train(["red dog", "two cat"], 40)
    with pytest.raises(
        InputError, match=r"need a tokenizer of SentencePiece\. Received: one of word-pieces"
    ):
        words.source.sentencepiece_model()
    lower = SentencePieceTokenizer.train(["red dog", "two cat"], 270, lowercase=True)
    with pytest.raises(InputError, match="does not lower-case"):
        lower.source.sentencepiece_model()
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
