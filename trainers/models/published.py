"""Import of a published model of any kind."""

from pathlib import Path
from typing import Any

from keras_transformer.errors import InputError
from keras_transformer.run import Run
from keras_transformer.trainers.models.files import read_json
from keras_transformer.trainers.models.importing import import_marian
from keras_transformer.trainers.models.multilingual import import_multilingual

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
    """Writes a published model as a run directory, by `import_marian` or `import_multilingual`.

    Args:
        folder: what was downloaded.
        run_dir: a directory that does not exist yet.
        source: source language; None for what the folder says.
        target: target language; None for what the folder says.
        **options: of `import_marian`.

    Raises:
        InputError: if the model is of another kind, or cannot be imported.
    """
    path = Path(folder) / "config.json"
    kind = read_json(path).get("model_type", "marian") if path.is_file() else "marian"
    if kind not in ("marian", "m2m_100"):
        raise InputError(
            f"{path} has another architecture: {kind}{HINTS.get(str(kind), '')}. Marian's models, "
            "M2M-100, NLLB-200 and SMaLL-100 can be imported"
        )
    if kind == "marian":
        return import_marian(folder, run_dir, source, target, **options)
    given = [name for name, value in options.items() if value not in (None, False, "marian")]
    if given:
        raise InputError(f"`{given[0]}` is for Marian's models. {folder} is of the type {kind}")
    return import_multilingual(folder, run_dir, source, target)
