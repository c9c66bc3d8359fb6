"""`keras-transformer evaluate`."""

import dataclasses
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from keras_transformer.cli.console import (
    ProgressBar,
    load_tensorflow,
    print_json,
    say,
    say_next,
    use_one_thread,
)
from keras_transformer.cli.options import NONE, Checkpoint, Json, RunDirectory, Search, one_or_all
from keras_transformer.config import CheckpointName, DecodingOptions
from keras_transformer.errors import InputError
from keras_transformer.records import checked_dataclass, setting
from keras_transformer.run import Run
from keras_transformer.trainers.data.corpora import Pair
from keras_transformer.trainers.tasks import Task, task_of


def _test_sets() -> Iterator[str]:
    from sacrebleu import get_available_testsets

    yield from get_available_testsets()


def _tokenizers() -> Iterator[str]:
    from sacrebleu import BLEU

    yield from BLEU.TOKENIZERS


@checked_dataclass
class EvaluateOptions:
    """What to evaluate on, and how."""

    data: list[str] | None = None
    """The corpus, as for train, but not a folder that prepare wrote, which has no text. May be
    repeated. [default: the run's]"""
    split: str | None = None
    """Split to translate. [default: test, or the validation split if there is none]"""
    test_set: Annotated[str | None, setting(choices=_test_sets())] = None
    """A test set of sacreBLEU, such as wmt14/full, instead of a corpus."""
    tokenized_references: Path | None = None
    """File of references that the multimodal-translation papers prepared."""
    baseline: Path | None = None
    """File of another system's translations, to test the difference for significance."""
    tokenize: Annotated[str | None, setting(choices=_tokenizers())] = None
    """Tokenizer of sacreBLEU, such as char. [default: the target language's]"""
    noise: bool = False
    """Also evaluate on changed text: capitals, other case, quotation marks, list marks, symbols,
    typing errors, no final punctuation."""

    def __post_init__(self) -> None:
        if self.test_set is not None and (self.data is not None or self.split is not None):
            raise InputError("Give either --test-set, or --data and --split")

    def of_scores(self) -> dict[str, Any]:
        """Returns the options that not all tasks have; None where they are not given."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            name: value or None for name, value in values.items() if name not in ("data", "split")
        }


def evaluate_command(
    run: RunDirectory,
    options: EvaluateOptions = EvaluateOptions(),  # noqa: B008  # it is frozen
    search: Search = NONE,
    checkpoint: Checkpoint = None,
    as_json: Json = False,
) -> None:
    """Translate or parse a split, and print its scores.

    Each score has the signature of its protocol. The results go to RUN/evaluation, in files named
    after the split and after options that are not the run's, such as test-beam_size=1. They
    replace earlier ones of the same options only.
    """
    use_one_thread()
    load_tensorflow()
    from keras_transformer.trainers.data.augmentation import changed_in_all_ways
    from keras_transformer.trainers.scoring.evaluation import evaluate, read_sentences
    from keras_transformer.translator import Translator

    opened = Run.load(run)
    task = task_of(opened.settings)
    task.check_options(options.of_scores())
    name, pairs, data = _read_pairs(opened, task, options)
    baseline, prepared = options.baseline, options.tokenized_references
    baseline_lines = read_sentences(baseline, len(pairs)) if baseline else None
    references = read_sentences(prepared, len(pairs)) if prepared else None
    translator = Translator.of(opened, checkpoint, **search)
    languages = (opened.source, opened.target)
    texts = {"": pairs, **(changed_in_all_ways(pairs, languages) if options.noise else {})}
    notes = {"data": data, "checkpoint": opened.checkpoint(checkpoint).file}
    if prepared:
        notes["tokenized_references"] = str(prepared)
    name += _other_options(opened, options, translator.defaults, checkpoint)
    all_notes = {**notes, **dataclasses.asdict(translator.defaults)}
    output = _output(run / "evaluation" / name, texts, all_notes)
    with ProgressBar("Evaluating", len(texts) * len(pairs)) as progress:
        for kind, changed in texts.items():
            evaluate(
                translator,
                changed,
                _with_kind(output, kind),
                opened.target,
                task=task.name,
                tokenized_references=None if kind else references,
                source_language=opened.source,
                tokenize=options.tokenize,
                notes={**notes, "noise": kind} if kind else notes,
                progress=lambda done, total: progress(done),
            )
    bleu = "bleu_lowercased" if translator.tokenizer.lowercase else "bleu"
    values = _all_scores(output, texts, baseline_lines, bleu)
    _print_scores(values, task.labels, bleu, as_json)
    if remark := task.remark(values):
        say(remark)
    say(
        f"Evaluation: {len(pairs):,} sentences by {notes['checkpoint']}: "
        f"{output}.hypothesis, .reference, .source, .scores.json"
    )
    say_next(["plot", run], ["export", run, "MODELS/NAME"])


def _read_pairs(run: Run, task: Task, options: EvaluateOptions) -> tuple[str, list[Pair], Any]:
    from keras_transformer.trainers.scoring.evaluation import load_test_set

    if options.test_set is not None:
        pairs = load_test_set(options.test_set, run.source, run.target)
        return options.test_set.replace("/", "-"), pairs, options.test_set
    data = one_or_all(options.data) or run.settings.get("data")
    if not data:  # of an imported run
        raise InputError(f"{run.path} was trained elsewhere: give --data or --test-set")
    corpus = task.load_data(data, run.source, run.target)
    split = "test" if "test" in corpus.splits else corpus.validation_split
    split = options.split or split or "test"
    return split, list(corpus.pairs(split)), data


def _other_options(
    run: Run, options: EvaluateOptions, search: DecodingOptions, checkpoint: CheckpointName | None
) -> str:
    """Returns the options that are not the run's, for the names of the files of the results."""
    from keras_transformer.trainers.scoring.scores import bleu_tokenizer

    own = DecodingOptions.of(run.settings)
    values = dataclasses.asdict(search)
    named = {key: value for key, value in values.items() if value != getattr(own, key)}
    if run.checkpoint(checkpoint).file != run.checkpoint().file:
        named["checkpoint"] = checkpoint
    if options.tokenize not in (None, bleu_tokenizer(run.target)):
        named["tokenize"] = options.tokenize
    if options.tokenized_references:
        named["tokenized_references"] = options.tokenized_references.name
    return "".join(f"-{key}={value}" for key, value in named.items())


