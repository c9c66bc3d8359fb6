"""CTranslate2."""

import sys

from bench.cases import LENGTH_PENALTY, Case
from bench.systems import THREADS, Translating

FOLDERS = {"float32": "ctranslate2", "int8": "ctranslate2-int8"}


class CTranslate2(Translating):
    """CTranslate2, in "float32" or "int8", and SentencePiece."""

    imports = ("ctranslate2", "sentencepiece")

    def __init__(self, quantization: str) -> None:
        self.stored = FOLDERS[quantization]
        sys.modules["torch"] = None  # type: ignore[assignment]  # CTranslate2 would import it

    def load(self, case: Case) -> None:
        import ctranslate2

        super().load(case)
        self.translator = ctranslate2.Translator(
            str(case["folder"] / self.stored),
            inter_threads=1,
            intra_threads=THREADS,
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


def write_ctranslate2(case: Case) -> None:
    """Converts a case's model, in float32 and in int8."""
    from keras_transformer import Translator
    from keras_transformer.export.engines import export_ctranslate2

    translator = Translator.load(case["run"])
    for quantization, name in FOLDERS.items():
        export_ctranslate2(translator, case["folder"] / name, quantization)
