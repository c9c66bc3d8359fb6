"""The report of a run: an HTML page with its pictures inline, and the pictures as PNG files."""

import base64
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import jinja2

from keras_transformer import plots
from keras_transformer.config import CheckpointName, DecodingOptions
from keras_transformer.run import Run
from keras_transformer.trainers.data.batches import BatchPlan
from keras_transformer.trainers.data.prepared import (
    StoredPairs,
    complete_corpus,
    corpus_folder,
    read_validation_pairs,
)
from keras_transformer.trainers.scoring.evaluation import Evaluation, read_evaluations
from keras_transformer.trainers.settings import TrainSettings
from keras_transformer.trainers.tasks import Task, task_of
from keras_transformer.translator import Translator

DPI = 144  # 1.5 dots for each of a page's 96 pixels an inch

ATTENTION_CAPTIONS = {
    "alignment": "Cross-attention of the last decoder layer, the mean of its heads: what the model "
    "looked at (columns) when it chose each piece (rows).",
    "heads-cross": "Cross-attention of the last decoder layer, head by head.",
    "heads-encoder": "Self-attention of the last encoder layer, head by head.",
    "lines-encoder": "The same as lines, from each piece (left) to what it attends to (right).",
    "heads-decoder": "Self-attention of the last decoder layer, head by head: a row predicts its "
    "piece from the pieces before it (columns).",
}

# What the template shows: caption, width, and the PNG of both styles in base64.
Picture = dict[str, str | int]


