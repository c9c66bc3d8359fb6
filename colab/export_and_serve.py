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
# Need"](https://arxiv.org/abs/1706.03762), ends with beam search (section 6.1). The export puts the
# model, its tokenizer and that search into one graph, so that a server takes strings and returns
# strings.
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
PACKAGES = [f"keras3-transformer[serve] @ git+{REPOSITORY}"]
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
# These are the parameters. The model is that of `train_and_translate`. If `RUN_DIR` holds no
# finished run, the notebook trains one, which takes about three minutes on a CPU.

# %% tags=["parameters"]
SENTENCE = "The tired sister did not wash our old dogs."
RUN_DIR = "run"
STEPS = 600  # updates, if there is no run
MODEL_DIR = "models/demo"  # models/NAME
VERSION = 1  # 2 for the next export
PORT, GRPC_PORT = 8501, 8500  # TF Serving's own

# %%
from keras_transformer.cli.console import load_tensorflow

load_tensorflow()  # without its start-up messages

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
from keras_transformer.trainers.fitting.training import train
from keras_transformer.trainers.recipes import load_recipe
from keras_transformer.trainers.settings import TrainSettings

tf.get_logger().setLevel("ERROR")

# %%
run = Run.load(RUN_DIR) if Path(RUN_DIR, "run.json").exists() else None
if run is None or run.status != "complete":  # an interrupted one continues with its own settings
    settings = run.settings if run else {**load_recipe("demo"), "steps": STEPS}
    train(TrainSettings.from_dict(settings), RUN_DIR, verbose=2, resume=True)
translator = Translator.load(RUN_DIR)

(translation,) = translator.translate([SENTENCE])
print(translation.text)

# %% [markdown]
# ## The SavedModel, and its check
#
# TF Serving loads the folder `MODELS/NAME/VERSION`. The export writes it under another name, checks
# it, and renames it if nothing is wrong. Each line is a finding:
#
# - `files`: no file has changed since the export;
# - `signatures`: the functions that a client can call are there;
# - `nodes`: nothing in the graph needs Python, a certain device, or XLA;
# - `weights`: they are stored once;
# - `warm-up`: there are requests for the server to warm up with;
# - `Session`: the SavedModel loads in a new process without TensorFlow's Python code, as in TF
#   Serving, and answers as the model does.


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
# The signatures are what a client can call. All inputs are vectors of strings, and all outputs have
# a row for each string.

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
# `keras-transformer serve` runs a local server for machines without Docker. It has the same REST
# and gRPC interfaces as TF Serving, and a page to try the model in a browser on the same machine.

# %%
command = ["keras-transformer", "serve", MODEL_DIR, "--port", str(PORT)]
command += ["--grpc-port", str(GRPC_PORT)]
server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
for line in server.stderr:
    print(line, end="")
    if line.startswith("Try: "):  # the last line: the server is ready
        break

# %% [markdown]
# ## curl
#
# Any client of TF Serving works. `score` is the log probability over the length penalty (section
# 6.1), and `truncated` says whether the text was too long.

# %%
url = f"http://127.0.0.1:{PORT}/v1/models/{Path(MODEL_DIR).name}"
body = shlex.quote(json.dumps({"instances": [SENTENCE]}))

# !curl -s -d {body} {url}:predict

# %% [markdown]
# ## n-best
#
# The signature `nbest` returns the hypotheses of all beams, best first. The server prepares its
# signatures in the background, so a first request may take some seconds.

# %%
question = {"signature_name": "nbest", "instances": [SENTENCE]}
response = urllib3.request("POST", f"{url}:predict", json=question, timeout=60)
(answer,) = response.json()["predictions"]
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
# The server answers the requests that it has accepted, and then it stops.

# %%
server.terminate()
print(server.communicate()[1])

# %% [markdown]
# TF Serving takes `MODEL_DIR` as the model's base path. The package's repository has files for
# Docker and Kubernetes, and its documentation says which of them have been run. A running server
# loads the next version, `VERSION = 2`, without losing a request.
