"""The pages' code runs, and their commands and names exist. (`make docs` checks the links.)

A test here runs each fenced block, unless `<!-- not run: REASON -->` stands above it. The command
line parses every command.
"""

import io
import re
import shlex
import subprocess
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest
import typer
from eager import eagerly

import keras_transformer
from keras_transformer.cli.main import app, main
from keras_transformer.export import check
from keras_transformer.run import Run

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {
    str(path.relative_to(DOCS)): path.read_text("utf-8") for path in sorted(DOCS.rglob("*.md"))
}
FENCED = re.compile(
    r"(?:^<!-- not run: ([^\n]+) -->\n)?^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE
)
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
    # Each of these pages has a test below that runs its blocks.
    assert {block.page for block in BLOCKS if not block.reason} == {
        "tutorial.md",
        "howto/fine-tuning.md",
        "howto/memory.md",
        "reference/layers.md",
    }


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
        if command == "COMMAND" or command.startswith("--"):
            continue
        known = {option for each in COMMANDS[command].params for option in each.opts}
        options = {word for word in arguments if word.startswith("--")} - {"--help"}
        assert options <= known, (command, arguments)


@pytest.mark.programs
def test_tutorial_and_fine_tuning(corpus_dir, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(check.CHECKS, "Session", lambda export: "")  # a process; see test_cli.py
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

    num_translated = len(Path("test.translated.txt").read_text("utf-8").splitlines())
    assert num_translated in (11, 12)  # the line "none" may have been among them
    counts = {
        path.name: len(path.read_text("utf-8").splitlines()) for path in Path("my-data").iterdir()
    }
    assert sum(counts.values()) == 2 * len(lines) - 2
    assert "<html" in Path("my-run/report/report.html").read_text("utf-8")
    assert Path("models/my-model/1/saved_model.pb").is_file()

    command, code = blocks("howto/fine-tuning.md")  # start from this run
    run_line(command.text, monkeypatch, capfd)
    tuned, initial = Run.load("tuned"), Run.load("my-run")
    assert tuned.status == "complete"
    assert tuned.tokenizer_sha256 == initial.tokenizer_sha256
    names = {}
    exec(compile(code.text, code.page, "exec"), names)
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
    is_training = arguments[0] == "train"
    with pytest.raises(SystemExit) as exit_info, eagerly() if is_training else nullcontext():
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


def test_layers(capfd):
    code, expected = blocks("reference/layers.md")
    exec(compile(code.text, code.page, "exec"), {})
    assert capfd.readouterr().out == expected.text


def test_public_names_are_in_the_reference():
    reference = re.findall(r"^::: (\S+)\.(\w+)$", "\n".join(PAGES.values()), re.MULTILINE)
    assert len(reference) == len(set(reference))
    for module, name in reference:
        assert getattr(import_module(module), name).__doc__, (module, name)
    public = set(keras_transformer.__all__) - {"__version__"}
    assert public <= {name for _, name in reference}
