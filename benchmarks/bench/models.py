"""Models on disk, made once: as a run directory, a SavedModel, plain arrays, and for CTranslate2.

    python -m bench.models base-forced
    python -m bench.models multi30k-0123456789ab --run RUN

The name of random weights is a size and how translations end. The embeddings of the special tokens
are zero, so that their logits are, and the best tokens are words. In a "forced" model that holds
for the end symbol too, and every hypothesis goes on to its limit: no system has to be forced, so
none loses time by it. In a "natural" model the logit of the end symbol rises with the position, and
passes the others earlier or later in each sentence.
"""

import argparse
import hashlib
import io
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bench.cases import ALPHA, EXTRA_LENGTH, LIMITS, sizes_of
from bench.inputs import NUM_SPECIAL_IDS, words
from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID, TransformerConfig

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "bench"
END_POSITION = 30  # where the end symbol of a natural model is about as likely as a word
MAX_POSITIONS = 1024


def folder_of(name: str) -> Path:
    """Where a model is."""
    return BUILD / "models" / name


def name_of_run(run: Path) -> str:
    """Names the model of a run directory; training goes on, and it is another one."""
    return f"multi30k-{hashlib.sha256((run / 'run.json').read_bytes()).hexdigest()[:12]}"


def saved_model_of(name: str) -> Path:
    """Where its SavedModel is: what was traced of other code is not taken."""
    return folder_of(name) / f"saved_model-{digest('keras_transformer', 'export')}" / "1"


def digest(*folders: str) -> str:
    """Tells one version of the package's code from another."""
    found = hashlib.sha256()
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()[:12]


def make(name: str, run: Path | None, saved_model: Path | None) -> None:
    """Makes a model, or what is missing of it.

    Args:
        name: that of `name_of_run`, or SIZE-forced or SIZE-natural.
        run: the run directory that the first is of.
        saved_model: where to write a SavedModel, and then also what peers need; None for neither.
    """
    folder = folder_of(name)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "run").exists():
        if run is not None:
            (folder / "run").unlink(missing_ok=True)  # a link to what is gone
            os.symlink(run.resolve(), folder / "run")
        else:
            size, stop = name.rsplit("-", 1)
            _write_run(folder / "run", sizes_of(size), is_natural=stop == "natural")
    if saved_model is not None:
        _export(folder, saved_model, LIMITS.get(name.rsplit("-", 1)[-1]))


def _write_run(path: Path, sizes: TransformerConfig, is_natural: bool) -> None:
    import keras

    from keras_transformer.model import Transformer
    from keras_transformer.run import Run
    from keras_transformer.tokenizer import Tokenizer

    temporary = path.with_name("run.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    (temporary / "words.model").write_bytes(_word_tokenizer(sizes.vocab_size))
    tokenizer = Tokenizer.load(temporary / "words.model")
    keras.utils.set_random_seed(1)
    model = Transformer(sizes)
    embeddings = model.target_embedding.token_embedding.embeddings
    table = np.array(embeddings.value)
    table[:NUM_SPECIAL_IDS] = 0.0
    if is_natural:
        for layer in (*model.encoder_layers, *model.decoder_layers):
            # What a layer adds is small, so that the position shows in the decoder's output.
            for part in ("self_attention", "cross_attention", "feed_forward"):
                if hasattr(layer, part):
                    kernel = getattr(layer, part).output_dense.kernel
                    kernel.assign(kernel * (0.4 if part == "cross_attention" else 0.1))
        table[EOS_ID] = _end_row(sizes.d_model)
    embeddings.assign(table)
    run = Run.create(temporary, sizes, tokenizer, "en", "de", {})
    run.save_checkpoint(model, step=1, metrics={}, is_best=True)
    os.rename(temporary, path)


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


@contextmanager
def limit(most: int | None) -> Iterator[None]:
    """Lets the graphs that are traced meanwhile search for `most` tokens, whatever the source."""
    import tensorflow as tf

    from keras_transformer import translation

    before = translation._limits
    if most is not None:
        translation._limits = lambda _, lengths, __: tf.fill(tf.shape(lengths), most)
    try:
        yield
    finally:
        translation._limits = before


def options(case: dict[str, Any]) -> Any:
    """How to search."""
    from keras_transformer import DecodingOptions

    return DecodingOptions(
        beam_size=case["beam"], alpha=ALPHA, extra_length=EXTRA_LENGTH, max_source_length=1024
    )


def _export(folder: Path, saved_model: Path, most: int | None) -> None:
    from keras_transformer import Translator
    from keras_transformer.export.saved_model import export_saved_model
    from keras_transformer.run import Run

    run = Run.load(folder / "run")
    if not (folder / "weights.npz").exists():
        np.savez(folder / "weights.npz", **named_weights(run.model()))
    if not (folder / "ctranslate2").exists():
        from bench.convert import write_ctranslate2

        write_ctranslate2(folder)
    if not saved_model.exists():
        for old in folder.glob("saved_model-*"):
            shutil.rmtree(old)
        translator = Translator(run.model(), run.tokenizer(), options({"beam": 4}))
        with limit(most):
            export_saved_model(translator, saved_model.parent, check=False)


def named_weights(model: Any) -> dict[str, np.ndarray]:
    """A Transformer's weights by plain names, such as `decoder.0.self.query.kernel` [D, N * H]."""
    found: dict[str, Any] = {"embedding": model.target_embedding.token_embedding.embeddings}
    for stack, layers in (("encoder", model.encoder_layers), ("decoder", model.decoder_layers)):
        for i, layer in enumerate(layers):
            for name in ("self", "cross") if stack == "decoder" else ("self",):
                attention = getattr(layer, f"{name}_attention")
                for part in ("query", "key", "value", "output"):
                    dense = getattr(attention, f"{part}_dense")
                    found[f"{stack}.{i}.{name}.{part}.kernel"] = dense.kernel
                    found[f"{stack}.{i}.{name}.{part}.bias"] = dense.bias
                norm = getattr(layer, f"{name}_attention_norm").norm
                found[f"{stack}.{i}.{name}.norm.gamma"] = norm.gamma
                found[f"{stack}.{i}.{name}.norm.beta"] = norm.beta
            for part in ("inner", "output"):
                dense = getattr(layer.feed_forward, f"{part}_dense")
                found[f"{stack}.{i}.ffn.{part}.kernel"] = dense.kernel
                found[f"{stack}.{i}.ffn.{part}.bias"] = dense.bias
            norm = layer.feed_forward_norm.norm
            found[f"{stack}.{i}.ffn.norm.gamma"] = norm.gamma
            found[f"{stack}.{i}.ffn.norm.beta"] = norm.beta
    return {name: np.array(variable.value) for name, variable in found.items()}


def main() -> None:
    """Makes a model."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("name")
    parser.add_argument("--run", type=Path)
    parser.add_argument("--saved-model", type=Path, help="write one, and what peers need")
    arguments = parser.parse_args()
    make(arguments.name, arguments.run, arguments.saved_model)


if __name__ == "__main__":
    main()
