"""`keras-transformer plot`: a report that is whole, safe and by itself."""

import base64
import errno
import html
import importlib.util
import itertools
import json
import os
import shutil
import sys
from html.parser import HTMLParser

import pytest
import typer
from typer.testing import CliRunner

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

from keras_transformer import plots
from keras_transformer.cli.plot import SCORES, Evaluation, _ranking, plot_command
from keras_transformer.errors import InputError
from keras_transformer.run import Run

PNG = b"\x89PNG\r\n\x1a\n"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
NASTY = "<script>alert(1)</script> & \"quoted\" 'red' {{title}}"

app = typer.Typer()
app.command()(plot_command)


def plot(*arguments):
    """Runs the command in this process; raises what it raises."""
    return CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)


class Page(HTMLParser):
    """Counts tags, collects texts, and checks that what is opened is closed."""

    VOID = frozenset({"meta", "link", "img", "source"})

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.texts = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *attribute) for attribute in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.texts.append(data.strip())


@pytest.fixture(scope="module")
def run_dir(tiny_run, tmp_path_factory):
    """A run with a corpus and an evaluation, whose texts try to be HTML."""
    path = tmp_path_factory.mktemp("plotted") / "tiny <b>"
    shutil.copytree(tiny_run.path, path, ignore=shutil.ignore_patterns("evaluation"))
    folder = path / "evaluation"
    folder.mkdir()
    sources = [NASTY, "one two", "red dog", "öl"]
    references = ["eins zwei drei vier", NASTY, "rot Hund", "שלום עולם"]
    hypotheses = ["eins zwei drei vier", "vier", "rot Katze", "שלום"]
    for kind, lines in (
        ("source", sources), ("reference", references), ("hypothesis", hypotheses)
    ):  # fmt: skip
        (folder / f"test.{kind}").write_text("".join(f"{line}\n" for line in lines))
    names = ("bleu", "bleu_lowercased", "bleu_multimodal", "bleu_paper", "chrf")
    scores = {
        name: {"value": 10.125 + n, "signature": f"sig-{n}|<i>"} for n, name in enumerate(names)
    }
    scores |= {"num_pairs": 4, "beam_size": 3, "alpha": 0.6, "checkpoint": "checkpoints/x.h5"}
    (folder / "test.scores.json").write_text(json.dumps(scores))
    return path


@pytest.fixture(scope="module")
def report(run_dir):
    result = plot(run_dir)
    assert (result.exit_code, result.stdout) == (0, "")
    folder = run_dir / "report"
    assert result.stderr == f"Report: {folder / 'report.html'}\n"
    return folder


@pytest.fixture(scope="module")
def page(report):
    return Page((report / "report.html").read_text(encoding="utf-8"))


def test_pictures_are_files_and_inline(report, page):
    expected = ["alignment", "bleu-by-length-test", "curves", "heads-cross", "heads-decoder"]
    expected += ["heads-encoder", "learning-rate", "lengths"]
    files = {path.name: path.read_bytes() for path in report.iterdir() if path.suffix == ".png"}
    assert sorted(files) == sorted(f"{name}{end}.png" for name in expected for end in ("", "-dark"))
    sources = [value for tag, name, value in page.attributes if name in ("src", "srcset")]
    prefix = "data:image/png;base64,"
    assert all(source.startswith(prefix) for source in sources)
    inline = [base64.b64decode(source.removeprefix(prefix)) for source in sources]
    assert sorted(inline) == sorted(files.values())
    assert all(png.startswith(PNG) for png in inline)
    alternatives = [value for tag, name, value in page.attributes if (tag, name) == ("img", "alt")]
    assert len(alternatives) == len(expected)
    assert all(alternatives)


def test_no_host_is_asked(page):
    for tag, name, value in page.attributes:
        if name in ("src", "href", "srcset", "action"):
            assert value.startswith("data:"), (tag, name)
    assert not {"script", "iframe", "object", "form"} & set(page.tags)


def test_texts_are_text(report, page):
    text = (report / "report.html").read_text(encoding="utf-8")
    assert "<script>" not in text
    assert "<b>" not in text
    assert text.count(html.escape(NASTY)) == page.texts.count(NASTY) >= 2
    assert page.texts.count("tiny <b>: en to de") == 2  # title and heading
    assert "sig-0|<i>" in page.texts


