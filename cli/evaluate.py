"""`keras-transformer evaluate`."""

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from keras_transformer.cli.console import (
    ProgressBar,
    load_tensorflow,
    print_json,
    say,
    say_next,
)
from keras_transformer.cli.options import NONE, Checkpoint, Json, RunDirectory, Search, one_or_all
from keras_transformer.config import CheckpointName, DecodingOptions
from keras_transformer.errors import InputError
from keras_transformer.records import checked_dataclass, setting
from keras_transformer.run import Run
from keras_transformer.trainers.data.corpora import Pair
from keras_transformer.trainers.data.languages import LanguagePair, pairs_of
from keras_transformer.trainers.settings import TrainSettings
from keras_transformer.trainers.tasks import Task, task_of

if TYPE_CHECKING:
    from keras_transformer.translator import Translator


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
    source: str | None = None
    """Source language, or several with commas. [default: the run's]"""
    target: str | None = None
    """Target language, or several with commas. [default: the run's]"""
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
        everywhere = ("data", "split", "source", "target")
        values = dataclasses.asdict(self)
        return {name: x or None for name, x in values.items() if name not in everywhere}


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
    replace earlier ones of the same options only. Of several pairs of languages, each has files of
    its own, and the means are printed, too.
    """
    load_tensorflow(searches=True)
    from keras_transformer.translator import Translator

    opened = Run.load(run)
    task = task_of(opened.settings)
    task.check_options(options.of_scores())
    tests, split, data = _read_tests(opened, task, options)
    translator = Translator.of(opened, checkpoint, **search)
    evaluator = _Evaluator(opened, options, translator, checkpoint, split, data)
    texts = {languages: evaluator.texts(languages, pairs) for languages, pairs in tests.items()}
    total = sum(len(pairs) for kinds in texts.values() for pairs in kinds.values())
    with ProgressBar("Evaluating", total) as progress:
        results = {
            languages: evaluator.evaluate(languages, kinds, progress)
            for languages, kinds in texts.items()
        }
    _print_all(results, task.labels, evaluator.bleu, as_json)
    for values in results.values():
        if remark := task.remark(values):
            say(remark)
        say(
            f"Evaluation: {values['num_pairs']:,} sentences by {values['checkpoint']}: "
            f"{values['output']}.hypothesis, .reference, .source, .scores.json"
        )
    say_next(["plot", run], ["export", run, "MODELS/NAME"])


def _read_tests(
    run: Run, task: Task, options: EvaluateOptions
) -> tuple[dict[LanguagePair, list[Pair]], str, Any]:
    """Reads the test set of each pair of languages; also returns its name and where it is from."""
    from keras_transformer.trainers.scoring.evaluation import load_test_set

    settings = TrainSettings.of_run(run)
    source, target = options.source or settings.source, options.target or settings.target
    pairs = pairs_of(source, target) or [(source, target)]
    if len(pairs) > 1 and (options.baseline or options.tokenized_references):
        raise InputError(
            "A file of translations or references belongs to one pair of languages: give --source "
            "and --target"
        )
    if options.test_set is not None:
        tests = {languages: load_test_set(options.test_set, *languages) for languages in pairs}
        return tests, options.test_set.replace("/", "-"), options.test_set
    trained_on = settings.data
    if given := one_or_all(options.data):
        settings = dataclasses.replace(settings, data=given)
    data = settings.with_absolute_paths().data
    learned, used = ({x} if isinstance(x, str) else {*x} for x in (trained_on, data))
    if learned - used and any(Path(name).is_file() for name in learned & used):
        say(
            "warning: the run may have been trained on some of these pairs: the size of all its "
            "data decides what is held out of files. Without --data, its own test pairs are taken"
        )
    if not data:  # of an imported run
        raise InputError(f"{run.path} was trained elsewhere: give --data or --test-set")
    corpus = None
    if len(settings.pairs) > 1 and {*pairs} < {*settings.pairs}:
        # The order of all languages decides what is held out of a pair.
        own = task.load_data(data, settings.source, settings.target, has_all=False)
        corpus = own.only(pairs) if own.parts.keys() & {*pairs} else None
    corpus = corpus or task.load_data(data, source, target)
    split = "test" if "test" in corpus.splits else corpus.validation_split
    split = options.split or split or "test"
    by_pair: dict[LanguagePair, list[Pair]] = {}
    for pair in corpus.pairs(split):
        by_pair.setdefault(pair.languages or pairs[0], []).append(pair._replace(languages=None))
    return by_pair, split, data


class _Evaluator(NamedTuple):
    """Evaluates a run on the texts of pairs of languages."""

    run: Run
    options: EvaluateOptions
    translator: "Translator"
    checkpoint: CheckpointName | None
    split: str
    data: Any  # where the split is from

    @property
    def bleu(self) -> str:
        """The score that a baseline and noise are compared by."""
        return "bleu_lowercased" if self.translator.tokenizer.lowercase else "bleu"

    def texts(self, languages: LanguagePair, pairs: list[Pair]) -> dict[str, list[Pair]]:
        """Returns pairs, with a tag where the model needs one, as they are and changed."""
        from keras_transformer.trainers.data.augmentation import changed_in_all_ways

        if self._is_named(languages):
            sources = [pair.source for pair in pairs]
            asked = self.translator.tokenizer.known_languages.tagged(sources, *languages)
            pairs = [pair._replace(source=x) for pair, x in zip(pairs, asked, strict=True)]
        changed = changed_in_all_ways(pairs, languages) if self.options.noise else {}
        return {"": pairs, **changed}

    def _is_named(self, languages: LanguagePair) -> bool:
        """Returns whether a pair of languages is not the only one of the run."""
        own = TrainSettings.of_run(self.run).pairs
        return len(own) > 1 or languages != (self.run.source, self.run.target)

    def evaluate(
        self,
        languages: LanguagePair,
        texts: Mapping[str, list[Pair]],
        progress: Callable[[int], None],
    ) -> dict[str, Any]:
        """Writes the results of a pair of languages, and returns the scores."""
        from keras_transformer.trainers.scoring import evaluation, scores

        options, (source, target) = self.options, languages
        baseline, prepared = (
            path and evaluation.read_sentences(path, len(texts[""]))
            for path in (options.baseline, options.tokenized_references)
        )
        notes = {"data": self.data, "checkpoint": self.run.checkpoint(self.checkpoint).file}
        if options.tokenized_references:
            notes["tokenized_references"] = str(options.tokenized_references)
        if self._is_named(languages):
            notes |= {"source": source, "target": target}
        outputs = self._outputs(languages, texts, notes)
        for kind, pairs in texts.items():
            evaluation.evaluate(
                self.translator,
                pairs,
                outputs[kind],
                target,
                task=task_of(self.run.settings).name,
                tokenized_references=None if kind else prepared,
                source_language=source,
                tokenize=options.tokenize,
                notes={**notes, "noise": kind} if kind else notes,
                progress=lambda done, total: progress(done),
            )
        written = {kind: evaluation.read_evaluation(path) for kind, path in outputs.items()}
        values = {**written[""].scores, "baseline": None, "output": str(outputs[""])}
        if options.noise:
            noise = {kind: x.scores[self.bleu]["value"] for kind, x in written.items() if kind}
            values["noise"] = noise
        if baseline:
            (value, signature), p_value = scores.compare(
                written[""].hypotheses,
                baseline,
                [pair.target for pair in texts[""]],
                self.translator.tokenizer.lowercase,
                values["tokenize"],
            )
            values["baseline"] = {"bleu": value, "signature": signature, "p_value": p_value}
        return values

    def _outputs(
        self, languages: LanguagePair, kinds: Collection[str], notes: Mapping[str, Any]
    ) -> dict[str, Path]:
        """Returns the path of each kind of text, with a number if it has other options' results."""
        from keras_transformer.trainers.scoring.evaluation import is_free

        search = dataclasses.asdict(self.translator.defaults)
        name = "-".join([self.split, *(languages if self._is_named(languages) else ())])
        path = self.run.path / "evaluation" / f"{name}{self._named_options(languages[1], search)}"
        for number in itertools.count(1):
            numbered = path if number == 1 else Path(f"{path}-{number}")
            outputs = {kind: Path("-".join(filter(None, (str(numbered), kind)))) for kind in kinds}
            if all(
                is_free(output, {**notes, **search, "noise": kind or None})
                for kind, output in outputs.items()
            ):
                break
        if number > 1:
            say(f"{path} has results of other data or of another checkpoint, and keeps them")
        return outputs

    def _named_options(self, target: str, search: Mapping[str, Any]) -> str:
        """Returns the options that are not the run's, for the names of files."""
        from keras_transformer.trainers.scoring.scores import bleu_tokenizer

        own = dataclasses.asdict(DecodingOptions.of(self.run.settings))
        named = {key: value for key, value in search.items() if value != own[key]}
        if self.run.checkpoint(self.checkpoint).file != self.run.checkpoint().file:
            named["checkpoint"] = self.checkpoint
        if self.options.tokenize not in (None, bleu_tokenizer(target)):
            named["tokenize"] = self.options.tokenize
        if self.options.tokenized_references:
            named["tokenized_references"] = self.options.tokenized_references.name
        return "".join(f"-{key}={value}" for key, value in named.items())


