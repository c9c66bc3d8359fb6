"""Hides an optional room, as if its folders and its name in rooms.py were deleted.

HIDDEN_ROOM=parsing pytest tests/unit/search
"""

import importlib.abc
import os
import sys

HIDDEN_ROOM = os.environ.get("HIDDEN_ROOM")


class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path, target=None):
        folder = fullname.removeprefix("keras_transformer.").removeprefix("trainers.")
        if folder.split(".")[0] == HIDDEN_ROOM and fullname != folder:
            raise ModuleNotFoundError(f"{fullname} is hidden", name=fullname)


if HIDDEN_ROOM:
    from keras_transformer import rooms

    rooms.ROOMS = tuple(room for room in rooms.ROOMS if room != HIDDEN_ROOM)
    sys.meta_path.insert(0, Hidden())