def test_signatures_are_of_their_splits(run_dir, tmp_path):
    path = tmp_path / "two"
    shutil.copytree(run_dir, path, ignore=shutil.ignore_patterns("report"))
    for file in (path / "evaluation").glob("test.*"):
        shutil.copy(file, file.with_name(file.name.replace("test", "val")))
    file = path / "evaluation" / "val.scores.json"
    scores = json.loads(file.read_text())
    scores["bleu_multimodal"]["signature"] = "other"
    file.write_text(json.dumps(scores))
    assert plot(path).exit_code == 0
    texts = Page((path / "report" / "report.html").read_text(encoding="utf-8")).texts
    assert texts.count("sig-0|<i>") == 1
    (label,) = [label for label, field in SCORES.items() if field == "bleu_multimodal"]
    for split, signature in (("test", "sig-2|<i>"), ("val", "other")):
        cells = [text for text in texts[texts.index(f"{label}, {split}") :] if text]
        assert cells[1] == signature


def test_scores_and_settings(page, run_dir):
    texts = page.texts
    row = texts.index("test")
    cells = [text for text in texts[row:] if text][:10]
    numbers = ["10.12", "11.12", "12.12", "13.12", "14.12"]
    assert cells == ["test", *numbers, "4", "3", "0.6", "x.h5"]
    run = Run.load(run_dir)
    for name, value in {**run.config.to_dict(), **run.versions}.items():
        assert texts[texts.index(name) + 1] == str(value)
    for name in run.settings:
        assert name in texts or any(text.startswith(f"{name}.") for text in texts)
    assert texts[texts.index("model.d_ff") + 1] == "24"


def test_training_text_is_counted(page):
    assert any(text.startswith("150 pairs (dropped: none)") for text in page.texts)


def test_best_median_worst():
    references = ["one two three", "red dog", "a cat", "four five", "six", "seven", "eight"]
    hypotheses = ["one two thr", "xyz", "a cat", "four fix", "si", "seveX", "___"]
    ranking = _ranking(Evaluation("test", {}, references, references, hypotheses), lowercase=False)
    scores = [score for kind in ranking for _, score in kind]
    assert scores == sorted(scores, reverse=True)
    rows = [[row for row, _ in kind] for kind in ranking]
    assert rows[0][0] == 2  # the perfect one
    assert set(rows[2]) >= {1, 6} - set(rows[1])
    assert {row for row, score in ranking[2] if score == 0} == {1, 6}


@pytest.mark.parametrize("lowercase", [False, True])
def test_case_counts_unless_the_model_knows_none(lowercase):
    references, hypotheses = ["Die Katze", "ein Hund", "der"], ["die katze", "ein Kind", "der"]
    evaluation = Evaluation("test", {}, references, references, hypotheses)
    best = [row for row, chrf in itertools.chain(*_ranking(evaluation, lowercase)) if chrf == 100]
    assert best == ([0, 2] if lowercase else [2])


@pytest.mark.parametrize("count", range(1, 13))
def test_no_example_is_shown_twice(count):
    texts = [f"w{n} " * (n + 1) for n in range(count)]
    ranking = _ranking(Evaluation("test", {}, texts, texts, texts[::-1]), lowercase=False)
    rows = [row for kind in ranking for row, _ in kind]
    assert len(rows) == len(set(rows)) >= min(count, 3) - 1
    assert ranking[1]


def test_again_in_the_place_of_the_first(tiny_run, tmp_path):
    folder = tmp_path / "deep" / "report"
    plot(tiny_run.path, "--output", folder, "--text", "red dog")
    first = {path.name for path in folder.iterdir()}
    assert "alignment.png" in first
    (folder / "notes.txt").write_text("mine")
    without = tmp_path / "run"
    shutil.copytree(
        tiny_run.path,
        without,
        ignore=shutil.ignore_patterns("corpus", "metrics.jsonl", "evaluation"),
    )
    plot(without, "--output", folder)
    left = {path.name for path in folder.iterdir()}
    assert left == {"report.html", "notes.txt", "learning-rate.png", "learning-rate-dark.png"}
    text = (folder / "report.html").read_text()
    assert "The run holds no metrics" in text
    assert "no sentence to show: give one by --text" in text


