"""Completion at a shell, of commands and of what their options take."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(sys.executable).with_name("keras-transformer")


@pytest.fixture(scope="module")
def bash_script():
    """What `--install-completion` gives to bash."""
    code, out, _ = completion("source_bash")
    assert code == 0
    return out


def completion(task, **variables):
    """Runs the program as a shell does for a completion."""
    process = subprocess.run(
        [PROGRAM],
        env=os.environ | {"_KERAS_TRANSFORMER_COMPLETE": task} | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    return process.returncode, process.stdout, process.stderr


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ev", ["evaluate"]),
        ("train --recipe wmt14-ende", ["wmt14-ende-base", "wmt14-ende-big"]),
        ("prepare corpus --recipe de", ["demo"]),
        ("train --preset b", ["base", "big"]),
        ("train --strategy m", ["mirrored", "multiworker"]),
        ("evaluate run --checkpoint ", ["averaged", "best", "last"]),
        ("evaluate run --test-set wmt14/f", ["wmt14/full"]),
        ("train --recipe ./", []),  # bash completes files
    ],
)
def test_completion(bash_script, line, expected):
    words = ["keras-transformer", *line.split(" ")]
    script = f"""{bash_script}
COMP_WORDS=({" ".join(word or '""' for word in words)})
COMP_CWORD={len(words) - 1}
_keras_transformer_completion {PROGRAM}
echo "${{COMPREPLY[@]}}"
"""
    process = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert process.stdout.split() == expected


def test_completion_needs_no_tensorflow():
    program = """
import sys
from keras_transformer.cli import completion
assert completion.recipes("wmt") and completion.presets("ti") and completion.test_sets("wmt")
print({"tensorflow", "keras"} & set(sys.modules))
"""
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert process.stdout == "set()\n"
