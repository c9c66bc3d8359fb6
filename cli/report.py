"""The report of a run: an HTML page with its pictures inline, and the pictures as PNG files."""

import base64
import io
import re
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from keras_transformer import plots
from keras_transformer.config import CheckpointName
from keras_transformer.model.schedules import WarmupSchedule
from keras_transformer.parsing import plots as tree_plots
from keras_transformer.parsing.trees import parse_trees
from keras_transformer.run import Checkpoint, Run
from keras_transformer.trainers.data.batches import BatchPlan
from keras_transformer.trainers.data.prepared import (
    Manifest,
    TokenizedPairs,
    corpus_folder,
    is_complete,
    read_validation_pairs,
)
from keras_transformer.trainers.parsing.bracketing import BracketScores, score_brackets
from keras_transformer.trainers.scoring.breakdown import bleu_by_length, sentence_chrf
from keras_transformer.trainers.scoring.evaluation import Evaluation, read_evaluations
from keras_transformer.trainers.settings import TrainSettings
from keras_transformer.trainers.tasks import find_task
from keras_transformer.translator import Translator

DPI = 144  # 1.5 dots for each of a page's 96 pixels an inch
MAX_WORDS = 60  # of a sentence whose trees are drawn
NUM_EXAMPLES = 3  # best translations, and as many median and worst ones

ATTENTION_CAPTIONS = {
    "alignment": "Cross-attention of the last decoder layer, the mean of its heads: what the model "
    "looked at (columns) when it chose each piece (rows).",
    "heads-cross": "Cross-attention of the last decoder layer, head by head.",
    "heads-encoder": "Self-attention of the last encoder layer, head by head.",
    "lines-encoder": "The same as lines, from each piece (left) to what it attends to (right).",
    "heads-decoder": "Self-attention of the last decoder layer, head by head: a row predicts its "
    "piece from the pieces before it (columns).",
}

# What the template draws: caption, width, and the PNG of both styles in base64.
Picture = dict[str, str | int]


