"""What a model learns to do: the task, and all that depends on it.

A task says where its data comes from, which tokenizer and scores it has, and which settings fit it.
`keras_transformer/registry.py` names the tasks, and a task is imported when a run has it.

Settings are checked before TensorFlow is imported: a task's module imports it in functions only.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from keras_transformer.errors import InputError, require
from keras_transformer.registry import TASKS, load
from keras_transformer.trainers.data.corpora import Corpus, Pair

if TYPE_CHECKING:
    from keras_transformer.config import ModelConfig
    from keras_transformer.tokenizers import Tokenizer
    from keras_transformer.trainers.scoring.evaluation import Evaluation
    from keras_transformer.trainers.settings import TrainSettings

# From results, and the pairs of their sources, to a score.
Metric = Callable[[Sequence[str], Sequence[Pair]], float]


class Scorer(NamedTuple):
    """How to score the results of a test set."""

    references: list[str]  # the right result for each source
    score: Callable[[Sequence[str]], Any]  # from results to the scores of the task
    figures: Callable[[Any], dict[str, Any]]  # from scores to what JSON holds, with `num_pairs`


class Drawing(NamedTuple):
    """A picture of results, for the report of a run."""

    name: str  # of its file
    draw: Callable[..., Any]  # takes a `style`, and returns a figure
    caption: str = ""


class Breakdown(NamedTuple):
    """What the report of a run shows of an evaluation."""

    metric: str  # such as chrF
    scores: list[float]  # of each result
    num_examples: int  # of the best, the median and the worst results
    overview: Drawing | None = None  # all results
    picture: Callable[[int], Drawing | None] = lambda row: None  # one result


@dataclasses.dataclass(frozen=True)
class Task:
    """A task of a model: names, and functions."""

    name: str  # the setting `task`
    # The scores that the setting `metric` may name, the usual one first; what people call them.
    metrics: Mapping[str, str]
    labels: Mapping[str, str]  # the `figures` that tables show, the important ones first
    # Finds the data that the settings `data`, `source` and `target` name; perhaps not all of
    # several languages with `has_all=False`.
    load_data: Callable[..., Corpus]
    # Learns the tokenizer of a corpus, with at most so many subwords.
    learn_tokenizer: Callable[["TrainSettings", Corpus, int], "Tokenizer"]
    # Returns the metrics of a validation, the usual one first; of a lower-casing tokenizer if True.
    validation_metrics: Callable[["TrainSettings", bool], dict[str, Metric]]
    # Takes pairs, the target and the source language, and, by name, some of the `options`.
    scorer: Callable[..., Scorer]
    breakdown: Callable[["Evaluation", bool], Breakdown]
    options: tuple[str, ...] = ()  # of an evaluation: those that not all tasks have
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of settings
    drops_unknown: bool = False  # pairs with a token that the tokenizer does not have
    # Raises `InputError` if settings, or the sizes of a model, do not fit.
    check_settings: Callable[["TrainSettings", "ModelConfig"], None] = lambda settings, config: None
    # Returns the tokenizer of another run, with what settings add to it.
    adapt_tokenizer: Callable[["TrainSettings", Corpus, "Tokenizer"], "Tokenizer"] = (
        lambda settings, corpus, tokenizer: tokenizer
    )
    # Returns what to know about figures, in one sentence; empty if there is nothing.
    remark: Callable[[Mapping[str, Any]], str] = lambda figures: ""

    def check(self, settings: "TrainSettings", config: "ModelConfig") -> None:
        """Raises `InputError` if settings, or the sizes of a model, do not fit the task."""
        require(
            config.task in (None, self.name),
            f"`architecture` {config.architecture} needs `task` {config.task}",
            task=self.name,
        )
        self.check_settings(settings, config)

    def check_options(self, given: Mapping[str, Any]) -> None:
        """Raises `InputError` for an option, given and not None, that the task does not have."""
        others = [name for name in given if given[name] is not None and name not in self.options]
        if others:
            raise InputError(f"An evaluation of the task {self.name} has no {', '.join(others)}")


def find_task(name: Any) -> Task:
    """Returns a task; `InputError` if there is none of this name."""
    if name not in TASKS:
        raise InputError(f"`task` must be one of {', '.join(TASKS)}. Received: task={name!r}")
    task: Task = load(TASKS[name])
    return task


def task_of(settings: Mapping[str, Any]) -> Task:
    """Returns the task that settings name, as plain values."""
    return find_task(settings.get("task", "translation"))


def metric_labels() -> dict[str, str]:
    """Returns the `metrics` of all tasks."""
    return {name: label for task in map(find_task, TASKS) for name, label in task.metrics.items()}
