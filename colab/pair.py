"""Makes each notebook NAME.ipynb of this folder from its NAME.py: `make notebooks`."""

import hashlib
from pathlib import Path

import jupytext
import nbformat

FOLDER = Path(__file__).parent
NAMES = ("train_and_translate", "inside_attention", "export_and_serve")


def notebook_of(script: Path) -> str:
    """Returns a script's notebook, without outputs; the id of a cell is a hash of its text."""
    notebook = jupytext.read(script)
    for cell in notebook.cells:
        cell.id = hashlib.sha256(cell.source.encode()).hexdigest()[:8]
    return nbformat.writes(notebook) + "\n"


if __name__ == "__main__":
    for name in NAMES:
        script = FOLDER / f"{name}.py"
        script.with_suffix(".ipynb").write_text(notebook_of(script), encoding="utf-8")
