"""`keras-transformer evaluate`."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from keras_transformer.cli.console import ProgressBar, load_tensorflow, print_json, say, say_next
from keras_transformer.cli.options import (
    BeamSize,
    Checkpoint,
    EarlyStop,
    Json,
    LengthPenalty,
    RunDirectory,
)
from keras_transformer.errors import InputError

LABELS = {
    "bleu": "BLEU",
    "bleu_lowercased": "BLEU, lower-cased",
    "bleu_multimodal": "BLEU, multimodal protocol",
    "bleu_paper": "BLEU, the paper's protocol",
    "chrf": "chrF",
    "f1": "F1 of brackets",
    "precision": "precision",
    "recall": "recall",
    "f1_short": "F1, at most 40 words",
    "f1_all": "F1, failures count as 0",
    "exact_match": "exact match, %",
    "tagging_accuracy": "tagging accuracy, %",
}


def _test_sets() -> list[str]:
    from sacrebleu import get_available_testsets

    return list(get_available_testsets())


def _tokenizers() -> list[str]:
    from sacrebleu import BLEU

    return list(BLEU.TOKENIZERS)


def evaluate_command(
    run: RunDirectory,
    data: Annotated[
        str | None,
        Option(
            help="The corpus, as for train, but not a folder that prepare wrote, which has no "
            "text. [default: the run's]"
        ),
    ] = None,
    split: Annotated[
        str | None,
        Option(
            help="Split to translate. [default: test, or the validation split if there is none]"
        ),
    ] = None,
    test_set: Annotated[
        str | None,
        Option(
            help="A test set of sacreBLEU, such as wmt14/full, instead of a corpus.",
            autocompletion=_test_sets,
        ),
    ] = None,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    early_stopping: EarlyStop = None,
    batch_size: Annotated[int, Option(help="Number of sentences in a batch.")] = 64,
    checkpoint: Checkpoint = None,
    tokenized_references: Annotated[
        Path | None,
        Option(help="File of references that the multimodal-translation papers prepared."),
    ] = None,
    baseline: Annotated[
        Path | None,
        Option(
            help="File of another system's translations, to test the difference for significance."
        ),
    ] = None,
    tokenize: Annotated[
        str | None,
        Option(
            help="Tokenizer of sacreBLEU, such as char. [default: the target language's]",
            autocompletion=_tokenizers,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Translate or parse a split, and print its scores.

    Each score has the signature of its protocol. The results go to RUN/evaluation.
    """
    if test_set is not None and (data is not None or split is not None):
        raise InputError("Give either --test-set, or --data and --split")
    load_tensorflow()
    from keras_transformer.run import Run
    from keras_transformer.trainers.scoring.evaluation import (
        evaluate,
        evaluate_parses,
        load_test_set,
        read_sentences,
    )
    from keras_transformer.trainers.scoring.scores import compare
    from keras_transformer.trainers.tasks import load_data
    from keras_transformer.translator import Translator

    opened = Run.load(run)
    task = opened.settings.get("task", "translation")
    of_translations = {
        "--test-set": test_set,
        "--tokenized-references": tokenized_references,
        "--baseline": baseline,
        "--tokenize": tokenize,
    }
    given = [option for option, value in of_translations.items() if value is not None]
    if task == "parsing" and given:
        raise InputError(
            f"{run} is a parser, and only translations have the options {', '.join(given)}"
        )
    if test_set is not None:
        pairs = load_test_set(test_set, opened.source, opened.target)
        name = test_set.replace("/", "-")
    else:
        data = data or opened.settings.get("data")
        if not data:  # of an imported run
            raise InputError(f"{run} was trained elsewhere: give --data or --test-set")
        corpus = load_data(task, data, opened.source, opened.target)
        name = split or ("test" if "test" in corpus.splits else corpus.validation_split) or "test"
        pairs = list(corpus.pairs(name))
    baseline_lines = baseline and read_sentences(baseline, len(pairs))
    translator = Translator.of(opened, checkpoint)
    file = opened.checkpoint(checkpoint).file
    output = run / "evaluation" / name
    options: Any = {
        "beam_size": beam_size,
        "length_penalty": length_penalty,
        "early_stopping": early_stopping,
        "batch_size": batch_size,
        "notes": {"data": data or test_set or "", "checkpoint": file},
    }
    with ProgressBar("Parsing" if task == "parsing" else "Translating", len(pairs)) as progress:
        if task == "parsing":
            evaluate_parses(translator, pairs, output, **options, progress=progress)
        else:
            evaluate(
                translator,
                pairs,
                output,
                opened.target,
                **options,
                tokenized_references=tokenized_references,
                source_language=opened.source,
                tokenize=tokenize,
                progress=progress,
            )
    values = json.loads(Path(f"{output}.scores.json").read_text(encoding="utf-8"))
    values |= {"baseline": None, "output": str(output)}
    if baseline_lines:
        (bleu, signature), p_value = compare(
            read_sentences(f"{output}.hypothesis", len(pairs)),
            baseline_lines,
            [pair.target for pair in pairs],
            translator.tokenizer.lowercase,
            values["tokenize"],
        )
        values["baseline"] = {"bleu": bleu, "signature": signature, "p_value": p_value}
    if as_json:
        print_json(values)
    else:
        for field, label in LABELS.items():
            if found := values.get(field):
                typer.echo(f"{label:26} {found['value']:5.2f}  {found['signature']}")
        if baseline_lines:
            note = f"{signature}, p = {p_value:.4f} by paired bootstrap"
            typer.echo(f"{'BLEU of the baseline':26} {bleu:5.2f}  {note}")
    if task == "parsing":
        say(
            f"EVALB leaves out {values['num_errors']:,} trees whose words differ from the gold "
            f"tree's, punctuation aside, and {values['num_skipped']:,} trees without words"
        )
    say(
        f"Evaluation: {len(pairs):,} sentences by {file}: "
        f"{output}.hypothesis, .reference, .source, .scores.json"
    )
    say_next(["plot", run], ["export", run, "MODELS/NAME"])
