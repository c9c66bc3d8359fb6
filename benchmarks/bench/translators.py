"""Systems that translate: this package in its forms, CTranslate2, and MarianMT.

All go from text to text, so that their work is the same; each splits texts by its own means.
"""

from typing import Any

from bench.cases import ALPHA, EXTRA_LENGTH, Case
from bench.convert import marian, pieces_of
from bench.models import folder_of, limit, options
from bench.worker import THREADS


class Translating:
    """What systems that translate share."""

    def prepare(self, case: Case) -> None:
        """Loads the model and translates once."""
        self.take(case)
        self.load()
        self.run()

    def take(self, case: Case) -> None:
        """Remembers the case, and reads what splits its texts."""
        self.case = case
        self.texts: list[str] = case["texts"]
        self.folder = folder_of(case["model"])
        self.pieces = pieces_of(self.folder)
        lengths = [len(pieces) for pieces in self.pieces.encode(self.texts)]
        # Of a translation; for systems that have one limit for all sources.
        self.most_tokens: int = case["limit"] or max(lengths) + EXTRA_LENGTH

    def load(self) -> None:
        """Loads the model; systems that can keep it do so from case to case."""
        raise NotImplementedError

    def run(self) -> list[str]:
        """Translates all texts."""
        raise NotImplementedError

    def count(self, output: list[str]) -> dict[str, Any]:
        """Counts pieces, and an end where a translation has one."""
        target = self.case["target"]
        lengths = [len(pieces) for pieces in self.pieces.encode(output)]
        if target is not None and set(lengths) != {target}:
            raise RuntimeError(f"Translations must be of {target} tokens. Received: {lengths}")
        ends = 0 if target is not None else len(output)
        return {"tokens": sum(lengths) + ends, "answers": output}

    def chunks(self) -> list[list[int]]:
        """Texts of similar length together, for systems that do not see to it themselves."""
        order = sorted(range(len(self.texts)), key=lambda i: -len(self.texts[i]))
        size = self.case["batch"]
        return [order[start : start + size] for start in range(0, len(order), size)]


class Session(Translating):
    """This package's SavedModel in a TF1 Session, as TF Serving has it: no Python, no XLA."""

    session: Any = None

    def load(self) -> None:
        """Loads the SavedModel."""
        from keras_transformer.export.session import SavedModelSession

        path = self.case["saved_model"]
        if self.session is None or self.session_of != path:
            self.session_of = path
            self.session = SavedModelSession(path)
        self.signature = {1: "greedy", 4: "serving_default"}[self.case["beam"]]
        self.encoded = [text.encode() for text in self.texts]

    def run(self) -> list[str]:
        """Translates all texts by one request."""
        outputs = self.session.run(self.signature, {"text": self.encoded})
        return [text.decode() for text in outputs["translation"]]


class InProcess(Translating):
    """This package's `Translator`."""

    key: Any = None

    def load(self) -> None:
        """Loads the run directory and traces the graph."""
        from keras_transformer import Translator
        from keras_transformer.run import Run

        key = [self.case[name] for name in ("model", "beam", "limit")]
        if self.key != key:
            run = Run.load(self.folder / "run")
            self.translator = Translator(run.model(), run.tokenizer(), options(self.case))
            self.key = key

    def run(self) -> list[str]:
        """Translates all texts by one call."""
        with limit(self.case["limit"]):  # where the graph is traced
            found = self.translator.translate(self.texts)
        return [translation.text for translation in found]


class Memory(InProcess):
    """The same, not warmed up: the first translation takes all the memory that there is to take."""

    def prepare(self, case: Case) -> None:
        """Loads the model and traces the graph."""
        self.take(case)
        self.load()
        with limit(case["limit"]):
            self.translator._graph(self.translator.defaults, 1).get_concrete_function()


class CTranslate2(Translating):
    """CTranslate2 and SentencePiece.

    Args:
        compute_type: "float32" or "int8".
    """

    translator: Any = None

    def __init__(self, compute_type: str) -> None:
        self.compute_type = compute_type

    def load(self) -> None:
        """Loads the converted model."""
        import sys

        sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # it would load it
        import ctranslate2

        if self.translator is None or self.translator_of != self.folder:
            self.translator_of = self.folder
            self.translator = ctranslate2.Translator(
                str(self.folder / "ctranslate2"),
                compute_type=self.compute_type,
                inter_threads=1,
                intra_threads=THREADS,
            )

    def run(self) -> list[str]:
        """Translates all texts; it sorts them by length itself."""
        found = self.translator.translate_batch(
            self.pieces.encode(self.texts, out_type=str),
            max_batch_size=self.case["batch"],
            beam_size=self.case["beam"],
            length_penalty=self.case.get("alpha", ALPHA),
            max_decoding_length=self.most_tokens,
        )
        return self.pieces.decode([result.hypotheses[0] for result in found])


class Marian(Translating):
    """Hugging Face's MarianMTModel on torch, by `generate`."""

    model: Any = None

    def load(self) -> None:
        """Makes the model of the same weights."""
        import torch

        torch.set_num_threads(THREADS)
        if self.model is None or self.model_of != self.folder:
            self.model_of = self.folder
            self.model = marian(self.folder)

    def run(self) -> list[str]:
        """Translates all texts, batch by batch."""
        import torch

        from keras_transformer.config import EOS_ID, PAD_ID

        translations = [""] * len(self.texts)
        for rows in self.chunks():
            ids = [[*self.pieces.encode(self.texts[row]), EOS_ID] for row in rows]
            longest = max(map(len, ids))
            batch = torch.tensor([row + [PAD_ID] * (longest - len(row)) for row in ids])
            with torch.inference_mode():
                found = self.model.generate(
                    input_ids=batch,
                    attention_mask=(batch != PAD_ID).long(),
                    num_beams=self.case["beam"],
                    do_sample=False,
                    length_penalty=ALPHA,
                    max_new_tokens=self.most_tokens,
                )
            for row, translation in zip(rows, found.tolist(), strict=True):
                translations[row] = self.pieces.decode(translation)  # special ids leave no trace
        return translations
