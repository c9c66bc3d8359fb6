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
from keras_transformer.trainers.data.corpora import Pair, read_lines
from keras_transformer.translator import Translator

logger = logging.getLogger(__name__)

LINES_PER_FILE = 2_000
BACK_TRANSLATED = "back-translated-{}.txt"  # such a file; its name has a hash
CAN_CONTINUE = "Finished translations are kept: give the command again, `train` with --resume"


def monolingual_pairs(path: str) -> Iterator[Pair]:
    """Yields the lines of a file that are not blank, as targets of pairs without a source."""
    return (Pair("", line, is_synthetic=True) for line in read_lines(path) if line.strip())


class BackTranslator:
    """A model from the target language to the source language of pairs.

    Its translations are kept in `folder`, so that an interrupted call continues.
    """

    def __init__(
        self, run_dir: str, languages: tuple[str, str], folder: Path, sample_from: int | None
    ) -> None:
        run = Run.load(run_dir)
        source, target = languages
        if (run.source, run.target) != (target, source):
            raise InputError(
                f"`back_translator` must be a run from {target} to {source}. "
                f"Received: {run_dir}, from {run.source} to {run.target}"
            )
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
                sources = self._sources([pair.target for pair in chunk])
                for pair, source in zip(chunk, sources, strict=True):
                    yield pair._replace(source=source)
                count += len(chunk)
                logger.info("Back-translated: %s lines", f"{count:,}")

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
