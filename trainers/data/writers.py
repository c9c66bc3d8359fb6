"""Text that a model writes for the training: sources of monolingual text, or a teacher's targets.

Back-translation is from Sennrich et al. (2016, arXiv:1511.06709). Such a pair is synthetic, and its
source is marked, so that the model learns to tell it from one that a person wrote (Caswell et al.,
2019, arXiv:1906.06442). A student learns from translations of its teacher (Kim and Rush, 2016,
arXiv:1606.07947).
"""

import functools
import hashlib
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from keras_transformer.errors import InputError
from keras_transformer.files import NOT_LINES, kind_of, words_of, write_atomically
from keras_transformer.run import Run
from keras_transformer.trainers.data.corpora import Pair, read_lines, split_files
from keras_transformer.trainers.data.languages import LanguagePair
from keras_transformer.translator import Translator

logger = logging.getLogger(__name__)

LINES_PER_FILE = 2_000
TRANSLATED = "translated-{}.txt"  # such a file; its name has a hash
CAN_CONTINUE = "Finished translations are kept: give the command again, `train` with --resume"


def monolingual_files(path: str, pairs: Sequence[LanguagePair]) -> dict[LanguagePair, Path]:
    """Returns the file of target sentences of each pair of languages: of several, in a folder."""
    if len(pairs) == 1:
        if kind_of(path) in NOT_LINES:
            raise InputError(f"`monolingual` must be a file of lines of text. Received: {path}")
        return {pairs[0]: Path(path)}
    files = split_files(Path(path), "", ".txt") if Path(path).is_dir() else {}
    files_of_pairs = {pair: files[pair[1]] for pair in pairs if pair[1] in files}
    if not files_of_pairs:
        targets = ", ".join(dict.fromkeys(f"{target}.txt" for _, target in pairs))
        raise InputError(
            f"`monolingual` must be a folder with some of the files {targets}. Received: {path}"
        )
    return files_of_pairs


def monolingual_pairs(path: str, pairs: Sequence[LanguagePair]) -> Iterator[Pair]:
    """Yields the lines of files that are not blank, as targets of pairs without a source."""
    for languages, file in monolingual_files(path, pairs).items():
        named = languages if len(pairs) > 1 else None
        for line in filter(str.strip, read_lines(file)):
            yield Pair("", line, named, is_synthetic=True)


class Writer:
    """A run that writes one side of pairs.

    It keeps its translations in `folder`, so that an interrupted call continues.

    Args:
        setting: the setting that names the run, for messages.
        run_dir: the run.
        pairs: the languages from which and into which it translates.
        folder: where to keep translations.
        **search: options of the search that differ from the run's; None for no change.
    """

    def __init__(
        self,
        setting: str,
        run_dir: str,
        pairs: Sequence[LanguagePair],
        folder: Path,
        **search: int | None,
    ) -> None:
        self.run, self.folder, self.search = Run.load(run_dir), folder, search
        self.setting = setting
        known = self.run.tokenizer().known_languages
        for source, target in pairs:
            if known.targets:
                known.tag(source, target)  # raises
            elif (self.run.source, self.run.target) != (source, target):
                raise InputError(
                    f"`{setting}` must be a run from {source} to {target}. "
                    f"Received: {run_dir}, from {self.run.source} to {self.run.target}"
                )
        self.weights = self.run.checkpoint().sha256

    @functools.cached_property
    def _translator(self) -> Translator:
        return Translator.of(self.run, None, **self.search)

    def translate(self, texts: Sequence[str], languages: Sequence[LanguagePair]) -> list[str]:
        """Translates texts, each from and into its languages."""
        known = self._translator.tokenizer.known_languages
        texts = known.tagged(texts, *map(list, zip(*languages, strict=True)))
        made_from = "\n".join((self.weights, str(self.search), *texts))
        name = hashlib.sha256(made_from.encode()).hexdigest()[:16]
        path = self.folder / TRANSLATED.format(name)
        if not path.exists():
            results = self._translator.translate(texts)
            if num_cut := sum(result.truncated for result in results):
                message = "Cut, because they are too long for the run of `%s`: %d texts"
                logger.warning(message, self.setting, num_cut)
            content = "".join(f"{' '.join(words_of(result.text))}\n" for result in results)
            write_atomically(path, content.encode(), CAN_CONTINUE)
        translations = list(read_lines(path))
        if len(translations) != len(texts):
            raise InputError(f"{path} is damaged: delete it, and give the command again")
        return translations


def with_sources(
    pairs: Iterable[Pair], back_translator: Writer, default: LanguagePair
) -> Iterator[Pair]:
    """Yields pairs, with sources for those that have none.

    `default` are the languages of pairs that name none.
    """

    def write(chunk: Sequence[Pair]) -> list[Pair]:
        languages = [(pair.languages or default)[::-1] for pair in chunk]
        sources = back_translator.translate([pair.target for pair in chunk], languages)
        written = zip(chunk, sources, strict=True)
        return [pair._replace(source=source) for pair, source in written]

    return _rewritten(pairs, write, is_synthetic=True)


def with_targets(pairs: Iterable[Pair], teacher: Writer, default: LanguagePair) -> Iterator[Pair]:
    """Yields pairs, with translations of their sources as targets; `default` as above."""

    def write(chunk: Sequence[Pair]) -> list[Pair]:
        languages = [pair.languages or default for pair in chunk]
        targets = teacher.translate([pair.source for pair in chunk], languages)
        return [pair._replace(target=new) for pair, new in zip(chunk, targets, strict=True)]

    return _rewritten(pairs, write, is_synthetic=False)


def _rewritten(
    pairs: Iterable[Pair], write: Callable[[list[Pair]], list[Pair]], is_synthetic: bool
) -> Iterator[Pair]:
    count = 0
    for kind, group in itertools.groupby(pairs, lambda pair: pair.is_synthetic):
        if kind != is_synthetic:
            yield from group
            continue
        while chunk := list(itertools.islice(group, LINES_PER_FILE)):
            yield from write(chunk)
            count += len(chunk)
            logger.info("Translated: %s lines", f"{count:,}")
