"""Options that several commands share, and options that are made from the fields of a record."""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from pydantic_core import PydanticUndefined
from typer import Argument, Option

from keras_transformer.config import CheckpointName, DecodingOptions
from keras_transformer.records import Setting, settings_of
from keras_transformer.trainers.recipes import recipe_names
from keras_transformer.trainers.settings import TrainSettings


class Fields(NamedTuple):
    """Stands in a command's signature for options, one for each of the named fields of a record."""

    record: type
    names: tuple[str, ...] = ()  # of the fields; () for all
    default: str = "{}"  # how the help of an option says the field's default


Given = Mapping[str, Any]  # the values of the options that a command was given, by field
NONE: Given = MappingProxyType({})

RunDirectory = Annotated[Path, Argument(metavar="RUN", help="A run directory.")]
Checkpoint = Annotated[
    CheckpointName | None,
    Option(help="The checkpoint to use. [default: averaged, unless best validates clearly better]"),
]
Search = Annotated[Given, Fields(DecodingOptions, default="the run's, or {}")]
Json = Annotated[bool, Option("--json", help="Print the result as a JSON object.")]
Recipe = Annotated[
    str | None,
    Option(
        metavar="NAME|FILE|RUN",
        help="Settings to start from, which the other options change: a TOML file, a run "
        f"directory, or one of {', '.join(recipe_names())}.",
        autocompletion=recipe_names,
    ),
]
Changes = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="KEY=VALUE",
        help="A setting, such as warmup_steps=400 or model.dropout_rate=0.2. May be repeated. "
        "`train --list-settings` prints all of them.",
        autocompletion=lambda: [f"{name}=" for name in settings_of(TrainSettings)],
    ),
]


def with_fields(command: Callable[..., None]) -> Callable[..., None]:
    """Returns a command for Typer, in which options stand for the parameters that are records.

    A parameter of a type that `checked_dataclass` made becomes an option for each field, and the
    command gets the record. One of `Annotated[Given, Fields(...)]` becomes options that are all
    optional, and the command gets the values that were given.
    """
    parameters: list[inspect.Parameter] = []
    records: dict[str, dict[str, Any]] = {}  # of each such parameter: the type of each option
    builders: dict[str, Callable[..., Any]] = {}
    for parameter in inspect.signature(command).parameters.values():
        annotation = parameter.annotation
        fields = next(
            (x for x in getattr(annotation, "__metadata__", ()) if type(x) is Fields), None
        )
        if fields is None and hasattr(annotation, "__pydantic_fields__"):
            fields = Fields(annotation)
            builders[parameter.name] = annotation
        if fields is None:
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY))
            continue
        options = list(_options(fields))
        parameters += options
        records[parameter.name] = {option.name: option.annotation for option in options}

    @functools.wraps(command)
    def call(**values: Any) -> None:
        for name, options in records.items():
            given = {field: values.pop(field) for field in options}
            given = {field: value for field, value in given.items() if value not in (None, [])}
            values[name] = builders.get(name, dict)(**given)
        command(**values)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {option.name: option.annotation for option in parameters}
    return call


def _options(fields: Fields) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(fields.record)
    for name, declared in settings_of(fields.record).items():
        if fields.names and name not in fields.names:
            continue
        default = fields.record.__pydantic_fields__[name].default  # type: ignore[attr-defined]
        option = declared.option
        if option is None and hints[name] is bool and not default:
            option = f"--{name.replace('_', '-')}"  # and no --no-NAME
        kinds = [hints[name], *get_args(hints[name])]
        kind = next((kind for kind in kinds if get_origin(kind) is list), hints[name])
        may_repeat = " May be repeated." if get_origin(kind) is list else ""
        info = Option(
            *filter(None, [option]),
            metavar=declared.metavar,
            help=_help(declared, fields.default, default) + may_repeat,
            autocompletion=declared.complete if declared.choices else None,
        )
        yield inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[kind | None, info],
        )


def option_of(name: str) -> str:
    """Returns the option of a field of the search."""
    return settings_of(DecodingOptions)[name].option or f"--{name.replace('_', '-')}"


def _help(declared: Setting, text: str, default: Any) -> str:
    if default is None or default is False or default is PydanticUndefined:
        return declared.help
    return f"{declared.help} [default: {text.format(default)}]"


def one_or_all(values: list[str] | None) -> str | list[str] | None:
    """Returns the value of an option that was given once, a list of several, or None."""
    return values[0] if values and len(values) == 1 else values or None
