"""Evaluation of a model on a test set: its results and their scores, as files."""

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import sacrebleu

from keras_transformer.errors import InputError
from keras_transformer.trainers.data.corpora import Pair, read_lines
from keras_transformer.trainers.tasks import ScoringProtocol, find_task
from keras_transformer.translator import Translator


def load_test_set(name: str, source: str, target: str) -> list[Pair]:
    """Reads one of sacreBLEU's test sets, which it downloads the first time.

    Raises:
        InputError: if there is no such test set, or it cannot be downloaded.
    """
    languages = f"{source}-{target}"
    if name not in sacrebleu.DATASETS or languages not in sacrebleu.DATASETS[name].langpairs:
        raise InputError(
            f"sacreBLEU has no test set {name!r} of {languages}. It has, for example, wmt14/full, "
            "wmt16, wmt20, iwslt17 and multi30k/2016"
        )
    try:
        sources = sacrebleu.get_source_file(name, languages)
        references = sacrebleu.get_reference_files(name, languages)[0]
    except (Exception, SystemExit) as error:  # without a network sacreBLEU ends the program
        raise InputError(f"sacreBLEU cannot download {name}: {error!r}") from error
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
    tokenized_references: str | Path | None = None,
    source_language: str = "en",
    tokenize: str | None = None,
    notes: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Any:
    """Computes the results for a corpus, scores them, and writes both to files.

    Args:
        translator: model, tokenizer and, as its `defaults`, how to search.
        pairs: sources and targets, as the task reads them: for translation, sentences.
        output: common path of the files: `.source`, `.reference` and `.hypothesis`, one sentence or
            result per line, and `.scores.json`.
        language: target language.
        task: the setting of this name.
        tokenized_references: file of the references as the multimodal-translation papers
            prepared them; for translation only.
        source_language: as for `score`.
        tokenize: as for `score`; for translation only.
        notes: further entries of `.scores.json`.
        progress: called with the number of sentences translated since the last call, and the
            total.

    Returns:
        The task's scores: for translation, `Scores`.

    Raises:
        InputError: if there are no pairs, an option is out of range, or a file cannot be read.
    """
    pairs = list(pairs)
    if not pairs:
        raise InputError("`pairs` must hold a sentence pair. Received: none")
    chosen = find_task(task)
    chosen.check_options({"tokenize": tokenize, "tokenized_references": tokenized_references})
    # Wrong arguments raise an error before the translation, which may take long.
    tokenized = read_sentences(tokenized_references, len(pairs)) if tokenized_references else None
    scorer = chosen.scorer(pairs, ScoringProtocol(language, source_language, tokenize, tokenized))
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    found = translator.translate(
        [pair.source for pair in pairs],
        progress=lambda done: progress(done, len(pairs)),
    )
    hypotheses = [_join_lines(each.text) for each in found]
    scores = scorer(hypotheses)
    # Scores of an earlier call do not stand beside new translations if this one is interrupted.
    Path(f"{output}.scores.json").unlink(missing_ok=True)
    for name, lines in {
        "source": [pair.source for pair in pairs],
        "reference": [chosen.reference(pair) for pair in pairs],
        "hypothesis": hypotheses,
    }.items():
        text = "".join(f"{_join_lines(line)}\n" for line in lines)
        Path(f"{output}.{name}").write_text(text, encoding="utf-8")
    decoding = dataclasses.asdict(translator.defaults)
    content = {**chosen.figures(scores), **(notes or {}), **decoding}
    Path(f"{output}.scores.json").write_text(json.dumps(content, indent=2) + "\n")
    return scores


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


class Evaluation(NamedTuple):
    """What `evaluate` wrote about a split."""

    name: str
    scores: dict[str, Any]  # content of `.scores.json`
    sources: list[str]
    references: list[str]
    hypotheses: list[str]


def read_evaluations(folder: Path) -> list[Evaluation]:
    """Reads what `evaluate` wrote to a folder; `InputError` if a file is missing or damaged."""
    evaluations = []
    for name, scores in read_scores(folder).items():
        texts = (
            read_sentences(folder / f"{name}.{kind}", scores["num_pairs"])
            for kind in ("source", "reference", "hypothesis")
        )
        evaluations.append(Evaluation(name, scores, *texts))
    return evaluations


def read_scores(folder: Path) -> dict[str, dict[str, Any]]:
    """Reads the `.scores.json` of a folder by split; `InputError` if one is damaged."""
    found = {}
    for file in sorted(folder.glob("*.scores.json")):
        try:
            scores = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(f"{file} is damaged: evaluate the split again") from error
        found[file.name.removesuffix(".scores.json")] = scores
    return found
