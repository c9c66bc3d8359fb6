"""Models that Marian and Hugging Face saved, against their own results: see marian_models.py."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
from marian_models import extract, read_best

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.errors import InputError
from keras_transformer.trainers.marian import import_marian
from keras_transformer.translation import shifted
from keras_transformer.translator import Translator

NAMES = ("swish", "relu")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return extract("marian", tmp_path_factory.mktemp("marian"))


@pytest.fixture(scope="module")
def translators(folders):
    return {
        name: Translator.of(import_marian(folders / name, folders / f"{name}-run", "en", "de"))
        for name in NAMES
    }


@pytest.fixture(scope="module")
def sentences(folders):
    return (folders / "swish/sentences.txt").read_text("utf-8").splitlines()


def pieces_of(tokenizer):
    """All pieces, by id."""
    return [piece.decode() for piece in tokenizer.pieces(tf.range(tokenizer.vocab_size)).numpy()]


@pytest.mark.parametrize("name", NAMES)
def test_log_probabilities_are_marians(name, folders, translators, sentences):
    translator = translators[name]
    tokenizer = translator.tokenizer
    ids = {piece: i for i, piece in enumerate(pieces_of(tokenizer.target))}
    best = read_best(folders / name, beam_size=1)
    rows = [[*(ids[piece] for piece in each.pieces), EOS_ID] for each in best]
    target_ids = tf.ragged.constant(rows, dtype=tf.int32).to_tensor()
    source_ids = tokenizer.encode(tf.constant(sentences), 99).ids
    logits = translator.model({"source_ids": source_ids, "target_ids": shifted(target_ids)})
    log_probs = tf.gather(tf.nn.log_softmax(logits), target_ids, batch_dims=2)  # [B, T]
    sums = tf.reduce_sum(tf.where(target_ids == PAD_ID, 0.0, log_probs), axis=1)
    np.testing.assert_allclose(sums, [each.log_prob for each in best], atol=1e-4)


@pytest.mark.parametrize(("name", "beam_size"), [("swish", 1), ("relu", 6)])
def test_translations_are_marians(name, beam_size, folders, translators, sentences):
    found = translators[name].translate(sentences, beam_size=beam_size)
    others = []
    for ours, theirs in zip(found, read_best(folders / name, beam_size), strict=True):
        if ours.text == theirs.text:
            assert ours.score == pytest.approx(theirs.score, abs=1e-5)
        else:
            others.append(ours.score - theirs.score)
    # Marian's beam narrows whenever a hypothesis ends, so it may miss a better one.
    assert len(others) <= (beam_size > 1)
    assert all(gain > 0 for gain in others)


# Hugging Face.


@pytest.fixture(scope="module")
def huggingface_folders(tmp_path_factory):
    return extract("huggingface", tmp_path_factory.mktemp("huggingface"))


@pytest.fixture(scope="module", params=["shared", "separate"])
def huggingface(request, huggingface_folders):
    """The translator of an imported model, its folder, and what transformers makes of sentences."""
    folder = huggingface_folders / request.param
    run = import_marian(folder, folder / "run", like="huggingface")
    assert (run.source, run.target) == ("en", "de")  # as tokenizer_config.json says
    assert run.config.share_embeddings == (request.param == "shared")
    return Translator.of(run), folder, json.loads((folder / "expected.json").read_text("utf-8"))


def test_tokens_are_those_of_hugging_face(huggingface):
    translator, _, expected = huggingface
    encoded = translator.tokenizer.encode(tf.constant(expected["sentences"]), 99)
    pieces = translator.tokenizer.pieces(encoded.ids).numpy()
    for row, length, tokens in zip(pieces, encoded.lengths, expected["source"], strict=True):
        assert [piece.decode() for piece in row[: length + 1]] == tokens


def test_logits_are_those_of_hugging_face(huggingface):
    translator, folder, expected = huggingface
    tokenizer = translator.tokenizer
    id_of = {piece: i for i, piece in enumerate(pieces_of(tokenizer.target))}
    id_of["<pad>"] = BOS_ID  # their decoder starts from it
    target_ids = tf.constant([[id_of[piece] for piece in row] for row in expected["target"]])
    source_ids = tokenizer.encode(tf.constant(expected["sentences"][: len(target_ids)]), 99).ids
    inputs = {"source_ids": source_ids, "target_ids": shifted(target_ids)}
    logits = translator.model(inputs).numpy()
    files = folder / "vocab.json", folder / "target_vocab.json"
    vocabulary = json.loads(next(file for file in files[::-1] if file.exists()).read_text("utf-8"))
    vocabulary.pop("<pad>")
    own = logits[..., [id_of[piece] for piece in vocabulary]]
    theirs = np.array(expected["logits"])[..., list(vocabulary.values())]
    np.testing.assert_allclose(own, theirs, atol=1e-4)
    assert logits[..., [PAD_ID, BOS_ID]].max() < -500  # the logits of <pad> count in theirs


@pytest.mark.parametrize("search", ["greedy", "beam"])
def test_translations_are_those_of_hugging_face(search, huggingface):
    translator, _, expected = huggingface
    assert translator.defaults.beam_size == 4
    assert translator.defaults.length_penalty == 0.9
    beam_size = 1 if search == "greedy" else None
    found = translator.translate(expected["sentences"], beam_size=beam_size)
    known = [row for row, text in enumerate(expected[search]) if text is not None]
    assert len(known) > 5
    assert [found[row].text for row in known] == [expected[search][row] for row in known]


# Tags and punctuation.


def test_target_tag_and_punctuation(huggingface_folders, tmp_path):
    folder = huggingface_folders / "shared"
    run = import_marian(folder, tmp_path / "run", target_tag=">>fra<<", normalize_punctuation=True)
    plain = import_marian(folder, tmp_path / "plain").tokenizer()
    texts = tf.constant(["The “dog” … 5 %!", "No.", "", " \t\n"])
    prepared = tf.constant(['>>fra<< The "dog" ... 5%!', ">>fra<< No.", "", ""])
    assert run.tokenizer().tokenize(texts).to_list() == plain.tokenize(prepared).to_list()
    # The options are for sources.
    assert (
        run.tokenizer().target.tokenize(texts).to_list() == plain.target.tokenize(texts).to_list()
    )


def test_special_pieces_in_a_text_are_text(huggingface_folders, tmp_path):
    tokenizer = import_marian(huggingface_folders / "shared", tmp_path / "run").tokenizer()
    ids = tokenizer.tokenize(tf.constant(["<pad></s> <s> dog >>deu<<"])).to_list()[0]
    assert not {PAD_ID, BOS_ID, EOS_ID} & set(ids)
    assert ">>deu<<" not in [pieces_of(tokenizer)[i] for i in ids]


# Models and files that cannot be imported.


def edit_json(name, **changes):
    def edit(folder):
        content = json.loads((folder / name).read_text("utf-8")) | changes
        (folder / name).write_text(json.dumps(content), "utf-8")

    return edit


def edit_weights(**changes):
    def edit(folder):
        with np.load(folder / "model.npz") as arrays:
            np.savez(folder / "model.npz", **{**arrays, **changes})

    return edit


def with_option(name, value):
    """Changes an option in Marian's model."""

    def edit(folder):
        with np.load(folder / "model.npz") as arrays:
            arrays = dict(arrays)
        text = arrays["special:model.yml"].tobytes().rstrip(b"\0").decode()
        lines = [line for line in text.splitlines() if not line.startswith(f"{name}:")]
        text = "\n".join([*lines, f"{name}: {value}"]) + "\0\0"
        arrays["special:model.yml"] = np.frombuffer(text.encode(), np.int8)
        np.savez(folder / "model.npz", **arrays)

    return edit


