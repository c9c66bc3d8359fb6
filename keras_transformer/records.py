"""Records of settings: frozen dataclasses that check their values and describe their fields."""

import dataclasses
import difflib
import functools
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar, cast, dataclass_transform

import numpy as np
import pydantic

from keras_transformer.errors import InputError

_Record = TypeVar("_Record")

# A setting of a training may have an option of its own, and be the name of a file or run, free to
# change when a training resumes, decided by the run of `init_from`, or by default that run's.
Mark = Literal["option", "path", "resumable", "decided", "inherited"]


class Setting(NamedTuple):
    """What a field of a record says about itself beside its type, range and default."""

    marks: tuple[Mark, ...] = ()
    option: str | None = None  # on the command line, where it is not made of the field's name
    metavar: str | None = None  # stands for the value in the help of a command
    choices: Iterable[str] = ()  # complete the value at a shell
    help: str = ""  # the string below the field

    def complete(self) -> list[str]:
        """Returns the choices."""
        return list(self.choices)


def setting(*marks: Mark, **command: Any) -> Setting:
    """Marks a field within its `Annotated` type; the rest says how commands take it."""
    return Setting(marks, **command)


def settings_of(record: type, *marks: Mark) -> dict[str, Setting]:
    """Returns what the documented fields of a record say, by name; or those with one of `marks`."""
    helps = {
        name: " ".join(field.description.split())
        for kind in reversed(record.__mro__)
        for name, field in getattr(kind, "__pydantic_fields__", {}).items()
        if field.description
    }
    settings = {}
    for name, field in cast(Any, record).__pydantic_fields__.items():
        declared = next((x for x in field.metadata if isinstance(x, Setting)), Setting())
        if name in helps and (not marks or set(marks) & set(declared.marks)):
            settings[name] = declared._replace(help=helps[name])
    return settings


@dataclass_transform(
    kw_only_default=True, frozen_default=True, field_specifiers=(dataclasses.field,)
)
def checked_dataclass(cls: type[_Record]) -> type[_Record]:
    """Returns a frozen dataclass that takes keywords, and raises `InputError` for bad values.

    Only NumPy's numbers are converted. A string below a field says what it is for.
    """
    strict = pydantic.ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )
    record: Any = pydantic.dataclasses.dataclass(cls, frozen=True, kw_only=True, config=strict)
    validate = record.__init__

    @functools.wraps(validate)
    def construct(self: _Record, /, **values: Any) -> None:
        plain = {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in values.items()
        }
        try:
            validate(self, **plain)
        except pydantic.ValidationError as error:
            known = [field.name for field in dataclasses.fields(record)]
            raise _input_error(error, known) from None

    record.__init__ = construct
    return record


def unknown_setting(names: Sequence[str], known: Sequence[str]) -> InputError:
    """Returns the error for unknown settings, with the known ones that are most like them."""
    near = [field for name in names for field in known if len(name) > 2 and name in field]
    near = near or [x for name in names for x in difflib.get_close_matches(name, known)]
    listed = f"Did you mean {' or '.join(near[:5])}?" if near else f"There are: {', '.join(known)}"
    return InputError(f"Unknown setting {', '.join(names)}. {listed}")


def _input_error(failure: pydantic.ValidationError, known: Sequence[str]) -> InputError:
    errors = failure.errors(include_url=False)
    unknown = [str(error["loc"][0]) for error in errors if "unexpected" in error["type"]]
    if unknown:
        return unknown_setting(unknown, known)
    if errors[0]["type"] == "value_error":  # of `__post_init__`
        return InputError(str(errors[0]["ctx"]["error"]))
    return InputError(describe(failure))


def describe(failure: pydantic.ValidationError) -> str:
    """Returns Pydantic's own message, with the name of the setting in front."""
    first, *others = failure.errors(include_url=False)
    name = _setting_name(first["loc"])
    message = f"`{name}`: {first['msg']}"
    for error in others:
        if _setting_name(error["loc"]) == name:  # another type of a union
            message += f" or {error['msg'].removeprefix('Input should be ')}"
    if first["type"] == "missing":
        return message
    return f"{message}. Received: {name}={first['input']!r}"


def _setting_name(location: Sequence[int | str]) -> str:
    """("augment", "dict[...]", "typing", "[key]") -> "augment.typing"."""
    return ".".join(part for part in map(str, location) if "[" not in part and part != "str")
