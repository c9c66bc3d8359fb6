"""Models that OpenNMT-tf trained, against its own results: tests/make_opennmt_models.py."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from file_edits import delete, replace_in, truncate, write
from marian_models import extract

from keras_transformer.config import BOS_ID, EOS_ID, UNK_ID
from keras_transformer.errors import InputError
from keras_transformer.tokenizers import SentencePieceTokenizer, shifted
from keras_transformer.trainers.fitting.training import train
from keras_transformer.trainers.models.opennmt import import_opennmt
from keras_transformer.trainers.models.opennmt_files import Description, read_description
from keras_transformer.translator import Translator

# What each model shares of its embeddings, and what it has: (shares all, pre-norm, cuts the text).
KINDS = {
    "all": (True, True, True),
    "none": (False, False, False),
    "target": (False, True, True),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return extract("opennmt", tmp_path_factory.mktemp("opennmt"))


def models_of(folder):
    """The SentencePiece models of source and target."""
    names = ("source", "target") if (folder / "source.model").exists() else ("joint",) * 2
    return [folder / f"{name}.model" for name in names]


def vocabulary_of(folder, side):
    path = models_of(folder)[side == "target"].with_suffix(".vocab")
    return path.read_text("utf-8").splitlines()


def import_from(folder, run, **options):
    if KINDS[folder.name][2] is False:
        options.setdefault("sentencepiece", models_of(folder))
    return import_opennmt(folder / "run", run, "en", "de", **options)


@pytest.fixture(scope="module", params=KINDS)
def imported(request, folders):
    """A translator, its folder, and what OpenNMT-tf makes of sentences."""
    folder = folders / request.param
    translator = Translator.of(import_from(folder, folder / "imported"))
    return translator, folder, json.loads((folder / "expected.json").read_text("utf-8"))


def pieces_of(side, ids):
    return [piece.decode() for piece in side.pieces(tf.constant(ids)).numpy()]


def test_sources_are_those_of_opennmt(imported):
    translator, folder, expected = imported
    tokenizer = translator.tokenizer
    begins = {"none": [BOS_ID]}.get(folder.name, [])
    ends = {"none": [EOS_ID], "target": [EOS_ID]}.get(folder.name, [])
    known = vocabulary_of(folder, "source")
    encoded = tokenizer.encode(tf.constant(expected["sentences"]))
    ids = [row[row != 0].tolist() for row in encoded.ids.numpy()]
    for row, length, tokens in zip(ids, encoded.lengths.numpy(), expected["source"], strict=True):
        assert row[: len(begins)] == begins
        assert row[len(row) - len(ends) :] == ends
        own = row[len(begins) : len(row) - len(ends)]
        assert pieces_of(tokenizer.source, own) == [x if x in known else "<unk>" for x in tokens]
        assert length == len(tokens)
    blank = tokenizer.encode(tf.constant([""])).ids.numpy().tolist()
    assert blank == [[*begins, *ends] or [EOS_ID]]
    assert isinstance(tokenizer, SentencePieceTokenizer) == (folder.name == "all")


def test_sizes_and_search(imported):
    translator, folder, _ = imported
    config = translator.model.config
    assert (config.share_embeddings, config.norm_first) == KINDS[folder.name][:2]
    layers = {"all": (2, 2), "none": (1, 2), "target": (2, 1)}[folder.name]
    assert (config.num_encoder_layers, config.num_decoder_layers) == layers
    assert (translator.defaults.beam_size, translator.defaults.length_penalty) == (4, 0.0)


def test_logits_are_those_of_opennmt(imported):
    translator, folder, expected = imported
    tokenizer = translator.tokenizer
    count = len(vocabulary_of(folder, "target"))
    names = pieces_of(tokenizer.target, list(range(count + 1)))
    rows = [[*map(names.index, row), EOS_ID] for row in expected["target"]]
    source_ids = tokenizer.encode(tf.constant(expected["sentences"][3:5])).ids
    target_ids = tf.ragged.constant(rows, dtype=tf.int32).to_tensor()
    logits = translator.model({"source_ids": source_ids, "target_ids": shifted(target_ids)}).numpy()
    # Their order: <blank>, <s>, </s>, the tokens, and the id of unknown ones.
    logits = logits[..., [0, BOS_ID, EOS_ID, *range(4, count + 1), UNK_ID]]
    for own, theirs in zip(logits, expected["logits"], strict=True):
        np.testing.assert_allclose(own[: len(theirs)], theirs, atol=1e-4)


@pytest.mark.parametrize(("search", "beam_size"), [("greedy", 1), ("beam", None)])
def test_translations_are_those_of_opennmt(search, beam_size, imported):
    translator, _, expected = imported
    found = translator.translate(expected["sentences"], beam_size=beam_size, extra_length=250)
    others = []
    triples = zip(found, expected[search], expected[f"{search}_log_probs"], strict=True)
    for ours, text, log_prob in triples:
        if text is None:  # with an unknown token, or too long
            continue
        if ours.text == text:
            assert ours.score == pytest.approx(log_prob, abs=1e-4)
        else:
            others.append(ours.score - log_prob)
    # OpenNMT-tf's beam search mixes up the scores of hypotheses that have ended.
    assert len(others) <= (2 if search == "beam" else 0)
    assert all(gain > 0 for gain in others)


@pytest.mark.parametrize(("name", "protect"), [("all", ["tags"]), ("none", [])])
@pytest.mark.usefixtures("eager")
def test_training_further(name, protect, folders, short_settings, tmp_path):
    run = import_from(folders / name, tmp_path / "initial")
    changes = {"init_from": str(run.path), "model": {}, "protect": protect, "steps": 1}
    settings = dataclasses.replace(
        short_settings, max_length=60, tokens_per_batch=400, peak_rate=1e-9, **changes
    )
    tuned = Translator.of(train(settings, tmp_path / "run", verbose=0))
    texts = ["The girl listens to her woman.", "The <b>girl</b> listens."]
    before, after = (each.translate(texts, beam_size=2) for each in (Translator.of(run), tuned))
    assert after[0].text == before[0].text
    if protect:
        assert [after[1].text.count(tag) for tag in ("<b>", "</b>")] == [1, 1]


# Folders and files.


@pytest.fixture
def copy(folders, tmp_path):
    """Copies a model."""
    return lambda name: shutil.copytree(folders / name, tmp_path / name)


def weights_of(run):
    return Translator.of(run).model.get_weights()


def test_newest_checkpoint_in_a_folder_of_averages(copy, tmp_path):
    folder = copy("none")
    expected = weights_of(import_from(folder, tmp_path / "expected"))
    average = folder / "run/avg"
    average.mkdir()
    for path in (folder / "run").glob("ckpt-900.*"):
        for name in ("ckpt", "ckpt-99"):
            (average / path.name.replace("ckpt-900", name)).write_bytes(b"old")
        path.rename(average / path.name)
    found = import_opennmt(average, tmp_path / "x", "en", "de", sentencepiece=models_of(folder))
    for own, other in zip(weights_of(found), expected, strict=True):
        np.testing.assert_array_equal(own, other)


def add_weight(name, make=lambda weights: np.zeros(3, np.float32)):
    """Writes a newer checkpoint, with one more weight."""

    def edit(folder):
        reader = tf.train.load_checkpoint(str(folder / "run/ckpt-900"))
        root = tf.train.Checkpoint()
        names = [x for x in reader.get_variable_to_shape_map() if x.startswith("model/")]
        values = {x.split("/.ATTR")[0]: reader.get_tensor(x) for x in names}
        for path, value in [*values.items(), (name, make(values))]:
            *parents, leaf = path.split("/")
            node = root
            for parent in parents:
                if not hasattr(node, parent):
                    setattr(node, parent, tf.train.Checkpoint())
                node = getattr(node, parent)
            setattr(node, leaf, tf.Variable(value))
        root.write(str(folder / "run/ckpt-901"))

    return edit


def test_output_of_its_own(copy, tmp_path):
    """OpenNMT-tf shares the inputs' embeddings only: the output's kernel is there too."""
    folder = copy("all")
    expected = json.loads((folder / "expected.json").read_text("utf-8"))
    embedding = "model/examples_inputter/features_inputter/embedding"
    add_weight("model/decoder/output_layer/kernel", lambda weights: weights[embedding].T)(folder)
    found = Translator.of(import_from(folder, tmp_path / "run"))
    assert not found.model.config.share_embeddings
    texts = found.translate(expected["sentences"], beam_size=1, extra_length=250)
    known = zip(texts, expected["greedy"], strict=True)
    assert all(text is None or own.text == text for own, text in known)


def test_tokenization_in_a_file_of_its_own(copy, tmp_path):
    folder = copy("target")
    (folder / "spm.yml").write_text("type: SentencePieceTokenizer\nparams: {model: source.model}")
    yaml = folder / "other.txt"
    yaml.write_text(
        "data: {vocabulary: target.vocab, source_tokenization: /old/spm.yml, "
        "source_vocabulary: source.vocab, target_tokenization: "
        '{mode: "none", sp_model_path: target.model, sp_nbest_size: 64, sp_alpha: 0.1}}\n'
        "params: {beam_width: 3, length_penalty: 0.2, coverage_penalty: 0.2}"
    )
    run = import_opennmt(folder / "run", tmp_path / "run", "en", "de", config=yaml)
    tokenizer = run.tokenizer()
    assert tokenizer.source.delimiters == (False, False)
    for side, path in zip((tokenizer.source, tokenizer.target), models_of(folder), strict=True):
        assert side.sentencepiece_model() == path.read_bytes()
    options = Translator.of(run).defaults
    assert (options.beam_size, options.length_penalty) == (3, 0.2)


def test_vocabulary_of_other_pieces(copy, tmp_path):
    """Not all pieces of SentencePiece are in it: those are unknown, as to OpenNMT-tf."""
    folder = copy("all")
    tokens = (folder / "joint.vocab").read_text("utf-8").split("\n")
    dropped = tokens[300]
    tokens[300] = "averyunlikelytoken0"
    (folder / "joint.vocab").write_text("\n".join(tokens), "utf-8")
    tokenizer = import_from(folder, tmp_path / "run").tokenizer()
    assert not isinstance(tokenizer, SentencePieceTokenizer)
    text = dropped.replace("\u2581", " ")
    pieces = sentencepiece.SentencePieceProcessor(str(models_of(folder)[0])).encode(
        text, out_type=str
    )
    ids = tokenizer.source.tokenize(tf.constant([text])).to_list()[0]
    assert [i == UNK_ID for i in ids] == [piece == dropped for piece in pieces]


@pytest.mark.parametrize(
    ("python", "expected"),
    [
        ('model = lambda: models.get_model_from_catalog("TransformerTiny")', Description(2)),
        ("import opennmt\nmodel = opennmt.models.TransformerBig", Description(16)),
        ('get_model_from_catalog("ScalingNmtEnDe")', Description(16, ends_source=True)),
        ("class A(opennmt.models.Transformer):\n    pass", Description(8)),
        ("Transformer(num_heads=3, ffn_activation=tf.nn.silu)", Description(3, "swish")),
        ("Transformer(num_heads=N, ffn_activation=tf.nn.gelu)", Description(None, "gelu")),
        ("Transformer(None, None, 6, 512, 4)", Description(4)),
        ("raise SystemExit  # nothing is run\nTransformerBig", Description(16)),
    ],
)
def test_description(python, expected, tmp_path):
    (tmp_path / "x.py").write_text(python)
    assert read_description(tmp_path / "x.py") == expected


# What cannot be imported.


DESCRIPTION = "run/model_description.py"
RELATIVE = "model/encoder/layers/0/self_attention/layer/relative_position_keys"
WRONG = [
    (delete("run/ckpt*"), "run must hold a checkpoint of OpenNMT-tf 2, ckpt-N.index"),
    (truncate("run/ckpt-900.index"), "ckpt-900.index is damaged"),
    (truncate("run/ckpt-900.data-00000-of-00001"), "ckpt-900.index is damaged"),
    (add_weight(RELATIVE), "no known model has a weight .*relative_position_keys"),
    (write(DESCRIPTION, 'get_model_from_catalog("ListenAttendSpell")'), "Received: ListenAttendS"),
    (write(DESCRIPTION, "model = ("), "model_description.py must hold Python"),
    (replace_in(DESCRIPTION, "num_heads=3", "num_heads=7"), "multiple of `num_heads`"),
    (replace_in(DESCRIPTION, "num_heads=3", "num_heads=N"), "`num_heads` must be given"),
    (
        replace_in(DESCRIPTION, "num_heads", "maximum_relative_position=20, num_heads"),
        "`maximum_relative_position` must be None. Received: 20",
    ),
    (
        replace_in(DESCRIPTION, "num_heads", "ffn_activation=opennmt.layers.gelu, num_heads"),
        "`ffn_activation` must be .*tf.nn.gelu. Received: opennmt.layers.gelu",
    ),
    (delete("data.yml"), "the YAML file that names the vocabularies, or `config`"),
    (
        write("b.yaml", "source_vocabulary: x"),
        "`config` must name one.* Received: b.yaml, data.yml",
    ),
    (write("data.yml", "data: [vocabulary: 3]"), "data.yml: `data` must be a mapping"),
    (write("data.yml", "data: {source_1_vocabulary: x}"), "data.yml: `source_vocabulary`"),
    (replace_in("data.yml", "beam_width: 4", "beam_width: four"), "beam_width.*'four'"),
    (
        replace_in("data.yml", "mode: none", "mode: aggressive"),
        "SentencePiece's alone, .*aggressive",
    ),
    (
        replace_in("data.yml", "mode: none", "{mode: none, bpe_model_path: x}"),
        "data.yml must hold a YAML mapping",
    ),
    (replace_in("data.yml", "sp_model_path", "bpe_model_path"), "Received: .*bpe_model_path"),
    (replace_in("data.yml", "joint.model", "x.model"), "x.model: No such file"),
    (replace_in("joint.vocab", "<blank>\n", ""), "begin with <blank>, <s>, </s>. Received: <s>"),
    (replace_in("joint.vocab", "<0x07>", "<0x08>"), "joint.vocab must hold different tokens"),
    (replace_in("joint.vocab", "<0x07>\n", ""), "a row for each of the"),
]


@pytest.mark.parametrize(("edit", "named"), WRONG, ids=[each[1] for each in WRONG])
def test_what_cannot_be_imported(edit, named, copy, tmp_path):
    folder = copy("all")
    edit(folder)
    with pytest.raises(InputError, match=named) as caught:
        import_opennmt(folder / "run", tmp_path / "run", "en", "de")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_arguments(copy, tmp_path):
    folder = copy("none")
    with pytest.raises(InputError, match=r"data.yml names no .* Received: none"):
        import_opennmt(folder / "run", tmp_path / "run", "en", "de")
    with pytest.raises(InputError, match="`source` and `target` must be given"):
        import_opennmt(folder / "run", tmp_path / "run", "en")
    with pytest.raises(InputError, match="exists already"):
        import_opennmt(folder / "run", folder, "en", "de")
