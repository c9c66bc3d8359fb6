"""Writes tests/data/opennmt.tar.xz: small models that OpenNMT-tf trained, and its translations.

    pip install OpenNMT-tf==2.32.0 tensorflow-cpu==2.13.1 "setuptools<70" sentencepiece
    python tests/make_opennmt_models.py

The models translate the bundled corpus. They differ in what they share, in the place of their
normalization, in how a source ends, and in who cuts the text. The weights are rounded to bfloat16
before OpenNMT-tf translates with them, and the optimizer's are zeros, so that the archive is small.
`expected.json` holds what OpenNMT-tf makes of sentences: the tokens, the logits of two targets, and
the translations of greedy and of beam search with their log probabilities.
"""

import io
import json
import lzma
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

import opennmt
import sentencepiece
import tensorflow as tf
import yaml

ROOT = Path(__file__).parents[1]
ARCHIVE = ROOT / "tests/data/opennmt.tar.xz"
NUM_PAIRS, NUM_SENTENCES = 24_000, 40
SENTENCES = ["<2de> The girl listens to her woman.", "At 5 o'clock, Öl!", "x"]
MAX_LENGTH = 250  # of OpenNMT-tf's translations, in tokens
SYMBOLS = ["<2de>", "{br}"]
LEVELS = opennmt.models.EmbeddingsSharingLevel


class Kind(NamedTuple):
    """What a model has; `description` is the Python of its model_description.py."""

    description: str
    data: dict  # of its YAML, besides files
    is_joint: bool  # whether both languages have one SentencePiece model and one vocabulary
    cuts: bool  # whether OpenNMT-tf cuts the text
    num_steps: int = 2000


def described(**options):
    """The text of a model_description.py, as users write it."""
    given = "".join(f"\n            {name}={value}," for name, value in options.items())
    return (
        "import opennmt\nimport tensorflow as tf\n\n\n"
        "class Small(opennmt.models.Transformer):\n    def __init__(self):\n"
        f"        super().__init__({given}\n        )\n\n\nmodel = Small\n"
    )


LEVEL = "opennmt.models.EmbeddingsSharingLevel"
KINDS = {
    "all": Kind(
        described(
            num_layers=2,
            num_units=30,
            num_heads=3,
            ffn_inner_dim=40,
            share_embeddings=f"{LEVEL}.ALL",
        ),
        {},
        is_joint=True,
        cuts=True,
    ),
    "none": Kind(
        described(
            num_layers=(1, 2),
            num_units=28,
            num_heads=2,
            ffn_inner_dim=34,
            ffn_activation="tf.nn.swish",
            pre_norm=False,
        ),
        {"source_sequence_controls": {"start": True, "end": True}},
        is_joint=False,
        cuts=False,
    ),
    "target": Kind(
        described(
            num_layers=(2, 1),
            num_units=24,
            num_heads=4,
            ffn_inner_dim=26,
            ffn_activation="tf.nn.gelu",
            mha_bias=False,
            output_layer_bias=False,
            share_embeddings=f"{LEVEL}.TARGET",
        ),
        {"source_sequence_controls": {"end": True}},
        is_joint=False,
        cuts=True,
    ),
}


def bundled_pairs():
    """The pairs of the bundled corpus; this environment has no TensorFlow for the package."""
    path = ROOT / "trainers/data/bundled.tsv.xz"
    return [line.split("\t") for line in lzma.decompress(path.read_bytes()).decode().splitlines()]


