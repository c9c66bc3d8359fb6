"""Models on disk: as a run directory, SavedModels, plain arrays, and for the peers.

A model of random weights is named by its size and by how translations end. The embeddings of the
special tokens are zero, so their logits are zero and the best tokens are words. In a "forced" model
this includes the end symbol, so every hypothesis reaches its maximum length and no system loses
time by forcing it. In a "natural" model the logit of the end symbol rises with the position, and
exceeds the others earlier or later in each sentence.
"""

import dataclasses
import importlib.util
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np

from bench.cases import Case, sizes_of
from bench.inputs import NUM_SPECIAL_IDS, words
from keras_transformer.config import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    UNK_ID,
    DecodingOptions,
    TransformerConfig,
)

END_POSITION = 30  # where the end symbol of a natural model is about as likely as a word


def make(case: Case) -> None:
    """Makes the missing files of a case's model: `run` and, for all but growth, the other forms."""
    folder, run_dir = case["folder"], case["run"]
    folder.mkdir(exist_ok=True, parents=True)
    if not run_dir.exists():
        _write_run(run_dir, sizes_of(case["size"]), case["model"].endswith("natural"))
    if case["kind"] == "growth" or (folder / "saved_model_float32").exists():
        return
    from keras_transformer import Translator
    from keras_transformer.export.engines import export_ctranslate2, export_marian
    from keras_transformer.export.options import ExportOptions
    from keras_transformer.export.saved_model import export_saved_model
    from keras_transformer.run import Run

    run = Run.load(run_dir)
    translator = Translator(run.model(), run.tokenizer(), options(beam_size=4))
    with fixed_length(case["max_tokens"]):
        for compute in ("float32", "bfloat16"):
            export_saved_model(
                translator,
                folder / f"saved_model_{compute}",
                options=ExportOptions(weights=compute, compute=compute, max_texts=2**16),
                check=False,
            )
    if importlib.util.find_spec("ctranslate2"):
        for quantization in ("float32", "int8"):
            export_ctranslate2(translator, folder / f"ctranslate2-{quantization}", quantization)
    if importlib.util.find_spec("transformers") and importlib.util.find_spec("torch"):
        export_marian(translator, folder / "marian", "en", "de")


def options(
    beam_size: int, early_stopping: str = DecodingOptions.early_stopping
) -> DecodingOptions:
    return DecodingOptions(
        beam_size=beam_size, max_source_length=1024, early_stopping=early_stopping
    )


@contextmanager
def fixed_length(length: int | None) -> Iterator[None]:
    """Sets the maximum number of tokens of graphs that are traced meanwhile, for any source.

    No option does this: `extra_length` counts from the length of the source.
    """
    from keras_transformer.texts.texts import TextSearch

    original = TextSearch.__init__

    def fixed(self, model, tokenizer, options, *others, **named):
        options = dataclasses.replace(options, extra_length=1024)
        original(self, model, tokenizer, options, *others, **named)
        self.max_target_tokens = length

    with mock.patch.object(TextSearch, "__init__", fixed if length else original):
        yield


def _write_run(path: Path, sizes: TransformerConfig, is_natural: bool) -> None:
    import keras

    from keras_transformer import Transformer
    from keras_transformer.run import Run
    from keras_transformer.tokenizers import Tokenizer

    path.mkdir()
    (path / "words.model").write_bytes(_word_tokenizer(sizes.vocab_size))
    tokenizer = Tokenizer.load(path / "words.model")
    keras.utils.set_random_seed(1)
    model = Transformer(sizes)
    embedding = model.target_embedding.token_embedding.embeddings
    table = np.array(embedding.value)
    table[:NUM_SPECIAL_IDS] = 0.0
    if is_natural:
        for variable in model.weights:
            # What a layer adds is small, so that the position shows in the decoder's output.
            if variable.path.endswith("/output/kernel"):
                variable.assign(variable * (0.4 if "cross_attention" in variable.path else 0.1))
        table[EOS_ID] = _end_row(sizes.d_model)
    embedding.assign(table)
    run = Run.create(path, sizes, tokenizer, "en", "de", {})
    run.save_checkpoint(model, step=1, metrics={}, is_best=True)


def _end_row(d_model: int) -> np.ndarray:
    """An embedding of the end symbol: what sinusoids that rise have more than flat ones."""
    rate = 10_000.0 ** (-np.arange(0, d_model, 2) / d_model)
    angle = rate * END_POSITION
    rising = (angle > np.pi / 24) & (angle < np.pi / 3)
    row = np.zeros(d_model, np.float32)
    row[0::2][rising] = 1.0
    row[0::2][-rising.sum() :] -= 1.0  # flat; a sum of zero passes the layer norm
    sines = np.sin(angle)
    return row * (1.5 * d_model**0.5 / (row[0::2] @ sines))


def _word_tokenizer(vocab_size: int) -> bytes:
    """A SentencePiece model in which every word of `words` is a piece."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(words(vocab_size)),
        model_writer=model,
        model_type="word",
        vocab_size=vocab_size,
        pad_id=PAD_ID,
        unk_id=UNK_ID,
        bos_id=BOS_ID,
        eos_id=EOS_ID,
        normalization_rule_name="identity",
        minloglevel=2,
    )
    return model.getvalue()
