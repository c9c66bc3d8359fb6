"""The rest of the session's tests are in test_saved_model.py."""

import subprocess
import sys

SCRIPT = """
import sys
import numpy
from keras_transformer.export.session import SavedModelSession

numpy.kept = SavedModelSession(sys.argv[1])  # outlives the modules that it uses
try:
    SavedModelSession()
except TypeError:
    pass
"""


def test_session_that_is_open_at_the_exit_of_python(exported):
    command = [sys.executable, "-c", SCRIPT, str(exported.path)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Error" not in result.stderr
