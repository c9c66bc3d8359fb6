"""The pages' code runs, their commands and names exist, and their links lead somewhere.

A fenced block is executed by a test here, or `<!-- not run: REASON -->` stands above it. Commands
are parsed by the real command line in either case.
"""

import io
import os
import re
import shlex
import subprocess
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest
import typer
import yaml

import keras_transformer
from keras_transformer.cli.main import app, main

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {
    str(path.relative_to(DOCS)): path.read_text("utf-8") for path in sorted(DOCS.rglob("*.md"))
}
FENCED = re.compile(
    r"(?:^<!-- not run: ([^\n]+) -->\n)?^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE
)
BY_README = "README's test runs it"
COMMANDS = typer.main.get_command(app).commands
# Tiny sizes and few updates.
FASTER = {"1000": "12", "+1001": "+13", "+2001": "+25"}
TINY_RECIPE = {
    "steps = 10_000": "steps = 6\nsteps_per_validation = 2",
    "tokens_per_batch = 4_096": "tokens_per_batch = 512",
    "warmup_steps = 1_000": "warmup_steps = 3",
    "bleu_sentences = 200": "bleu_sentences = 0",
}
TINY_MODEL = (
    "[model]\nd_model = 16\nd_ff = 24\nnum_heads = 2\n"
    "num_encoder_layers = 1\nnum_decoder_layers = 1\n"
)


class Block(NamedTuple):
    page: str
    reason: str  # why it is not run; empty if it is
    language: str
    text: str


BLOCKS = [Block(page, *found) for page, text in PAGES.items() for found in FENCED.findall(text)]


def blocks(page):
    """The blocks of a page that are run."""
    return [block for block in BLOCKS if block.page == page and not block.reason]


def words_of(line):
    """The words of a command behind its name, and its redirections; None of other lines."""
    words = shlex.split(line)
    if "keras-transformer" not in words:
        return None
    words = words[words.index("keras-transformer") + 1 :]
    redirections = {word: words[i + 1] for i, word in enumerate(words) if word in ("<", ">")}
    first = min((i for i, word in enumerate(words) if word in ("<", ">", "|")), default=None)
    return words[:first], redirections


def test_every_block_is_run_or_marked():
    assert not re.search(r"^[ \t]+```|^~~~", "\n".join(PAGES.values()), re.MULTILINE)
    num_fences = sum(len(re.findall("^```", text, re.MULTILINE)) for text in PAGES.values())
    assert num_fences == 2 * len(BLOCKS)
    # A new block is counted here, and a page that has blocks to run gets a test below.
    assert Counter(block.page for block in BLOCKS if not block.reason) == {
        "tutorial.md": 10,
        "howto/fine-tuning.md": 1,
        "howto/memory.md": 2,
    }
    assert Counter(block.page for block in BLOCKS if block.reason) == {
        "tutorial.md": 3,
        "howto/fine-tuning.md": 1,
        "howto/language-pair.md": 2,
        "howto/several-gpus.md": 2,
        "howto/several-machines.md": 2,
        "howto/tf-serving.md": 3,
        "recipes.md": 5,
        "results.md": 1,
        "scaling.md": 3,
        "serving.md": 4,
    }


def test_blocks_of_the_readme():
    readme = (ROOT / "README.md").read_text("utf-8")
    texts = [block.text for block in BLOCKS if block.reason == BY_README]
    assert len(texts) == 4
    readme += PAGES["recipes.md"]
    assert all(line in readme.splitlines() for text in texts for line in text.splitlines())


def command_lines(block):
    if block.language == "yaml":  # a command over several lines, up to the next key
        found = re.findall(r"exec (keras-transformer(?:\s+(?!\w+:)\S+)+)", block.text)
        return [" ".join(command.split()) for command in found]
    return [line for line in block.text.splitlines() if "keras-transformer " in line]


@pytest.mark.parametrize("line", [line for block in BLOCKS for line in command_lines(block)])
def test_commands_parse(line):
    (command, *arguments), _ = words_of(line)
    COMMANDS[command].make_context(command, arguments)


def test_commands_within_text_exist():
    text = "\n".join(FENCED.sub("", text) for text in PAGES.values())
    found = [code.split()[1:] for code in re.findall(r"`(keras-transformer [^`]+)`", text)]
    assert len(found) > 10
    for command, *arguments in found:
        if command == "COMMAND":
            continue
        known = {option for each in COMMANDS[command].params for option in each.opts}
        options = {word for word in arguments if word.startswith("--")} - {"--help"}
        assert options <= known, (command, arguments)


