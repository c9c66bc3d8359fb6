"""From text to a run: corpora, batches, training, evaluation. Imports neither `export` nor `cli`."""
