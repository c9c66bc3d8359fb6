"""Hides optional rooms, as if their folders and their names in rooms.py were deleted.

HIDDEN_ROOMS="parsing recurrent" pytest tests/unit/search
"""

import importlib.abc
import os
import sys

HIDDEN_ROOMS = os.environ.get("HIDDEN_ROOMS", "").split()


class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path, target=None):
        folder = fullname.removeprefix("keras_transformer.").removeprefix("trainers.")
        if folder.split(".")[0] in HIDDEN_ROOMS and fullname != folder:
            raise ModuleNotFoundError(f"{fullname} is hidden", name=fullname)


if HIDDEN_ROOMS:
    from keras_transformer import rooms

    rooms.ROOMS = tuple(room for room in rooms.ROOMS if room not in HIDDEN_ROOMS)
    sys.meta_path.insert(0, Hidden())
