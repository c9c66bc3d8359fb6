"""The notebooks of colab/ match their scripts, have no outputs, and run top to bottom."""

import ast
import json
import os
import re
import runpy
import sys
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
from command_line import free_ports
from nbclient import NotebookClient

from keras_transformer.trainers.settings import TrainSettings

ROOT = Path(__file__).parents[2]
COLAB = ROOT / "colab"
NAMES = ["export_and_serve", "inside_attention", "train_and_translate"]
SCRIPTS = {name: COLAB / f"{name}.py" for name in NAMES}
NOTEBOOK_OF = runpy.run_path(str(COLAB / "pair.py"))["notebook_of"]


def read(name):
    return nbformat.read(COLAB / f"{name}.ipynb", as_version=4)


def code(name):
    return [cell for cell in read(name).cells if cell.cell_type == "code"]


@pytest.mark.parametrize("name", NAMES)
def test_notebook_is_its_script(name):
    text = (COLAB / f"{name}.ipynb").read_text("utf-8")
    assert text == NOTEBOOK_OF(SCRIPTS[name]), "run `make notebooks`"
    nbformat.validate(read(name))
    assert all(not cell.outputs and cell.execution_count is None for cell in code(name))


@pytest.mark.parametrize("name", NAMES)
def test_installs_the_tested_versions(name):
    install = read(name).cells[1].source
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    tested = dict(line.split("==") for line in lines)
    pins = dict(re.findall(r'"([\w-]+)==([\w.]+)"', install))
    assert "tensorflow" in pins
    assert pins == {package: tested[package] for package in pins}


def test_stops_if_it_cannot_install(monkeypatch):
    """The placeholder is no address; the cells after it do not run."""
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    monkeypatch.setenv("PIP_DRY_RUN", "1")
    (install,) = {re.sub(r"\[\w+\] @", " @", code(name)[0].source) for name in NAMES}
    with pytest.raises(SystemExit, match="set REPOSITORY"):
        exec(install, {})


# Small values for the parameters; all others stay.
SMALL = {
    "train_and_translate": {"STEPS": 3, "NUM_EVALUATED": 4},
    "inside_attention": {"STEPS": 2, "LENGTHS": (16, 48), "WIDTH": 16, "REPEATS": 2},
}
HYPOTHESIS = re.compile(r"^ +-\d+\.\d\d  ", re.MULTILINE)  # its score


def is_tagged(cell):
    return cell.metadata.get("tags") == ["parameters"]


def is_set(node):
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def execute(name, folder, **parameters):
    """Runs a notebook in a kernel of its own; returns it with its outputs."""
    notebook = read(name)
    (index,) = (i for i, cell in enumerate(notebook.cells) if is_tagged(cell))
    names = {each.id for each in ast.walk(ast.parse(notebook.cells[index].source)) if is_set(each)}
    assert set(parameters) <= names
    lines = [f"{parameter} = {value!r}" for parameter, value in parameters.items()]
    notebook.cells.insert(index + 1, nbformat.v4.new_code_cell("\n".join(lines)))
    client = NotebookClient(
        notebook, timeout=500, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    executed = client.execute()
    assert "InitializeLog" not in printed(executed)  # a start-up message of TensorFlow
    return executed


def printed(notebook):
    """What a notebook has printed, errors and logs included."""
    return "\n".join(
        "".join(output.text for output in cell.get("outputs", []) if output.output_type == "stream")
        for cell in notebook.cells
    )


def num_pictures(notebook):
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return sum("image/png" in output.get("data", {}) for output in outputs)


@pytest.fixture(autouse=True, scope="module")
def _environment(tmp_path_factory):
    """No files outside of the tests' folders; commands are found as in an environment."""
    folder = tmp_path_factory.mktemp("jupyter")
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
            patch.setenv(variable, str(folder / variable.lower()))
        patch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder in which `train_and_translate` was run, and the notebook with its outputs."""
    folder = tmp_path_factory.mktemp("colab")
    return folder, execute("train_and_translate", folder, **SMALL["train_and_translate"])


@pytest.mark.programs
@pytest.mark.timeout(900)  # of which most is compilation; they take a minute by themselves
def test_train_and_translate(trained):
    folder, notebook = trained
    assert num_pictures(notebook) == 1
    text = printed(notebook)
    assert re.search(r"^BLEU \d+\.\d  nrefs:1\|case:mixed", text, re.MULTILINE)
    assert len(HYPOTHESIS.findall(text)) == 4  # a line a beam
    assert (folder / "run" / "evaluation" / "test.scores.json").is_file()


def test_switch_to_real_text():
    """Its settings are valid; the data cannot be had here."""
    names = {"TrainSettings": TrainSettings}
    (parameters,) = (cell.source for cell in code("train_and_translate") if is_tagged(cell))
    assert "REAL_TEXT = False" in parameters
    exec(parameters.replace("REAL_TEXT = False", "REAL_TEXT = True"), names)
    (settings,) = (cell.source for cell in code("train_and_translate") if "tfds:" in cell.source)
    exec(settings, names)
    assert names["settings"].data == "tfds:ted_hrlr_translate/pt_to_en"
    assert names["settings"].steps == 20_000


@pytest.mark.programs
@pytest.mark.timeout(900)
def test_inside_attention(tmp_path):
    notebook = execute("inside_attention", tmp_path, **SMALL["inside_attention"])  # trains, too
    # Masks, positions, Table 1, schedule; two layers of each kind; lines; alignment.
    assert num_pictures(notebook) == 4 + 3 * 2 + 2 + 1
    text = printed(notebook)
    (changes,) = re.findall(r"by position:\n\[(.*?)\]", text)
    changes = [float(change) for change in changes.split()]
    assert changes[:5] == [0] * 5
    assert min(changes[5:]) > 0
    assert float(re.search(r"largest change of the output: (\S+),", text)[1]) < 1e-5
    assert float(re.search(r"over the largest output: (\S+)$", text, re.MULTILINE)[1]) < 1e-5
    assert len(re.findall(r"^(?:Self-attention|Recurrent|Convolutional) ", text, re.MULTILINE)) == 3


@pytest.mark.programs
@pytest.mark.timeout(900)
def test_export_and_serve(trained):
    folder, _ = trained
    port, grpc_port = free_ports(2)
    values = {"PORT": port, "GRPC_PORT": grpc_port}
    text = printed(execute("export_and_serve", folder, **values))
    findings = re.findall(r"^(.{10}) (ok|FAILED) ", text, re.MULTILINE)
    assert len(findings) == 6
    assert {verdict for _, verdict in findings} == {"ok"}
    (answer,) = re.findall(r'^{"predictions":.*}\]}', text, re.MULTILINE)  # curl's
    (row,) = json.loads(answer)["predictions"]
    scores = re.findall(r"^(?:REST|gRPC|model) +(-\S+)  (.*)$", text, re.MULTILINE)
    assert len(scores) == 3
    assert {translation for _, translation in scores} == {row["translation"]}
    assert max(abs(float(score) - row["score"]) for score, _ in scores) < 1e-3
    assert len(HYPOTHESIS.findall(text)) == 4  # n-best
    assert "Stopping: requests that have begun are answered" in text
