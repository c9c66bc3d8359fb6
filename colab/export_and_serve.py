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
# # Export and serve
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/OWNER/keras3-transformer/blob/main/colab/export_and_serve.ipynb)
#
# From a trained model to translations over HTTP and gRPC. The paper, ["Attention Is All You
# Need"](https://arxiv.org/abs/1706.03762), ends with beam search (section 6.1); what is exported
# here is the model, its tokenizer and that search in one graph, so that a server takes strings and
# returns strings.
#
# Run the next cell first. On Colab it replaces TensorFlow and what belongs to it, and then asks you
# to **restart the runtime** (*Runtime > Restart session*). After that, run all cells; it finds
# everything in place and goes on. Elsewhere it does nothing: install the package yourself.

# %%
import sys
from importlib import metadata

PINNED = ["keras3-transformer[serve]==0.1.0"]
PINNED += ["tensorflow==2.21.0", "tensorflow-text==2.21.1", "keras==3.15.1"]


def versions():
    return {package.name: package.version for package in metadata.distributions()}


if "google.colab" in sys.modules:
    before = versions()
    # %pip install --quiet {" ".join(PINNED)}
    if versions() != before:
        raise SystemExit("Installed. Now Runtime > Restart session, and then run all cells")

# %% [markdown]
# All that there is to choose. The model is that of `train_and_translate`; where `RUN_DIR` holds
# no finished one, it is trained below, which takes about three minutes on a CPU.

# %% tags=["parameters"]
SENTENCE = "The tired sister did not wash our old dogs."
RUN_DIR = "run"
STEPS = 600  # updates, if there is no run
MODEL_DIR = "models/demo"  # models/NAME
VERSION = 1  # 2 for the next export
PORT, GRPC_PORT = 8501, 8500  # TF Serving's own

# %%
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # fewer notes from TensorFlow

import json
import shlex
import subprocess
from pathlib import Path

import tensorflow as tf
import urllib3

from keras_transformer import Run, Translator
from keras_transformer.export.clients import GrpcClient, RestClient
from keras_transformer.export.saved_model import export_saved_model
from keras_transformer.export.session import SavedModelSession
from keras_transformer.trainers.recipes import TrainSettings, load_recipe
from keras_transformer.trainers.training import train

tf.get_logger().setLevel("ERROR")

# %%
run = Run.load(RUN_DIR) if Path(RUN_DIR, "run.json").exists() else None
if run is None or run.status != "complete":  # an interrupted one goes on with its own settings
    settings = run.settings if run else {**load_recipe("demo"), "steps": STEPS}
    train(TrainSettings.from_dict(settings), RUN_DIR, verbose=2, resume=True)
translator = Translator.load(RUN_DIR)

(translation,) = translator.translate([SENTENCE])
print(translation.text)

# %% [markdown]
# ## The SavedModel, and its check
#
# `MODELS/NAME/VERSION` is the folder that TF Serving takes. It is written under another name,
# checked, and gets its own only if nothing is wrong. Each line is a finding:
#
# - the signatures are there, and nothing in the graph needs Python, a device or XLA;
# - the weights are stored once, and there are requests for the server to warm up with;
# - it loads in a TF1 Session without Keras, and through TensorFlow's C API without Python, and
#   answers as the model does;
# - every op is one that a stock server has.


# %%
def show(finding):
    print(f"{finding.name:10} {'FAILED' if finding.problem else 'ok':6} ", end="")
    print(finding.problem or finding.detail)


path = export_saved_model(translator, MODEL_DIR, VERSION, examples=[SENTENCE], report=show)

# %%
for file in sorted(path.rglob("*")):
    if file.is_file():
        print(f"{file.stat().st_size:>12,}  {file}")

# %% [markdown]
# What a server can be asked. All inputs are vectors of strings, and an answer has a row for each.

# %%
session = SavedModelSession(path)  # loads it as TF Serving does
for name, signature in session.signatures.items():
    print(f"{name}: {', '.join(signature.inputs)} -> {', '.join(sorted(signature.outputs))}")
(row,) = session.translate([SENTENCE])
print(f"\n{row}")
session.close()

# %% [markdown]
# ## A local server
#
# `keras-transformer serve` is a stand-in for TF Serving, for machines without Docker: the same REST
# and gRPC. At its address is also a page to try the model, for a browser on the same machine.

# %%
command = ["keras-transformer", "serve", MODEL_DIR, "--port", str(PORT)]
command += ["--grpc-port", str(GRPC_PORT)]
server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
for line in server.stderr:
    print(line, end="")
    if line.startswith("Try: "):  # the last one: it is ready
        break

# %% [markdown]
# ## curl
#
# Any client of TF Serving works. `score` is the log probability over the length penalty (section
# 6.1), `truncated` says whether the text was too long.

# %%
url = f"http://127.0.0.1:{PORT}/v1/models/{Path(MODEL_DIR).name}"
body = shlex.quote(json.dumps({"instances": [SENTENCE]}))

# !curl -s -d {body} {url}:predict

# %% [markdown]
# ## n-best
#
# The hypotheses of all beams, best first, are another signature of the same model.

# %%
question = {"signature_name": "nbest", "instances": [SENTENCE]}
(answer,) = urllib3.request("POST", f"{url}:predict", json=question).json()["predictions"]
for text, score in zip(answer["translations"], answer["scores"], strict=True):
    print(f"{score:7.2f}  {text}")

# %% [markdown]
# ## gRPC
#
# The package's two clients have deadlines, and try again when the server is busy. REST, gRPC and
# the model itself give the same translation; the last digits of a score may differ.

# %%
rest = RestClient(url)
grpc = GrpcClient(f"127.0.0.1:{GRPC_PORT}", Path(MODEL_DIR).name)
for name, client in {"REST": rest, "gRPC": grpc}.items():
    (row,) = client.translate([SENTENCE])
    print(f"{name:6} {row['score']:.5f}  {row['translation']}")
    client.close()
print(f"{'model':6} {translation.score:.5f}  {translation.text}")

# %% [markdown]
# What was accepted is answered before the server stops.

# %%
server.terminate()
print(server.communicate()[1])

# %% [markdown]
# Stock TF Serving takes the same folder as a model's base path; the package's documentation has
# files for Docker and Kubernetes, and says which of this has been run. The next version, `VERSION =
# 2`, is taken up by a running server without losing a request.
