"""What a wheel puts into an environment."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "keras_transformer": "keras_transformer",
    "trainers": "keras_transformer/trainers",
    "export": "keras_transformer/export",
    "cli": "keras_transformer/cli",
}
DATA = (
    "cli/report.html",
    "export/server/page.html",
    "keras_transformer/py.typed",
    "trainers/data/bundled.tsv.xz",
)


def test_wheel(tmp_path):
    for name in (*PACKAGES, "setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "."]
    subprocess.run([*command, "--wheel-dir", "dist"], cwd=tmp_path, check=True, capture_output=True)
    (path,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        (entry_points,) = (name for name in names if name.endswith("entry_points.txt"))
        assert b"keras-transformer = keras_transformer.cli.main:main" in wheel.read(entry_points)
    # Only the package is at the top level of site-packages.
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"keras_transformer"}
    files = [path for folder in PACKAGES for path in (ROOT / folder).rglob("*.py")]
    files += [ROOT / name for name in DATA] + [*(ROOT / "trainers" / "recipes").glob("*.toml")]
    expected = set()
    for file in files:
        folder, _, rest = str(file.relative_to(ROOT)).partition("/")
        expected.add(f"{PACKAGES[folder]}/{rest}")
    assert expected <= names
