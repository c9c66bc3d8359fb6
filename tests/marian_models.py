"""Models that Marian and Hugging Face saved, and what each makes of sentences.

tests/make_marian_models.py and tests/make_huggingface_models.py wrote them.
"""

import tarfile
from pathlib import Path
from typing import NamedTuple

DATA = Path(__file__).parent / "data"


class Hypothesis(NamedTuple):
    """A line of Marian's n-best list."""

    pieces: list[str]
    log_prob: float
    score: float

    @property
    def text(self) -> str:
        return "".join(self.pieces).replace("\u2581", " ").strip()


def extract(name: str, folder: Path) -> Path:
    """Writes the models of an archive: of Marian "swish" and "relu", of Hugging Face two others."""
    with tarfile.open(DATA / f"{name}.tar.xz") as archive:
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
