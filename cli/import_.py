"""`keras-transformer import`."""

import dataclasses
import inspect
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from typer import Argument, Option

from keras_transformer.cli.console import cleaned_up, load_tensorflow, say, say_next
from keras_transformer.errors import InputError
from keras_transformer.records import checked_dataclass, setting


@checked_dataclass
class ImportOptions:
    """What some kinds of models need."""

    like: Literal["marian", "huggingface"] | None = None
    """The implementation to reproduce. Marian trained the published models; transformers has
    different positions and another epsilon. [default: marian]"""
    target_tag: str | None = None
    """Tag to put before each source of a model of several target languages, such as '>>deu<<'."""
    normalize_punctuation: bool = False
    """Normalize the punctuation of sources as Moses does."""
    config: Annotated[Path | None, setting(metavar="FILE")] = None
    """OpenNMT-tf: the YAML file of the training. [default: the one in FOLDER or in one of the two
    folders above it]"""
    sentencepiece: Annotated[list[Path] | None, setting(metavar="FILE")] = None
    """OpenNMT-tf: the SentencePiece model that cut the text beforehand; if there are two, first
    that of the source."""
    num_heads: Annotated[int, Field(ge=1)] | None = None
    """OpenNMT-tf: number of attention heads. [default: what model_description.py says]"""


def import_command(
    folder: Annotated[
        Path,
        Argument(
            metavar="FOLDER",
            help="A Marian model, in Marian's own files or Hugging Face's; M2M-100, NLLB-200 or "
            "SMaLL-100 in Hugging Face's; or a model directory of OpenNMT-tf 2.",
        ),
    ],
    run: Annotated[Path, Argument(metavar="RUN", help="New run directory.")],
    source: Annotated[str | None, Option(help="Source language. [default: the folder's]")] = None,
    target: Annotated[str | None, Option(help="Target language. [default: the folder's]")] = None,
    options: ImportOptions = ImportOptions(),  # noqa: B008  # it is frozen
) -> None:
    """Write a published model as a run directory: OPUS-MT, M2M-100, NLLB-200, OpenNMT-tf.

    All commands that read a run then work with the model.
    """
    load_tensorflow()
    from keras_transformer.trainers.models.published import importer_of

    given = {name: value for name, value in dataclasses.asdict(options).items() if value}
    importer = importer_of(folder)
    for name in given.keys() - inspect.signature(importer).parameters.keys():
        option = name.replace("_", "-")
        raise InputError(f"{folder} holds another kind of model: --{option} is not for it")
    with cleaned_up():
        imported = importer(folder, run, source, target, **given)
    parameters = imported.folder.count_parameters(imported.checkpoint())
    say(
        f"Import: {imported.source} to {imported.target}, {parameters:,} parameters, "
        f"{imported.config.vocab_size:,} subwords: {run}"
    )
    say_next(["translate", run, "TEXT"], ["export", run, "MODELS/NAME"])
