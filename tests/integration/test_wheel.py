"""What a wheel puts into an environment."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("keras_transformer", "trainers", "export", "cli", "setup.cfg", "pyproject.toml")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    for name in (*SOURCES, "README.md", "LICENSE"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "."]
    subprocess.run([*command, "--wheel-dir", "dist"], cwd=folder, check=True, capture_output=True)
    (path,) = (folder / "dist").glob("*.whl")
    with zipfile.ZipFile(path) as file:
        yield file


def test_only_the_package_is_at_the_top(wheel):
    tops = {name.split("/")[0] for name in wheel.namelist()}
    (dist_info,) = (top for top in tops if top.endswith(".dist-info"))
    assert tops - {dist_info} == {"keras_transformer"}


def test_every_module_is_in_it(wheel):
    names = set(wheel.namelist())
    folders = {"keras_transformer": "keras_transformer"} | {
        name: f"keras_transformer/{name}" for name in ("trainers", "export", "cli")
    }
    expected = {
        f"{target}/{path.name}"
        for folder, target in folders.items()
        for path in (ROOT / folder).glob("*.py")
    }
    assert len(expected) > 25
    recipes = {
        f"keras_transformer/trainers/recipes/{path.name}"
        for path in (ROOT / "trainers" / "recipes").glob("*.toml")
    }
    assert len(recipes) == 7
    assert expected | recipes | {"keras_transformer/py.typed"} <= names


def test_command_line_is_declared(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert b"keras-transformer = keras_transformer.cli.main:main" in wheel.read(name)
