"""CTranslate2."""

import sys

from bench.cases import LENGTH_PENALTY, Case
from bench.systems import THREADS, Translating


class CTranslate2(Translating):
    """CTranslate2 in float32, and SentencePiece."""

    imports = ("ctranslate2", "sentencepiece")
    stored = "ctranslate2-float32"

    def load(self, case: Case) -> None:
        sys.modules["torch"] = None  # type: ignore[assignment]  # CTranslate2 would import it
        import ctranslate2

        super().load(case)
        self.translator = ctranslate2.Translator(
            str(case["folder"] / self.stored), inter_threads=1, intra_threads=THREADS
        )

    def run(self) -> list[str]:
        found = self.translator.translate_batch(  # it sorts the texts by length itself
            self.pieces.encode(self.texts, out_type=str),
            max_batch_size=self.case["batch"],
            beam_size=self.case["beam"],
            length_penalty=LENGTH_PENALTY,
            max_decoding_length=self.max_tokens,
        )
        return self.pieces.decode([result.hypotheses[0] for result in found])


class CTranslate2Int8(CTranslate2):
    """CTranslate2 in int8."""

    stored = "ctranslate2-int8"