@pytest.mark.programs
def test_tutorial_and_fine_tuning(corpus_dir, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    sides = [
        "".join(
            (corpus_dir / f"{language}.{split}.txt").read_text("utf-8")
            for split in ("train", "val", "test")
        )
        for language in ("en", "de")
    ]
    pairs = zip(*(side.splitlines() for side in sides), strict=True)
    # All different; and a line without a tabulator, which is left out.
    lines = [f"{i} {pair[0]}\t{i} {pair[1]}\n" for i, pair in enumerate(pairs)] + ["none\n"]
    Path("pairs.tsv").write_text("".join(lines), "utf-8")
    for block in blocks("tutorial.md"):
        if block.language == "toml":
            text = block.text
            for old, new in TINY_RECIPE.items():
                assert old in text
                text = text.replace(old, new)
            Path("my-recipe.toml").write_text(text + TINY_MODEL, "utf-8")
        elif block.language == "python":
            exec(compile(block.text, block.page, "exec"), {})
            assert len(capfd.readouterr().out.splitlines()) == 4  # a line a beam
        else:
            assert block.language == "console"
            for line in block.text.splitlines():
                run_line(line, monkeypatch, capfd)

    assert len(Path("test.translated.txt").read_text("utf-8").splitlines()) in (
        11,
        12,
    )  # "none" fell among them, or not
    counts = {
        path.name: len(path.read_text("utf-8").splitlines()) for path in Path("my-data").iterdir()
    }
    assert sum(counts.values()) == 2 * len(lines) - 2
    assert "<html" in Path("my-run/report/report.html").read_text("utf-8")
    assert Path("models/my-model/1/saved_model.pb").is_file()

    (block,) = blocks("howto/fine-tuning.md")  # goes on from this run
    names = {}
    exec(compile(block.text, block.page, "exec"), names)
    assert len(capfd.readouterr().out.splitlines()) == 1
    before = names["run"].model().get_weights()
    after = names["model"].get_weights()
    assert any((a != b).any() for a, b in zip(before, after, strict=True))


def run_line(line, monkeypatch, capfd):
    """Runs a line of a console: our commands in this process, others by a shell."""
    line = " ".join(FASTER.get(word, word) for word in line.split(" "))
    parsed = words_of(line)
    if parsed is None:
        subprocess.run(["bash", "-ec", line], check=True, timeout=60)
        return
    arguments, redirections = parsed
    given = Path(redirections["<"]).read_bytes() if "<" in redirections else b""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))
    monkeypatch.setattr("sys.argv", ["keras-transformer", *arguments])
    capfd.readouterr()
    with pytest.raises(SystemExit) as exit_info:
        main()
    output = capfd.readouterr()
    assert exit_info.value.code == 0, (line, output.err)
    if ">" in redirections:
        Path(redirections[">"]).write_text(output.out, "utf-8")


def test_memory(capfd):
    code, expected = blocks("howto/memory.md")
    names = {}
    exec(compile(code.text, code.page, "exec"), names)
    assert capfd.readouterr().out == expected.text
    config = keras_transformer.TransformerConfig(
        vocab_size=19, d_model=10, d_ff=17, num_heads=2, num_encoder_layers=3, num_decoder_layers=2
    )
    assert names["parameters"](config) == keras_transformer.Transformer(config).count_params()


@pytest.mark.parametrize("page", PAGES)
def test_links(page):
    text = FENCED.sub("", PAGES[page])
    for link in re.findall(r"\]\(([^)]+)\)", text):
        if link.startswith(("https://", "http://")):
            continue
        name, _, anchor = link.partition("#")
        path = Path(os.path.normpath((DOCS / page).parent / name)) if name else DOCS / page
        assert path.is_relative_to(ROOT), link
        assert path.exists(), link
        if anchor:
            titles = re.findall(r"^#+ (.+)$", path.read_text("utf-8"), re.MULTILINE)
            assert anchor in {slug(title) for title in titles}, link


def slug(title):
    """The anchor of a title, as MkDocs and the hosts of repositories make it."""
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())


def test_site():
    """All pages are in the navigation, and all public names in the reference."""
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))

    def paths(entry):
        if isinstance(entry, str):
            return [entry]
        children = entry if isinstance(entry, list) else entry.values()
        return [path for child in children for path in paths(child)]

    listed = paths(site["nav"])
    assert all((ROOT / path).is_file() for path in listed)
    assert len(set(listed)) == len(listed)
    assert {path.removeprefix("docs/") for path in listed if path.startswith("docs/")} == set(PAGES)

    reference = re.findall(r"^::: (\S+)\.(\w+)$", "\n".join(PAGES.values()), re.MULTILINE)
    assert len(reference) == len(set(reference))
    for module, name in reference:
        assert getattr(import_module(module), name).__doc__, (module, name)
    public = set(keras_transformer.__all__) - {"__version__"}
    assert public <= {name for _, name in reference}