def _print_all(
    evaluated: Mapping[LanguagePair, dict[str, Any]],
    labels: Mapping[str, str],
    bleu: str,
    as_json: bool,
) -> None:
    """Prints the scores of each pair of languages, and their means."""
    only, *others = evaluated.values()
    means = {
        field: statistics.fmean(values[field]["value"] for values in evaluated.values())
        for field in labels
        if all(values.get(field) for values in evaluated.values())
    }
    if as_json:
        pairs = {"-".join(languages): values for languages, values in evaluated.items()}
        print_json({"pairs": pairs, "mean": means} if others else only)
        return
    for languages, values in evaluated.items():
        if others:
            typer.echo(" to ".join(languages))
        _print_scores(values, labels, bleu)
    if others:
        typer.echo(f"Mean of {len(evaluated)} pairs of languages")
        for field, value in means.items():
            typer.echo(f"{labels[field]:26} {value:5.2f}")


def _print_scores(values: Mapping[str, Any], labels: Mapping[str, str], bleu: str) -> None:
    for field, label in labels.items():
        if score := values.get(field):
            typer.echo(f"{label:26} {score['value']:5.2f}  {score['signature']}")
    for kind, value in values.get("noise", {}).items():
        share = 100 * value / max(values[bleu]["value"], 1e-9)
        typer.echo(f"{f'BLEU, {kind}':26} {value:5.2f}  {share:.0f} % of the BLEU of clean text")
    if baseline := values["baseline"]:
        note = f"{baseline['signature']}, p = {baseline['p_value']:.4f} by paired bootstrap"
        typer.echo(f"{'BLEU of the baseline':26} {baseline['bleu']:5.2f}  {note}")
