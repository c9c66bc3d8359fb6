"""Without the optional rooms, the rest of the package works: its tests pass."""

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
    "unit/export/test_saved_model.py::test_nbest_and_greedy",
    "unit/trainers/scoring",
)


@pytest.mark.programs
@pytest.mark.timeout(900)
def test_without_the_rooms():
    """test_architecture.py checks that rooms know nothing of each other."""
    environment = os.environ | {"HIDDEN_ROOMS": " ".join(ROOMS), "PYTHONPATH": str(ROOT / "tests")}
    for module in ("rooms", *ROOMS):
        program = f"import hidden_room, keras_transformer.{module}"
        imported = subprocess.run([sys.executable, "-c", program], env=environment, check=False)
        assert (imported.returncode == 0) == (module == "rooms")
    tests = [str(ROOT / "tests" / name) for name in SPINE]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
