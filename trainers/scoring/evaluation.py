"""Evaluation of a model on a test set: its results and their scores, as files."""

import dataclasses
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import sacrebleu

from keras_transformer.errors import InputError, as_input_error
from keras_transformer.trainers.data.corpora import Pair, read_lines
from keras_transformer.trainers.tasks import find_task
from keras_transformer.translator import Translator

logger = logging.getLogger(__name__)


class Evaluation(NamedTuple):
    """What `evaluate` wrote about a split."""

    name: str
    scores: dict[str, Any]  # content of `.scores.json`
    sources: list[str]
    references: list[str]
    hypotheses: list[str]


def load_test_set(name: str, source: str, target: str) -> list[Pair]:
    """Reads one of sacreBLEU's test sets, which it downloads the first time."""
    languages = f"{source}-{target}"
    if name not in sacrebleu.DATASETS or languages not in sacrebleu.DATASETS[name].langpairs:
        raise InputError(
            f"sacreBLEU has no test set {name!r} of {languages}. It has, for example, wmt14/full, "
            "wmt16, wmt20, iwslt17 and multi30k/2016"
        )
    # Without a network sacreBLEU ends the program.
    with as_input_error(f"sacreBLEU cannot download {name}", Exception, SystemExit):
        sources = sacrebleu.get_source_file(name, languages)
        references = sacrebleu.get_reference_files(name, languages)[0]
    return list(map(Pair, read_lines(sources), read_lines(references)))


def read_sentences(path: str | Path, count: int) -> list[str]:
    """Reads a file that must have `count` lines."""
    lines = list(read_lines(path))
    if len(lines) != count:
        raise InputError(f"{path} must have {count} lines. Received: {len(lines)} lines")
    return lines


def evaluate(
    translator: Translator,
    pairs: Iterable[Pair],
    output: str | Path,
    language: str,
    *,
    task: str = "translation",
    source_language: str = "en",
    notes: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    **options: Any,
) -> Any:
    """Computes the results for a corpus, scores them, and writes both to files.

    Args:
        translator: model, tokenizer and, as its `defaults`, how to search.
        pairs: sources and targets, as the task reads them: for translation, sentences.
        output: common path of the files: `.source`, `.reference` and `.hypothesis`, one sentence or
            result per line, and `.scores.json`.
        language: target language.
        task: the setting of this name.
        source_language: source language.
        notes: further entries of `.scores.json`.
        progress: called with the number of sentences translated since the last call, and the
            total.
        options: of the task's scores: for translation, `tokenize` and `tokenized_references` of
            `score`.

    Returns:
        The task's scores: for translation, `Scores`.

    Raises:
        InputError: if there are no pairs, or an option is out of range or of another task.
    """
    pairs, chosen = list(pairs), find_task(task)
    if not pairs:
        raise InputError("`pairs` must hold a sentence pair. Received: none")
    chosen.check_options(options)
    given = {name: value for name, value in options.items() if value is not None}
    # Wrong arguments raise an error before the translation, which may take long.
    scorer = chosen.scorer(pairs, language, source_language, **given)
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    sources = [pair.tagged_source for pair in pairs]
    results = translator.translate(sources, progress=lambda done: progress(done, len(pairs)))
    hypotheses = [_join_lines(result.text) for result in results]
    _warn_truncated(sum(result.truncated for result in results), output)
    scores = scorer.score(hypotheses)
    # Scores of an earlier call do not stand beside new translations if this one is interrupted.
    Path(f"{output}.scores.json").unlink(missing_ok=True)
    for name, lines in {
        "source": [pair.source for pair in pairs],
        "reference": scorer.references,
        "hypothesis": hypotheses,
    }.items():
        text = "".join(f"{_join_lines(line)}\n" for line in lines)
        Path(f"{output}.{name}").write_text(text, encoding="utf-8")
    decoding = dataclasses.asdict(translator.defaults)
    content = {**scorer.figures(scores), **(notes or {}), **decoding}
    Path(f"{output}.scores.json").write_text(json.dumps(content, indent=2) + "\n")
    return scores


def _warn_truncated(count: int, output: str | Path) -> None:
    if count:
        logger.warning("%s: the end of %d sources was too long, and was left out", output, count)


def is_free(output: str | Path, options: Mapping[str, Any]) -> bool:
    """Returns whether a path, as of `evaluate`, has no results of other options."""
    try:
        earlier = json.loads(Path(f"{output}.scores.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # none, or damaged ones
        return True
    return all(earlier.get(name) == value for name, value in options.items())


def _join_lines(text: str) -> str:
    """Replaces line breaks, which some data sets hold, by spaces."""
    return " ".join(text.splitlines())


def read_evaluations(folder: Path) -> list[Evaluation]:
    """Reads what `evaluate` wrote to a folder; `InputError` if a file is missing or damaged."""
    return [read_evaluation(folder / name) for name in read_scores(folder)]


def read_evaluation(path: Path) -> Evaluation:
    """Reads the files of a path, as of `evaluate`."""
    scores = _read(Path(f"{path}.scores.json"))
    texts = (
        read_sentences(f"{path}.{kind}", scores["num_pairs"])
        for kind in ("source", "reference", "hypothesis")
    )
    return Evaluation(path.name, scores, *texts)


def read_scores(folder: Path) -> dict[str, dict[str, Any]]:
    """Reads the `.scores.json` of a folder by split; `InputError` if one is damaged."""
    files = sorted(folder.glob("*.scores.json"))
    return {file.name.removesuffix(".scores.json"): _read(file) for file in files}


def _read(file: Path) -> dict[str, Any]:
    with as_input_error(f"{file} is damaged (evaluate the split again)", ValueError):
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return content
