"""What a model learns to do: the task, and all that depends on it.

A task says where its data comes from, which tokenizer and scores it has, and which settings fit it.
Translation is the first one. An optional room brings another by the name of its class
(`keras_transformer/registry.py`), which is imported when a run has that task.

Settings are checked before TensorFlow is imported: a task's module imports it in functions only.
"""

import abc
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from keras_transformer.errors import InputError, require
from keras_transformer.registry import TASKS, load
from keras_transformer.trainers.data.corpora import Corpus, Pair, load_corpus

if TYPE_CHECKING:
    from keras_transformer.config import ModelConfig
    from keras_transformer.tokenizers import Tokenizer
    from keras_transformer.trainers.scoring.evaluation import Evaluation
    from keras_transformer.trainers.scoring.scores import Scores
    from keras_transformer.trainers.settings import TrainSettings

# Takes results, and the pairs of their sources.
Scorer = Callable[[Sequence[str], Sequence[Pair]], float]


class ScoringProtocol(NamedTuple):
    """How to score a test set; the attributes are arguments of `score`."""

    language: str
    source_language: str
    tokenize: str | None
    tokenized_references: Sequence[str] | None


class Drawing(NamedTuple):
    """A picture of results, for the report of a run."""

    name: str  # of its file
    draw: Callable[..., Any]  # takes a `style`, and returns a figure
    caption: str = ""


class Task(abc.ABC):
    """A task of a model, `Translation` for example.

    Attributes:
        name: the setting `task`.
        defaults: the settings that differ from the defaults of `TrainSettings`.
        metrics: the scores that the setting `metric` may name, the usual one first, with what
            people call them.
        drops_unknown: whether training drops a pair with a token that the tokenizer does not have.
        options: the options of an evaluation that not all tasks have.
        labels: the name of each of the `figures` in tables, the important ones first.
        num_examples: how many of the best, the median and the worst results a report shows.
    """

    name: str
    defaults: Mapping[str, Any] = MappingProxyType({})
    metrics: Mapping[str, str]
    drops_unknown: bool = False
    options: tuple[str, ...] = ()
    labels: Mapping[str, str]
    num_examples: int = 3

    def check(self, settings: "TrainSettings", config: "ModelConfig") -> None:
        """Raises `InputError` if settings, or the sizes of a model, do not fit the task."""
        require(
            config.task in (None, self.name),
            f"`architecture` {config.architecture} needs `task` {config.task}",
            task=self.name,
        )

    def check_options(self, given: Mapping[str, Any]) -> None:
        """Raises `InputError` for an option, given and not None, that the task does not have."""
        others = [each for each in given if given[each] is not None and each not in self.options]
        if others:
            raise InputError(f"An evaluation of the task {self.name} has no {', '.join(others)}")

    @abc.abstractmethod
    def load_data(self, data: str | list[str], source: str, target: str) -> Corpus:
        """Finds the data that the settings `data`, `source` and `target` name."""

    @abc.abstractmethod
    def learn_tokenizer(
        self, settings: "TrainSettings", corpus: Corpus, vocab_size: int
    ) -> "Tokenizer":
        """Learns the tokenizer of a corpus, with at most so many subwords."""

    def adapt_tokenizer(
        self, settings: "TrainSettings", corpus: Corpus, tokenizer: "Tokenizer"
    ) -> "Tokenizer":
        """Returns the tokenizer of another run, with what settings add to it."""
        return tokenizer

    @abc.abstractmethod
    def validation_scorers(self, settings: "TrainSettings", lowercase: bool) -> dict[str, Scorer]:
        """Returns the scores of a validation by name, the usual one first.

        Args:
            settings: of the training.
            lowercase: whether the tokenizer lower-cases all text.
        """

    @abc.abstractmethod
    def scorer(
        self, pairs: Sequence[Pair], protocol: ScoringProtocol
    ) -> Callable[[Sequence[str]], Any]:
        """Returns a function that scores the results of a test set."""

    @abc.abstractmethod
    def figures(self, scores: Any) -> dict[str, Any]:
        """Returns the scores of a test set as JSON holds them, `num_pairs` among them."""

    def remark(self, figures: Mapping[str, Any]) -> str:
        """Returns what to know about figures, in one sentence; empty if there is nothing."""
        return ""

    def reference(self, pair: Pair) -> str:
        """Returns the right result for a source."""
        return pair.target

    @abc.abstractmethod
    def sentence_scores(self, found: "Evaluation", lowercase: bool) -> tuple[str, list[float]]:
        """Returns the name of a score, such as chrF, and the score of each result."""

    def overview(self, found: "Evaluation", lowercase: bool) -> Drawing | None:
        """Returns a picture of all results, if the task has one."""
        return None

    def picture(self, found: "Evaluation", row: int) -> Drawing | None:
        """Returns a picture of one result, if the task has one."""
        return None


