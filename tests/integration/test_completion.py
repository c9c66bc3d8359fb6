"""Completion at a shell, of commands and of what their options take."""

import pytest
from typer.main import get_command

from keras_transformer.cli.main import app


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ev", ["evaluate"]),
        ("train --recipe wmt14-ende", ["wmt14-ende-base", "wmt14-ende-big"]),
        ("train --preset b", ["base", "big", "base-fast"]),
        ("train --set search.be", []),
        ("train --set beam", ["beam_size="]),
        ("evaluate run --checkpoint ", ["averaged", "best", "last"]),
        ("evaluate run --test-set wmt14/f", ["wmt14/full"]),
        ("evaluate run --tokenize ja", ["ja-mecab"]),
        ("train --recipe ./", []),  # the shell completes files
    ],
)
def test_completion(line, expected, monkeypatch, capsys):
    words = ["keras-transformer", *line.split(" ")]
    monkeypatch.setenv("_KERAS_TRANSFORMER_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", " ".join(words))
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    with pytest.raises(SystemExit):
        get_command(app).main([], prog_name="keras-transformer")
    assert capsys.readouterr().out.split() == expected
