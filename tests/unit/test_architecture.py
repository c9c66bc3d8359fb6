"""Who may import whom, read from the source."""

import ast
import functools
import graphlib
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import keras_transformer

ROOT = Path(__file__).parents[2]
GROUND = "keras_transformer"
WINGS = ("trainers", "export", "cli")
# The folders of the ground floor, in their order: each imports only those before it.
FLOORS = ("errors", "files", "config", "model", "tokenizers", "plots", "search")
FLOORS += ("recurrent", "marian", "parsing", "architectures", "run", "translator")


FREE = ("config", "errors", "model")  # of TensorFlow


def name_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == GROUND else (GROUND, *parts)
    return ".".join(parts).removesuffix(".__init__")


MODULES = {
    name_of(path): path for folder in (GROUND, *WINGS) for path in (ROOT / folder).rglob("*.py")
}
del MODULES[GROUND]


def is_type_checking(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


@functools.cache
def imports(module, later=True):
    """Names of all modules that a module imports: at its top, and, if `later`, in functions."""
    found, nodes = set(), [ast.parse(MODULES[module].read_text(encoding="utf-8"))]
    while nodes:
        node = nodes.pop()
        if is_type_checking(node) or (isinstance(node, ast.FunctionDef) and not later):
            continue
        nodes += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in members}
    return found


def own_imports(module):
    return imports(module) & set(MODULES)


def wing_of(module):
    folder = module.split(".")[1]
    return folder if folder in WINGS else GROUND


@pytest.mark.parametrize(
    ("wing", "allowed"),
    [
        (GROUND, {GROUND}),
        ("trainers", {GROUND, "trainers"}),
        ("export", {GROUND, "export"}),
        ("cli", {GROUND, "trainers", "export", "cli"}),
    ],
)
def test_imports_point_to_the_ground(wing, allowed):
    modules = [module for module in MODULES if wing_of(module) == wing]
    assert modules
    for module in modules:
        assert {wing_of(name) for name in own_imports(module)} <= allowed, module


def test_command_line_reaches_both_wings():
    reached = {wing_of(name) for m in MODULES if wing_of(m) == "cli" for name in own_imports(m)}
    assert reached == {GROUND, *WINGS}


def test_no_circular_imports():
    graphlib.TopologicalSorter({module: own_imports(module) for module in MODULES}).prepare()


@pytest.mark.parametrize("name", sorted(m for m in MODULES if m.split(".")[1] in FREE))
def test_model_needs_no_tensorflow(name):
    todo, seen = [name], set()
    while todo:
        module = todo.pop()
        seen.add(module)
        # What only Keras's TensorFlow backend needs may come later.
        roots = {name.split(".")[0] for name in imports(module, later=False)}
        known = {GROUND, "jaxtyping", "keras", "numpy", "pydantic", *sys.stdlib_module_names}
        assert roots <= known, module
        todo += own_imports(module) - seen


def test_public_names_are_declared_alike():
    tree = ast.parse((ROOT / GROUND / "__init__.py").read_text(encoding="utf-8"))
    (block,) = filter(is_type_checking, tree.body)
    for_type_checkers = {
        alias.asname: node.module.removeprefix(f"{GROUND}.")
        for node in block.body
        for alias in node.names
    }
    assert for_type_checkers == keras_transformer._MODULES


@pytest.mark.parametrize("name", sorted(keras_transformer._MODULES))
def test_public_name_is_that_of_its_module(name):
    module = import_module(f"{GROUND}.{keras_transformer._MODULES[name]}")
    assert getattr(keras_transformer, name) is getattr(module, name)
    origin = getattr(module, name).__module__
    assert origin == module.__name__ or origin in own_imports(module.__name__)


def test_unknown_public_name():
    with pytest.raises(AttributeError, match="module 'keras_transformer' has no attribute 'GPT'"):
        _ = keras_transformer.GPT


@pytest.mark.parametrize(
    "module",
    ["keras_transformer", "keras_transformer.cli.main", "keras_transformer.export.clients"],
)
def test_import_leaves_tensorflow_alone(module):
    script = f"import sys, {module}; sys.exit(bool({{'tensorflow', 'keras'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
