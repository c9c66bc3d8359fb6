"""Completion at a shell, of commands and of what their options take."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(sys.executable).with_name("keras-transformer")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ev", ["evaluate"]),
        ("train --recipe wmt14-ende", ["wmt14-ende-base", "wmt14-ende-big"]),
        ("train --preset b", ["base", "big"]),
        ("evaluate run --checkpoint ", ["averaged", "best", "last"]),
        ("evaluate run --test-set wmt14/f", ["wmt14/full"]),
        ("evaluate run --tokenize ja", ["ja-mecab"]),
        ("train --recipe ./", []),  # the shell completes files
    ],
)
def test_completion(line, expected):
    words = ["keras-transformer", *line.split(" ")]
    variables = {
        "_KERAS_TRANSFORMER_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    process = subprocess.run(
        [PROGRAM], env=os.environ | variables, capture_output=True, text=True, check=False
    )
    assert process.stdout.split() == expected
