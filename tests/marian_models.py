"""What tests/make_marian_models.py wrote: Marian's models, and what Marian makes of sentences."""

import tarfile
from pathlib import Path
from typing import NamedTuple

ARCHIVE = Path(__file__).parent / "data/marian.tar.xz"


class Hypothesis(NamedTuple):
    """A line of Marian's n-best list."""

    pieces: list[str]
    log_prob: float
    score: float

    @property
    def text(self) -> str:
        return "".join(self.pieces).replace("\u2581", " ").strip()


def extract(folder: Path) -> Path:
    """Writes the folders "swish" and "relu", as Marian's releases are."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


def read_best(folder: Path, beam_size: int) -> list[Hypothesis]:
    """Marian's best hypothesis of each sentence."""
    best = {}
    for line in (folder / f"nbest-{beam_size}").read_text("utf-8").splitlines():
        number, pieces, log_prob, score = line.split(" ||| ")
        found = Hypothesis(pieces.split(), float(log_prob.split("= ")[1]), float(score))
        best.setdefault(number, found)
    return list(best.values())
