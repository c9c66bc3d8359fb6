"""Translation quality as the papers measure it, each figure with the signature of its protocol."""

import importlib.metadata
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import sacrebleu
from sacrebleu.significance import PairedTest
from sacremoses import MosesPunctNormalizer, MosesTokenizer

from keras_transformer.errors import InputError
from keras_transformer.files import named_failure, write_whole
from keras_transformer.trainers.corpora import read_lines
from keras_transformer.trainers.grammar import Pair
from keras_transformer.translator import Translator

NUM_RESAMPLES = 1_000


class Score(NamedTuple):
    """A score of a corpus.

    Attributes:
        value: 0 to 100.
        signature: what makes it comparable: sacreBLEU's settings and version, then ours.
    """

    value: float
    signature: str


class Scores(NamedTuple):
    """Scores of a corpus by each protocol; figures of different protocols do not compare.

    Attributes:
        bleu: sacreBLEU's default: raw text, tokenised by 13a, with case.
        bleu_lowercased: the same without case.
        bleu_multimodal: of the multimodal-translation papers: lower-cased, then Moses's normalised
            punctuation and tokenisation.
        bleu_paper: of the paper's Table 2: Moses's tokenisation, with case and, for German, with
            compounds split at hyphens.
        chrf: chrF2 of raw text.
        num_pairs: sentence pairs.
    """

    bleu: Score
    bleu_lowercased: Score
    bleu_multimodal: Score
    bleu_paper: Score
    chrf: Score
    num_pairs: int


def score(
    hypotheses: Sequence[str],
    references: Sequence[str],
    language: str,
    tokenized_references: Sequence[str] | None = None,
) -> Scores:
    """Scores translations against one reference each.

    Args:
        hypotheses: translations, raw text.
        references: raw text.
        language: of both, for Moses's tokeniser.
        tokenized_references: the references as the multimodal-translation papers prepared them;
            None to prepare them here.
    """

    def corpus_bleu(
        hypotheses: Sequence[str], references: Sequence[str], note: str, **options: Any
    ) -> Score:
        # `force` accepts tokenised text without a warning.
        bleu = sacrebleu.BLEU(force=True, **options)
        value = bleu.corpus_score(hypotheses, [references]).score
        return Score(value, f"{bleu.get_signature()}{note}")

    multimodal = multimodal_form(hypotheses, language)
    origin = "given"
    if tokenized_references is None:
        origin = "prepared"
        tokenized_references = multimodal_form(references, language)
    moses = f"|sacremoses:{importlib.metadata.version('sacremoses')}|lang:{language}"
    split = "|compounds:split" if language == "de" else ""
    chrf = sacrebleu.CHRF()
    return Scores(
        bleu=corpus_bleu(hypotheses, references, ""),
        bleu_lowercased=corpus_bleu(hypotheses, references, "", lowercase=True),
        bleu_multimodal=corpus_bleu(
            multimodal,
            tokenized_references,
            f"{moses}|punct:normalised|text:lc|refs:{origin}",
            tokenize="none",
        ),
        bleu_paper=corpus_bleu(
            paper_form(hypotheses, language),
            paper_form(references, language),
            f"{moses}|punct:ascii{split}",
            tokenize="none",
        ),
        chrf=Score(chrf.corpus_score(hypotheses, [references]).score, str(chrf.get_signature())),
        num_pairs=len(references),
    )


def multimodal_form(texts: Iterable[str], language: str) -> list[str]:
    """Prepares raw text as the multimodal-translation papers do."""
    normalizer, tokenizer = MosesPunctNormalizer(language), MosesTokenizer(language)
    return [
        tokenizer.tokenize(normalizer.normalize(text.lower()), return_str=True) for text in texts
    ]


