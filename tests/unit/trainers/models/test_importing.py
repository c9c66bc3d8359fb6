"""Models that Marian and Hugging Face saved, against their own results: see marian_models.py."""

import io
import json
import re
import shutil

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from file_edits import add_to, delete, edit_json, replace_in, truncate, write
from marian_models import extract, read_best

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.errors import InputError
from keras_transformer.export.engines import export_marian
from keras_transformer.texts.sentences import split_sentences
from keras_transformer.tokenizers import shifted
from keras_transformer.trainers.models.importing import import_marian
from keras_transformer.trainers.models.runs import NEVER
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


def pieces_of(side):
    """All pieces, by id."""
    return [piece.decode() for piece in side.pieces(tf.range(side.vocab_size)).numpy()]


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


# Other forms of Marian's models.


@pytest.fixture
def copy(folders, tmp_path):
    """Copies a model."""
    return lambda name: shutil.copytree(folders / name, tmp_path / "model")


@pytest.mark.parametrize("name", ["decoder_ff_logit_out_Wt", "decoder_ff_logit_out_W"])
def test_output_that_is_not_tied(name, copy, folders, sentences):
    def untie(arrays):
        output = arrays["decoder_Wemb"] / 2
        arrays[name] = output if name.endswith("Wt") else output.T
        for kind in ("scale", "bias"):  # so the logits stay those of Marian
            arrays[f"decoder_l1_ffn_ffn_ln_{kind}"] *= 2

    folder = copy("relu")
    edit_weights(untie)(folder)
    found = Translator.of(import_marian(folder, folder / "run", "en", "de"))
    best = [each.text for each in read_best(folders / "relu", beam_size=1)]
    assert [each.text for each in found.translate(sentences[:23], beam_size=1)] == best[:23]


def test_output_without_a_bias(copy):
    folder = copy("relu")
    edit_weights(lambda arrays: arrays.pop("decoder_ff_logit_out_b"))(folder)
    with_option("output-omit-bias", "true")(folder)
    model = Translator.of(import_marian(folder, folder / "run", "en", "de")).model
    (bias,) = (each for each in model.weights if each.shape == (model.config.vocab_size,))
    assert bias.numpy().tolist() == [NEVER, 0, NEVER, *[0] * 362]


def with_vocabulary(folder, name, size):
    """Lets both languages of "swish" have a vocabulary of another size."""
    (folder / "decoder.yml").write_text(f"models: [model.npz]\nvocabs: [{name}, {name}]\n")

    def resize(arrays):
        arrays["Wemb"] = np.zeros([size, 48], "f")
        arrays["decoder_ff_logit_out_b"] = np.zeros([1, size], "f")

    edit_weights(resize)(folder)


def train_sentencepiece(eos_id):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["A man sees a dog.", "Ein Mann sieht einen Hund."]),
        model_writer=model,
        vocab_size=23,
        user_defined_symbols=[">>deu<<"],
        **{"bos_id": -1, "eos_id": eos_id, "unk_id": 1, "minloglevel": 2},
    )
    return model.getvalue()


@pytest.mark.parametrize("name", ["vocab.spm", "vocab.yml"])
def test_marians_own_sentencepiece_sees_the_tag(name, copy):
    folder, model = copy("swish"), train_sentencepiece(eos_id=0)
    for file in ("vocab.spm", "source.spm", "target.spm"):
        (folder / file).write_bytes(model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = [processor.id_to_piece(i) for i in range(23)]
    lines = (f"{json.dumps(piece)}: {i}" for i, piece in enumerate(pieces))
    (folder / "vocab.yml").write_text("\n".join(lines))
    with_vocabulary(folder, name, 23)
    translator = Translator.of(import_marian(folder, folder / "run", "en", "de"))
    tokenizer = translator.tokenizer
    ids = tokenizer.source.tokenize(tf.constant([">>deu<< A man"])).to_list()[0]
    of_text = processor.encode(">>deu<< A man", out_type=str)
    assert of_text[:2] == ["\u2581", ">>deu<<"]
    cut = [">>deu<<", *processor.encode("A man", out_type=str)]
    expected = of_text if name == "vocab.spm" else cut
    assert [pieces_of(tokenizer.source)[i] for i in ids] == expected
    assert tokenizer.source.tokenize(tf.constant([" >>deu<< ", ""])).to_list() == [[], []]
    # Each sentence of a document has its tag, and so has each part of a long one.
    sources = tokenizer.source.tokenize(tf.constant([">>deu<< A man", "A man", "", "x>>deu<<"]))
    heads = [2 if name == "vocab.spm" else 1, 0, 0, 0]
    assert tokenizer.source.head_lengths(sources).numpy().tolist() == heads
    hidden, restore = tokenizer.wrapper.hide(
        tf.constant([" >>deu<< A dog.\n\nA man.", "", "A dog. A"])
    )
    parts = restore(split_sentences(hidden)).values.numpy().tolist()
    sentences = [b">>deu<< A dog.", b"\n\n", b">>deu<< A man."]
    assert parts == [*sentences, b"", b"A dog.", b" ", b"A"]
    if name == "vocab.spm":
        with pytest.raises(InputError, match="cuts the tag"):
            export_marian(translator, folder / "converted", "en", "de")
    else:
        export_marian(translator, folder / "converted", "en", "de")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("word-penalty: 0.5\nallow-unk: true", "the search has no word-penalty, allow-unk"),
        ("word-penalty: 0\nallow-unk: false", ""),
    ],
)
def test_options_that_the_search_does_not_have(options, message, copy, caplog):
    folder = copy("swish")
    add_to("decoder.yml", options)(folder)
    import_marian(folder, folder / "run", "en", "de")
    assert message in caplog.text
    assert bool(message) == bool(caplog.text)


