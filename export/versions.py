"""The versions of a model on disk, `MODELS/NAME/VERSION`, as TF Serving tells them."""

from pathlib import Path


def is_version(name: str) -> bool:
    """Whether a folder's name is the number of a version."""
    return name.isascii() and name.isdigit() and int(name) < 1 << 63


def version_paths(folder: str | Path) -> list[Path]:
    """Returns the folders of a model's versions that hold a SavedModel, the newest first."""
    versions = [
        path
        for path in Path(folder).glob("*/")
        if is_version(path.name) and holds_saved_model(path)
    ]
    return sorted(versions, key=lambda path: -int(path.name))


def find_version(path: str | Path) -> Path | None:
    """Returns a SavedModel's folder: `path` or its newest version; None if there is none."""
    if holds_saved_model(Path(path)):
        return Path(path)
    return next(iter(version_paths(path)), None)


def holds_saved_model(path: Path) -> bool:
    """Whether a folder is that of a version, and may be read."""
    try:
        return (path / "saved_model.pb").is_file()
    except OSError:
        return False