def _output(path: Path, kinds: Iterable[str], options: Mapping[str, Any]) -> Path:
    """Returns a path for all kinds of text, with a number where results of other options are."""
    from keras_transformer.trainers.scoring.evaluation import is_free

    paths = itertools.chain([path], (Path(f"{path}-{number}") for number in itertools.count(2)))
    chosen = next(
        free
        for free in paths
        if all(
            is_free(_with_kind(free, kind), {**options, "noise": kind or None}) for kind in kinds
        )
    )
    if chosen != path:
        say(f"{path} has results of other data or of another checkpoint, and keeps them")
    return chosen


def _with_kind(output: Path, kind: str) -> str:
    return f"{output}-{kind}" if kind else str(output)


def _read_scores(output: Path | str) -> dict[str, Any]:
    scores: dict[str, Any] = json.loads(Path(f"{output}.scores.json").read_text(encoding="utf-8"))
    return scores


def _all_scores(
    output: Path, texts: Mapping[str, list[Pair]], baseline: list[str] | None, bleu: str
) -> dict[str, Any]:
    """Returns the scores of all kinds of text, and the significance of a baseline's distance."""
    from keras_transformer.trainers.scoring.evaluation import read_sentences
    from keras_transformer.trainers.scoring.scores import compare

    values = {**_read_scores(output), "baseline": None, "output": str(output)}
    kinds = {kind: _read_scores(_with_kind(output, kind)) for kind in texts if kind}
    if kinds:
        values["noise"] = {kind: scores[bleu]["value"] for kind, scores in kinds.items()}
    if baseline:
        (value, signature), p_value = compare(
            read_sentences(f"{output}.hypothesis", len(baseline)),
            baseline,
            [pair.target for pair in texts[""]],
            bleu == "bleu_lowercased",
            values["tokenize"],
        )
        values["baseline"] = {"bleu": value, "signature": signature, "p_value": p_value}
    return values


def _print_scores(
    values: Mapping[str, Any], labels: Mapping[str, str], bleu: str, as_json: bool
) -> None:
    if as_json:
        print_json(values)
        return
    for field, label in labels.items():
        if score := values.get(field):
            typer.echo(f"{label:26} {score['value']:5.2f}  {score['signature']}")
    for kind, value in values.get("noise", {}).items():
        share = 100 * value / max(values[bleu]["value"], 1e-9)
        typer.echo(f"{f'BLEU, {kind}':26} {value:5.2f}  {share:.0f} % of the BLEU of clean text")
    if baseline := values["baseline"]:
        note = f"{baseline['signature']}, p = {baseline['p_value']:.4f} by paired bootstrap"
        typer.echo(f"{'BLEU of the baseline':26} {baseline['bleu']:5.2f}  {note}")
