"""`keras-transformer convert`."""

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from keras_transformer.cli.console import cleaned_up, load_tensorflow, say
from keras_transformer.cli.options import Checkpoint, RunDirectory
from keras_transformer.errors import InputError
from keras_transformer.export.options import Quantization
from keras_transformer.run import Run


def convert_command(
    run: RunDirectory,
    folder: Annotated[Path, Argument(metavar="FOLDER", help="New folder of the converted model.")],
    to: Annotated[
        Literal["ctranslate2", "marian"],
        Option(help="CTranslate2, or a Marian model as Hugging Face's transformers loads it."),
    ],
    quantization: Annotated[
        Quantization | None, Option(help="Type of CTranslate2's stored weights. [default: float32]")
    ] = None,
    checkpoint: Checkpoint = None,
) -> None:
    """Write a run as a CTranslate2 or Marian model.

    The folder holds the SentencePiece models of source and target too.
    """
    if quantization is not None and to != "ctranslate2":
        raise InputError(f"--quantization is for CTranslate2. Received: --to {to}")
    load_tensorflow()
    from keras_transformer.export.engines import export_ctranslate2, export_marian
    from keras_transformer.translator import Translator

    opened = Run.load(run)
    translator = Translator.of(opened, checkpoint)
    with cleaned_up():
        if to == "ctranslate2":
            export_ctranslate2(translator, folder, quantization or "float32")
        else:
            export_marian(translator, folder, opened.source, opened.target)
    files = [file for file in folder.iterdir() if file.is_file()]
    megabytes = sum(file.stat().st_size for file in files) / 1e6
    say(f"Converted: {len(files)} files, {megabytes:.1f} MB: {folder}")
