"""Writes tests/data/marian.tar.xz: two small models that Marian trained, and its own translations.

    pip install pymarian==1.12.42
    python tests/make_marian_models.py [FOLDER]

The models translate the bundled corpus. "swish" has one vocabulary for both languages, as most
published models have; "relu" has two of different sizes. The weights are rounded to float16 before
Marian translates with them, so that the archive is small. Marian's scores are in the files
`nbest-K`, as its option `--n-best` prints them. The tests need no Marian.
"""

import io
import json
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import pymarian
import sentencepiece
import yaml

from keras_transformer.trainers.data.corpora import load_corpus

ARCHIVE = Path(__file__).parent / "data/marian.tar.xz"
NUM_SENTENCES = 120
BEAM_SIZES = 1, 6
KEPT = "model.npz", "decoder.yml", "source.spm", "target.spm", "sentences.txt", "nbest-1", "nbest-6"
SIZES = {
    "swish": {"dim-emb": 48, "transformer-dim-ffn": 80, "transformer-heads": 3, "dec-depth": 2},
    "relu": {"dim-emb": 44, "transformer-dim-ffn": 60, "transformer-heads": 2, "dec-depth": 1},
}


def train_pieces(folder, name, texts, vocab_size):
    """Trains a SentencePiece model and writes the texts as pieces."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        vocab_size=vocab_size,
        normalization_rule_name="identity",  # the table of nmt_nfkc has 240 kB
        minloglevel=2,
    )
    (folder / f"{name}.spm").write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    lines = [" ".join(pieces) for pieces in processor.encode(list(texts), out_type=str)]
    (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
    return sorted({piece for line in lines for piece in line.split()})


def write_vocabulary(path, pieces):
    names = ["</s>", "<unk>", *dict.fromkeys(pieces)]
    lines = [f"{json.dumps(name, ensure_ascii=False)}: {i}\n" for i, name in enumerate(names)]
    path.write_text("".join(lines))


def make(folder, activation):
    corpus = load_corpus("bundled", "en", "de")
    sources, targets, _ = zip(*corpus.pairs("train"), strict=True)
    source_pieces = train_pieces(folder, "source", sources, 310)
    target_pieces = train_pieces(folder, "target", targets, 370)
    if activation == "swish":
        names = ["vocab.yml", "vocab.yml"]
        write_vocabulary(folder / "vocab.yml", [*source_pieces, *target_pieces])
    else:
        names = ["source.vocab.yml", "target.vocab.yml"]
        write_vocabulary(folder / names[0], source_pieces)
        write_vocabulary(folder / names[1], target_pieces)
    options = {
        "type": "transformer",
        "model": str(folder / "trained.npz"),
        "train-sets": [str(folder / "source.txt"), str(folder / "target.txt")],
        "vocabs": [str(folder / name) for name in names],
        "enc-depth": 2,
        **SIZES[activation],
        "transformer-ffn-activation": activation,
        "transformer-postprocess-emb": "d",
        "transformer-postprocess": "dan",
        "transformer-dropout": 0.0,
        "tied-embeddings-all": activation == "swish",
        "tied-embeddings": activation == "relu",
        "learn-rate": 0.003,
        "lr-warmup": 300,
        "lr-decay-inv-sqrt": 300,
        "label-smoothing": 0.1,
        "optimizer-params": [0.9, 0.98, 1e-9],
        "clip-norm": 5,
        "mini-batch": 128,
        "mini-batch-fit": False,
        "after": "900u",
        "disp-freq": 100,
        "max-length": 60,
        "cpu-threads": 1,
        "workspace": 512,
        "seed": 23,
        "overwrite": True,
    }
    (folder / "train.yml").write_text(yaml.dump(options))
    pymarian.Trainer(f"--config {folder / 'train.yml'}").train()
    with np.load(folder / "trained.npz") as trained:
        weights = {
            name: value if value.dtype == np.int8 else value.astype(np.float16)
            for name, value in trained.items()
        }
    exact = {
        name: value if value.dtype == np.int8 else value.astype(np.float32)
        for name, value in weights.items()
    }
    np.savez(folder / "exact.npz", **exact)
    np.savez_compressed(folder / "model.npz", **weights)
    decoder = {
        "relative-paths": True,
        "models": ["model.npz"],
        "vocabs": names,
        "beam-size": 6,
        "normalize": 1,
    }
    (folder / "decoder.yml").write_text(yaml.dump(decoder))
    texts = [pair.source for pair in list(corpus.pairs("test"))[:NUM_SENTENCES]]
    (folder / "sentences.txt").write_text("".join(f"{text}\n" for text in texts))
    processor = sentencepiece.SentencePieceProcessor(str(folder / "source.spm"))
    pieces = "\n".join(map(" ".join, processor.encode(texts, out_type=str)))
    for size in BEAM_SIZES:
        options = (
            f"--beam-size {size} --normalize 1 --n-best --mini-batch 1 --cpu-threads 1 --quiet"
        )
        files = f"--models {folder / 'exact.npz'} --vocabs {folder / names[0]} {folder / names[1]}"
        translator = pymarian.Translator(f"{files} {options}")
        (folder / f"nbest-{size}").write_text(translator.translate(pieces) + "\n")
    return (*KEPT, *dict.fromkeys(names))


def main():
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(sys.argv[1] if sys.argv[1:] else temporary)
        with tarfile.open(ARCHIVE, "w:xz") as archive:
            for activation in SIZES:
                (root / activation).mkdir(parents=True, exist_ok=True)
                for name in make(root / activation, activation):
                    archive.add(root / activation / name, f"{activation}/{name}")


if __name__ == "__main__":
    main()