def truncate(name):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-1000])


def delete(name):
    return lambda folder: (folder / name).unlink()


def drop_activation(folder):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    del config["activation_function"]
    path.write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("name", "edit", "message"),
    [
        (
            "swish",
            with_option("transformer-preprocess", "n"),
            "`transformer-preprocess` must be ''",
        ),
        ("swish", with_option("transformer-decoder-autoreg", "rnn"), "must be 'self-attention'"),
        ("swish", with_option("ulr", "true"), "`ulr` must be 'false'. Received: 'true'"),
        ("swish", edit_weights(Wpos=np.zeros(3, "f")), "no known model has a weight Wpos"),
        ("swish", edit_weights(Wemb=np.zeros((7, 48), "f")), "614 pieces. Received: 7 rows"),
        ("swish", edit_weights(Wemb=np.zeros((614, 48), "b")), "must hold floating-point weights"),
        ("swish", truncate("model.npz"), "model.npz must be a model of Marian"),
        ("swish", delete("source.spm"), "Cannot read .*source.spm: No such file"),
        ("swish", delete("decoder.yml"), "must hold Marian's decoder.yml, or .*config.json"),
        ("shared", edit_json("config.json", model_type="bart"), "`model_type` must be 'marian'"),
        ("shared", edit_json("config.json", eos_token_id=5), "`eos_token_id` must be 307"),
        ("shared", drop_activation, "`activation_function` must be 'swish'.* Received: 'gelu'"),
        ("shared", edit_json("config.json", d_model=None), "`d_model` must be"),
        ("shared", edit_json("config.json", decoder_layers=2), "layers.1.* is missing"),
        ("shared", edit_json("vocab.json", dog="x"), "must hold pieces and their ids"),
        ("shared", edit_json("tokenizer_config.json", source_lang=""), "names no languages"),
        ("shared", truncate("model.safetensors"), "model.safetensors is damaged"),
        ("shared", truncate("source.spm"), "source.spm must be a SentencePiece model"),
        ("separate", truncate("pytorch_model.bin"), "pytorch_model.bin is damaged"),
        ("separate", delete("pytorch_model.bin"), "Cannot read .*pytorch_model.bin: No such"),
    ],
)
def test_what_cannot_be_imported(name, edit, message, folders, huggingface_folders, tmp_path):
    is_marian = name in NAMES
    folder = shutil.copytree((folders if is_marian else huggingface_folders) / name, tmp_path / "x")
    edit(folder)
    languages = ("en", "de") if is_marian else ()
    with pytest.raises(InputError, match=message):
        import_marian(folder, tmp_path / "run", *languages)
    assert not (tmp_path / "run").exists()


def test_run_is_not_overwritten(folders, tmp_path):
    (tmp_path / "run.json").write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        import_marian(folders / "swish", tmp_path, "en", "de")
    with pytest.raises(InputError, match=r"must be in the model's vocabulary.*>>deu<<"):
        import_marian(folders / "swish", tmp_path / "run", "en", "de", target_tag=">>deu<<")