# Hugging Face.


@pytest.fixture(scope="module")
def huggingface_folders(tmp_path_factory):
    return extract("huggingface", tmp_path_factory.mktemp("huggingface"))


@pytest.fixture(scope="module", params=["shared", "separate"])
def huggingface(request, huggingface_folders):
    """The translator of an imported model, its folder, and what transformers makes of sentences."""
    folder = huggingface_folders / request.param
    is_shared = request.param == "shared"
    # Its vocabulary has a tag for "de", which transformers does not put before a text.
    run = import_marian(
        folder, folder / "run", None, "mul" if is_shared else None, like="huggingface"
    )
    # As tokenizer_config.json says.
    assert (run.source, run.target) == ("en", "mul" if is_shared else "de")
    assert run.config.share_embeddings == is_shared
    return Translator.of(run), folder, json.loads((folder / "expected.json").read_text("utf-8"))


def test_tokens_are_those_of_hugging_face(huggingface):
    translator, _, expected = huggingface
    encoded = translator.tokenizer.encode(tf.constant(expected["sentences"]), 99)
    pieces = translator.tokenizer.source.pieces(encoded.ids).numpy()
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


@pytest.mark.parametrize("name", ["shared", "separate"])
def test_weights_in_shards(name, huggingface_folders, tmp_path):
    folder = shutil.copytree(huggingface_folders / name, tmp_path / "model")
    if name == "shared":
        path = folder / "model.safetensors"
        content = path.read_bytes()
        end = 8 + int.from_bytes(content[:8], "little")
        entries = {key: value for key, value in json.loads(content[8:end]).items() if key[0] != "_"}
        shard_of = {key: f"model-{i % 2}.safetensors" for i, key in enumerate(entries)}
        for file in set(shard_of.values()):
            own = {key: value for key, value in entries.items() if shard_of[key] == file}
            header = json.dumps(own).encode()
            header = len(header).to_bytes(8, "little") + header
            (folder / file).write_bytes(header + content[end:])
    else:
        path = folder / "pytorch_model.bin"
        shutil.copy(path, folder / "pytorch_model-0.bin")
        shard_of = {"model.encoder.embed_tokens.weight": "pytorch_model-0.bin"}
    expected = Translator.of(import_marian(folder, tmp_path / "run")).model.get_weights()
    path.unlink()
    index = path.with_name(f"{path.name}.index.json")
    index.write_text(json.dumps({"metadata": {}, "weight_map": shard_of}))
    found = Translator.of(import_marian(folder, tmp_path / "again")).model.get_weights()
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(own, other)


# Tags and punctuation.


def test_target_tag_and_punctuation(huggingface_folders, tmp_path):
    folder = huggingface_folders / "shared"
    run = import_marian(folder, tmp_path / "run", target_tag=">>fra<<", normalize_punctuation=True)
    plain = import_marian(folder, tmp_path / "plain", "en", "mul").tokenizer()
    texts = tf.constant(["The “dog” … 5 %!", "No.", "", " \t\n"])
    prepared = tf.constant(['>>fra<< The "dog" ... 5%!', ">>fra<< No.", "", ""])
    assert (run.source, run.target) == ("en", "fra")
    assert run.tokenizer()(texts).ids.numpy().tolist() == plain(prepared).ids.numpy().tolist()
    # The tag is no part of the words of a title.
    title = "A Dog A Dog"
    own = run.tokenizer()([title]).ids.numpy().tolist()
    assert own == plain([f">>fra<< {title}"]).ids.numpy().tolist()
    assert own == plain([">>fra<< A dog a dog"]).ids.numpy().tolist()
    # The options are for sources.
    assert (
        run.tokenizer().target.tokenize(texts).to_list() == plain.target.tokenize(texts).to_list()
    )


def test_special_pieces_in_a_text_are_text(huggingface_folders, tmp_path):
    tokenizer = import_marian(huggingface_folders / "shared", tmp_path / "run").tokenizer()
    ids = tokenizer.source.tokenize(tf.constant(["<pad></s> <s> dog >>deu<<"])).to_list()[0]
    assert not {PAD_ID, BOS_ID, EOS_ID} & set(ids)
    assert ">>deu<<" not in [pieces_of(tokenizer.source)[i] for i in ids]


# Models and files that cannot be imported.


