"""Translation quality: sacreBLEU and chrF of a corpus."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import sacrebleu

from keras_transformer.errors import InputError
from keras_transformer.trainers.grammar import Pair
from keras_transformer.translator import Translator


class Scores(NamedTuple):
    """Scores of a corpus, each with the signature that makes it comparable.

    Attributes:
        bleu: sacreBLEU, 0 to 100.
        bleu_signature: its settings and version.
        chrf: chrF2, 0 to 100.
        chrf_signature: its settings and version.
        num_pairs: sentence pairs.
    """

    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str
    num_pairs: int


def score(hypotheses: list[str], references: list[str]) -> Scores:
    """Scores translations against one reference each, by sacreBLEU's defaults (13a, cased)."""
    bleu, chrf = sacrebleu.BLEU(), sacrebleu.CHRF()
    return Scores(
        bleu=bleu.corpus_score(hypotheses, [references]).score,
        bleu_signature=str(bleu.get_signature()),
        chrf=chrf.corpus_score(hypotheses, [references]).score,
        chrf_signature=str(chrf.get_signature()),
        num_pairs=len(references),
    )


def evaluate(
    translator: Translator,
    pairs: Iterable[Pair],
    output: str | Path,
    *,
    beam_size: int = 4,
    alpha: float = 0.6,
    batch_size: int = 64,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Scores:
    """Translates a corpus, scores it, and writes what can be looked at.

    Args:
        translator: model and tokenizer.
        pairs: sources and reference translations.
        output: common path of the files: `.source`, `.reference` and `.hypothesis`, a sentence a
            line, and `.scores.json`.
        beam_size: beams; 1 is greedy search.
        alpha: strength of the length penalty.
        batch_size: most sentences to translate at once.
        progress: called with the number of sentences translated since the last call, and of all.

    Raises:
        InputError: if an option is out of range or the files cannot be written.
    """
    output = Path(output)
    try:  # what cannot be written is known before anything is translated
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"Cannot write {error.filename}: {error.strerror}") from error
    sources, references = map(list, zip(*pairs, strict=True))
    translations = translator.translate(
        sources,
        beam_size=beam_size,
        alpha=alpha,
        batch_size=batch_size,
        progress=lambda done: progress(done, len(sources)),
    )
    hypotheses = [one_line(translation.text) for translation in translations]
    scores = score(hypotheses, references)
    columns = {"source": sources, "reference": references, "hypothesis": hypotheses}
    try:
        for name, lines in columns.items():
            text = "".join(f"{one_line(line)}\n" for line in lines)
            output.with_name(f"{output.name}.{name}").write_text(text, encoding="utf-8")
        values = {**scores._asdict(), "beam_size": beam_size, "alpha": alpha}
        output.with_name(f"{output.name}.scores.json").write_text(
            json.dumps(values, indent=2) + "\n"
        )
    except OSError as error:
        raise InputError(f"Cannot write {error.filename}: {error.strerror}") from error
    return scores


def one_line(text: str) -> str:
    """Joins lines by spaces: a data set may hold line breaks, and a byte token may be one."""
    return " ".join(text.splitlines())
