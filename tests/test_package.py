"""What holds of the package as a whole: its names, what imports what, and how long things may get."""

from __future__ import annotations

import ast
import inspect
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import helpers

FOLDER = Path(helpers.__file__).parent
TREES = {path.stem: ast.parse(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.py"))}

# Imports go down these steps. What is not named stands between launch and the top, with record, timeline and
# check.
GROUND = {"_devices", "_output", "_transport"}
ON_IT = {"_worker", "_launch", "_measure"}
TOP = {"explore", "_explore", "_doctor", "_board", "_notebooks", "__main__"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def step(module: str) -> int:
    return 0 if module in GROUND else 1 if module in ON_IT else 3 if module in TOP else 2


def named(module: str) -> str:
    """The module behind a name of the package: `launch` is in _launch, `_devices` is itself."""
    return module if module in TREES else helpers._PLACES[module]


def imports(tree: ast.Module) -> Iterator[str]:
    """Modules of this package that a module imports, at its top or when a function of it runs."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("helpers."))
        elif isinstance(node, ast.ImportFrom):
            inside = node.level > 0 or (node.module or "").split(".")[0] == "helpers"
            module = (node.module or "").removeprefix("helpers").removeprefix(".")
            if inside:
                yield from [module] if module else (named(alias.name) for alias in node.names)


GRAPH = {module: set(imports(tree)) for module, tree in TREES.items()}


def functions() -> Iterator[tuple[str, Function]]:
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, Function):
                yield f"{module}.{node.name}", node


def lines_of_code(node: ast.AST, source: list[str]) -> int:
    """Lines that are neither blank nor a comment nor part of a docstring: to explain costs nothing."""
    first, last = getattr(node, "lineno", 1), getattr(node, "end_lineno", len(source))
    taken = {number for number in range(first, last + 1) if source[number - 1].split("#")[0].strip()}
    for inner in ast.walk(node):
        if isinstance(inner, ast.Module | ast.ClassDef | Function) and ast.get_docstring(inner) is not None:
            taken -= set(range(inner.body[0].lineno, inner.body[0].end_lineno + 1))
    return len(taken)


def source(module: str) -> list[str]:
    return (FOLDER / f"{module}.py").read_text("utf-8").splitlines()


# Importing


def test_importing_helpers_is_light(record_property: pytest.RecordProperty) -> None:
    """torch and what draws are imported when first used. The budget is 0.3 s; -rP shows what it took."""
    heavy = ["torch", "matplotlib", "numpy", "sklearn", "IPython", "ipywidgets", "cloudpickle"]
    code = f"import helpers, sys; print([name for name in {heavy} if name in sys.modules])"
    start = time.perf_counter()
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    print(f"python and import helpers: {time.perf_counter() - start:.2f} s")
    assert run.stdout.strip() == "[]"


def test_the_worker_imports_nothing_heavy_before_it_is_told_to() -> None:
    """The fork server imports torch itself, so that the notebook hears of one that is missing."""
    code = (
        "import sys; from helpers import _worker; print('torch' in sys.modules, 'matplotlib' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "False"]


def test_imports_make_no_circle() -> None:
    order = list(TopologicalSorter(GRAPH).static_order())  # raises CycleError
    assert set(order) == set(TREES)
    assert order.index("_devices") < order.index("_launch") < order.index("_doctor")


@pytest.mark.parametrize("module", sorted(TREES))
def test_imports_go_down(module: str) -> None:
    assert [other for other in GRAPH[module] if step(other) > step(module)] == []


def test_the_ground_imports_nothing_of_the_package() -> None:
    assert {module: GRAPH[module] for module in GROUND if GRAPH[module]} == {}


def test_steps_name_modules_that_exist() -> None:
    missing = (GROUND | ON_IT | TOP) - set(TREES)
    assert missing <= {"explore", "_explore", "_board"}  # to come


# Names


@pytest.mark.parametrize("name", helpers.__all__)
def test_a_public_name_has_a_docstring_of_its_own(name: str) -> None:
    text = inspect.getdoc(getattr(helpers, name)) or ""
    assert text.strip()
    assert not text.startswith(f"{name}(")  # what a dataclass without a docstring is given


def test_every_module_says_what_it_is() -> None:
    assert [module for module, tree in TREES.items() if not ast.get_docstring(tree)] == []


def test_a_name_that_does_not_exist_says_so() -> None:
    with pytest.raises(AttributeError, match=r"^module 'helpers' has no name 'lunch'$"):
        _ = helpers.lunch


def test_public_names_are_listed() -> None:
    assert {"launch", "devices", "device", "label", "measure", "compare"} <= set(dir(helpers))


def test_public_functions_are_typed_in_full() -> None:
    untyped = []
    for name, node in functions():
        arguments = [
            *node.args.posonlyargs,
            *node.args.args,
            *node.args.kwonlyargs,
            node.args.vararg,
            node.args.kwarg,
        ]
        bare = [
            each.arg
            for each in arguments
            if each and each.annotation is None and each.arg not in ("self", "cls")
        ]
        if not node.name.startswith("_") and (bare or node.returns is None):
            untyped.append((name, bare))
    assert untyped == []


# Size


def test_functions_are_short() -> None:
    lengths = {name: lines_of_code(node, source(name.split(".")[0])) for name, node in functions()}
    assert statistics.median(lengths.values()) <= 8
    assert {name: length for name, length in lengths.items() if length > 45} == {}


def test_the_package_stays_small() -> None:
    lengths = {module: lines_of_code(tree, source(module)) for module, tree in TREES.items()}
    checks = {module: lengths.pop(module) for module in [*lengths] if module.startswith("_check_")}
    print(f"{sum(lengths.values())} lines of code in helpers: {lengths}, and a lesson's checks: {checks}")
    assert lengths["_devices"] > 50  # lines are really counted
    del lengths["_notebooks"]  # a tool of this repository, which no lesson imports
    assert sum(lengths.values()) <= 1850
    assert max(checks.values()) <= 120  # these grow with the lessons, so each stays small
