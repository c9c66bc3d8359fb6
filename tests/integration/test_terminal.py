"""What is seen at a terminal, and what is not seen elsewhere."""

import dataclasses
import io
import re
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

from keras_transformer.cli import console, progress
from keras_transformer.cli.main import main
from keras_transformer.cli.progress import TrainingDisplay
from keras_transformer.cli.train import train_with_progress

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def seen(monkeypatch):
    """Calls a function with standard error on a terminal; returns the lines that appeared."""
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")

    def call(function, *arguments):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", Terminal())
            # Rich looks at the stream when a console is made.
            patch.setattr(console, "stderr", Console(stderr=True, highlight=False))
            function(*arguments)
            lines = CONTROL.sub("\n", sys.stderr.getvalue()).split("\n")
        return [line for line in lines if line.strip()]

    return call


def test_memory_of_another_c_library(monkeypatch):
    monkeypatch.setattr(console.ctypes, "CDLL", lambda name: object())
    console.keep_freed_memory()


def draw_bar():
    with console.ProgressBar("Counting") as bar:
        bar.stage("Measuring", total=7, done=2)
        bar(3, note="well")
        console.say("halfway [of it]")
    console.say("done")


def test_bar_on_a_terminal(seen, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    lines = seen(draw_bar)
    assert any(re.search("Measuring .*5/7.* well", line) for line in lines)
    assert lines[-1] == "done"


def test_lines_only_where_there_is_no_terminal(monkeypatch, capsys):
    """Build servers set FORCE_COLOR, and keep what is written in a file."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(console, "stderr", Console(stderr=True, highlight=False))
    draw_bar()
    assert capsys.readouterr().err == "halfway [of it]\ndone\n"


def test_a_line_a_minute_where_there_is_no_terminal(monkeypatch, capsys):
    seconds = 0
    clock = Console(stderr=True, get_time=lambda: seconds)
    monkeypatch.setattr(console, "stderr", clock)
    with console.ProgressBar("Counting", 600) as bar, console.ProgressBar("x", 9, False) as hidden:
        for seconds in range(0, 101, 5):  # noqa: B007  # the clock reads it
            bar(10, note="on a bar", details="well")
            hidden(1)
    lines = capsys.readouterr().err.splitlines()
    # 10 s after the first work, then a minute later, with 2 a second.
    assert lines == [
        "Counting: 30 of 600, well, 0:04:45 left",
        "Counting: 150 of 600, well, 0:03:45 left",
    ]


@pytest.mark.usefixtures("eager")
def test_training_where_there_is_no_terminal(monkeypatch, short_settings, tmp_path, capsys):
    monkeypatch.setattr(console, "FIRST_LINE", 0.0)
    monkeypatch.setattr(console, "LINES_APART", 0.0)
    settings = dataclasses.replace(short_settings, steps=3, steps_per_validation=3)
    train_with_progress(settings, tmp_path / "run", False)
    line = r"Training: (\d) of 3 updates, loss [\d.]+, ([\d,]+) target tokens a second, [\d:]+ left"
    ((update, speed),) = re.findall(line, capsys.readouterr().err)
    assert update == "2"
    assert float(speed.replace(",", "")) > 0


def test_speed_of_a_training(monkeypatch):
    """Of what follows the first update of an epoch."""
    told = []
    display = TrainingDisplay(lambda done, total, **shown: told.append(shown["details"]), "", 9)
    display.tokens, display.started = 300.0, 0.0
    for seconds in (7, 8, 10):
        monkeypatch.setattr(progress.time, "monotonic", lambda seconds=seconds: seconds)
        display.on_train_batch_end(0, {"token_loss": 2.345, "loss": 3.0})
    assert told[1:] == [
        "loss 2.35, 300 target tokens a second",
        "loss 2.35, 200 target tokens a second",
    ]


@pytest.mark.usefixtures("eager")
def test_training_on_a_terminal(seen, monkeypatch, short_settings, tmp_path, capsys):
    monkeypatch.setenv("NO_COLOR", "1")
    run_dir = tmp_path / "run"
    lines = seen(train_with_progress, short_settings, run_dir, False)
    stages = [line.split()[0] for line in lines if "━" in line]
    assert stages == sorted(stages)  # one after the other
    assert set(stages) == {"Preparing", "Training"}
    (said,) = (line for line in lines if line.startswith("After "))
    assert "After 2 updates" in said

    lines = seen(train_with_progress, dataclasses.replace(short_settings, steps=5), run_dir, True)
    counts = re.findall(r"^Training .* (\d)/5", "\n".join(lines), re.MULTILINE)
    assert (counts[0], counts[-1]) == ("2", "5")  # from what the first call has done
    assert capsys.readouterr().out == ""


@pytest.mark.programs
@pytest.mark.parametrize("is_seen", [True, False])
def test_no_bar_among_translations(seen, monkeypatch, tmp_path, is_seen):
    class Echo:
        @classmethod
        def load(cls, path):
            return cls()

        def translate(self, texts, progress, **search):
            progress(len(texts))
            return [SimpleNamespace(text=text, score=-0.5, truncated=False) for text in texts]

    def run():
        with pytest.raises(SystemExit):
            main()

    (tmp_path / "run.json").touch()
    monkeypatch.setattr("keras_transformer.translator.Translator", Echo)
    monkeypatch.setattr(sys, "argv", ["keras-transformer", "translate", str(tmp_path), "a", "b"])
    monkeypatch.setattr(sys, "stdout", Terminal() if is_seen else io.StringIO())
    lines = seen(run)
    assert sys.stdout.getvalue() == "a\nb\n"
    assert any("━" in line for line in lines) != is_seen
