"""Commands and code of README and recipes run as they stand, on a small corpus, for few updates."""

import io
import re
import shlex
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from eager import eagerly

from keras_transformer.cli.main import main
from keras_transformer.export import check

ROOT = Path(__file__).parents[2]
TEXT = "".join((ROOT / name).read_text("utf-8") for name in ("README.md", "docs/recipes.md"))
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def commands(language):
    return [
        shlex.split(line)[1:]
        for name, block in BLOCKS
        for line in block.splitlines()
        if name == language and line.startswith("keras-transformer ")
    ]


COMMANDS = commands("")
PYTHON = [block for language, block in BLOCKS if language == "python"]
# Two updates instead of thousands; the model's size stays.
FASTER = {"10000": "2", "20000": "3"}


@pytest.mark.programs
@pytest.mark.timeout(600)  # it trains four times and exports
def test_own_text(corpus_dir, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(check.CHECKS, "Session", lambda export: "")  # a process; see test_cli
    (tmp_path / "my-data").symlink_to(corpus_dir)
    (tmp_path / "sentences.txt").write_text("one dog .\n\nred cat .\n", encoding="utf-8")
    for command in COMMANDS:
        if "<" in command:
            *command, _, path = command
            monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(Path(path).read_bytes())))
        monkeypatch.setattr(
            sys, "argv", ["keras-transformer", *(FASTER.get(word, word) for word in command)]
        )
        trains = command[0] == "train"
        with pytest.raises(SystemExit) as exit_info, eagerly() if trains else nullcontext():
            main()
        assert exit_info.value.code == 0, (command, capfd.readouterr().err)
    lines = capfd.readouterr().out.split("\n")
    assert [line[:4] for line in lines[:5]] == ["BLEU"] * 4 + ["chrF"]
    # one text, then three lines of which the second is empty
    assert len(lines) == 5 + 1 + 3 + 1
    assert lines[7] == ""

    for block in PYTHON:
        exec(compile(block, "README.md", "exec"), {})
    assert capfd.readouterr().out.endswith("63,082,496\n")
