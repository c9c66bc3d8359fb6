"""From text to a run: corpora, batches, training, evaluation. May import the model only."""
