"""`keras-transformer plot`."""

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from keras_transformer import letters, plots
from keras_transformer.cli import report as page
from keras_transformer.cli.console import load_tensorflow, progress_bar, say
from keras_transformer.errors import InputError

if TYPE_CHECKING:
    from keras_transformer.plots import Style
    from keras_transformer.run import Checkpoint, Run
    from keras_transformer.translator import Attention

NUM_EXAMPLES = 3  # of each kind
SCORES = {
    "BLEU": "bleu",
    "lower-cased": "bleu_lowercased",
    "multimodal": "bleu_multimodal",
    "the paper's": "bleu_paper",
    "chrF": "chrf",
}


Ranking = list[list[tuple[int, float]]]


class Evaluation(NamedTuple):
    """What `keras-transformer evaluate` left of a split.

    Attributes:
        name: of the split.
        scores: as in its `.scores.json`.
        sources: a sentence each.
        references: theirs.
        hypotheses: theirs.
    """

    name: str
    scores: dict[str, Any]
    sources: list[str]
    references: list[str]
    hypotheses: list[str]


def plot_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the report. [default: RUN/report]"),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(
            help="Whose attention is shown. [default: an evaluated sentence, or one for validation]"
        ),
    ] = None,
    checkpoint: Annotated[
        Literal["averaged", "best", "last"] | None,
        typer.Option(help="Which weights. [default: averaged if there are any, else best]"),
    ] = None,
) -> None:
    """Draw a run: curves, scores, examples, attention, as PNG files and one HTML page."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError(letters.NEEDS_MATPLOTLIB)
    load_tensorflow()
    from keras_transformer.run import Run

    opened = Run.load(run)
    with progress_bar("Drawing"):
        path = _draw(opened, output or run / "report", text, checkpoint)
    say(f"Report: {path}")


def _draw(
    opened: "Run",
    output: Path,
    text: str | None,
    checkpoint: Literal["averaged", "best", "last"] | None,
) -> Path:
    from keras_transformer.trainers.prepared import corpus_folder, read_validation_pairs

    run = opened.path
    chosen = opened.checkpoint(checkpoint) if checkpoint or opened.last else None
    evaluations = _read_evaluations(run / "evaluation")
    report = page.Report(output)
    _add_training(report, opened)
    _add_scores(report, evaluations)
    lowercase = opened.settings.get("lowercase", False)
    rankings = [_ranking(evaluation, lowercase) for evaluation in evaluations]
    for evaluation, ranking in zip(evaluations, rankings, strict=True):
        _add_evaluation(report, opened, evaluation, ranking)
    if text is None and evaluations:
        text = evaluations[0].sources[rankings[0][1][0][0]]
    elif text is None:
        pairs = read_validation_pairs(corpus_folder(opened))
        text = pairs[0].source if pairs else None
    if chosen is not None and text is not None:
        _add_attention(report, opened, checkpoint, text)
    else:
        missing = (
            "no checkpoint yet" if chosen is None else "no sentence to show: give one by --text"
        )
        report.section("Attention", page.paragraph(f"The run holds {missing}."))
    _add_corpus(report, opened)
    _add_settings(report, opened, chosen)
    return report.write(
        f"{run.resolve().name}: {opened.source} to {opened.target}", _about(opened, chosen)
    )


def _about(run: "Run", chosen: "Checkpoint | None") -> str:
    facts = [f"Begun {run.created[:16].replace('T', ' ')} UTC", f"training: {run.status}"]
    if chosen is not None:
        facts.append(f"weights: {chosen.file}, after {chosen.step:,} updates")
    return "; ".join(facts)


def _add_training(report: page.Report, run: "Run") -> None:
    from keras_transformer.schedules import WarmupSchedule

    metrics = run.metrics() if (run.path / "metrics.jsonl").exists() else []
    if metrics:
        caption = "By update: the validation data, and the training data since the point before."
        curves = report.picture(
            "curves",
            caption,
            lambda style: plots.training_curves({run.path.resolve().name: metrics}, style=style),
        )
    else:
        curves = page.paragraph("The run holds no metrics: training has not got to a validation.")
    warmup_steps = run.settings.get("warmup_steps")
    steps = run.settings.get("steps") or (int(metrics[-1]["step"]) if metrics else None)
    rates = ""
    if warmup_steps and steps:
        cooldown = run.settings.get("cooldown", 0.0)
        schedule = WarmupSchedule(
            run.config.d_model,
            warmup_steps,
            run.settings.get("peak_rate"),
            cooldown=cooldown,
            total_steps=steps,
        )
        name = f"d_model {run.config.d_model}, {warmup_steps:,} updates of warm-up"
        if cooldown:
            name += f", cooldown over the last {cooldown:.0%}"
        rates = report.picture(
            "learning-rate",
            "The learning rate by update (section 5.3 of the paper).",
            lambda style: plots.learning_rate({name: schedule}, steps, style=style),
        )
    report.section("Training", curves, rates)


def _read_evaluations(folder: Path) -> list[Evaluation]:
    from keras_transformer.trainers.evaluation import read_sentences

    evaluations = []
    for file in sorted(folder.glob("*.scores.json")):
        name = file.name.removesuffix(".scores.json")
        try:
            scores = json.loads(file.read_text(encoding="utf-8"))
            count = scores["num_pairs"]
            for field in SCORES.values():
                float(scores[field]["value"]), str(scores[field]["signature"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{file} is damaged: evaluate the split again") from error
        texts = (
            read_sentences(folder / f"{name}.{kind}", count)
            for kind in ("source", "reference", "hypothesis")
        )
        evaluations.append(Evaluation(name, scores, *texts))
    return evaluations


def _add_scores(report: page.Report, evaluations: list[Evaluation]) -> None:
    if not evaluations:
        say("No scores: keras-transformer evaluate RUN --data DATA makes them")
        report.section("Scores", page.paragraph("No split has been evaluated yet."))
        return
    rows = [
        [
            each.name,
            *(float(each.scores[field]["value"]) for field in SCORES.values()),
            each.scores["num_pairs"],
            each.scores.get("beam_size", ""),
            str(each.scores.get("alpha", "")),
            Path(each.scores.get("checkpoint", "")).name,
        ]
        for each in evaluations
    ]
    heads = ["Split", *SCORES, "Sentences", "Beams", "Alpha", "Checkpoint"]
    signatures = []
    for label, field in SCORES.items():
        of_splits = [(each.name, each.scores[field]["signature"]) for each in evaluations]
        if len({signature for _, signature in of_splits}) == 1:
            signatures.append([label, of_splits[0][1]])
        else:
            signatures += [[f"{label}, {split}", signature] for split, signature in of_splits]
    report.section(
        "Scores",
        page.table(heads, rows),
        page.table(["Score", "Signature of its protocol"], signatures),
    )


def _add_evaluation(
    report: page.Report, run: "Run", evaluation: Evaluation, ranking: Ranking
) -> None:
    lowercase = run.settings.get("lowercase", False)
    drawn = report.picture(
        f"bleu-by-length-{evaluation.name}",
        "BLEU of sentences of similar length, as sacreBLEU counts their references' tokens.",
        lambda style: plots.bleu_by_length(
            evaluation.hypotheses, evaluation.references, lowercase=lowercase, style=style
        ),
    )
    examples = [
        page.example(
            f"{label}, chrF {chrf:.1f}, sentence {row + 1:,}",
            {
                "Source": (run.source, evaluation.sources[row]),
                "Reference": (run.target, evaluation.references[row]),
                "Translation": (run.target, evaluation.hypotheses[row]),
            },
        )
        for label, kind in zip(("Best", "Median", "Worst"), ranking, strict=True)
        for row, chrf in kind
    ]
    report.section(f"Translations of {evaluation.name}", drawn, "<h3>Examples</h3>", *examples)


def _ranking(evaluation: Evaluation, lowercase: bool) -> Ranking:
    """The best, the median and the worst translations' row numbers, and their chrF."""
    import sacrebleu

    metric = sacrebleu.CHRF(lowercase=lowercase)
    pairs = zip(evaluation.hypotheses, evaluation.references, strict=True)
    scored = [
        (row, metric.sentence_score(hypothesis, [reference]).score)
        for row, (hypothesis, reference) in enumerate(pairs)
    ]
    scored.sort(key=lambda row_and_score: -row_and_score[1])
    # Of few sentences each is shown once: the middle ones first, as they say most.
    count = min(NUM_EXAMPLES, (len(scored) + 2) // 3)
    start = (len(scored) - count) // 2
    end = max(len(scored) - count, start + count)
    return [scored[: min(count, start)], scored[start : start + count], scored[end:]]


def _add_attention(
    report: page.Report,
    run: "Run",
    checkpoint: Literal["averaged", "best", "last"] | None,
    text: str,
) -> None:
    from keras_transformer.translator import Translator

    translator = Translator.of(run, checkpoint)
    attention = translator.attention(text)
    translation = translator.translate([text])[0].text
    texts = {"Source": (run.source, text), "Translation": (run.target, translation)}
    report.section(
        "Attention",
        page.example("An example, translated now", texts),
        report.picture(
            "alignment",
            "Cross-attention of the last decoder layer, the mean of its heads: what the model "
            "looked at (columns) when it chose each piece (rows).",
            lambda style: plots.alignment(
                attention.cross[-1], attention.target_pieces, attention.source_pieces, style=style
            ),
        ),
        *_heads(report, attention),
    )


def _heads(report: page.Report, attention: "Attention") -> list[str]:
    """Pictures of the heads of the last layers."""
    source, target = attention.source_pieces, attention.target_pieces
    kinds: dict[str, tuple[Any, tuple[str, ...], tuple[str, ...], str]] = {
        "cross": (attention.cross[-1], target, source, "Cross-attention of the last decoder layer"),
        "encoder": (
            attention.encoder[-1],
            source,
            source,
            "Self-attention of the last encoder layer",
        ),
        "decoder": (
            attention.decoder[-1],
            target,
            attention.decoder_pieces,
            "Self-attention of the last decoder layer, whose columns are the pieces before",
        ),
    }

    def draw(kind: str, style: "Style") -> Any:
        return plots.attention_heads(*kinds[kind][:3], style=style)

    return [
        report.picture(
            f"heads-{kind}",
            f"{kinds[kind][3]}, head by head.",
            lambda style, kind=kind: draw(kind, style),  # type: ignore[misc]
        )
        for kind in kinds
    ]


def _add_corpus(report: page.Report, run: "Run") -> None:
    from keras_transformer.trainers.batches import BatchPlan
    from keras_transformer.trainers.prepared import (
        TokenizedPairs,
        corpus_folder,
        is_prepared,
        read_report,
    )

    folder = corpus_folder(run)
    if not is_prepared(folder) or not (folder / "train.json").exists():
        return
    lengths = TokenizedPairs(folder, "train").lengths
    tokens = run.settings.get("tokens_per_batch")
    share = BatchPlan(lengths, tokens, run.settings.get("seed")).padding_share if tokens else None
    report.section(
        "Training data",
        page.paragraph(f"{read_report(folder)}"),
        report.picture(
            "lengths",
            "Lengths of the training sentences.",
            lambda style: plots.length_histogram(
                lengths, names=(run.source, run.target), padding_share=share, style=style
            ),
        ),
    )


def _add_settings(report: page.Report, run: "Run", chosen: "Checkpoint | None") -> None:
    groups = {
        "Model": run.config.to_dict(),
        "Training": _flat(run.settings),
        "Versions": run.versions,
    }
    if chosen is not None:
        metrics = {
            name: f"{value:.4g}" if isinstance(value, float) else value
            for name, value in chosen.metrics.items()
        }
        groups["Checkpoint"] = {"file": chosen.file, "step": chosen.step, **metrics}
    report.section("Settings", page.settings_tables(groups))


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings by the names that `train --set` takes, such as model.d_model."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{key}": inner for key, inner in value.items()}
        else:
            flat[name] = value
    return flat
