"""Exports on disk: versions of a model, `MODELS/NAME/VERSION`, and what each says of itself."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from keras_transformer._version import __version__
from keras_transformer.errors import as_input_error
from keras_transformer.files import file_sha256

GRAPH = "saved_model.pb"
FOLDER = "assets.extra"
METADATA = "metadata.json"


def version_paths(folder: str | Path) -> list[Path]:
    """Returns the folders of a model's versions, as TF Serving recognizes them, newest first."""
    folders = [file.parent for file in Path(folder).glob(f"*/{GRAPH}")]
    versions = [path for path in folders if re.fullmatch("[0-9]+", path.name)]
    return sorted(versions, key=lambda path: int(path.name), reverse=True)


def find_version(path: str | Path) -> Path | None:
    """Returns a SavedModel's folder: `path` or its newest version; None if there is none."""
    if not os.path.isdir(path):  # `glob` raises an error for a name that is too long
        return None
    if (Path(path) / GRAPH).is_file():
        return Path(path)
    return next(iter(version_paths(path)), None)


def write_metadata(path: Path, values: Mapping[str, Any]) -> None:
    """Writes values, the time, versions and the hashes of the files of a SavedModel."""
    packages = ("tensorflow", "tensorflow-text", "keras")
    versions = {package: metadata.version(package) for package in packages}
    files = sorted(file for file in path.rglob("*") if file.is_file())
    written = {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"keras3-transformer": __version__, **versions},
        "git_revision": _git_revision(),
        "files": {str(file.relative_to(path)): file_sha256(file) for file in files},
        **values,
    }
    text = json.dumps(written, indent=2, ensure_ascii=False)
    (path / FOLDER / METADATA).write_text(text + "\n", encoding="utf-8")


def read_metadata(path: Path) -> dict[str, Any]:
    """Reads what `write_metadata` wrote, or raises `InputError`."""
    file = path / FOLDER / METADATA
    message = f"{path} is not an export of this package: cannot read {file}"
    with as_input_error(message, OSError, ValueError):
        values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return values


def _git_revision() -> str | None:
    """Returns the commit of this package's source, or None outside a checkout."""
    root = Path(__file__).parents[1]
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    if (root / ".git").exists() and shutil.which("git"):
        described = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        return described.stdout.strip() or None
    return None
