"""Compares the fast decoder of a search with the layers as they are, on real sentences.

    python benchmarks/slow_twin.py RUN FILE

The fast decoder, `DecoderStep`, keeps keys and values and computes one position in a step. The slow
one computes `Transformer.decode` for all positions in each step. RUN is a run directory, and FILE
has one sentence per line. The script prints how many of all hypotheses are the same.
"""

from typing import Any

import tensorflow as tf
import typer

from keras_transformer import InputError, Transformer, Translator
from keras_transformer.texts import texts as translation
from keras_transformer.trainers.data.corpora import read_lines


class SlowStep:
    """The step function of a search, whose `cache` holds the tokens of each hypothesis."""

    def __init__(self, model: Transformer, max_length: tf.Tensor) -> None:
        self.model = model

    def initial_state(self, source_ids: tf.Tensor, beam_size: int) -> tuple[Any, Any]:
        """Encodes sources, and returns the state before the first step."""
        prefixes = tf.zeros([tf.shape(source_ids)[0], beam_size, 0], tf.int32)  # [B, K, T]
        return (prefixes,), (source_ids, self.model.encode(source_ids, training=False))

    def __call__(
        self, target_ids: tf.Tensor, position: tf.Tensor, cache: Any, row_state: Any
    ) -> tuple[tf.Tensor, Any, Any]:
        """Computes the logits that follow the tokens of each hypothesis."""
        prefixes = tf.concat([cache[0], target_ids[:, :, None]], axis=2)
        rows = tf.reshape(prefixes, [-1, position + 1])
        sources, outputs = (tf.repeat(each, target_ids.shape[1], axis=0) for each in row_state)
        logits = self.model.decode(rows, outputs, sources, training=False)[:, -1]  # [B * K, V]
        shape = [-1, target_ids.shape[1], logits.shape[1]]
        return tf.reshape(tf.cast(logits, tf.float32), shape), (prefixes,), row_state


def main(run: str, file: str) -> None:
    """Translates with both, and compares."""
    sentences = [*read_lines(file)]
    found = []
    for step in (translation.step_of, SlowStep):
        translation.step_of = step
        translator = Translator.load(run)
        num_best = translator.defaults.beam_size
        found.append(translator.translate(sentences, num_best=num_best, batch_size=64))
    hypotheses = ([each for row in rows for each in row.hypotheses] for rows in found)
    pairs = list(zip(*hypotheses, strict=True))
    same = sum(fast.text == slow.text for fast, slow in pairs)
    differences = [abs(fast.score - slow.score) for fast, slow in pairs if fast.text == slow.text]
    print(f"{same:,} of {len(pairs):,} hypotheses are the same")
    print(f"Their scores differ by at most {max(differences, default=0.0):.1e} nats")


if __name__ == "__main__":
    try:
        typer.run(main)
    except InputError as error:
        raise SystemExit(f"error: {error}") from error
