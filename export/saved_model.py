"""From a run to a SavedModel of strings, for TF Serving."""

import os
import shutil
import tempfile
from pathlib import Path

import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.model import Transformer
from keras_transformer.tokenizer import Tokenizer
from keras_transformer.translator import DecodingOptions, Translator, translate_batch


class ServingModule(tf.Module):
    """What the SavedModel holds: the raw variables and the signature's graph.

    It must not hold the Keras model itself: TF Serving's loader cannot find the variables of a
    SavedModel written from a module with a Keras 3 model in an attribute (keras issue 20095).

    Args:
        model: the model.
        tokenizer: the model's.
        options: how to search, fixed in the graph.
    """

    def __init__(self, model: Transformer, tokenizer: Tokenizer, options: DecodingOptions) -> None:
        super().__init__()
        self.tf_variables = [variable.value for variable in model.variables]

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
        def serving_default(text: tf.Tensor) -> dict[str, tf.Tensor]:
            batch = translate_batch(model, tokenizer, text, options)
            return {
                "translation": batch.translations[:, 0],  # [B]
                "score": batch.scores[:, 0],  # [B]
                "truncated": batch.truncated,  # [B]
            }

        self.serving_default = serving_default


def export_saved_model(
    translator: Translator,
    folder: str | Path,
    version: int = 1,
    options: DecodingOptions | None = None,
) -> Path:
    """Writes `folder/version/`, a SavedModel that TF Serving loads.

    Its signature `serving_default` takes `text`, string [B], and returns `translation`, string
    [B], `score`, float32 [B], and `truncated`, bool [B]. It is written under another name and
    renamed, so that a server that watches the folder never sees half of it.

    Args:
        translator: model and tokenizer.
        folder: the model's folder, `MODELS/NAME`.
        version: number of the version, at least 1.
        options: how to search; None for the translator's defaults.

    Returns:
        The folder of the version.

    Raises:
        InputError: if the version exists already, or cannot be written.
    """
    if not 1 <= version < 2**63:
        raise InputError(
            f"`version` must be at least 1 and below 2**63. Received: version={version}"
        )
    path = Path(folder) / str(version)
    if path.exists():
        raise InputError(f"{path} exists already: choose another version, or delete it")
    module = ServingModule(translator.model, translator.tokenizer, options or translator.defaults)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".writing-", dir=path.parent))
        try:
            tf.saved_model.save(
                module, temporary, signatures={"serving_default": module.serving_default}
            )
            temporary.chmod(0o755)  # mkdtemp's is for the owner only
            os.rename(temporary, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise InputError(f"Cannot write {path}: {error.strerror}") from error
    except tf.errors.OpError as error:
        raise InputError(f"Cannot write {path}: {error.message}") from error
    return path
