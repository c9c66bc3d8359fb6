"""Who may import whom, read from the source."""

import ast
import functools
import graphlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hidden_room import HIDDEN_ROOMS, ROOMS

import keras_transformer

ROOT = Path(__file__).parents[2]
GROUND = "keras_transformer"
WINGS = ("trainers", "export", "cli")
# The folders and files of the ground floor: each imports only those before it.
ORDER = ("_version", "errors", "languages", "files", "checkpoints", "records", "config", "model")
ORDER += ("search", "registry", "tokenizers", "texts", "plots", *ROOMS)
ORDER += ("attention_reader", "manifest", "run", "translator")
FREE = ("config", "errors", "model", "records")  # of TensorFlow
MAX_LINES = {"file": 420, "function": 60}
MAX_PARAMETERS = 8
COMMANDS = r"cli\.\w+:\w+_command\(\d+\)"  # a command's parameters are its options
LAYERS = {  # as Keras's own layers
    "model.attention:call(9)",
    "model.embedding:__init__(9)",
    "model.layers:__init__(12)",
    "model.layers:call(9)",
}
TOO_LARGE = {"search.beam_search:beam_search", "translator:translate(9)"}


def name_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == GROUND else (GROUND, *parts)
    return ".".join(parts).removesuffix(".__init__")


MODULES = {
    name_of(path): path
    for folder in (GROUND, *WINGS)
    for path in (ROOT / folder).rglob("*.py")
    if path.parent.name not in HIDDEN_ROOMS
}
del MODULES[GROUND]


def is_type_checking(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


@functools.cache
def imports(module, later=True):
    """Names of all modules that a module imports: at its top, or, if `later`, anywhere."""
    found, nodes = set(), [ast.parse(MODULES[module].read_text(encoding="utf-8"))]
    while nodes:
        node = nodes.pop()
        if not later and (is_type_checking(node) or isinstance(node, ast.FunctionDef)):
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


@pytest.mark.parametrize("module", [name for name in MODULES if wing_of(name) == GROUND])
def test_order_of_the_ground_floor(module):
    floor = ORDER.index(module.split(".")[1])
    above = ORDER[floor + 1 :]
    assert not {name for name in own_imports(module) if name.split(".")[1] in above}


def rooms_of(module):
    return {*module.split(".")[1:3]} & {*ROOMS}


@pytest.mark.parametrize("module", [name for name in MODULES if rooms_of(name)])
def test_rooms_know_nothing_of_each_other(module):
    assert {room for name in own_imports(module) for room in rooms_of(name)} <= rooms_of(module)


def test_no_circular_imports():
    graph = {module: own_imports(module) for module in MODULES}
    # Tasks name the types of what finds them.
    tasks = "keras_transformer.trainers.tasks"
    graph[tasks] = imports(tasks, later=False) & set(MODULES)
    graphlib.TopologicalSorter(graph).prepare()


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


@pytest.mark.parametrize("name", keras_transformer.__all__)
def test_public_names(name):
    if name.removesuffix("Config").lower() in HIDDEN_ROOMS:
        pytest.skip(f"{name} is of a hidden room")
    assert getattr(keras_transformer, name) is not None


def test_unknown_public_name():
    with pytest.raises(AttributeError, match="GPT"):
        _ = keras_transformer.GPT


@pytest.mark.parametrize(
    "module",
    ["keras_transformer", "keras_transformer.cli.main", "keras_transformer.export.clients"],
)
def test_import_leaves_tensorflow_alone(module):
    script = f"import sys, {module}; sys.exit(bool({{'tensorflow', 'keras'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def too_large():
    """Yields the names of files, functions and signatures that are too large."""
    for module, path in MODULES.items():
        text = path.read_text(encoding="utf-8")
        if len(text.splitlines()) > MAX_LINES["file"]:
            yield module
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if node.end_lineno - first + 1 > MAX_LINES["function"]:
                yield f"{module}:{node.name}"
            arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
            names = {argument.arg for argument in arguments} - {"self", "cls"}
            if len(names) > MAX_PARAMETERS:
                yield f"{module}:{node.name}({len(names)})"


def test_sizes():
    found = {name.removeprefix("keras_transformer.") for name in too_large()}
    found = {name for name in found if not re.fullmatch(COMMANDS, name)}
    assert found - LAYERS - TOO_LARGE == set()
