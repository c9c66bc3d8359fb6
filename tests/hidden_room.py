"""Hides optional rooms, as if their folders and their lines in registry.py were deleted.

HIDDEN_ROOMS="parsing recurrent" pytest tests/unit/search
"""

import importlib.abc
import os
import sys

ROOMS = ("ensemble", "models", "parsing", "protection", "recurrent")
HIDDEN_ROOMS = os.environ.get("HIDDEN_ROOMS", "").split()


class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path, target=None):
        folder = fullname.removeprefix("keras_transformer.").removeprefix("trainers.")
        if folder.split(".")[0] in HIDDEN_ROOMS and fullname != folder:
            raise ModuleNotFoundError(f"{fullname} is hidden", name=fullname)


def is_hidden(entry):
    module = entry if isinstance(entry, str) else entry.model
    return module.removeprefix("trainers.").split(".")[0] in HIDDEN_ROOMS


if HIDDEN_ROOMS:
    from keras_transformer import registry

    for table in (registry.ARCHITECTURES, registry.TOKENIZERS, registry.TASKS):
        for key in [key for key, entry in table.items() if is_hidden(entry)]:
            del table[key]
    if "protection" in HIDDEN_ROOMS:
        registry.PROTECTED_SETS.clear()
    sys.meta_path.insert(0, Hidden())
