"""Recipes: TOML files of settings; and what becomes of settings that come from several places.

The layers of a training, the strongest first: what is given, a prepared corpus, the recipe, the run
of `init_from`, the defaults of the task, and those of `TrainSettings`.
"""

import dataclasses
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from keras_transformer.config import DecodingOptions
from keras_transformer.errors import InputError, one_line
from keras_transformer.records import settings_of
from keras_transformer.registry import config_type
from keras_transformer.run import Run
from keras_transformer.trainers.data.augmentation import DEFAULT_RATES
from keras_transformer.trainers.settings import (
    ModelSettings,
    TrainSettings,
    flat,
)

_FOLDER = Path(__file__).parent


class Layer(NamedTuple):
    """Settings that come from one place."""

    origin: str  # for messages, such as "the recipe demo"
    values: Mapping[str, Any]


def resolve(layers: Sequence[Layer], changes: Iterable[str] = ()) -> dict[str, Any]:
    """Merges layers, the strongest first, changes, and what comes from the run of `init_from`."""
    values = {name: value for layer in reversed(layers) for name, value in layer.values.items()}
    changed = change_recipe(values, changes)
    given = {name: value for name, value in changed.items() if value != values.get(name, ...)}
    path = changed.get("init_from")
    if not isinstance(path, str) or not (Path(path) / "run.json").is_file():
        return changed
    initial = Run.load(path)
    names = settings_of(TrainSettings, "inherited") | settings_of(DecodingOptions)
    inherited = {name: value for name, value in initial.settings.items() if name in names}
    decided = _decided(initial, [Layer("--set", given), *layers])
    return {**inherited, **changed, **decided}


def _decided(initial: Run, layers: Sequence[Layer]) -> dict[str, Any]:
    """Returns the settings that a run decides; `InputError` if a layer has another value."""
    values = {**TrainSettings(data="").to_dict(), **initial.settings}
    values["architecture"] = initial.config.architecture
    names = settings_of(TrainSettings, "decided")
    for name in names:
        layer = next((layer for layer in layers if name in layer.values), None)
        if layer and layer.values[name] != values[name]:
            raise InputError(
                f"`{name}` must be that of `init_from`, {values[name]!r}. "
                f"Received: {name}={layer.values[name]!r}, from {layer.origin}"
            )
    return {name: values[name] for name in names}


def completed(settings: TrainSettings, run_dir: Path | None = None) -> TrainSettings:
    """Returns settings in which all that the run `init_from` decides is that run's.

    A setting that has its default value counts as not given. A run to resume, in `run_dir`, has all
    that is decided if it began from the same run; then that may be gone.
    """
    if settings.init_from is None:
        return settings
    initial = None
    if run_dir is not None and (run_dir / "run.json").is_file():
        resumed = Run.load(run_dir)
        initial = resumed if resumed.settings.get("init_from") == settings.init_from else None
    initial = initial or Run.load(settings.init_from)
    values, defaults = settings.to_dict(), TrainSettings(data="").to_dict()
    given = {name: value for name, value in values.items() if value != defaults[name]}
    decided, sizes = _decided(initial, [Layer("the settings", given)]), initial.config.to_dict()
    changed = {name for name, value in settings.model.items() if value != sizes.get(name)}
    if others := sorted(name for name in changed if not name.endswith("dropout_rate")):
        raise InputError(
            "With `init_from`, `model` may change a dropout_rate only. "
            f"Received: {', '.join(others)}"
        )
    kind = config_type(decided["architecture"])
    preset = kind.from_preset(decided["preset"], vocab_size=8).to_dict()
    # `run.json` then says by `preset` and `model` what the model is.
    model = {
        name: value
        for name, value in sizes.items()
        if value != preset[name] and name not in kind.of_tokenizer
    }
    return dataclasses.replace(settings, **decided, model={**model, **settings.model})


def recipe_names() -> list[str]:
    """Returns the names of the recipes that come with the package."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def load_recipe(recipe: str | Path) -> dict[str, Any]:
    """Reads the settings of a recipe, by name, without its sections.

    Args:
        recipe: the name of a recipe of the package, a TOML file (./NAME if it has such a name), or
            a run directory, for the settings of its training.

    Raises:
        InputError: if the recipe cannot be read.
    """
    names = recipe_names()
    path = _FOLDER / f"{recipe}.toml" if str(recipe) in names else Path(recipe)
    try:
        if (path / "run.json").is_file():
            return Run.load(path).settings
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        reason = error.strerror
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = f"it is damaged ({one_line(error)})"
    else:
        return flat(values)
    raise InputError(
        f"Cannot read the recipe {recipe}: {reason}. "
        f"It must be a TOML file, a run directory, or one of: {', '.join(names)}"
    )


def recipe_of_student(teacher: str | Path) -> dict[str, Any]:
    """Returns the settings of a run for a student that learns from it, but for those of a model."""
    of_model = settings_of(ModelSettings)
    return {name: x for name, x in Run.load(teacher).settings.items() if name not in of_model}


def change_recipe(recipe: Mapping[str, Any], changes: Iterable[str]) -> dict[str, Any]:
    """Returns settings with changes such as "steps=7", "training.steps=7" or "model.d_ff=64".

    Args:
        recipe: settings by name.
        changes: the values are TOML, except that a bare word is a string, and none is None. A name
            may follow that of its section; `model` and `augment` are tables, which keep the rest.

    Raises:
        InputError: if a change has a different form, or names a section that has no such setting.
    """
    changed = dict(recipe)
    for change in changes:
        match = re.fullmatch(r"\s*(\w+(?:\.\w+)*)\s*=(.*)", change, re.DOTALL)
        if match is None:
            raise InputError(
                "A change must have the form key=value, such as steps=7 or model.d_ff=64. "
                f"Received: {change!r}"
            )
        *tables, name = match[1].split(".")
        values = {name: _parse(match[2].strip())}
        for table in reversed(tables):
            values = {table: values}
        for setting, value in flat(values).items():
            table = changed.get(setting, "all" if setting == "augment" else None)
            table = DEFAULT_RATES if table == "all" else table
            if setting == name or table is None:
                changed[setting] = value
            elif isinstance(table, Mapping):  # `TrainSettings` refuses anything else
                changed[setting] = {**table, **value}
    return changed


def _parse(text: str) -> Any:
    if text == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:  # also of a number that is too long
        return text
