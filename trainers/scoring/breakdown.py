"""Scores of parts of a test set: of short and of long sentences, and of each translation."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import sacrebleu

from keras_transformer.trainers.scoring.scores import make_bleu


class LengthGroup(NamedTuple):
    """Translations whose references have about the same number of tokens."""

    shortest: int
    longest: int
    num_pairs: int
    bleu: float


def bleu_by_length(
    hypotheses: Sequence[str],
    references: Sequence[str],
    bounds: Sequence[int] | None = None,
    tokenize: str = "13a",
    lowercase: bool = False,
) -> list[LengthGroup]:
    """Returns the BLEU of short and of long sentences, which `plots.bleu_by_length` draws.

    Args:
        hypotheses: translations, raw text.
        references: raw text, as many.
        bounds: the longest length of each group but the last; None for up to six groups with about
            the same number of sentences.
        tokenize: sacreBLEU's tokenizer, which also counts a reference's tokens.
        lowercase: whether to ignore case.

    Raises:
        InputError: if sacreBLEU has no such tokenizer, or cannot load it.
    """
    bleu = make_bleu(tokenize, lowercase)
    lengths = np.array([len(bleu.tokenizer(reference).split()) for reference in references])
    if bounds is None:
        bounds = np.unique(np.quantile(lengths, np.arange(1, 6) / 6, method="lower")).tolist()
    groups = []
    for below, longest in itertools.pairwise([-1, *bounds, int(lengths.max())]):
        rows = np.flatnonzero((lengths > below) & (lengths <= longest)).tolist()
        if rows:
            texts = [hypotheses[row] for row in rows]
            score = bleu.corpus_score(texts, [[references[row] for row in rows]]).score
            own = lengths[rows]
            groups.append(LengthGroup(int(own.min()), int(own.max()), len(rows), score))
    return groups


def sentence_chrf(
    hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False
) -> list[float]:
    """Returns the chrF of each translation."""
    chrf = sacrebleu.CHRF(lowercase=lowercase)
    pairs = zip(hypotheses, references, strict=True)
    return [chrf.sentence_score(hypothesis, [reference]).score for hypothesis, reference in pairs]
