"""The systems by name, what those that translate share, and the ceiling."""

from importlib import import_module
from typing import Any

from bench.cases import EXTRA_LENGTH, Case

THREADS = 2
SIDE, PRODUCTS = 2048, 4  # of the ceiling

# Name: module, class, arguments, label on the page.
SYSTEMS: dict[str, tuple[str, str, dict[str, Any], str | None]] = {
    "session": ("ours", "Session", {}, "ours, SavedModel in a Session"),
    "session-bfloat16": ("ours", "Session", {"compute": "bfloat16"}, "ours, Session in bfloat16"),
    "process": ("ours", "InProcess", {}, "ours, in process"),
    "memory": ("ours", "Memory", {}, None),
    "pipeline": ("ours", "Pipeline", {}, "ours"),
    "ctranslate2": ("peer_ctranslate2", "CTranslate2", {}, "CTranslate2 float32"),
    "ctranslate2-int8": ("peer_ctranslate2", "CTranslate2Int8", {}, "CTranslate2 int8"),
    "marian": ("peer_marian", "Marian", {}, "MarianMT, generate"),
    "keras-hub": ("peer_kerashub", "KerasHubTranslator", {}, "KerasHub, XLA"),
    "fit": ("ours", "Fit", {}, "ours"),
    "fit-xla": ("ours", "Fit", {"jit": True}, "ours, XLA"),
    "keras-hub-fit": ("peer_kerashub", "KerasHubFit", {}, "KerasHub"),
    "keras-hub-fit-xla": ("peer_kerashub", "KerasHubFit", {"jit": True}, "KerasHub, XLA"),
    "torch-transformer": ("peer_torch", "TorchTransformer", {}, "torch nn.Transformer"),
    "marian-training": ("peer_marian", "MarianTraining", {}, "torch MarianMT"),
    "product-torch": ("systems", "Product", {"library": "torch"}, None),
    "product-tensorflow": ("systems", "Product", {"library": "tensorflow"}, None),
}
LABELS = {name: label for name, (*_, label) in SYSTEMS.items() if label}


def make_system(name: str, **options: Any) -> Any:
    """Imports and makes a system, with its arguments and further ones."""
    module, class_name, arguments, _ = SYSTEMS[name]
    return getattr(import_module(f"bench.{module}"), class_name)(**{**arguments, **options})


class Translating:
    """What systems that translate share."""

    imports: tuple[str, ...] = ()  # modules that `load` needs, to time their import apart
    stored = ""  # the folder that `load` reads, in the model's folder, for its size on disk

    def prepare(self, case: Case) -> None:
        self.load(case)
        self.run()

    def load(self, case: Case) -> None:
        """Loads the tokenizer; a subclass also loads the model."""
        import sentencepiece

        self.case, self.texts = case, case["texts"]
        self.pieces = sentencepiece.SentencePieceProcessor(str(case["run"] / "tokenizer.model"))
        longest = max(len(pieces) for pieces in self.pieces.encode(self.texts))
        # For systems that have one maximum for all sources.
        self.max_tokens: int = case["max_tokens"] or longest + EXTRA_LENGTH

    def run(self) -> list[str]:
        raise NotImplementedError

    def count(self, output: list[str]) -> dict[str, Any]:
        """Counts pieces, and an end where a translation has one."""
        target = self.case["target"]
        lengths = [len(pieces) for pieces in self.pieces.encode(output)]
        if target is not None and set(lengths) != {target}:
            raise RuntimeError(f"Translations must be of {target} tokens. Received: {lengths}")
        ends = len(output) if target is None else 0
        return {"tokens": sum(lengths) + ends, "answers": output}


class Product:
    """Matrix products of `side` x `side` by "torch" or "tensorflow": the ceiling."""

    def __init__(self, library: str, side: int = SIDE, dtype: str = "float32") -> None:
        self.library, self.side, self.dtype = library, side, dtype

    def prepare(self, case: Case) -> None:
        library = import_module(self.library)
        self.multiply = library.matmul
        if self.library == "torch":
            library.set_num_threads(THREADS)
            self.matrix = library.rand(self.side, self.side)
        else:
            self.matrix = library.cast(library.random.uniform([self.side] * 2), self.dtype)
        self.run()

    def run(self) -> None:
        for _ in range(PRODUCTS):
            result = self.multiply(self.matrix, self.matrix)
        float(result[0, 0])  # waits for a GPU

    def count(self, output: None) -> dict[str, Any]:
        return {"flops": PRODUCTS * 2.0 * self.side**3}  # two for each multiplication
