"""Docstrings list the arguments and attributes that exist, and their examples run.

Griffe reads them, as for the site. Ruff's rules (D) check their form.
"""

import doctest
import functools
import re
import sys
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
KERAS |= {"compute_loss", "compute_output_shape", "result", "update_step"}
WITH_EXAMPLES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted((ROOT / "keras_transformer").rglob("*.py"))
    if ">>> " in path.read_text("utf-8") and path.parent.name not in HIDDEN_ROOMS
]

sys.path.insert(0, str(ROOT / "docs"))
from docstring_sections import is_record  # noqa: E402

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


def faults_of_arguments(documented, expected, given):
    """Returns arguments that do not exist, and those that the docstring does not mention."""
    order = [name for name in expected if name in given]
    found = [] if given == order else [f"Args are {given} and not {order}"]
    text = documented.docstring.value if documented.docstring else ""
    if re.search(r"\bthose of `", text):  # another name's docstring has the rest
        return found
    missing = [name for name in expected if name not in given and f"`{name}`" not in text]
    # One line may describe a single argument.
    return found + ([f"no Args for {missing}"] if missing and len(expected) > 1 else [])


def faults_of_class(documented):
    """Returns what the template misses in a class's docstring."""
    members, found = documented.all_members, []
    if is_record(documented):
        fields = [
            name
            for name, member in documented.members.items()
            if member.is_attribute and "property" not in member.labels and member.annotation
        ]
        given = names(documented, Kind.attributes)
        if sorted(fields) != sorted(given):
            found.append(f"Attributes are {given} and not {fields}")
    elif "__init__" in documented.members:
        known = [name for parent in documented.mro() for name in names(parent, Kind.parameters)]
        given = names(documented, Kind.parameters)
        expected = parameters(members["__init__"])
        own = [name for name in expected if name in given or name not in known]
        found += faults_of_arguments(documented, own, given)
    call = members.get("__call__", members.get("call"))
    given = names(documented, Kind.other_parameters)
    if given and given != [name for name in parameters(call) if name in given]:
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
            given = names(documented, Kind.parameters)
            about = module.docstring.value if module.docstring else ""  # what all functions take
            expected = [each for each in parameters(documented) if f"`{each}`," not in about]
            yield name, faults_of_arguments(documented, expected, given)
            continue
        yield name, faults_of_class(documented)
        others = KERAS.union(*(parent.members for parent in documented.mro()))
        for method, member in documented.members.items():
            if not member.is_function or method.startswith("_") or method in others:
                continue
            given = names(member, Kind.parameters)
            exist = [each for each in given if each in parameters(member)]
            yield f"{name}.{method}", [] if member.docstring else ["no docstring"]
            yield f"{name}.{method}", [] if given == exist else [f"Args are {given}, not {exist}"]


def test_docstrings_keep_to_the_template():
    found = {name: faults for name, faults in public() if faults}
    assert len(PUBLIC) > 50
    assert found == {}


RECORD = '''
from typing import Annotated, NamedTuple

class Record(NamedTuple):
    """A record."""

    one: Annotated[int, Field(ge=1)] = 1
    "the first"
    two: str = "#"  # the second
    # The third,
    # on two lines.
    three: tuple[
        int, ...
    ] = ()
'''


def test_fields_are_described_where_they_stand(tmp_path):
    (tmp_path / "records.py").write_text(RECORD, "utf-8")
    extensions = griffe.load_extensions(str(EXTENSION))
    module = griffe.load("records", search_paths=[tmp_path], extensions=extensions)
    fields = sections(module.members["Record"])[Kind.attributes]
    assert [(each.name, str(each.annotation), each.description) for each in fields] == [
        ("one", "int", "the first"),
        ("two", "str", "the second"),
        ("three", "tuple[int, ...]", "The third, on two lines."),
    ]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples(name, request, tmp_path, monkeypatch):
    """As a reader would paste them: an example imports what it needs."""
    monkeypatch.chdir(tmp_path)
    module = import_module(name)
    for test in doctest.DocTestFinder().find(module, globs={}):
        if '"my-run"' in test.docstring and not Path("my-run").exists():
            Path("my-run").symlink_to(request.getfixturevalue("tiny_run").path)
        assert doctest.DocTestRunner().run(test).failed == 0, test.name
