"""CTranslate2."""

import sys

from bench.cases import LENGTH_PENALTY, Case
from bench.systems import THREADS, Translating


class CTranslate2(Translating):
    """CTranslate2, and SentencePiece.

    Args:
        quantization: "float32" or "int8".
        num_batches: the number of batches that are translated side by side; they share the threads.
    """

    imports = ("ctranslate2", "sentencepiece")

    def __init__(self, quantization: str = "float32", num_batches: int = 1) -> None:
        self.stored, self.num_batches = f"ctranslate2-{quantization}", num_batches

    def load(self, case: Case) -> None:
        sys.modules["torch"] = None  # type: ignore[assignment]  # CTranslate2 would import it
        import ctranslate2

        super().load(case)
        self.translator = ctranslate2.Translator(
            str(case["folder"] / self.stored),
            inter_threads=self.num_batches,
            intra_threads=THREADS // self.num_batches,
        )

    def translate(self, texts: list[str]) -> list[str]:
        found = self.translator.translate_batch(  # it sorts the texts by length itself
            self.pieces.encode(texts, out_type=str),
            max_batch_size=max(1, min(self.case["batch"], len(texts)) // self.num_batches),
            beam_size=self.case["beam"],
            length_penalty=LENGTH_PENALTY,
            max_decoding_length=self.max_tokens,
        )
        return self.pieces.decode([result.hypotheses[0] for result in found])
