"""Docstrings list the arguments and attributes that exist, and their examples run.

Griffe reads them, as for the site. Ruff's rules (D) check their form.
"""

import doctest
import functools
import re
from importlib import import_module
from pathlib import Path

import griffe
import pytest
from hidden_room import HIDDEN_ROOMS

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "reference").glob("*.md"))
# The public names: test_docs.py checks that `keras_transformer.__all__` is among them.
PUBLIC = [
    found
    for page in PAGES
    for found in re.findall(r"^::: (\S+)\.(\w+)$", page.read_text("utf-8"), re.MULTILINE)
]
# Keras documents these.
KERAS = {"build", "call", "compute_mask", "compute_output_spec", "from_config", "get_config"}
KERAS |= {"compute_loss", "compute_output_shape", "update_step"}
WITH_EXAMPLES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted((ROOT / "keras_transformer").rglob("*.py"))
    if ">>> " in path.read_text("utf-8") and path.parent.name not in HIDDEN_ROOMS
]

Kind = griffe.DocstringSectionKind
EXTENSION = ROOT / "docs" / "docstring_sections.py"


@functools.cache
def package(name):
    """A folder as Griffe reads it for the site."""
    extensions = griffe.load_extensions(str(EXTENSION))
    return griffe.load(name, search_paths=[ROOT], extensions=extensions)


def read(module):
    """A module, which is in a folder of the repository: its own, or the ground floor."""
    wing, *names = module.removeprefix("keras_transformer.").split(".")
    is_of_wing = (ROOT / wing).is_dir()
    found = package(wing if is_of_wing else "keras_transformer")
    for name in names if is_of_wing else (wing, *names):
        found = found.members[name]
    return found


def sections(documented):
    """The sections of a docstring, by kind."""
    if documented.docstring is None:
        return {}
    options = {"returns_multiple_items": False, "returns_named_value": False, "warnings": False}
    return {
        section.kind: section.value for section in documented.docstring.parse("google", **options)
    }


def names(documented, kind):
    """The names in a section, without the stars of `**overrides`."""
    return [each.name.lstrip("*") for each in sections(documented).get(kind, [])]


def parameters(function):
    """Returns the names of a function's parameters, without `**kwargs` for a superclass."""
    return [
        parameter.name
        for parameter in function.parameters
        if parameter.name not in ("self", "cls", "kwargs")
    ]


def faults_of_function(function):
    """Returns what the template misses in a function's docstring."""
    expected, documented = parameters(function), names(function, Kind.parameters)
    # One line may describe a single argument.
    if documented != expected and (documented or len(expected) > 1):
        return [f"Args are {documented} and not {expected}"]
    return []


def inherited(module, documented):
    """Returns the members that a class inherits from the classes of its module."""
    bases = [module.members[base] for base in map(str, documented.bases) if base in module.members]
    return {
        name: member
        for base in bases
        if not base.is_alias  # another module's
        for name, member in base.members.items()
    }


def faults_of_class(module, documented):
    """Returns what the template misses in a class's docstring."""
    members = inherited(module, documented) | documented.members
    found = []
    is_record = "NamedTuple" in map(str, documented.bases) or any(
        "dataclass" in str(decorator.value) for decorator in documented.decorators
    )
    if is_record:
        fields = {
            name
            for name, member in documented.members.items()
            if member.is_attribute and "property" not in member.labels and member.annotation
        }
        if fields != set(names(documented, Kind.attributes)):
            found.append(f"Attributes are {names(documented, Kind.attributes)} and not {fields}")
    elif "__init__" in members:
        expected, given = parameters(members["__init__"]), names(documented, Kind.parameters)
        twin = re.search(r"The arguments.* are those of `(\w+)`\.", documented.docstring.value)
        if twin and not given:
            given = names(module.members[twin[1]], Kind.parameters)
        if given != expected:
            found.append(f"Args are {given} and not {expected}")
    call = documented.members.get("__call__", documented.members.get("call"))
    given = names(documented, Kind.other_parameters)
    if given and given != parameters(call):
        found.append(f"Call arguments are {given} and not {parameters(call)}")
    if documented.members.get("call") and not given:
        found.append("no Call arguments")
    return found


def public():
    """Yields the name and the faults of each public function, class and method."""
    for path, name in PUBLIC:
        module = read(path)
        documented = module.members[name]
        if documented.is_function:
            yield name, faults_of_function(documented)
            continue
        yield name, faults_of_class(module, documented)
        others = inherited(module, documented).keys() | KERAS
        for method, member in documented.members.items():
            if member.is_function and not method.startswith("_") and method not in others:
                yield f"{name}.{method}", faults_of_function(member)


def test_docstrings_keep_to_the_template():
    found = {name: faults for name, faults in public() if faults}
    assert len(PUBLIC) > 50
    assert found == {}


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples(name, request, tmp_path, monkeypatch):
    """As a reader would paste them: an example imports what it needs."""
    monkeypatch.chdir(tmp_path)
    module = import_module(name)
    for test in doctest.DocTestFinder().find(module, globs={}):
        if '"my-run"' in test.docstring and not Path("my-run").exists():
            Path("my-run").symlink_to(request.getfixturevalue("tiny_run").path)
        assert doctest.DocTestRunner().run(test).failed == 0, test.name