class Translation(Task):
    """From one language to another."""

    name = "translation"
    metrics = MappingProxyType({"bleu": "BLEU", "chrf": "chrF"})
    options = ("test_set", "tokenized_references", "baseline", "tokenize", "noise")
    labels = MappingProxyType(
        {
            "bleu": "BLEU",
            "bleu_lowercased": "BLEU, lower-cased",
            "bleu_multimodal": "BLEU, multimodal protocol",
            "bleu_paper": "BLEU, the paper's protocol",
            "chrf": "chrF",
        }
    )

    def load_data(self, data: str | list[str], source: str, target: str) -> Corpus:
        """Finds a parallel corpus; see `load_corpus`."""
        return load_corpus(data, source, target)

    def learn_tokenizer(
        self, settings: "TrainSettings", corpus: Corpus, vocab_size: int
    ) -> "Tokenizer":
        """Learns a tokenizer of both languages."""
        from keras_transformer.tokenizers import train_tokenizer

        languages = settings.source, settings.target
        if settings.protect:
            from keras_transformer.protection.tokenizer import ProtectingTokenizer

            return ProtectingTokenizer.learn(
                lambda: (pair.sides for pair in corpus.pairs("train")),
                vocab_size,
                settings.protect,
                settings.protect_free,
                "bpe" if settings.tokenizer == "bpe" else "unigram",
                settings.lowercase,
                languages,
            )
        pairs, same_pairs = itertools.tee(corpus.pairs("train"))
        sources, targets = (pair.source for pair in pairs), (pair.target for pair in same_pairs)
        return train_tokenizer(
            settings.tokenizer, sources, vocab_size, settings.lowercase, targets, languages
        )

    def adapt_tokenizer(
        self, settings: "TrainSettings", corpus: Corpus, tokenizer: "Tokenizer"
    ) -> "Tokenizer":
        """Adds protection to a tokenizer that has none."""
        if not settings.protect:
            return tokenizer
        from keras_transformer.protection.tokenizer import ProtectingTokenizer

        pairs = (pair.sides for pair in corpus.pairs("train"))
        return ProtectingTokenizer.extend(tokenizer, pairs, settings.protect, settings.protect_free)

    def validation_scorers(self, settings: "TrainSettings", lowercase: bool) -> dict[str, Scorer]:
        """Returns BLEU by the target's tokenizer, and chrF if it is `metric`."""
        import sacrebleu  # takes time

        from keras_transformer.trainers.scoring.scores import bleu_tokenizer, make_bleu

        def scorer(metric: sacrebleu.BLEU | sacrebleu.CHRF) -> Scorer:
            return lambda texts, pairs: (
                metric.corpus_score(texts, [[pair.target for pair in pairs]]).score
            )

        scorers = {"val_bleu": scorer(make_bleu(bleu_tokenizer(settings.target), lowercase))}
        if settings.metric == "chrf":
            scorers["val_chrf"] = scorer(sacrebleu.CHRF(lowercase=lowercase))
        return scorers

    def scorer(
        self, pairs: Sequence[Pair], protocol: ScoringProtocol
    ) -> Callable[[Sequence[str]], "Scores"]:
        """Returns `score` of translations."""
        from keras_transformer.trainers.scoring import scores

        # An error shows before the translation, which may take long.
        scores.make_bleu(protocol.tokenize or scores.bleu_tokenizer(protocol.language))
        references = [pair.target for pair in pairs]
        return lambda hypotheses: scores.score(hypotheses, references, **protocol._asdict())

    def figures(self, scores: "Scores") -> dict[str, Any]:
        """Returns each score with its signature."""
        return {
            name: value._asdict() if hasattr(value, "_asdict") else value
            for name, value in scores._asdict().items()
        }

    def sentence_scores(self, found: "Evaluation", lowercase: bool) -> tuple[str, list[float]]:
        """Returns the chrF of each translation."""
        from keras_transformer.trainers.scoring.breakdown import sentence_chrf

        return "chrF", sentence_chrf(found.hypotheses, found.references, lowercase)

    def overview(self, found: "Evaluation", lowercase: bool) -> Drawing:
        """Returns BLEU by length, in the tokens of the scores."""
        from keras_transformer import plots
        from keras_transformer.trainers.scoring.breakdown import bleu_by_length

        texts, tokenize = (found.hypotheses, found.references), found.scores["tokenize"]
        groups = bleu_by_length(*texts, tokenize=tokenize, lowercase=lowercase)
        return Drawing(
            "bleu-by-length",
            functools.partial(plots.bleu_by_length, groups, tokenize=tokenize),
            "BLEU of sentences of similar length, in tokens of the reference as sacreBLEU counts "
            "them.",
        )


def task_names() -> list[str]:
    """Returns the names of all tasks."""
    return list(TASKS)


def find_task(name: Any) -> Task:
    """Returns a task; `InputError` if there is none of this name."""
    if name not in TASKS:
        raise InputError(f"`task` must be one of {', '.join(TASKS)}. Received: task={name!r}")
    task: Task = load(TASKS[name])()
    return task


def task_of(settings: Mapping[str, Any]) -> Task:
    """Returns the task that settings name, as plain values; they may be older than the setting."""
    return find_task(settings.get("task", Translation.name))


def metric_labels() -> dict[str, str]:
    """Returns the `metrics` of all tasks."""
    tasks = map(find_task, task_names())
    return {name: label for task in tasks for name, label in task.metrics.items()}
