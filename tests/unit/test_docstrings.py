"""Docstrings keep to the template, name what the code names, and their examples run.

What they say is read by Griffe, as for the site; ruff's rules (D) see to their form.
"""

import ast
import doctest
import functools
import re
import textwrap
from importlib import import_module
from pathlib import Path

import griffe
import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "reference").glob("*.md"))
# What is public: `keras_transformer.__all__` is among it, which test_docs.py sees to.
PUBLIC = [
    found
    for page in PAGES
    for found in re.findall(r"^::: (\S+)\.(\w+)$", page.read_text("utf-8"), re.MULTILINE)
]
# Keras documents these.
KERAS = {"build", "call", "compute_output_shape", "from_config", "get_config"}
EXAMPLES = {
    "attention": ["MultiHeadAttention"],
    "config": ["TransformerConfig"],
    "decoding": ["beam_search"],
    "embedding": ["PositionalEmbedding", "sinusoidal_encoding"],
    "layers": ["DecoderLayer", "EncoderLayer", "FeedForward"],
    "losses": ["LabelSmoothedCrossEntropy", "Perplexity"],
    "masks": ["causal_mask", "padding_mask"],
    "model": ["Transformer"],
    "plots": ["attention_heads", "learning_rate"],
    "schedules": ["WarmupSchedule"],
    "translator": ["Translator"],
}

Kind = griffe.DocstringSectionKind
EXTENSION = ROOT / "docs" / "docstring_sections.py"


@functools.cache
def package(name):
    """A folder as Griffe reads it for the site."""
    extensions = griffe.load_extensions(str(EXTENSION))
    return griffe.load(name, search_paths=[ROOT], extensions=extensions)


def read(module):
    *folders, name = module.removeprefix("keras_transformer.").split(".")
    return package(folders[0] if folders else "keras_transformer").members[name]


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
    """What a caller may give; arguments of a superclass, `**kwargs`, are documented there."""
    return [
        parameter.name
        for parameter in function.parameters
        if parameter.name not in ("self", "cls", "kwargs")
    ]


def raised(function):
    """The exceptions that a function's own lines raise."""
    nodes = ast.walk(ast.parse(textwrap.dedent(function.source)))
    return {
        node.exc.func.id
        for node in nodes
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)
    } - {"NotImplementedError", "AttributeError"}


def undocumented_errors(documented, *functions):
    documents = {str(each.annotation) for each in sections(documented).get(Kind.raises, [])}
    errors = set().union(*map(raised, functions)) - documents
    return [f"Raises has no {error}" for error in sorted(errors)]


def faults_of_function(function):
    """What the template misses in a function's docstring."""
    found = undocumented_errors(function, function)
    expected, documented = parameters(function), names(function, Kind.parameters)
    # One line may say it all of one argument.
    if documented != expected and (documented or len(expected) > 1):
        found.append(f"Args are {documented} and not {expected}")
    summary = function.docstring.value.split("\n")[0] if function.docstring else ""
    gives_tensors = re.match(r"(tuple\[)?(Any|\w+\.(Tensor|ndarray))\b", str(function.returns))
    tells_shape = Kind.returns in sections(function) or re.search(r"^Returns|\[.*\]", summary)
    if gives_tensors and not tells_shape:
        found.append("neither Returns nor a shape")
    return found


def inherited(module, documented):
    """What a class has of the classes of its module, which document it."""
    bases = [module.members[base] for base in map(str, documented.bases) if base in module.members]
    return {
        name: member
        for base in bases
        if not base.is_alias  # another module's
        for name, member in base.members.items()
    }


def faults_of_class(module, documented):
    """What the template misses in a class's docstring."""
    members = inherited(module, documented) | documented.members
    made_by = [members[name] for name in ("__init__", "__post_init__") if name in members]
    found = undocumented_errors(documented, *made_by)
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
    """Yields the name and the faults of all that is public, methods included."""
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


@pytest.mark.parametrize(
    ("definition", "docstring", "fault"),
    [
        ("def f(a, b):", "Args:\n        b: one.\n        a: other.", "Args are ['b', 'a']"),
        ("def f(a, b):", "Both.", "Args are [] and not ['a', 'b']"),
        ("def f(a) -> Any:", "One.", "neither Returns nor a shape"),
        ("def f():\n    raise InputError('no')", "None.", "Raises has no InputError"),
        (
            "class C(NamedTuple):\n    b: int",
            "Attributes:\n        a: one.",
            "Attributes are ['a']",
        ),
        ("class C:\n    def __init__(self, a): ...", "One.", "Args are [] and not ['a']"),
        ("class C:\n    def call(self, a): ...", "One.", "no Call arguments"),
    ],
)
def test_faults_are_found(tmp_path, definition, docstring, fault):
    first, _, rest = definition.partition("\n")
    lines = [first, f'    """Does.\n\n    {docstring}\n    """', rest]
    (tmp_path / "some.py").write_text("\n".join(lines) + "\n", "utf-8")
    module = griffe.load("some", search_paths=[tmp_path])
    (documented,) = module.members.values()
    is_function = documented.is_function
    found = faults_of_function(documented) if is_function else faults_of_class(module, documented)
    assert len(found) == 1
    assert found[0].startswith(fault)


def test_site_knows_the_sections_of_keras():
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    (plugin,) = (each for each in site["plugins"] if isinstance(each, dict))
    options = plugin["mkdocstrings"]["handlers"]["python"]["options"]
    assert options["extensions"] == [str(EXTENSION.relative_to(ROOT))]
    layer = read("keras_transformer.layers").members["AddNorm"]
    kinds = {section.title: section.kind for section in layer.docstring.parse("google")}
    assert kinds["Call arguments:"] == Kind.other_parameters  # a list on the page
    assert names(layer, Kind.other_parameters) == ["x", "sublayer_output", "training"]
    schedule = read("keras_transformer.schedules").members["WarmupSchedule"]
    kinds = {section.title: section.kind for section in schedule.docstring.parse("google")}
    assert kinds["Example:"] == Kind.examples


def examples(module):
    """The docstrings of a module that have examples."""
    name = f"keras_transformer.{module}"
    found = doctest.DocTestFinder().find(import_module(name), name, globs={})
    return {test.name.removeprefix(f"{name}."): test for test in found if test.examples}


def test_every_example_is_run():
    with_examples = {
        path.stem
        for folder in ("keras_transformer", "trainers", "export", "cli")
        for path in (ROOT / folder).glob("*.py")
        if ">>> " in path.read_text("utf-8")
    }
    assert with_examples == set(EXAMPLES)


@pytest.mark.parametrize("module", EXAMPLES)
def test_examples(module, request, tmp_path, monkeypatch):
    """As they stand: what an example needs, it imports."""
    monkeypatch.chdir(tmp_path)
    found = examples(module)
    assert sorted(found) == sorted(EXAMPLES[module])
    for name, test in found.items():
        if '"my-run"' in test.docstring and not Path("my-run").exists():
            Path("my-run").symlink_to(request.getfixturevalue("tiny_run").path)
        assert doctest.DocTestRunner().run(test).failed == 0, name


def test_a_wrong_example_fails():
    test = examples("schedules")["WarmupSchedule"]
    test.examples[-1].want = "[0.0625, 0.25, 0.126]\n"
    assert doctest.DocTestRunner().run(test, out=lambda text: None).failed == 1
