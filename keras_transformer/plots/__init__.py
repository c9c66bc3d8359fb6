"""Pictures of attention, encodings, schedules, runs, corpora and translations."""

from keras_transformer.plots.figures import alignment as alignment
from keras_transformer.plots.figures import attention_heads as attention_heads
from keras_transformer.plots.figures import attention_lines as attention_lines
from keras_transformer.plots.figures import bleu_by_length as bleu_by_length
from keras_transformer.plots.figures import bleu_by_noise as bleu_by_noise
from keras_transformer.plots.figures import learning_rate as learning_rate
from keras_transformer.plots.figures import length_histogram as length_histogram
from keras_transformer.plots.figures import positional_encoding as positional_encoding
from keras_transformer.plots.figures import training_curves as training_curves