def write_report(
    run: Run, folder: Path, text: str | None = None, checkpoint: CheckpointName | None = None
) -> Path:
    """Writes the report of a run into a folder, and returns the path of the page.

    It draws the attention of `text`; None is an evaluated sentence or one of the validation text.

    Raises:
        InputError: if a file of the run is damaged.
    """
    evaluations = read_evaluations(run.path / "evaluation")
    folder.mkdir(parents=True, exist_ok=True)
    chosen = run.checkpoint(checkpoint) if run.last else None
    about = f"Begun {run.created[:16].replace('T', ' ')} UTC; training: {run.status}"
    if chosen:
        about += f"; weights: {chosen.file}, after {chosen.step:,} updates"
        about += "" if checkpoint else f" ({run.choice()[1]})"
    if text is None:
        known = [source for each in evaluations for source in each.sources]
        known += [pair.source for pair in read_validation_pairs(corpus_folder(run))]
        text = next(iter(known), None)
    values = {
        "title": f"{run.path.resolve().name}: {run.source} to {run.target}",
        "about": about,
        "curves": _curves(folder, run),
        "learning_rate": _learning_rate(folder, run),
        "labels": find_task(run.settings.get("task", "translation")).labels,
        "evaluations": [(each.name, each.scores) for each in evaluations],
        "translations": [
            (_translations if "tokenize" in each.scores else _parses)(folder, run, each)
            for each in evaluations
        ],
        "attention": _attention(folder, run, checkpoint, text) if chosen and text else None,
        "corpus": _corpus(folder, run),
        "settings": _settings(run, chosen),
    }
    template = resources.files("keras_transformer.cli").joinpath("report.html").read_text("utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    page = environment.from_string(template).render(values)
    (folder / "report.html").write_text(page, encoding="utf-8")
    return folder / "report.html"


def rank_parses(evaluation: Evaluation) -> list[tuple[int, float]]:
    """Returns row numbers and F1 of trees, the best first."""
    gold = parse_trees(evaluation.references, evaluation.name)
    trees = score_brackets(evaluation.hypotheses, list(gold)).trees
    scores = [BracketScores((tree,)).f1_all for tree in trees]
    return sorted(enumerate(scores), key=lambda row_and_score: -row_and_score[1])


def rank(evaluation: Evaluation, lowercase: bool) -> list[tuple[int, float]]:
    """Returns row numbers and chrF of translations, the best first."""
    scores = sentence_chrf(evaluation.hypotheses, evaluation.references, lowercase)
    return sorted(enumerate(scores), key=lambda row_and_score: -row_and_score[1])


def choose_examples(ranking: Sequence[tuple[int, float]]) -> list[tuple[str, int, float]]:
    """Returns label, row number and score of the best, the median and the worst results."""
    last = max(0, len(ranking) - NUM_EXAMPLES)
    starts = {"Best": 0, "Median": last // 2, "Worst": last}
    return [
        (label, *each)
        for label, start in starts.items()
        for each in ranking[start : start + NUM_EXAMPLES]
    ]


def _draw(
    folder: Path,
    name: str,
    caption: str,
    function: Callable[..., Any],
    *args: Any,
    **options: Any,
) -> Picture:
    """Writes what one of `plots` draws as `NAME.png` and `NAME-dark.png`, and returns both."""
    picture: Picture = {"caption": caption}
    for style, suffix in (("light", ""), ("dark", "-dark")):
        figure, png = function(*args, **options, style=style), io.BytesIO()
        figure.savefig(png, format="png", dpi=DPI)
        (folder / f"{name}{suffix}.png").write_bytes(png.getvalue())
        picture[style] = base64.b64encode(png.getvalue()).decode()
        picture["width"] = round(figure.get_figwidth() * 96)
    return picture


def _curves(folder: Path, run: Run) -> Picture | None:
    if run.last is None or not run.last.step:  # imported
        return None
    caption = "By update: the validation data, and the training data since the point before."
    runs = {run.path.resolve().name: run.metrics()}
    return _draw(folder, "curves", caption, plots.training_curves, runs)


def _learning_rate(folder: Path, run: Run) -> Picture | None:
    if (run.last and not run.last.step) or "warmup_steps" not in run.settings:  # trained elsewhere
        return None
    settings = _train_settings(run)
    schedule = WarmupSchedule(
        run.config.d_model,
        settings.warmup_steps,
        settings.peak_rate,
        cooldown=settings.cooldown,
        total_steps=settings.steps,
    )
    name = f"d_model {run.config.d_model}, {settings.warmup_steps:,} updates of warm-up"
    if settings.cooldown:
        name += f", cooldown over the last {settings.cooldown:.0%}"
    caption = "The learning rate by update (section 5.3 of the paper)."
    steps = run.last.step if run.last else settings.steps
    return _draw(
        folder, "learning-rate", caption, plots.learning_rate, {name: schedule}, max(1, steps)
    )


def _parses(folder: Path, run: Run, evaluation: Evaluation) -> dict[str, Any]:
    examples: list[tuple[str, Any, Any]] = []
    name = re.sub(r"[^\w-]", "-", evaluation.name)
    for label, row, f1 in choose_examples(rank_parses(evaluation))[::NUM_EXAMPLES]:
        heading = f"{label}, F1 {f1:.1f}, sentence {row + 1:,}"
        drawn = {"predicted": evaluation.hypotheses[row], "gold": evaluation.references[row]}
        picture = None
        if all(drawn.values()) and len(evaluation.sources[row].split()) <= MAX_WORDS:
            number = len(examples) + 1
            picture = _draw(folder, f"trees-{name}-{number}", heading, tree_plots.trees, drawn)
        texts = [
            ("Sentence", run.source, evaluation.sources[row]),
            ("Predicted", "", evaluation.hypotheses[row]),
            ("Gold", "", evaluation.references[row]),
        ]
        examples.append((heading, [] if picture else texts, picture))
    return {"name": evaluation.name, "by_length": None, "examples": examples}


def _translations(folder: Path, run: Run, evaluation: Evaluation) -> dict[str, Any]:
    lowercase, tokenize = run.tokenizer().lowercase, evaluation.scores["tokenize"]
    texts = evaluation.hypotheses, evaluation.references
    by_length = _draw(
        folder,
        re.sub(r"[^\w-]", "-", f"bleu-by-length-{evaluation.name}"),
        "BLEU of sentences of similar length, in tokens of the reference as sacreBLEU counts them.",
        plots.bleu_by_length,
        bleu_by_length(*texts, tokenize=tokenize, lowercase=lowercase),
        tokenize=tokenize,
    )
    examples = []
    for label, row, chrf in choose_examples(rank(evaluation, lowercase)):
        texts = [
            ("Source", run.source, evaluation.sources[row]),
            ("Reference", run.target, evaluation.references[row]),
            ("Translation", run.target, evaluation.hypotheses[row]),
        ]
        examples.append((f"{label}, chrF {chrf:.1f}, sentence {row + 1:,}", texts, None))
    return {"name": evaluation.name, "by_length": by_length, "examples": examples}


def _attention(
    folder: Path, run: Run, checkpoint: CheckpointName | None, text: str
) -> dict[str, Any]:
    translator = Translator.of(run, checkpoint)
    found = translator.attention(text)
    source, target = found.source_pieces, found.target_pieces
    heads = plots.attention_heads
    drawings = {
        "alignment": (plots.alignment, found.cross, target, source),
        "heads-cross": (heads, found.cross, target, source),
        "heads-encoder": (heads, found.encoder, source, source),
        "lines-encoder": (plots.attention_lines, found.encoder, source, source),
        "heads-decoder": (heads, found.decoder, target, found.decoder_pieces),
    }
    pictures = [
        _draw(folder, name, ATTENTION_CAPTIONS[name], function, layers[-1], queries, keys)
        for name, (function, layers, queries, keys) in drawings.items()
        if len(layers)  # a recurrent model has no self-attention
    ]
    translation = translator.translate([text])[0].text
    texts = [("Source", run.source, text), ("Translation", run.target, translation)]
    return {"texts": texts, "pictures": pictures}


def _corpus(folder: Path, run: Run) -> dict[str, Any] | None:
    corpus = corpus_folder(run)
    if not is_complete(corpus):
        return None
    lengths = TokenizedPairs(corpus, "train", check_files=False).lengths
    settings = _train_settings(run)
    plan = BatchPlan(lengths, settings.tokens_per_batch, settings.seed)
    options = {"names": (run.source, run.target), "padding_share": plan.padding_share}
    caption = "Lengths of the training sentences."
    drawn = _draw(folder, "lengths", caption, plots.length_histogram, lengths, **options)
    return {"report": str(Manifest.read(corpus).train), "lengths": drawn}


def _train_settings(run: Run) -> TrainSettings:
    """Returns the settings of a run, with the defaults of those that it does not have."""
    return TrainSettings.from_dict({"data": "", **run.settings})


def _settings(run: Run, checkpoint: Checkpoint | None) -> dict[str, dict[str, Any]]:
    """Returns names and values by group; a setting has the name that `train --set` takes."""
    training = {name: value for name, value in run.settings.items() if name != "model"}
    training |= {f"model.{name}": value for name, value in run.settings.get("model", {}).items()}
    groups = {"Model": run.config.to_dict(), "Training": training, "Versions": run.versions}
    if checkpoint:
        metrics = {
            name: f"{value:.4g}" if isinstance(value, float) else value
            for name, value in checkpoint.metrics.items()
        }
        groups["Checkpoint"] = {"file": checkpoint.file, "step": checkpoint.step, **metrics}
    return groups