def paper_form(texts: Iterable[str], language: str) -> list[str]:
    """Prepares raw text as for the figures of Table 2.

    It is what tensor2tensor's script for them does to translations. Their references were
    tokenised already; ours are raw text, and prepared alike.
    """
    normalizer, tokenizer = MosesPunctNormalizer(language), MosesTokenizer(language)
    lines = [
        tokenizer.tokenize(normalizer.replace_unicode_punct(text), return_str=True)
        for text in texts
    ]
    if language == "de":
        return [re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", line) for line in lines]
    return lines


class Comparison(NamedTuple):
    """A paired bootstrap test against another system (Koehn 2004).

    Attributes:
        baseline: BLEU of the other system; its signature is the test's.
        p_value: how likely a difference at least as large is by chance.
    """

    baseline: Score
    p_value: float


def compare(
    hypotheses: Sequence[str],
    baseline: Sequence[str],
    references: Sequence[str],
    lowercase: bool = False,
) -> Comparison:
    """Tests whether the BLEU (13a) of two systems differs by more than chance.

    Args:
        hypotheses: translations.
        baseline: the other system's.
        references: of both.
        lowercase: whether case does not count.

    Raises:
        InputError: if the other system has another number of translations.
    """
    if len(baseline) != len(references):
        raise InputError(
            f"The baseline must have a line for each of the {len(references)} references. "
            f"Received: {len(baseline)} lines"
        )
    test = PairedTest(
        [("baseline", baseline), ("this", hypotheses)],
        {"BLEU": sacrebleu.BLEU(lowercase=lowercase)},
        references=[references],
        test_type="bs",
        n_samples=NUM_RESAMPLES,
    )
    found: tuple[dict[str, Any], dict[str, list[Any]]] = test()
    signatures, columns = found
    other, this = columns["BLEU"]
    # sacreBLEU takes even no difference for a significant one.
    p_value = 1.0 if this.score == other.score else this.p_value
    return Comparison(Score(other.score, str(signatures["BLEU"])), p_value)


def load_test_set(name: str, source: str, target: str) -> list[Pair]:
    """Reads one of sacreBLEU's test sets, which it downloads the first time.

    Args:
        name: for example "wmt14/full".
        source: source language.
        target: target language.

    Raises:
        InputError: if there is no such test set, or it cannot be downloaded.
    """
    languages = f"{source}-{target}"
    if name not in sacrebleu.DATASETS:
        raise InputError(
            f"sacreBLEU has no test set {name!r}. There are, for example: "
            "wmt14/full, wmt16, wmt20, iwslt17, multi30k/2016"
        )
    if languages not in sacrebleu.DATASETS[name].langpairs:
        pairs = ", ".join(sacrebleu.DATASETS[name].langpairs)
        raise InputError(f"The test set {name} holds {pairs}. Received: {languages}")
    try:
        files = [
            sacrebleu.get_source_file(name, languages),
            sacrebleu.get_reference_files(name, languages)[0],
        ]
    except SystemExit as error:  # it ends the program when there is no network
        raise InputError(
            f"sacreBLEU cannot download the test set {name}, for the reason that it gives above"
        ) from error
    except Exception as error:  # of the network, the disk, the archive, ...
        raise InputError(f"sacreBLEU cannot download the test set {name}: {error}") from error
    sources, references = (list(read_lines(file)) for file in files)
    if len(sources) != len(references):
        raise InputError(
            f"{files[0]} and {files[1]} must have as many lines as each other: delete them, and "
            f"they are downloaded again. Received: {len(sources)} and {len(references)}"
        )
    return [Pair(*pair) for pair in zip(sources, references, strict=True)]


def read_sentences(path: str | Path, count: int) -> list[str]:
    """Reads a file that must have `count` lines.

    Raises:
        InputError: if it cannot be read, or has another number of lines.
    """
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
    beam_size: int | None = None,
    alpha: float | None = None,
    batch_size: int = 64,
    tokenized_references: str | Path | None = None,
    notes: dict[str, str] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Scores:
    """Translates a corpus, scores it, and writes what can be looked at.

    Args:
        translator: model and tokenizer.
        pairs: sources and reference translations.
        output: common path of the files: `.source`, `.reference` and `.hypothesis`, a sentence a
            line, and `.scores.json`.
        language: target language.
        beam_size: beams; 1 is greedy search; None for the translator's default.
        alpha: strength of the length penalty; None for the translator's default.
        batch_size: most sentences to translate at once.
        tokenized_references: file of the references as the multimodal-translation papers
            prepared them.
        notes: what else `.scores.json` is to say.
        progress: called with the number of sentences translated since the last call, and of all.

    Raises:
        InputError: if there are no pairs, an option is out of range, or a file cannot be read or
            written.
    """
    output, pairs = Path(output), list(pairs)
    if not pairs:
        raise InputError("`pairs` must hold a sentence pair. Received: none")
    sources, references = map(list, zip(*pairs, strict=True))
    tokenized = tokenized_references and read_sentences(tokenized_references, len(references))
    _check_room(output, "\n".join(references))
    translations = translator.translate(
        sources,
        beam_size=beam_size,
        alpha=alpha,
        batch_size=batch_size,
        progress=lambda done: progress(done, len(sources)),
    )
    hypotheses = [one_line(translation.text) for translation in translations]
    scores = score(hypotheses, references, language, tokenized or None)
    columns = {"source": sources, "reference": references, "hypothesis": hypotheses}
    values = {
        name: value._asdict() if isinstance(value, Score) else value
        for name, value in scores._asdict().items()
    }
    options = translator.decoding_options(beam_size, alpha)
    values |= {**(notes or {}), "beam_size": options.beam_size, "alpha": options.alpha}
    for name, lines in columns.items():
        _write(output, name, "".join(f"{one_line(line)}\n" for line in lines))
    _write(output, "scores.json", json.dumps(values, indent=2) + "\n")
    return scores


def _check_room(output: Path, text: str) -> None:
    """Raises `InputError`, before anything is translated, if so much text cannot be written."""
    trial = output.with_name(f"{output.name}.trial.tmp")
    with named_failure(output.with_name(f"{output.name}.hypothesis")):
        output.parent.mkdir(parents=True, exist_ok=True)
        try:
            trial.write_text(text, encoding="utf-8")
        finally:
            trial.unlink(missing_ok=True)


def _write(output: Path, ending: str, text: str) -> None:
    write_whole(output.with_name(f"{output.name}.{ending}"), text.encode())


def one_line(text: str) -> str:
    """Joins lines by spaces: a data set may hold line breaks, and a byte token may be one."""
    return " ".join(text.splitlines())