def test_the_learning_rate_is_the_run_s(tiny_run, tmp_path, monkeypatch):
    run_dir = tmp_path / "run"
    shutil.copytree(tiny_run.path, run_dir, ignore=shutil.ignore_patterns("corpus", "evaluation"))
    manifest = json.loads((run_dir / "run.json").read_text())
    changes = {"steps": 12, "warmup_steps": 4, "peak_rate": 0.5, "cooldown": 0.25}
    manifest["settings"] |= changes
    (run_dir / "run.json").write_text(json.dumps(manifest))
    drawn, draw = [], plots.learning_rate
    monkeypatch.setattr(
        plots, "learning_rate", lambda *args, **kwargs: drawn.append(args) or draw(*args, **kwargs)
    )
    plot(run_dir)
    (schedules, steps), *_ = drawn
    ((name, schedule),) = schedules.items()
    assert steps == 12
    assert name.endswith(", 4 updates of warm-up, cooldown over the last 25%")
    # Update 10 is the first of three in the cooldown: by hand, half of sqrt(4 / 10), times 3 / 3.
    rates = [float(schedule(done)) for done in (0, 3, 9, 11)]
    assert rates == pytest.approx([0.125, 0.5, 0.5 * 0.4**0.5, 0.5 * (4 / 12) ** 0.5 / 3])


def test_after_a_full_disk(tiny_run, tmp_path, monkeypatch):
    def fail(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = tmp_path / "report"
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        message = f"^Cannot write {folder}/report.html: No space left on device$"
        with pytest.raises(InputError, match=message):
            plot(tiny_run.path, "--output", folder)
    assert not list(folder.iterdir())
    (folder / "report.html.tmp").write_bytes(b"<!doc")  # as a kill leaves it
    plot(tiny_run.path, "--output", folder)
    assert "report.html.tmp" not in {path.name for path in folder.iterdir()}


def test_another_folder_is_refused(tiny_run, tmp_path):
    for name in ("photos", "page"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / ("report.html" if name == "page" else "cat.jpg")).write_text("mine")
        with pytest.raises(InputError, match=f"{folder} holds something other than a report"):
            plot(tiny_run.path, "--output", folder)
        assert len(list(folder.iterdir())) == 1
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(InputError, match=f"Cannot write a report to {file}"):
        plot(tiny_run.path, "--output", file)
    assert file.read_text() == "mine"


def test_no_run(tmp_path):
    with pytest.raises(InputError, match="There is no run directory"):
        plot(tmp_path / "none")


@pytest.mark.parametrize("content", ["{", "{}", '{"num_pairs": 4, "bleu": 3}', "[]"])
def test_damaged_scores(run_dir, tmp_path, content):
    path = tmp_path / "run"
    shutil.copytree(run_dir, path, ignore=shutil.ignore_patterns("report"))
    (path / "evaluation" / "test.scores.json").write_text(content)
    with pytest.raises(InputError, match=r"test\.scores\.json is damaged"):
        plot(path)
    assert not (path / "report").exists()


def test_without_matplotlib(tiny_run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert importlib.util.find_spec("matplotlib") is None
    with pytest.raises(InputError, match=r"pip install 'keras3-transformer\[plots\]'"):
        plot(tiny_run.path, "--output", tmp_path / "report")
    assert not (tmp_path / "report").exists()


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser(report, scheme):
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_context(
            viewport={"width": 380, "height": 800}, color_scheme=scheme
        ).new_page()
        messages, asked = [], []
        tab.on("console", lambda message: messages.append(message.text))
        tab.on("request", lambda request: asked.append(request.url.split(":")[0]))
        tab.goto((report / "report.html").as_uri())
        shown = tab.evaluate("[...document.images].map(i => [i.currentSrc.length, i.naturalWidth])")
        ends = tab.evaluate("[...document.querySelectorAll('source')].map(s => s.srcset.length)")
        width = tab.evaluate("document.documentElement.scrollWidth")
        browser.close()
    assert messages == []
    assert set(asked) <= {"file", "data"}
    assert width == 380
    assert all(natural > 0 for _, natural in shown)
    assert ([length for length, _ in shown] == ends) == (scheme == "dark")
