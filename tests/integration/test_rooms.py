"""Without the optional rooms, the rest of the package works: its tests pass."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hidden_room import ROOMS

ROOT = Path(__file__).parents[2]
SPINE = (
    "integration/test_cli_training.py::test_average_takes_what_there_is",
    "integration/test_several_languages.py::test_evaluation_of_each_pair_and_their_mean",
    "unit/tokenizers/test_case.py",
    "unit/test_translator.py::test_attention_is_the_models",
    "unit/export/test_saved_model.py::test_session_answers_as_that_of_python",
)


@pytest.mark.programs
@pytest.mark.timeout(900)
def test_without_the_rooms():
    """test_architecture.py checks that rooms know nothing of each other."""
    environment = os.environ | {"HIDDEN_ROOMS": " ".join(ROOMS), "PYTHONPATH": str(ROOT / "tests")}
    program = "import hidden_room, keras_transformer.registry"
    for room in ROOMS:
        program += f"\ntry: import keras_transformer.{room}\nexcept ImportError: print('{room}')"
    hidden = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
    assert hidden.split() == list(ROOMS)
    tests = [str(ROOT / "tests" / name) for name in SPINE]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
