"""What a shell completes beside the names of commands, options and files.

`keras-transformer --install-completion` teaches it to the shell. Nothing here waits for TensorFlow.
"""


def recipes(incomplete: str) -> list[str]:
    """Returns the recipes that begin so; where there are none, the shell completes files."""
    from keras_transformer.trainers.recipes import recipe_names

    return [name for name in recipe_names() if name.startswith(incomplete)]


def test_sets(incomplete: str) -> list[str]:
    """Returns sacreBLEU's test sets that begin so."""
    from sacrebleu import get_available_testsets

    return [name for name in get_available_testsets() if name.startswith(incomplete)]


def presets(incomplete: str) -> list[str]:
    """Returns the sizes of a model that begin so."""
    from keras_transformer.config import PRESETS, TABLE_3

    return [name for name in {**PRESETS, **TABLE_3} if name.startswith(incomplete)]