def edit_weights(edit_arrays=lambda arrays: None, **changes):
    def edit(folder):
        with np.load(folder / "model.npz") as arrays:
            arrays = {**arrays, **changes}
        edit_arrays(arrays)
        np.savez(folder / "model.npz", **arrays)

    return edit


def with_option(name, value):
    """Changes an option in Marian's model; None removes it."""

    def edit(arrays):
        text = arrays["special:model.yml"].tobytes().rstrip(b"\0").decode()
        text = re.sub(rf"(?m)^{name}:.*\n(  .*\n)*", "", text)
        text += "\0\0" if value is None else f"\n{name}: {value}\0\0"
        arrays["special:model.yml"] = np.frombuffer(text.encode(), np.int8)

    return edit_weights(edit)


def use_sentencepiece_without_end(folder):
    (folder / "vocab.spm").write_bytes(train_sentencepiece(eos_id=-1))
    with_vocabulary(folder, "vocab.spm", 23)


# The model, what is wrong with it, and what the message names.
OUTSIDE = '{"weight_map": {"a": "../x.safetensors"}}'
WRONG = [
    ("swish", with_option("transformer-preprocess", "n"), "transformer-preprocess`.*'n'"),
    ("swish", with_option("ulr", "true"), "ulr`: .*'false'. Received: ulr='true'"),
    ("swish", with_option("dim-emb", None), "model.npz: `dim-emb`"),
    ("swish", edit_weights(Wpos=np.zeros(3, "f")), "Wpos"),
    ("swish", edit_weights(Wemb=np.zeros((7, 48), "f")), "614 pieces. Received: 7 rows"),
    ("swish", edit_weights(Wemb=np.zeros((614, 48), "b")), "floating-point .*: Wemb"),
    ("swish", edit_weights(lambda arrays: arrays.pop("Wemb")), "the weight .* missing"),
    ("swish", truncate("model.npz"), "model.npz must be a model of Marian"),
    ("swish", delete("source.spm"), "source.spm: No such file"),
    ("swish", delete("decoder.yml"), "decoder.yml, or .*config.json"),
    ("swish", add_to("decoder.yml", "normalize: true"), "normalize`.*'true'"),
    ("swish", add_to("decoder.yml", "vocabs: [a, b, c]"), "vocabs`: .* at most 2"),
    ("swish", write("decoder.yml", "[" * 99_999), "decoder.yml must hold a YAML mapping"),
    ("swish", use_sentencepiece_without_end, "vocab.spm .* </s>"),
    ("swish", write("vocab.yml", "</s>: 0\n- a"), "vocab.yml .* Received: '- a'"),
    ("swish", write("vocab.yml", r'"\UFFFFFFFF": 0'), "vocab.yml must hold a piece"),
    ("swish", write("vocab.yml", '</s>: 0\n"\\ud83d": 1'), "vocab.yml must hold pieces"),
    ("shared", edit_json("config.json", model_type="bart"), "model_type`: .*'marian'"),
    ("shared", edit_json("config.json", eos_token_id=5), "eos_token_id` must be 307.* 5"),
    ("shared", edit_json("config.json", activation_function="a"), "activation_function`.*'gelu'"),
    ("shared", edit_json("config.json", decoder_layers=2), "layers.1.* is missing"),
    ("shared", write("config.json", "[" * 99_999), "config.json must hold a JSON object"),
    ("shared", edit_json("generation_config.json", num_beams="six"), "num_beams`.*'six'"),
    ("shared", edit_json("vocab.json", **{"\ud83d": 1}), "vocab.json must hold pieces"),
    ("shared", replace_in("vocab.json", "<pad>", "<blank>"), "vocab.json must hold <pad>"),
    ("shared", delete("vocab.json"), "Missing: vocab.json"),
    ("shared", edit_json("tokenizer_config.json", source_lang=""), "`source` and `target`"),
    ("shared", truncate("model.safetensors"), "model.safetensors is damaged"),
    ("shared", truncate("source.spm"), "source.spm must be a SentencePiece model"),
    ("separate", truncate("pytorch_model.bin"), "pytorch_model.bin is damaged"),
    ("separate", write("model.safetensors.index.json", OUTSIDE), "index.json .* `weight_map`"),
]


@pytest.mark.parametrize(("name", "edit", "named"), WRONG, ids=[each[2] for each in WRONG])
def test_what_cannot_be_imported(name, edit, named, folders, huggingface_folders, tmp_path):
    is_marian = name in NAMES
    folder = shutil.copytree((folders if is_marian else huggingface_folders) / name, tmp_path / "x")
    edit(folder)
    languages = ("en", "de") if is_marian else ()
    with pytest.raises(InputError, match=named) as caught:
        import_marian(folder, tmp_path / "run", *languages)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_run_is_not_overwritten(folders, tmp_path):
    (tmp_path / "run.json").write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        import_marian(folders / "swish", tmp_path, "en", "de")
    with pytest.raises(InputError, match=r"`target_tag`.*>>deu<<"):
        import_marian(folders / "swish", tmp_path / "run", "en", "de", target_tag=">>deu<<")
