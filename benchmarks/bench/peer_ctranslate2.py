"""CTranslate2."""

import sys

from bench.cases import LENGTH_PENALTY, Case
from bench.models import LAYER_NORM_EPSILON
from bench.systems import THREADS, Translating


class CTranslate2(Translating):
    """CTranslate2, in "float32" or "int8", and SentencePiece."""

    imports = ("ctranslate2", "sentencepiece")
    stored = "ctranslate2"

    def __init__(self, compute_type: str) -> None:
        self.compute_type = compute_type
        sys.modules["torch"] = None  # type: ignore[assignment]  # it would import it

    def load(self, case: Case) -> None:
        import ctranslate2

        super().load(case)
        self.translator = ctranslate2.Translator(
            str(case["folder"] / "ctranslate2"),
            compute_type=self.compute_type,
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
    """Converts a case's model, in float32; CTranslate2 makes int8 of it as it loads."""
    import sentencepiece
    from ctranslate2.converters.transformers import BartLoader

    from bench.peer_marian import marian

    model = marian(case)
    model.config.normalize_before = model.config.normalize_embedding = False
    spec = BartLoader().get_model_spec(model)
    processor = sentencepiece.SentencePieceProcessor(str(case["run"] / "tokenizer.model"))
    tokens = [processor.id_to_piece(i) for i in range(len(processor))]
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = LAYER_NORM_EPSILON
    spec.validate()
    spec.optimize()
    folder = case["folder"] / "ctranslate2"
    folder.mkdir()
    spec.save(str(folder))
