"""The optional rooms: capabilities that the model, the search and the tokenizers know nothing of.

A room is a folder, here and perhaps one of the same name in `trainers/`. Its `__init__.py` is its
door: it says what the room brings, in these dictionaries. A value "module:name" is in
`keras_transformer`, and is imported when it is needed.

    ARCHITECTURES  name of an architecture -> its `Architecture`
    TOKENIZERS     how the file of a tokenizer begins -> the tokenizer's class
    TASKS          name of a task -> its `Task` of the trainers
    PROTECTS       name of a set of strings that a translation keeps -> what it has

To add a room, write its folders, and name them in `setup.cfg`, and the room in `ROOMS`. To remove
one, take these away. Then only what is its own fails: of `recurrent`, the public names in
`__init__.pyi`; of `ensemble`, the command of this name; of `marian`, the commands `import` and
`convert --to marian`; of `protection`, the setting `protect`.
"""

from importlib import import_module
from typing import Any, NamedTuple

ROOMS = ("ensemble", "marian", "parsing", "protection", "recurrent")


class Architecture(NamedTuple):
    """What an architecture consists of, each as "module:name".

    Attributes:
        config: its `ModelConfig`.
        model: its `EncoderDecoder`, built from the config.
        step: the step function of a search, built from a model, the maximum length of a hypothesis
            and the number of hypotheses of all rows.
    """

    config: str
    model: str
    step: str


def brought(kind: str) -> dict[Any, Any]:
    """Returns what all rooms bring.

    Args:
        kind: the name of one of the dictionaries, such as "TASKS".
    """
    doors = (import_module(f"keras_transformer.{room}") for room in ROOMS)
    return {key: value for door in doors for key, value in getattr(door, kind, {}).items()}


def load(name: str) -> Any:
    """Imports "module:name"."""
    module, attribute = name.split(":")
    return getattr(import_module(f"keras_transformer.{module}"), attribute)
