"""Pictures of attention, encodings, schedules, runs, corpora and scores.

A function takes plain arrays and lists and returns a Matplotlib figure. They all have the arguments
`style`, "light" or "dark", and many have `title`, a heading. They raise an `InputError` if an
argument is wrong or Matplotlib is missing: `pip install 'keras3-transformer[plots]'`.
"""

from keras_transformer.plots.attention import alignment as alignment
from keras_transformer.plots.attention import attention_heads as attention_heads
from keras_transformer.plots.attention import attention_lines as attention_lines
from keras_transformer.plots.charts import bleu_by_length as bleu_by_length
from keras_transformer.plots.charts import bleu_by_noise as bleu_by_noise
from keras_transformer.plots.charts import learning_rate as learning_rate
from keras_transformer.plots.charts import length_histogram as length_histogram
from keras_transformer.plots.charts import positional_encoding as positional_encoding
from keras_transformer.plots.charts import training_curves as training_curves