def train_pieces(path, texts, vocab_size, has_bytes):
    """Trains a SentencePiece model; returns the pieces that OpenNMT-tf's own script takes of it."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        vocab_size=vocab_size,
        byte_fallback=has_bytes,
        user_defined_symbols=SYMBOLS,
        normalization_rule_name="identity",  # the table of nmt_nfkc has 240 kB
        hard_vocab_limit=False,
        minloglevel=2,
    )
    path.write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = [processor.id_to_piece(i) for i in range(len(processor))]
    return processor, [
        "<blank>",
        "<s>",
        "</s>",
        *(p for p in pieces if p not in ("<unk>", "<s>", "</s>")),
    ]


def prepare(folder, kind, pairs, vocab_sizes):
    """Writes SentencePiece models, vocabularies and text; returns the configuration of `data`."""
    sides = [[pair[0] for pair in pairs], [pair[1] for pair in pairs]]
    texts = [[*sides[0], *sides[1]]] * 2 if kind.is_joint else sides
    data = dict(kind.data)
    for name, lines, side, size in zip(
        ("source", "target"), texts, sides, vocab_sizes, strict=True
    ):
        files = "joint" if kind.is_joint else name
        has_bytes = kind.is_joint and kind.cuts
        size += 256 * has_bytes
        processor, pieces = train_pieces(folder / f"{files}.model", lines, size, has_bytes)
        (folder / f"{files}.vocab").write_text("".join(f"{piece}\n" for piece in pieces))
        data[f"{name}_vocabulary"] = str(folder / f"{files}.vocab")
        if kind.cuts:
            model = str(folder / f"{files}.model")
            data[f"{name}_tokenization"] = {"mode": "none", "sp_model_path": model}
        else:
            side = [" ".join(processor.encode(text, out_type=str)) for text in side]
        key = {"source": "train_features_file", "target": "train_labels_file"}[name]
        data[key] = str(folder / f"{name}.txt")
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in side))
    return data


def build(description):
    namespace = {}
    exec(description, namespace)  # written above
    return namespace["model"]()


def train(folder, kind, data, num_steps):
    """Trains a model, and writes the average of its last checkpoints."""
    config = {
        "model_dir": str(folder / "run"),
        "data": data,
        "params": {
            "optimizer": "Adam",
            "optimizer_params": {"beta_1": 0.9, "beta_2": 0.98},
            "learning_rate": 0.006,
            "decay_type": "InvSqrtDecay",
            "decay_params": {"warmup_steps": 300, "initial_learning_rate": 1e-4},
            "label_smoothing": 0.1,
            "average_loss_in_time": True,
            "dropout": 0,
            "beam_width": 4,
        },
        "train": {
            "batch_size": 64,
            "batch_type": "examples",
            "length_bucket_width": 8,
            "max_step": num_steps,
            "save_checkpoints_steps": num_steps // 4,
            "average_last_checkpoints": 2,
            "sample_buffer_size": 4096,
        },
    }
    (folder / "run").mkdir()
    (folder / "run/model_description.py").write_text(kind.description)
    runner = opennmt.Runner(build(kind.description), config, auto_config=False, seed=29)
    runner.train()
    return config


def round_weights(folder, kind, config):
    """Restores the averaged model, rounds it, and saves it with an optimizer of zeros."""
    model = build(kind.description)
    model.initialize(config["data"], params=config["params"])
    optimizer = tf.keras.optimizers.legacy.Adam()
    model.create_variables(optimizer=optimizer)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    checkpoint.restore(tf.train.latest_checkpoint(str(folder / "run/avg"))).expect_partial()
    for variable in model.variables:
        variable.assign(tf.cast(tf.cast(variable, tf.bfloat16), tf.float32))
    for variable in optimizer.variables():
        variable.assign(tf.zeros_like(variable))
    manager = tf.train.CheckpointManager(checkpoint, str(folder / "rounded"), max_to_keep=1)
    manager.save(checkpoint_number=900)
    return model


def features_of(inputter, tokens):
    tokens = tf.ragged.constant(tokens)
    lengths = tf.cast(tokens.row_lengths(), tf.int32)
    return inputter.make_features(
        features={"tokens": tokens.to_tensor("<blank>"), "length": lengths}
    )


def translate(model, tokens, beam_width):
    """Returns the best translations of cut sentences, as tokens."""
    model.params["beam_width"] = beam_width
    search = tf.function(lambda features: model(features)[1], reduce_retracing=True)
    found = []
    for start in range(0, len(tokens), 32):
        predictions = search(features_of(model.features_inputter, tokens[start : start + 32]))
        for row, length in zip(
            *(predictions[x].numpy() for x in ("tokens", "length")), strict=True
        ):
            found.append([token.decode() for token in row[0, : length[0]]])
    return found


def logits_of(model, tokens, targets):
    """Returns the logits of targets and of their ends, and their log probabilities.

    A beam search of OpenNMT-tf mixes up the log probabilities of hypotheses that have ended.
    """
    features = features_of(model.features_inputter, tokens)
    labels = features_of(model.labels_inputter, targets)
    logits = tf.function(lambda *pair: model(*pair)[0]["logits"])(features, labels)
    log_probs = tf.gather(tf.nn.log_softmax(logits), labels["ids_out"], batch_dims=2)
    mask = tf.sequence_mask(labels["length"], dtype=tf.float32)
    return logits.numpy(), tf.reduce_sum(log_probs * mask, axis=1).numpy()


def expected_of(folder, kind, model, sentences):
    """What OpenNMT-tf computes with the saved model."""
    names = ("joint", "joint") if kind.is_joint else ("source", "target")
    source, target = (
        sentencepiece.SentencePieceProcessor(str(folder / f"{name}.model")) for name in names
    )
    tokens = source.encode(sentences, out_type=str)
    expected = {"sentences": sentences, "source": tokens}
    for name, beam_width in (("greedy", 1), ("beam", 4)):
        found = translate(model, tokens, beam_width)
        _, log_probs = logits_of(model, tokens, found)
        # This package writes no unknown token, and has other maximum lengths.
        differs = [len(row) == MAX_LENGTH or "<unk>" in row for row in found]
        texts = map(target.decode, found)
        expected[name] = [None if no else text for no, text in zip(differs, texts, strict=True)]
        expected[f"{name}_log_probs"] = [round(float(x), 5) for x in log_probs]
    expected["target"] = [row[:2] for row in found[3:5]]
    logits, _ = logits_of(model, tokens[3:5], expected["target"])
    expected["logits"] = [[[round(x, 5) for x in step] for step in row] for row in logits.tolist()]
    return expected


def make(folder, kind, pairs, sentences, vocab_sizes):
    """Returns the files of a model by their names in the archive."""
    folder.mkdir(parents=True)
    data = prepare(folder, kind, pairs, vocab_sizes)
    config = train(folder, kind, data, kind.num_steps)
    model = round_weights(folder, kind, config)
    expected = expected_of(folder, kind, model, sentences)
    (folder / "expected.json").write_text(json.dumps(expected, ensure_ascii=False))
    # Users' files stand where they trained.
    moved = yaml.dump(config).replace(str(folder), "/data/ende")
    (folder / "data.yml").write_text(moved)
    inside = {
        path.name: path
        for path in [*(folder / "rounded").iterdir(), folder / "run/model_description.py"]
    }
    names = ("joint",) if kind.is_joint else ("source", "target")
    beside = {
        f"{name}.{end}": folder / f"{name}.{end}" for name in names for end in ("model", "vocab")
    }
    beside |= {name: folder / name for name in ("data.yml", "expected.json")}
    return {f"run/{name}": path for name, path in inside.items()} | beside


def main():
    pairs = bundled_pairs()
    sentences = [*SENTENCES, *(pair[0] for pair in pairs[NUM_PAIRS + 500 :][:NUM_SENTENCES])]
    with tempfile.TemporaryDirectory() as temporary, tarfile.open(ARCHIVE, "w:xz") as archive:
        for name, kind in KINDS.items():
            folder = Path(temporary) / name
            files = make(folder, kind, pairs[:NUM_PAIRS], sentences, (310, 370))
            for inside, path in files.items():
                archive.add(path, f"{name}/{inside}")


if __name__ == "__main__":
    main()
