"""Tokenizers of KerasNLP give the same pieces after conversion, in a graph that was saved too."""

import io
import json
import subprocess
import sys

import keras_nlp
import pytest
import sentencepiece
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.export.check import PROGRAM
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.tokenizers.keras_nlp import from_keras_nlp

TEXTS = ["the red dogs, the cats!", "Öl und KATZE", "", "x\u00e9 中文 [PAD] <s>"]
PIECES = ["[PAD]", "the", "red", "[UNK]", "dog", "##s", "cat", ",", "!", "[", "]", "pad", "PAD"]
PIECES += ["ol", "öl", "katze", "KATZE", "und", "x", "##e", "中", "文"]


def sentence_piece(**options):
    model = io.BytesIO()
    texts = ["the red dog sees the cat", "der rote Hund sieht die Katze", "öl über alles"] * 3
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, minloglevel=2, vocab_size=29, **options
    )
    return model.getvalue()


@pytest.mark.parametrize(
    "options",
    [
        {},  # unk 0, bos 1, eos 2, no pad
        {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3},
        {"pad_id": 7, "eos_id": 1, "unk_id": 2, "bos_id": -1},
        {"model_type": "bpe", "normalization_rule_name": "nmt_nfkc_cf"},
    ],
)
def test_sentence_pieces(options):
    proto = sentence_piece(**options)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=proto)
    ours = from_keras_nlp(keras_nlp.tokenizers.SentencePieceTokenizer(proto))
    processor = sentencepiece.SentencePieceProcessor(model_proto=ours.model)
    assert [processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id()] == [
        *range(4)
    ]
    pieces = [[theirs.id_to_piece(i) for i in theirs.encode(text)] for text in TEXTS]
    found = [
        ours.source.pieces(tf.constant(ids, tf.int32))
        for ids in ours.source.tokenize(TEXTS).to_list()
    ]
    assert [[piece.decode() for piece in row.numpy()] for row in found] == pieces
    if options.get("pad_id") == 0:
        assert ours.source.tokenize(TEXTS).to_list() == theirs.encode(TEXTS)
    missing = sum(i < 0 for i in (theirs.pad_id(), theirs.bos_id()))
    assert ours.vocab_size == theirs.vocab_size() + missing


@pytest.mark.parametrize(
    "options",
    [{}, {"lowercase": True}, {"lowercase": True, "strip_accents": True}, {"split_on_cjk": False}],
)
def test_word_pieces(options, tmp_path):
    theirs = keras_nlp.tokenizers.WordPieceTokenizer(PIECES, **options)
    from_keras_nlp(theirs).save(tmp_path / "tokenizer.model")
    ours = Tokenizer.load(tmp_path / "tokenizer.model")
    assert ours.lowercase == bool(options.get("lowercase"))
    names = ["<pad>", "<unk>", "<s>", "</s>", *(each for each in PIECES if each != "[UNK]")]
    for text in TEXTS:
        expected = [PIECES[i] for i in theirs.tokenize(text)]
        found = [names[i] for i in ours.source.tokenize(tf.constant([text])).to_list()[0]]
        assert found == ["<unk>" if piece == "[UNK]" else piece for piece in expected]


def test_suffix_indicator():
    theirs = keras_nlp.tokenizers.WordPieceTokenizer(
        ["?", "a", "@b", "c"], suffix_indicator="@", oov_token="?"
    )
    assert from_keras_nlp(theirs).source.tokenize(tf.constant(["ab c d"])).to_list() == [
        [4, 5, 6, 1]
    ]


def test_word_pieces_in_a_fresh_process(tmp_path):
    """Of TF.Text, the process loads the libraries of ops only."""
    theirs = keras_nlp.tokenizers.WordPieceTokenizer(PIECES, lowercase=True, strip_accents=True)
    ours = from_keras_nlp(theirs)
    module = tf.Module()
    module.join = tf.function(
        lambda text: {"text": ours.source.detokenize(ours.encode(text, max_length=17).ids)},
        input_signature=[tf.TensorSpec([None], tf.string, name="text")],
        autograph=False,
    )
    tf.saved_model.save(module, tmp_path / "model", {"serving_default": module.join})
    request = "serving_default", {"text": TEXTS}
    process = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, str(tmp_path / "model")],
        input=json.dumps(request).encode() + b"\n",
        capture_output=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr.decode()
    joined = ["the red dogs , the cats !", "ol und katze", "", "xe 中 文 [ pad ] <unk> <unk> <unk>"]
    assert [row["text"] for row in json.loads(process.stdout)] == joined


@pytest.mark.parametrize(
    "tokenizer",
    [
        keras_nlp.tokenizers.ByteTokenizer(),
        keras_nlp.tokenizers.WordPieceTokenizer(PIECES, split=False),
        keras_nlp.tokenizers.SentencePieceTokenizer(),
        "bpe",
    ],
)
def test_refused(tokenizer):
    with pytest.raises(InputError, match=r"^`tokenizer` must be KerasNLP's .*Received: "):
        from_keras_nlp(tokenizer)
