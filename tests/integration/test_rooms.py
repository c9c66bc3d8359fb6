"""Without an optional room, the rest of the package works: its tests pass."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from keras_transformer.rooms import ROOMS

ROOT = Path(__file__).parents[2]
SPINE = (
    "unit/search/test_texts.py",
    "unit/tokenizers",
    "unit/test_translator.py",
    "unit/export/test_saved_model.py",
    "unit/trainers/scoring",
)


@pytest.mark.programs
@pytest.mark.timeout(900)
@pytest.mark.parametrize("room", ROOMS)
def test_without_a_room(room):
    tests = [str(ROOT / "tests" / name) for name in SPINE]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "HIDDEN_ROOM": room, "PYTHONPATH": str(ROOT / "tests")}
    for module, is_there in (
        (f"keras_transformer.{room}", False),
        ("keras_transformer.rooms", True),
    ):
        program = f"import hidden_room, {module}"
        imported = subprocess.run([sys.executable, "-c", program], env=environment, check=False)
        assert (imported.returncode == 0) == is_there
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
