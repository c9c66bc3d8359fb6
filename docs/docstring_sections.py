"""Sections of docstrings that Keras has and Google has not, for Griffe, which reads them.

They become Griffe's own, with the title that they have: so the site shows them as lists.
"""

import re
from typing import Any

import griffe

AS_WRITTEN = {
    "Call arguments:": "Other Parameters: Call arguments:",
    "Example:": "Examples: Example:",
}


class DocstringSections(griffe.Extension):
    """Replaces the headings of sections in all docstrings."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Reads an object's docstring before Griffe does."""
        if obj.docstring is not None:
            obj.docstring.value = as_known(obj.docstring.value)


def as_known(docstring: str) -> str:
    """Returns a docstring with headings that Griffe knows."""
    return re.sub(
        r"^[\w ]+:$",
        lambda match: AS_WRITTEN.get(match[0], match[0]),
        docstring,
        flags=re.MULTILINE,
    )
