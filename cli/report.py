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
from keras_transformer.cli.progress import batch_plan
from keras_transformer.config import CheckpointName, DecodingOptions
from keras_transformer.run import Run
from keras_transformer.trainers.data.prepared import (
    complete_corpus,
    corpus_folder,
    read_validation_pairs,
)
from keras_transformer.trainers.scoring.evaluation import Evaluation, read_evaluations
from keras_transformer.trainers.settings import TrainSettings
from keras_transformer.trainers.tasks import task_of
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
    """Writes the report of a run, with the attention of a text; returns the path of its page."""
    report = _Report(run, folder)
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
        sources = [source for evaluation in report.evaluations for source in evaluation.sources]
        sources += [pair.tagged_source for pair in read_validation_pairs(corpus_folder(run))]
        text = next(iter(sources), None)
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
        curves=report.curves(),
        learning_rate=report.learning_rate(),
        labels=task_of(run.settings).labels,
        evaluations=[
            (evaluation, *report.results(evaluation), report.noise(evaluation))
            for evaluation in report.evaluations
            if not evaluation.scores.get("noise")
        ],
        attention=report.attention(checkpoint, text) if chosen and text else None,
        corpus=report.corpus(),
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
        (label, *result)
        for label, start in starts.items()
        for result in ranking[start : start + count]
    ]


# What two evaluations must share to be compared.
SAME_IN_NOISE = ("data", "checkpoint", "num_pairs", *(f.name for f in fields(DecodingOptions)))


class _Report:
    """The pictures of a run, which it writes into a folder."""

    def __init__(self, run: Run, folder: Path) -> None:
        self.run, self.folder = run, folder
        self.evaluations = read_evaluations(run.path / "evaluation")

    def draw(self, name: str, caption: str, draw: Callable[..., Any]) -> Picture:
        """Writes what one of `plots` draws as `NAME.png` and `NAME-dark.png`, and returns both."""
        picture: Picture = {"caption": caption}
        for style, suffix in (("light", ""), ("dark", "-dark")):
            figure, png = draw(style=style), io.BytesIO()
            figure.savefig(png, format="png", dpi=DPI)
            (self.folder / f"{name}{suffix}.png").write_bytes(png.getvalue())
            picture[style] = base64.b64encode(png.getvalue()).decode()
            picture["width"] = round(figure.get_figwidth() * 96)
        return picture

    def curves(self) -> Picture | None:
        if not (self.run.last and self.run.last.step):  # imported, or not validated yet
            return None
        caption = (
            "By update: the validation data, and the training data since the point before. "
            "The loss that commands print has no label smoothing: it is the perplexity's logarithm."
        )
        runs = {self.run.path.resolve().name: self.run.metrics()}
        return self.draw("curves", caption, partial(plots.training_curves, runs))

    def learning_rate(self) -> Picture | None:
        last = self.run.last
        if (last and not last.step) or "warmup_steps" not in self.run.settings:  # not trained here
            return None
        settings = TrainSettings.of_run(self.run)
        schedule = settings.schedule(self.run.config.d_model)
        schedules = {f"{settings.warmup_steps:,} updates of warm-up": schedule}
        caption = "The learning rate by update (section 5.3 of the paper)."
        draw = partial(plots.learning_rate, schedules, last.step if last else settings.steps)
        return self.draw("learning-rate", caption, draw)

    def results(self, evaluation: Evaluation) -> tuple[Picture | None, list[Any]]:
        """Returns a picture of all results, and labels, texts and pictures of some of them."""
        run, scores = self.run, evaluation.scores
        source, target = scores.get("source", run.source), scores.get("target", run.target)
        breakdown = task_of(run.settings).breakdown(evaluation, run.tokenizer().lowercase)
        split = re.sub(r"[^\w-]", "-", evaluation.name)
        examples: list[Any] = []
        for label, row, score in choose_examples(breakdown.scores, breakdown.num_examples):
            heading = f"{label}, {breakdown.metric} {score:.1f}, sentence {row + 1:,}"
            texts = [
                ("Source", source, evaluation.sources[row]),
                ("Reference", target, evaluation.references[row]),
                ("Result", target, evaluation.hypotheses[row]),
            ]
            picture = None
            if drawing := breakdown.picture(row):
                name = f"{drawing.name}-{split}-{len(examples) + 1}"
                picture = self.draw(name, heading, drawing.draw)
            examples.append((heading, texts, picture))
        if (overview := breakdown.overview) is None:
            return None, examples
        return self.draw(f"{overview.name}-{split}", overview.caption, overview.draw), examples

    def noise(self, clean: Evaluation) -> Picture | None:
        """Draws the scores of the same split with noise, if `evaluate --noise` wrote them."""
        bleu = "bleu_lowercased" if self.run.tokenizer().lowercase else "bleu"
        changed = {
            kind: evaluation.scores[bleu]["value"]
            for evaluation in self.evaluations
            if (kind := evaluation.scores.get("noise"))
            and evaluation.name == f"{clean.name}-{kind}"
            and all(evaluation.scores.get(key) == clean.scores.get(key) for key in SAME_IN_NOISE)
        }
        if not changed:
            return None
        caption = "BLEU of the same sentences, changed in each way by evaluate --noise."
        draw = partial(plots.bleu_by_noise, clean.scores[bleu]["value"], changed)
        return self.draw(f"noise-{clean.name}", caption, draw)

    def attention(self, checkpoint: CheckpointName | None, text: str) -> dict[str, Any]:
        translator = Translator.of(self.run, checkpoint)
        scores = translator.attention(text)
        source, target = scores.source_pieces, scores.target_pieces
        heads = plots.attention_heads
        drawings = {
            "alignment": (plots.alignment, scores.cross, target, source),
            "heads-cross": (heads, scores.cross, target, source),
            "heads-encoder": (heads, scores.encoder, source, source),
            "lines-encoder": (plots.attention_lines, scores.encoder, source, source),
            "heads-decoder": (heads, scores.decoder, target, scores.decoder_pieces),
        }
        pictures = [
            self.draw(name, ATTENTION_CAPTIONS[name], partial(draw, layers[-1], queries, keys))
            for name, (draw, layers, queries, keys) in drawings.items()
            if len(layers)  # a model may have no self-attention
        ]
        translation = translator.translate([text])[0].text
        texts = [("Source", self.run.source, text), ("Result", self.run.target, translation)]
        return {"texts": texts, "pictures": pictures}

    def corpus(self) -> dict[str, Any] | None:
        manifest, plan = complete_corpus(corpus_folder(self.run)), batch_plan(self.run)
        if manifest is None or plan is None:
            return None
        names, share = (self.run.source, self.run.target), plan.padding_share
        draw = partial(plots.length_histogram, plan.lengths, names=names, padding_share=share)
        drawn = self.draw("lengths", "Lengths of the training sentences.", draw)
        parts = manifest.train.parts.items()
        listed = "; ".join(f"{' to '.join(languages)}: {part}" for languages, part in parts)
        return {"report": listed or str(manifest.train.total), "lengths": drawn}