def write_report(
    run: Run, folder: Path, text: str | None = None, checkpoint: CheckpointName | None = None
) -> Path:
    """Writes the report of a run into a folder, and returns the path of the page.

    It draws the attention of `text`; None is an evaluated sentence or one of the validation text.

    Raises:
        InputError: if a file of the run is damaged.
    """
    task = task_of(run.settings)
    evaluations = read_evaluations(run.path / "evaluation")
    folder.mkdir(parents=True, exist_ok=True)
    chosen = run.checkpoint(checkpoint) if run.last else None
    settings = {"Model": run.config.to_dict(), "Training": run.settings, "Versions": run.versions}
    if chosen:
        metrics = {
            name: f"{value:.4g}" if isinstance(value, float) else value
            for name, value in chosen.metrics.items()
        }
        settings["Checkpoint"] = {"file": chosen.file, "step": chosen.step, **metrics}
    if text is None:
        known = [source for each in evaluations for source in each.sources]
        known += [pair.source for pair in read_validation_pairs(corpus_folder(run))]
        text = next(iter(known), None)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("keras_transformer.cli", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    page = environment.get_template("report.html").render(
        run=run,
        title=f"{run.path.resolve().name}: {run.source} to {run.target}",
        chosen=chosen,
        reason=run.choice()[1] if chosen and not checkpoint else None,
        curves=_curves(folder, run),
        learning_rate=_learning_rate(folder, run),
        labels=task.labels,
        evaluations=[
            (each, *_results(folder, run, task, each), _noise(folder, run, each, evaluations))
            for each in evaluations
            if not each.scores.get("noise")
        ],
        attention=_attention(folder, run, checkpoint, text) if chosen and text else None,
        corpus=_corpus(folder, run),
        settings=settings,
    )
    (folder / "report.html").write_text(page, encoding="utf-8")
    return folder / "report.html"


def choose_examples(scores: Sequence[float], count: int) -> list[tuple[str, int, float]]:
    """Returns label, row number and score of the best, the median and the worst results."""
    ranking = sorted(enumerate(scores), key=lambda row_and_score: -row_and_score[1])
    last = max(0, len(ranking) - count)
    starts = {"Best": 0, "Median": last // 2, "Worst": last}
    return [
        (label, *each) for label, start in starts.items() for each in ranking[start : start + count]
    ]


def _draw(folder: Path, name: str, caption: str, draw: Callable[..., Any]) -> Picture:
    """Writes what one of `plots` draws as `NAME.png` and `NAME-dark.png`, and returns both."""
    picture: Picture = {"caption": caption}
    for style, suffix in (("light", ""), ("dark", "-dark")):
        figure, png = draw(style=style), io.BytesIO()
        figure.savefig(png, format="png", dpi=DPI)
        (folder / f"{name}{suffix}.png").write_bytes(png.getvalue())
        picture[style] = base64.b64encode(png.getvalue()).decode()
        picture["width"] = round(figure.get_figwidth() * 96)
    return picture


def _curves(folder: Path, run: Run) -> Picture | None:
    if not (run.last and run.last.step):  # imported, or not validated yet
        return None
    caption = (
        "By update: the validation data, and the training data since the point before. "
        "The loss that commands print has no label smoothing: it is the perplexity's logarithm."
    )
    runs = {run.path.resolve().name: run.metrics()}
    return _draw(folder, "curves", caption, partial(plots.training_curves, runs))


def _learning_rate(folder: Path, run: Run) -> Picture | None:
    if (run.last and not run.last.step) or "warmup_steps" not in run.settings:  # trained elsewhere
        return None
    settings = TrainSettings.of_run(run)
    schedule = settings.schedule(run.config.d_model)
    schedules = {f"{settings.warmup_steps:,} updates of warm-up": schedule}
    steps = run.last.step if run.last else settings.steps
    caption = "The learning rate by update (section 5.3 of the paper)."
    return _draw(folder, "learning-rate", caption, partial(plots.learning_rate, schedules, steps))


def _results(
    folder: Path, run: Run, task: Task, evaluation: Evaluation
) -> tuple[Picture | None, list[Any]]:
    """Returns a picture of all results, and labels, texts and pictures of some of them."""
    breakdown = task.breakdown(evaluation, run.tokenizer().lowercase)
    split = re.sub(r"[^\w-]", "-", evaluation.name)
    examples: list[Any] = []
    for label, row, score in choose_examples(breakdown.scores, breakdown.num_examples):
        heading = f"{label}, {breakdown.metric} {score:.1f}, sentence {row + 1:,}"
        texts = [
            ("Source", run.source, evaluation.sources[row]),
            ("Reference", run.target, evaluation.references[row]),
            ("Result", run.target, evaluation.hypotheses[row]),
        ]
        picture = None
        if drawn := breakdown.picture(row):
            number = len(examples) + 1
            picture = _draw(folder, f"{drawn.name}-{split}-{number}", heading, drawn.draw)
        examples.append((heading, texts, picture))
    if (overview := breakdown.overview) is None:
        return None, examples
    return _draw(folder, f"{overview.name}-{split}", overview.caption, overview.draw), examples


# What two evaluations must share to be compared.
SAME_IN_NOISE = ("data", "checkpoint", "num_pairs", *(f.name for f in fields(DecodingOptions)))


def _noise(
    folder: Path, run: Run, clean: Evaluation, evaluations: Sequence[Evaluation]
) -> Picture | None:
    """Draws the scores of the same split with noise, if `evaluate --noise` wrote them."""
    bleu = "bleu_lowercased" if run.tokenizer().lowercase else "bleu"
    changed = {
        kind: each.scores[bleu]["value"]
        for each in evaluations
        if (kind := each.scores.get("noise"))
        and each.name == f"{clean.name}-{kind}"
        and all(each.scores.get(key) == clean.scores.get(key) for key in SAME_IN_NOISE)
    }
    if not changed:
        return None
    caption = "BLEU of the same sentences, changed in each way by evaluate --noise."
    draw = partial(plots.bleu_by_noise, clean.scores[bleu]["value"], changed)
    return _draw(folder, f"noise-{clean.name}", caption, draw)


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
        _draw(folder, name, ATTENTION_CAPTIONS[name], partial(draw, layers[-1], queries, keys))
        for name, (draw, layers, queries, keys) in drawings.items()
        if len(layers)  # a model may have no self-attention
    ]
    translation = translator.translate([text])[0].text
    texts = [("Source", run.source, text), ("Result", run.target, translation)]
    return {"texts": texts, "pictures": pictures}


def _corpus(folder: Path, run: Run) -> dict[str, Any] | None:
    manifest = complete_corpus(corpus_folder(run))
    if manifest is None:
        return None
    lengths = StoredPairs(manifest, "train", check_files=False).lengths
    settings = TrainSettings.of_run(run)
    plan = BatchPlan(lengths, settings.tokens_per_batch, settings.seed)
    draw = partial(
        plots.length_histogram,
        lengths,
        names=(run.source, run.target),
        padding_share=plan.padding_share,
    )
    drawn = _draw(folder, "lengths", "Lengths of the training sentences.", draw)
    return {"report": str(manifest.train), "lengths": drawn}
