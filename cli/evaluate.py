"""`keras-transformer evaluate`."""

import dataclasses
import itertools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from keras_transformer.cli import options
from keras_transformer.cli.console import (
    ProgressBar,
    load_tensorflow,
    print_json,
    say,
    say_next,
    use_one_thread,
)
from keras_transformer.config import DecodingOptions
from keras_transformer.errors import InputError
from keras_transformer.run import Run
from keras_transformer.trainers.tasks import task_of


def _test_sets() -> list[str]:
    from sacrebleu import get_available_testsets

    return list(get_available_testsets())


def _tokenizers() -> list[str]:
    from sacrebleu import BLEU

    return list(BLEU.TOKENIZERS)


def evaluate_command(
    context: typer.Context,
    run: options.RunDirectory,
    data: Annotated[
        list[str] | None,
        Option(
            help="The corpus, as for train, but not a folder that prepare wrote, which has no "
            "text. May be repeated. [default: the run's]"
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
    beam_size: options.BeamSize = None,
    length_penalty: options.LengthPenalty = None,
    early_stopping: options.EarlyStop = None,
    no_repeat_ngram: options.NoRepeat = None,
    checkpoint: options.Checkpoint = None,
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
    noise: Annotated[
        bool,
        Option(
            "--noise",
            help="Also evaluate on changed text: capitals, other case, quotation marks, list "
            "marks, symbols, typing errors, no final punctuation.",
        ),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Translate or parse a split, and print its scores.

    Each score has the signature of its protocol. The results go to RUN/evaluation, in files named
    after the split and after options that are not the run's, such as test-beam_size=1. They
    replace earlier ones of the same options only.
    """
    if test_set is not None and (data is not None or split is not None):
        raise InputError("Give either --test-set, or --data and --split")
    use_one_thread()
    load_tensorflow()
    from keras_transformer.trainers.data.augmentation import changed_in_all_ways
    from keras_transformer.trainers.scoring.evaluation import (
        evaluate,
        load_test_set,
        read_sentences,
    )
    from keras_transformer.trainers.scoring.scores import bleu_tokenizer, compare
    from keras_transformer.translator import Translator

    opened = Run.load(run)
    task = task_of(opened.settings)
    corpus_of = options.one_or_all(data) or opened.settings.get("data")
    task.check_options(
        {
            "test_set": test_set,
            "tokenized_references": tokenized_references,
            "baseline": baseline,
            "tokenize": tokenize,
            "noise": noise or None,
        }
    )
    if test_set is not None:
        pairs = load_test_set(test_set, opened.source, opened.target)
        name = test_set.replace("/", "-")
    else:
        if not corpus_of:  # of an imported run
            raise InputError(f"{run} was trained elsewhere: give --data or --test-set")
        corpus = task.load_data(corpus_of, opened.source, opened.target)
        name = split or ("test" if "test" in corpus.splits else corpus.validation_split) or "test"
        pairs = list(corpus.pairs(name))
    baseline_lines = baseline and read_sentences(baseline, len(pairs))
    own_references = tokenized_references and read_sentences(tokenized_references, len(pairs))
    translator = Translator.of(opened, checkpoint, **options.search_of(context))
    file = opened.checkpoint(checkpoint).file
    texts = {
        "": pairs,
        **(changed_in_all_ways(pairs, (opened.source, opened.target)) if noise else {}),
    }
    notes = {"data": test_set or corpus_of, "checkpoint": file}
    search = dataclasses.asdict(translator.defaults)
    own = DecodingOptions.of(opened.settings)
    named = {key: value for key, value in search.items() if value != getattr(own, key)}
    if file != opened.checkpoint().file:
        named["checkpoint"] = checkpoint
    if tokenize not in (None, bleu_tokenizer(opened.target)):
        named["tokenize"] = tokenize
    if tokenized_references:
        named["tokenized_references"] = tokenized_references.name
        notes["tokenized_references"] = str(tokenized_references)
    name = "-".join([name, *(f"{key}={value}" for key, value in named.items())])
    output = _output(run / "evaluation" / name, texts, {**search, **notes})
    with ProgressBar("Evaluating", len(texts) * len(pairs)) as progress:
        for kind, changed in texts.items():
            evaluate(
                translator,
                changed,
                _with_kind(output, kind),
                opened.target,
                task=task.name,
                tokenized_references=own_references if not kind else None,
                source_language=opened.source,
                tokenize=tokenize,
                notes={**notes, "noise": kind} if kind else notes,
                progress=lambda done, total: progress(done),
            )
    values = json.loads(Path(f"{output}.scores.json").read_text(encoding="utf-8"))
    values |= {"baseline": None, "output": str(output)}
    bleu_name = "bleu_lowercased" if translator.tokenizer.lowercase else "bleu"
    if noise:
        files = {kind: Path(f"{_with_kind(output, kind)}.scores.json") for kind in texts if kind}
        values["noise"] = {
            kind: json.loads(file.read_text(encoding="utf-8"))[bleu_name]["value"]
            for kind, file in files.items()
        }
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
        for field, label in task.labels.items():
            if found := values.get(field):
                typer.echo(f"{label:26} {found['value']:5.2f}  {found['signature']}")
        for kind, bleu in values.get("noise", {}).items():
            share = 100 * bleu / max(values[bleu_name]["value"], 1e-9)
            typer.echo(f"{f'BLEU, {kind}':26} {bleu:5.2f}  {share:.0f} % of the BLEU of clean text")
        if baseline_lines:
            note = f"{signature}, p = {p_value:.4f} by paired bootstrap"
            typer.echo(f"{'BLEU of the baseline':26} {bleu:5.2f}  {note}")
    if remark := task.remark(values):
        say(remark)
    say(
        f"Evaluation: {len(pairs):,} sentences by {file}: "
        f"{output}.hypothesis, .reference, .source, .scores.json"
    )
    say_next(["plot", run], ["export", run, "MODELS/NAME"])


def _output(path: Path, kinds: Iterable[str], options: Mapping[str, Any]) -> Path:
    """Returns a path for all kinds of text, with a number where results of other options are."""
    from keras_transformer.trainers.scoring.evaluation import is_free

    paths = itertools.chain([path], (Path(f"{path}-{number}") for number in itertools.count(2)))
    chosen = next(
        each
        for each in paths
        if all(
            is_free(_with_kind(each, kind), {**options, "noise": kind or None}) for kind in kinds
        )
    )
    if chosen != path:
        say(f"{path} has results of other data or of another checkpoint, and keeps them")
    return chosen


def _with_kind(output: Path, kind: str) -> str:
    return f"{output}-{kind}" if kind else str(output)
