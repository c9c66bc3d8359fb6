"""`keras-transformer import`."""

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from keras_transformer.cli.console import cleaned_up, load_tensorflow, say, say_next


def import_command(
    folder: Annotated[
        Path,
        Argument(metavar="FOLDER", help="A Marian model, in Marian's own files or Hugging Face's."),
    ],
    run: Annotated[Path, Argument(metavar="RUN", help="New run directory.")],
    source: Annotated[str | None, Option(help="Source language. [default: the folder's]")] = None,
    target: Annotated[str | None, Option(help="Target language. [default: the folder's]")] = None,
    like: Annotated[
        Literal["marian", "huggingface"],
        Option(
            help="The implementation to reproduce. Marian trained the published models; "
            "transformers has different positions and another epsilon."
        ),
    ] = "marian",
    target_tag: Annotated[
        str | None,
        Option(
            help="Tag to put before each source of a model of several target languages, such as "
            "'>>deu<<'."
        ),
    ] = None,
    normalize_punctuation: Annotated[
        bool,
        Option(
            "--normalize-punctuation", help="Normalize the punctuation of sources as Moses does."
        ),
    ] = False,
) -> None:
    """Write a Marian or OPUS-MT model as a run directory.

    All commands that read a run then work with the model.
    """
    load_tensorflow()
    from keras_transformer.trainers.models.importing import import_marian

    with cleaned_up():
        imported = import_marian(
            folder,
            run,
            source,
            target,
            like=like,
            target_tag=target_tag,
            normalize_punctuation=normalize_punctuation,
        )
    parameters = imported.folder.count_parameters(imported.checkpoint())
    say(
        f"Import: {imported.source} to {imported.target}, {parameters:,} parameters, "
        f"{imported.config.vocab_size:,} subwords: {run}"
    )
    say_next(["translate", run, "TEXT"], ["export", run, "MODELS/NAME"])
