"""Pairs of monolingual text: a model of the other direction writes their sources.

Sennrich et al. (2016, arXiv:1511.06709). Such a pair is synthetic, and its source is marked, so
that the model learns to tell it from one that a person wrote (Caswell et al., 2019,
arXiv:1906.06442).
"""

import functools
import hashlib
import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from keras_transformer.errors import InputError
from keras_transformer.files import write_atomically
from keras_transformer.run import Run
from keras_transformer.trainers.data.corpora import Pair, read_lines, split_files
from keras_transformer.trainers.data.languages import LanguagePair, tagged
from keras_transformer.translator import Translator

logger = logging.getLogger(__name__)

LINES_PER_FILE = 2_000
BACK_TRANSLATED = "back-translated-{}.txt"  # such a file; its name has a hash
CAN_CONTINUE = "Finished translations are kept: give the command again, `train` with --resume"


def monolingual_files(path: str, pairs: Sequence[LanguagePair]) -> dict[LanguagePair, Path]:
    """Returns the file of target sentences of each pair of languages: of several, in a folder."""
    if len(pairs) == 1:
        return {pairs[0]: Path(path)}
    files = split_files(Path(path), "", ".txt") if Path(path).is_dir() else {}
    found = {pair: files[pair[1]] for pair in pairs if pair[1] in files}
    if not found:
        targets = ", ".join(dict.fromkeys(f"{target}.txt" for _, target in pairs))
        raise InputError(
            f"`monolingual` must be a folder with some of the files {targets}. Received: {path}"
        )
    return found


def monolingual_pairs(path: str, pairs: Sequence[LanguagePair]) -> Iterator[Pair]:
    """Yields the lines of files that are not blank, as targets of pairs without a source."""
    for languages, file in monolingual_files(path, pairs).items():
        source = tagged("", languages) if len(pairs) > 1 else ""
        yield from (
            Pair(source, line, is_synthetic=True) for line in read_lines(file) if line.strip()
        )


class BackTranslator:
    """A model from the target languages to the source languages of pairs.

    Its translations are kept in `folder`, so that an interrupted call continues.
    """

    def __init__(
        self, run_dir: str, pairs: Sequence[LanguagePair], folder: Path, sample_from: int | None
    ) -> None:
        run = Run.load(run_dir)
        known = run.tokenizer().known_languages
        for source, target in pairs:
            if known.targets:
                known.tag(target, source)  # raises
            elif (run.source, run.target) != (target, source):
                raise InputError(
                    f"`back_translator` must be a run from {target} to {source}. "
                    f"Received: {run_dir}, from {run.source} to {run.target}"
                )
        self.languages = pairs[0]  # of pairs that name none
        self.run, self.folder, self.sample_from = run, folder, sample_from
        self.weights = run.checkpoint().sha256

    @functools.cached_property
    def _translator(self) -> Translator:
        return Translator.of(self.run)

    def completed(self, pairs: Iterable[Pair]) -> Iterator[Pair]:
        """Yields pairs, after it has written the sources of those that have none."""
        count = 0
        for is_synthetic, group in itertools.groupby(pairs, lambda pair: pair.is_synthetic):
            if not is_synthetic:
                yield from group
                continue
            while chunk := list(itertools.islice(group, LINES_PER_FILE)):
                sources = self._sources(self._asked(chunk))
                for pair, source in zip(chunk, sources, strict=True):
                    yield pair._replace(source=pair.source + source)
                count += len(chunk)
                logger.info("Back-translated: %s lines", f"{count:,}")

    def _asked(self, pairs: Sequence[Pair]) -> list[str]:
        """Returns the targets of pairs, which ask the model for the languages of their sources."""
        sources, targets = zip(*(pair.languages or self.languages for pair in pairs), strict=True)
        texts = [pair.target for pair in pairs]
        return self._translator.tokenizer.known_languages.tagged(texts, targets, sources)

    def _sources(self, targets: Sequence[str]) -> list[str]:
        """Translates lines, or reads the translations that an earlier call wrote."""
        made_from = "\n".join((self.weights, str(self.sample_from), *targets))
        name = hashlib.sha256(made_from.encode()).hexdigest()[:16]
        path = self.folder / BACK_TRANSLATED.format(name)
        if not path.exists():
            results = self._translator.translate(targets, sample_from=self.sample_from)
            content = "".join(f"{' '.join(result.text.split())}\n" for result in results)
            write_atomically(path, content.encode(), CAN_CONTINUE)
        sources = list(read_lines(path))
        if len(sources) != len(targets):
            raise InputError(f"{path} is damaged: delete it, and give the command again")
        return sources
