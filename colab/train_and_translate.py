# ---
# jupyter:
#   jupytext:
#     cell_metadata_filter: tags,-all
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Train and translate
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/OWNER/keras3-transformer/blob/main/colab/train_and_translate.ipynb)
#
# From sentence pairs to a model that translates, in the order of ["Attention Is All You
# Need"](https://arxiv.org/abs/1706.03762). The numbers in the headings are the paper's sections.
# The notebook takes less than five minutes on a CPU runtime.
#
# On Colab, set `REPOSITORY` in the next cell to the address of the package's repository, and run
# the cell. It installs the package with its version of TensorFlow, and then asks you to **restart
# the runtime** (*Runtime > Restart session*). After that, run all cells. Elsewhere the cell does
# nothing: install the package yourself, with Python 3.11 to 3.13.

# %%
import subprocess
import sys
from importlib import metadata

REPOSITORY = "https://HOST/OWNER/keras3-transformer"  # the address of the package's repository
PACKAGES = [f"keras3-transformer[plots] @ git+{REPOSITORY}"]
PACKAGES += ["tensorflow==2.21.0", "tensorflow-text==2.21.1", "keras==3.15.1"]


def versions():
    return {package.name: package.version for package in metadata.distributions()}


if "google.colab" in sys.modules:
    before = versions()
    pip = [sys.executable, "-m", "pip", "install", "--quiet", *PACKAGES]
    done = subprocess.run(pip, capture_output=True, text=True)
    if done.returncode:
        print(done.stderr)
        raise SystemExit(
            f"Cannot install from {REPOSITORY}: set REPOSITORY, then run this cell again"
        )
    if versions() != before:
        raise SystemExit("Installed. Now Runtime > Restart session, and then run all cells")

# %% [markdown]
# The parameters. `REAL_TEXT = True` selects a corpus of real text, TED talks from TensorFlow
# Datasets: choose a GPU runtime first (*Runtime > Change runtime type*).

# %% tags=["parameters"]
REAL_TEXT = False  # the bundled corpus, on a CPU
STEPS = 20_000 if REAL_TEXT else 600  # updates
NUM_EVALUATED = 500  # sentences of the test split
SENTENCE = "O cachorro dorme." if REAL_TEXT else "The tired sister did not wash our old dogs."
RUN_DIR = "run"  # a new folder, or that of the same training, which then continues

# %%
from keras_transformer.cli.console import load_tensorflow

load_tensorflow()  # without its start-up messages

from itertools import islice

from keras_transformer import Translator, plots
from keras_transformer.trainers.data.corpora import load_corpus
from keras_transformer.trainers.fitting.training import train
from keras_transformer.trainers.recipes import load_recipe
from keras_transformer.trainers.scoring.evaluation import evaluate
from keras_transformer.trainers.settings import TrainSettings

# %matplotlib inline

# %% [markdown]
# ## 3 Model architecture
#
# The settings describe what is trained and how. The recipe `demo` has a small model. The recipe
# for real text uses the row of the paper's Table 3 with a width of 256. Nobody has run it yet: its
# other values are a first guess.

# %%
if REAL_TEXT:
    recipe = {
        "data": "tfds:ted_hrlr_translate/pt_to_en",
        "source": "pt",
        "target": "en",
        "preset": "C-d_model-256",
        "model": {"dropout_rate": 0.3},
        "tokens_per_batch": 8_192,
        "warmup_steps": 4_000,
        "keep_checkpoints": 5,
        "average_last": 5,  # the mean of five checkpoints: section 6.1
    }
else:
    recipe = load_recipe("demo")
settings = TrainSettings.from_dict({**recipe, "steps": STEPS})

config = settings.config({"vocab_size": 8_000})  # the real size is known once subwords are learned
print(f"{config.num_encoder_layers} + {config.num_decoder_layers} layers, {config.num_heads} heads")
print(f"d_model = {config.d_model}, d_ff = {config.d_ff}, dropout {config.dropout_rate}")

# %% [markdown]
# ## 5.1 Training data and batching
#
# The bundled corpus is **synthetic**: a small grammar made 25,000 English-German pairs with
# gender, case and verb-final clauses, from a few hundred words. BLEU on it shows that the package
# works, and says nothing about real text.
#
# Training learns subwords of both languages together. It makes batches of pairs of similar length,
# with a maximum number of tokens, not of sentences.

# %%
corpus = load_corpus(settings.data, settings.source, settings.target)
for pair in islice(corpus.pairs("train"), 4):
    print(f"{pair.source}\n  {pair.target}")

# %% [markdown]
# ## 5.2 to 5.4 Training
#
# `train` is Keras's `model.fit` with the paper's optimizer (Adam with warm-up, section 5.3),
# regularization (dropout and label smoothing, 5.4) and loss. It writes weights, tokenizer, settings
# and metrics to the run directory. Each line below is an epoch.
#
# Perplexity is per subword, on the validation split where the name starts with `val_`.

# %%
run = train(settings, RUN_DIR, verbose=2, resume=True)

# %%
plots.training_curves({"this run": run.metrics()})

# %% [markdown]
# ## 6.1 Machine translation
#
# Beam search with 4 beams and a length penalty of 0.6, as in the paper. Each beam ends in a
# hypothesis; its score is the log probability over the length penalty. Try a sentence of your own:
# with the bundled corpus, one of the words seen above.

# %%
translator = Translator.load(RUN_DIR)
print(f"{run.config.vocab_size:,} subwords, {translator.model.count_params():,} parameters\n")

(translation,) = translator.translate([SENTENCE], beam_size=4, length_penalty=0.6, num_best=4)
for hypothesis in translation.hypotheses:  # best first
    print(f"{hypothesis.score:7.2f}  {hypothesis.text}")

# %% [markdown]
# BLEU on sentences that training has not seen, by sacreBLEU. Compare it only with figures of the
# same signature. Sources, references and translations are in `RUN_DIR/evaluation`.

# %%
pairs = list(islice(corpus.pairs("test"), NUM_EVALUATED))
scores = evaluate(translator, pairs, f"{RUN_DIR}/evaluation/test", settings.target)
print(f"BLEU {scores.bleu.value:.1f}  {scores.bleu.signature}")
print(f"chrF {scores.chrf.value:.1f}  {scores.chrf.signature}")

# %% [markdown]
# Next, `inside_attention` shows what this model attends to, and `export_and_serve` puts it on a
# server. For your own text, `data` is a folder of files such as `en.train.txt`. The package's
# tutorial explains it.
