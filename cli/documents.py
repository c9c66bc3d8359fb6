"""What the translations of catalogues and of subtitles share."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from keras_transformer.cli.console import ProgressBar, say

if TYPE_CHECKING:
    from keras_transformer.cli.translators import Translate


def translate_distinct(texts: Iterable[str], translate: "Translate") -> tuple[dict[str, str], int]:
    """Returns the translation of each text, and how many texts were too long."""
    distinct = list(dict.fromkeys(texts))
    with ProgressBar("Translating", len(distinct)) as progress:
        rows = translate(distinct, progress)
    translations = {text: row["translation"] for text, row in zip(distinct, rows, strict=True)}
    return translations, sum(bool(row.get("truncated")) for row in rows)


def warn_truncated(count: int, what: str) -> None:
    """Warns if there are texts that were too long."""
    if count:
        say(f"warning: the end of {count:,} {what} was too long, and is not translated")
