"""The versions of a model on disk, `MODELS/NAME/VERSION`, as TF Serving recognizes them."""

import os
import re
from pathlib import Path

GRAPH = "saved_model.pb"


def version_paths(folder: str | Path) -> list[Path]:
    """Returns the folders of a model's versions, the newest first."""
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
