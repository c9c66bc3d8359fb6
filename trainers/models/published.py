"""Import of a published model of any kind."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from keras_transformer.errors import InputError
from keras_transformer.run import Run
from keras_transformer.trainers.models.files import read_json
from keras_transformer.trainers.models.importing import import_marian
from keras_transformer.trainers.models.multilingual import import_multilingual
from keras_transformer.trainers.models.opennmt import import_opennmt, is_opennmt

# By the `model_type` of config.json.
IMPORTERS: dict[str, Callable[..., Run]] = {
    "marian": import_marian,
    "m2m_100": import_multilingual,
}
HINTS = {
    "t5": ", with relative positions",
    "mt5": ", with relative positions",
    "umt5": ", with relative positions",
    "nllb-moe": ", a mixture of experts",
    "mbart": ", with normalized embeddings",
}


def import_model(
    folder: str | Path,
    run_dir: str | Path,
    source: str | None = None,
    target: str | None = None,
    **options: Any,
) -> Run:
    """Writes a published model as a run directory, by the function of `importer_of`.

    Args:
        folder: what was downloaded.
        run_dir: a directory that does not exist yet.
        source: source language; None for what the folder says.
        target: target language; None for what the folder says.
        **options: of that function.

    Raises:
        InputError: if the model is of another kind, or cannot be imported.
    """
    return importer_of(folder)(folder, run_dir, source, target, **options)


def importer_of(folder: str | Path) -> Callable[..., Run]:
    """Returns `import_marian`, `import_multilingual` or `import_opennmt`, by what a folder holds.

    Raises:
        InputError: if the model is of another kind.
    """
    if is_opennmt(Path(folder)):
        return import_opennmt
    path = Path(folder) / "config.json"
    kind = str(read_json(path).get("model_type", "marian")) if path.is_file() else "marian"
    if kind not in IMPORTERS:
        raise InputError(
            f"{path} has another architecture: {kind}{HINTS.get(kind, '')}. Marian's models, "
            "M2M-100, NLLB-200 and SMaLL-100 can be imported"
        )
    return IMPORTERS[kind]
