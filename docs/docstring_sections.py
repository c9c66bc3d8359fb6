"""What the site reads besides Google's docstrings, for Griffe.

Keras's headings of sections become Griffe's own, with the title that they have, so the site shows
them as lists. The fields of a record may be described where they stand, at the end of a line, in
comment lines above, or by a string below:

    ids: tf.Tensor  # int32 [B, K, T], padded after `EOS_ID`
    steps: int = 100_000
    "Number of updates."
"""

import ast
import re
from typing import Any

import griffe

AS_WRITTEN = {
    "Call arguments:": "Other Parameters: Call arguments:",
    "Example:": "Examples: Example:",
}


class DocstringSections(griffe.Extension):
    """Completes docstrings before Griffe reads them."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Replaces the headings of an object's docstring."""
        if obj.docstring is not None:
            obj.docstring.value = as_known(obj.docstring.value)

    def on_class_members(
        self, *, node: Any, cls: griffe.Class, agent: griffe.Visitor, **_: Any
    ) -> None:
        """Lists the fields of a record that are described where they stand."""
        if not is_record(cls) or cls.docstring is None:
            return
        lines = agent.code.splitlines()
        fields = [
            each
            for each in node.body
            if isinstance(each, ast.AnnAssign)
            and isinstance(each.target, ast.Name)
            and not ast.unparse(each.annotation).startswith("ClassVar")
        ]
        described = []
        for field in fields:
            member = cls.members[field.target.id]
            member.annotation = plain_type(member.annotation)
            text = comment_of(field, lines)
            if member.docstring is not None:
                text = " ".join(member.docstring.value.split())
                member.docstring = None
            if text:
                described.append(f"    {field.target.id}: {text}")
        if described:
            cls.docstring.value += "\n\nAttributes:\n" + "\n".join(described)


def is_record(cls: griffe.Class) -> bool:
    """Returns whether a class is a named tuple or a dataclass."""
    decorators = [str(decorator.value) for decorator in cls.decorators]
    return "NamedTuple" in map(str, cls.bases) or any("dataclass" in name for name in decorators)


def comment_of(field: ast.AnnAssign, lines: list[str]) -> str:
    """Returns the comment at the end of a field, or else the comment lines above it."""
    last = lines[field.end_lineno - 1].encode()[field.end_col_offset :].decode().strip()
    if last.startswith("#"):
        return last.removeprefix("#").strip()
    above = []
    for line in reversed(lines[: field.lineno - 1]):
        if not line.strip().startswith("#"):
            break
        above.insert(0, line.strip().removeprefix("#").strip())
    return " ".join(above)


def plain_type(annotation: Any) -> Any:
    """Returns the type of `Annotated[type, ...]`, and other annotations as they are."""
    is_annotated = isinstance(annotation, griffe.ExprSubscript) and str(annotation.left) in (
        "Annotated",
        "typing.Annotated",
    )
    return annotation.slice.elements[0] if is_annotated else annotation


def as_known(docstring: str) -> str:
    """Returns a docstring with headings that Griffe knows."""
    return re.sub(
        r"^[\w ]+:$",
        lambda match: AS_WRITTEN.get(match[0], match[0]),
        docstring,
        flags=re.MULTILINE,
    )
