"""`keras-transformer plot`: a complete report that loads nothing else."""

import base64
import importlib.util
import json
import shutil
import sys
from html.parser import HTMLParser

import pytest
import typer
from typer.testing import CliRunner

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

from keras_transformer import plots
from keras_transformer.cli.plot import plot_command
from keras_transformer.cli.report import choose_examples
from keras_transformer.errors import InputError
from keras_transformer.run import Run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
NASTY = "<script>alert(1)</script> & \"quoted\" 'red' {{title}}"

app = typer.Typer()
app.command()(plot_command)


def plot(*arguments):
    """Runs the command in this process; raises what it raises."""
    return CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)


class Page(HTMLParser):
    """Collects tags and texts, and checks that what is opened is closed."""

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
    texts = {
        "source": [NASTY, "one two", "red dog", "öl"],
        "reference": ["eins zwei drei vier", NASTY, "rot Hund", "שלום עולם"],
        "hypothesis": ["eins zwei drei vier", "vier", "rot Katze", "שלום"],
    }
    for kind, lines in texts.items():
        (folder / f"test.{kind}").write_text("".join(f"{line}\n" for line in lines))
    names = ("bleu", "bleu_lowercased", "bleu_multimodal", "bleu_paper", "chrf")
    scores = {
        name: {"value": 10.125 + n, "signature": f"sig-{n}|<i>"} for n, name in enumerate(names)
    }
    scores |= {  # without "checkpoint", as `evaluate` in Python writes them
        "bleu_multimodal": None,
        "num_pairs": 4,
        "tokenize": "13a",
        "beam_size": 3,
        "length_penalty": 0.6,
    }
    (folder / "test.scores.json").write_text(json.dumps(scores))
    for file in list(folder.iterdir()):  # `evaluate --noise` writes them
        shutil.copy(file, folder / file.name.replace("test.", "test-title."))
    (folder / "test-title.scores.json").write_text(json.dumps({**scores, "noise": "title"}))
    return path


@pytest.fixture(scope="module")
def report(run_dir):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("keras_transformer.cli.report.DPI", 48)  # small pictures
        result = plot(run_dir)
    assert (result.exit_code, result.stdout) == (0, "")
    folder = run_dir / "report"
    assert str(folder / "report.html") in result.stderr
    return folder


@pytest.fixture(scope="module")
def page(report):
    return Page((report / "report.html").read_text(encoding="utf-8"))


def test_pictures_are_files_and_inline(report, page):
    expected = ["alignment", "bleu-by-length-test", "curves", "heads-cross", "heads-decoder"]
    expected += ["heads-encoder", "learning-rate", "lengths", "lines-encoder", "noise-test"]
    files = {path.name: path.read_bytes() for path in report.iterdir() if path.suffix == ".png"}
    assert sorted(files) == sorted(f"{name}{end}.png" for name in expected for end in ("", "-dark"))
    sources = [value for _, name, value in page.attributes if name in ("src", "srcset")]
    inline = [base64.b64decode(source.removeprefix("data:image/png;base64,")) for source in sources]
    assert sorted(inline) == sorted(files.values())


def test_no_host_is_asked(page):
    for tag, name, value in page.attributes:
        if name in ("src", "href", "srcset", "action"):
            assert value.startswith("data:"), (tag, name)
    assert not {"script", "iframe", "object", "form"} & set(page.tags)


def test_texts_are_text(report, page):
    text = (report / "report.html").read_text(encoding="utf-8")
    assert "<script>" not in text
    assert "<b>" not in text
    assert page.texts.count(NASTY) >= 2
    assert page.texts.count("tiny <b>: en to de") == 2  # title and heading


def test_scores_and_settings(page, run_dir):
    texts = [text for text in page.texts if text]
    for label, value in {"BLEU": "10.12", "chrF": "14.12"}.items():
        assert texts[texts.index(label) + 1] == value
    assert "BLEU, multimodal protocol" not in texts  # it was not computed
    assert "test: 4 sentences, beam size 3, length penalty 0.6" in texts
    run = Run.load(run_dir)
    for name, value in {**run.config.to_dict(), **run.versions, "model.d_ff": 24}.items():
        assert texts[texts.index(name) + 1] == str(value)
    assert any(text.startswith("150 pairs (dropped: none)") for text in texts)


def test_best_median_worst():
    examples = choose_examples([30.0, 10.0, 70.0, 50.0, 20.0, 60.0, 40.0], 2)
    expected = [("Best", 2), ("Best", 5), ("Median", 3), ("Median", 6), ("Worst", 4), ("Worst", 1)]
    assert [(label, row) for label, row, _ in examples] == expected
    assert [score for *_, score in examples] == [70, 60, 50, 40, 20, 10]
    assert choose_examples([5.0], 3) == [(label, 0, 5.0) for label in ("Best", "Median", "Worst")]


def test_the_learning_rate_is_the_run_s(tiny_run, tmp_path, monkeypatch):
    """And a run without its corpus and evaluations has a report."""
    run_dir = tmp_path / "run"
    shutil.copytree(tiny_run.path, run_dir, ignore=shutil.ignore_patterns("corpus", "evaluation"))
    manifest = json.loads((run_dir / "run.json").read_text())
    manifest["settings"] |= {"steps": 12, "warmup_steps": 4, "peak_rate": 0.5, "cooldown": 0.25}
    (run_dir / "run.json").write_text(json.dumps(manifest))
    monkeypatch.setattr("keras_transformer.cli.report.DPI", 48)
    drawn, draw = [], plots.learning_rate
    monkeypatch.setattr(
        plots, "learning_rate", lambda *args, **kwargs: drawn.append(args) or draw(*args, **kwargs)
    )
    plot(run_dir)
    (schedules, steps), *_ = drawn
    (schedule,) = schedules.values()
    assert steps == 5  # the updates made
    # Update 10 is the first of three in the cooldown: by hand, half of sqrt(4 / 10), times 3 / 3.
    rates = [float(schedule(done)) for done in (0, 3, 9, 11)]
    assert rates == pytest.approx([0.125, 0.5, 0.5 * 0.4**0.5, 0.5 * (4 / 12) ** 0.5 / 3])
    assert "no sentence to show" in (run_dir / "report" / "report.html").read_text()
    manifest["settings"] = {}  # of `Run.create`
    (run_dir / "run.json").write_text(json.dumps(manifest))
    plot(run_dir, "--output", tmp_path / "report")
    assert not (tmp_path / "report" / "learning-rate.png").exists()


def test_without_matplotlib(tiny_run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert importlib.util.find_spec("matplotlib") is None
    with pytest.raises(InputError, match=r"pip install 'keras3-transformer\[plots\]'"):
        plot(tiny_run.path, "--output", tmp_path / "report")


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
