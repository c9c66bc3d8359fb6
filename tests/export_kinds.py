"""Exports of every kind, each made when a test first asks for it.

Their models have random weights, so that no two hypotheses score alike, but for published ones.
"""

from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf
from layer_weights import randomize
from marian_models import extract

from keras_transformer import Transformer, TransformerConfig, Translator
from keras_transformer.config import DecodingOptions
from keras_transformer.export.options import ExportOptions
from keras_transformer.export.saved_model import export_saved_model
from keras_transformer.model.tensor import precision
from keras_transformer.registry import build_model
from keras_transformer.tokenizers import Tokenizer

OPTIONS = DecodingOptions(beam_size=3, length_penalty=0.7, max_source_length=23)
SIZES = {"d_model": 10, "d_ff": 17, "num_heads": 2}
SIZES |= {"num_encoder_layers": 1, "num_decoder_layers": 1}
TREES = [("red dog .", "S NP JJ NN /NP . /S"), ("öl two one", "NP NN CD CD /NP")]
PROTECT = ["tags", "urls", "placeholders", "symbols", "foreign"]
PROTECTED = [
    ("red {name} dog", "rot Hund {name}"),
    ("%s two", "zwei %s"),
    ("<b>red</b> dog", "<b>rot</b> Hund"),
    ("two", "%s zwei"),  # do not agree
    ("öl 日 %d", "%d oil 日"),
] * 6


class Kind(NamedTuple):
    translator: Translator  # which answers as the export does
    path: Path  # of the version


def transformer(vocab_size: int, **sizes: Any) -> Transformer:
    return randomize(Transformer(TransformerConfig(vocab_size=vocab_size, **SIZES, **sizes)))


class Kinds:
    """A kind is a method with its name: it returns a translator, and `ExportOptions`."""

    def __init__(self, folder: Path, exported: Kind) -> None:
        self.folder, self.made = folder, {"sentencepiece": exported}

    def __getitem__(self, name: str) -> Kind:
        if name not in self.made:
            translator, options = getattr(self, name)()
            path = export_saved_model(
                translator, self.folder / name, options=ExportOptions(**options), check=False
            )
            self.made[name] = Kind(translator, path)
        return self.made[name]

    @property
    def tokenizer(self) -> Tokenizer:
        return self.made["sentencepiece"].translator.tokenizer

    def plain(self, **sizes: Any) -> Translator:
        model = transformer(self.tokenizer.vocab_size, **sizes)
        return Translator(model, self.tokenizer, OPTIONS)

    def pre_norm(self):
        return self.plain(norm_first=True, activation="gelu", first_position=2), {}

    def learned(self):
        sizes = {"position_encoding": "learned", "max_length": 13}
        return self.plain(share_embeddings=False, **sizes), {}

    def float16(self):
        rounded = self.plain()
        for weight in rounded.model.weights:
            weight.assign(tf.cast(tf.cast(weight.value, "float16"), tf.float32))
        return rounded, {"weights": "float16"}

    def bfloat16(self):
        plain = self.plain()
        with precision("bfloat16"):
            model = build_model(plain.model.config)
        model.set_weights(plain.model.get_weights())
        rounded = Translator(model, plain.tokenizer, OPTIONS)
        return rounded, {"weights": "bfloat16", "compute": "bfloat16"}

    def word_pieces(self):
        from keras_transformer.tokenizers import WordPieceTokenizer

        words = WordPieceTokenizer.train(["red dog two", "one öl"] * 3, 40)
        return Translator(transformer(words.vocab_size), words, OPTIONS), {}

    def recurrent(self):
        from keras_transformer.recurrent.model import Recurrent, RecurrentConfig

        config = RecurrentConfig(vocab_size=self.tokenizer.vocab_size, d_model=10, units=7)
        return Translator(randomize(Recurrent(config)), self.tokenizer, OPTIONS), {}

    def ensemble(self):
        from keras_transformer.ensemble.config import EnsembleConfig

        members = [self.plain().model.config, self.recurrent()[0].model.config]
        model = randomize(build_model(EnsembleConfig.of(members)))
        return Translator(model, self.tokenizer, OPTIONS), {}

    def parser(self):
        from keras_transformer.parsing.tokenizer import TreeTokenizer

        trees = TreeTokenizer.train(TREES * 3, vocab_size=290)
        sizes = {"target_vocab_size": trees.target.vocab_size, "share_embeddings": False}
        return Translator(transformer(trees.vocab_size, **sizes), trees, OPTIONS), {}

    def protected(self):
        from keras_transformer.protection.tokenizer import ProtectingTokenizer

        tokenizer = ProtectingTokenizer.learn(lambda: PROTECTED, 340, PROTECT)
        options = DecodingOptions(beam_size=3, max_source_length=120, extra_length=9)
        return Translator(transformer(tokenizer.vocab_size), tokenizer, options), {"complete": True}

    def marian(self):
        from keras_transformer.trainers.models.importing import import_marian

        folder = extract("marian", self.folder / "archive") / "relu"
        return Translator.of(import_marian(folder, self.folder / "run", "en", "de")), {}

    def opennmt(self):
        from keras_transformer.trainers.models.opennmt import import_opennmt

        folder = extract("opennmt", self.folder / "archive-opennmt") / "all"
        return Translator.of(import_opennmt(folder / "run", folder / "own", "en", "de")), {}

    def several(self):
        from keras_transformer.trainers.models.importing import import_marian

        folder = extract("huggingface", self.folder / "archive") / "shared"
        run = import_marian(folder, self.folder / "hub", target="fra", like="huggingface")
        return Translator.of(run), {}
