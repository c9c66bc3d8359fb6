"""`keras-transformer evaluate`."""

import json
import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from keras_transformer.cli import completion
from keras_transformer.cli.console import Json, load_tensorflow, print_json, progress_bar, say
from keras_transformer.errors import InputError

LABELS = {
    "bleu": "BLEU",
    "bleu_lowercased": "BLEU, lower-cased",
    "bleu_multimodal": "BLEU, multimodal protocol",
    "bleu_paper": "BLEU, the paper's protocol",
    "chrf": "chrF",
}


def evaluate_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    data: Annotated[
        str | None, typer.Option(help="The text, as for train; not what prepare wrote.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Which split of it to translate. [default: test]")
    ] = None,
    test_set: Annotated[
        str | None,
        typer.Option(
            help="In place of a corpus: a test set of sacreBLEU, such as wmt14/full.",
            autocompletion=completion.test_sets,
        ),
    ] = None,
    beam_size: Annotated[
        int | None, typer.Option(help="Beams; 1 is greedy search. [default: the run's, or 4]")
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(help="Strength of the length penalty. [default: the run's, or 0.6]"),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Most sentences to translate at once.")] = 64,
    checkpoint: Annotated[
        Literal["averaged", "best", "last"] | None,
        typer.Option(help="Which weights. [default: averaged if there are any, else best]"),
    ] = None,
    tokenized_references: Annotated[
        Path | None,
        typer.Option(help="References as multimodal-translation papers prepared them."),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(help="Another system's translations, for a test of significance."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Translate a split and print its scores, each with the signature of its protocol."""
    if (data is None) == (test_set is None):
        raise InputError("Give either --data or --test-set")
    if split is not None and test_set is not None:
        raise InputError(f"--split is of --data, and a test set has none. Received: {split}")
    load_tensorflow()
    from keras_transformer.files import locked, named_failure
    from keras_transformer.run import Run
    from keras_transformer.trainers import evaluation
    from keras_transformer.trainers.corpora import load_corpus
    from keras_transformer.translator import Translator

    opened = Run.load(run)
    if test_set is not None:
        pairs = evaluation.load_test_set(test_set, opened.source, opened.target)
        name = test_set.replace("/", "-")
    else:
        corpus = load_corpus(data or "", opened.source, opened.target)
        name = split or "test"
        pairs = list(corpus.pairs(name))
    opened = Run.load(run)  # training may have replaced weights while a corpus was fetched
    others = baseline and evaluation.read_sentences(baseline, len(pairs))
    chosen = opened.checkpoint(checkpoint)
    translator = Translator.of(opened, checkpoint)
    lowercase = translator.tokenizer.lowercase
    output = run / "evaluation" / name
    with named_failure(output.parent):
        output.parent.mkdir(exist_ok=True)
    test = None
    # Others would write the same files, which are read below.
    with locked(output.parent), progress_bar("Translating", len(pairs)) as progress:
        scores = evaluation.evaluate(
            translator,
            pairs,
            output,
            opened.target,
            beam_size=beam_size,
            alpha=alpha,
            batch_size=batch_size,
            tokenized_references=tokenized_references,
            notes={"data": data or test_set or "", "checkpoint": chosen.file},
            progress=progress,
        )
        if others:
            progress.stage("Comparing")
            hypotheses = evaluation.read_sentences(f"{output}.hypothesis", len(pairs))
            references = [pair.target for pair in pairs]
            test = evaluation.compare(hypotheses, others, references, lowercase)
        written = json.loads(Path(f"{output}.scores.json").read_text(encoding="utf-8"))
    if as_json:
        compared = test and {
            "bleu": test.baseline.value,
            "signature": test.baseline.signature,
            "p_value": test.p_value,
        }
        print_json({**written, "baseline": compared, "output": str(output)})
    else:
        for field, label in LABELS.items():
            value = getattr(scores, field)
            typer.echo(f"{label:26} {value.value:5.2f}  {value.signature}")
        if test:
            label = f"BLEU of the baseline{', lower-cased' if lowercase else ''}"
            typer.echo(
                f"{label:26} {test.baseline.value:5.2f}  {test.baseline.signature}, "
                f"p = {test.p_value:.4f} by paired bootstrap"
            )
    say(
        f"Evaluation: {scores.num_pairs:,} sentences by {chosen.file}: "
        f"{output}.hypothesis, .reference, .source, .scores.json"
    )
    path = shlex.quote(str(run))
    say(f"Next: keras-transformer plot {path}, or keras-transformer export {path} MODELS/NAME")
