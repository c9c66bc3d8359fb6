"""What is seen at a terminal, and what is not seen elsewhere."""

import dataclasses
import errno
import io
import os
import pty
import re
import sys
import threading
from types import SimpleNamespace

import pytest
from rich.console import Console

from keras_transformer.cli import console
from keras_transformer.cli.main import main
from keras_transformer.cli.train import train_with_progress

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
COLOR = re.compile(r"\x1b\[[0-9;]*m")


class Terminal:
    """A pseudo-terminal, read to its end by a thread."""

    def __init__(self):
        self.master, self.slave = pty.openpty()
        self.content = b""
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def _read(self):
        try:
            while chunk := os.read(self.master, 65536):
                self.content += chunk
        except OSError as error:
            if error.errno != errno.EIO:  # how Linux says that the other end is closed
                raise

    def close(self):
        """Closes it and returns what was written."""
        os.close(self.slave)
        self.thread.join(60)
        os.close(self.master)
        return self.content.decode().replace("\r\n", "\n")


@pytest.fixture
def environment(monkeypatch):
    """An ordinary terminal's, whatever the tests run in."""
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    return monkeypatch


def shown_on_terminal(environment, function, *arguments):
    """Calls a function with standard error on a terminal; returns what appeared."""
    terminal = Terminal()
    with os.fdopen(os.dup(terminal.slave), "w") as file, environment.context() as patch:
        patch.setattr(sys, "stderr", file)
        # Rich looks at the stream when a console is made.
        patch.setattr(console, "stderr", Console(stderr=True, highlight=False))
        function(*arguments)
    return terminal.close()


def lines_on_terminal(environment, function, *arguments):
    written = shown_on_terminal(environment, function, *arguments)
    lines = CONTROL.sub("\n", COLOR.sub("", written)).split("\n")
    return [line for line in lines if line.strip()]


def draw_bar():
    with console.ProgressBar("Counting") as bar:
        bar.stage("Measuring", total=7, done=2)
        bar(3, note="well")
        console.say("halfway [of it]")
    console.say("done")


@pytest.mark.parametrize("has_color", [True, False])
def test_bar_on_a_terminal(environment, has_color):
    if not has_color:
        environment.setenv("NO_COLOR", "1")
    written = shown_on_terminal(environment, draw_bar)
    assert re.search("Measuring .*5/7.* well", written)
    assert bool(COLOR.search(written)) == has_color
    assert written.endswith("\x1b[2Kdone\n")  # in the place of the bar


def test_lines_only_where_there_is_no_terminal(environment, capsys):
    """Build servers set FORCE_COLOR, and keep what is written in a file."""
    environment.setenv("FORCE_COLOR", "1")
    environment.setattr(console, "stderr", Console(stderr=True, highlight=False))
    draw_bar()
    assert capsys.readouterr().err == "halfway [of it]\ndone\n"


@pytest.mark.programs
def test_training_on_a_terminal(environment, short_settings, tmp_path, capsys):
    run_dir = tmp_path / "run"
    lines = lines_on_terminal(environment, train_with_progress, short_settings, run_dir, False)
    stages = [line.split()[0] for line in lines if "━" in line]
    assert stages == sorted(stages)  # one after the other
    assert set(stages) == {"Preparing", "Training"}
    assert any(re.match(r"Training ━+ +2/2 loss \d+\.\d\d ", line) for line in lines)
    (said,) = (line for line in lines if line.startswith("After "))
    assert re.fullmatch(r"After 2 updates, 0:\d\d:\d\d: training loss \d+\.\d{3}", said)

    longer = dataclasses.replace(short_settings, steps=5)
    lines = lines_on_terminal(environment, train_with_progress, longer, run_dir, True)
    counts = re.findall(r"^Training ━.* (\d)/5", "\n".join(lines), re.MULTILINE)
    assert (counts[0], counts[-1]) == ("2", "5")  # from what the first call has done
    assert capsys.readouterr().out == ""


@pytest.mark.programs
@pytest.mark.parametrize("is_seen", [True, False])
def test_no_bar_among_translations(environment, tmp_path, is_seen):
    class Output(io.StringIO):
        def isatty(self):
            return is_seen

    class Echo:
        @classmethod
        def load(cls, path):
            return cls()

        def translate(self, texts, progress):
            progress(len(texts))
            return [SimpleNamespace(text=text, score=-0.5, truncated=False) for text in texts]

    def run():
        with pytest.raises(SystemExit):
            main()

    (tmp_path / "run.json").touch()
    environment.setattr("keras_transformer.translator.Translator", Echo)
    environment.setattr(sys, "argv", ["keras-transformer", "translate", str(tmp_path), "a", "b"])
    environment.setattr(sys, "stdout", Output())
    environment.setattr(sys, "stdin", io.StringIO())
    lines = lines_on_terminal(environment, run)
    assert sys.stdout.getvalue() == "a\nb\n"
    assert any(re.match("Translating ━+ ", line) for line in lines) != is_seen
