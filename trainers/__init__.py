"""From text to a run: corpora, batches, training, evaluation. May import `keras_transformer` only."""
