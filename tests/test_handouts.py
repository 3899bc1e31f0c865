"""A handout is the lesson without solutions and outputs, and runs from top to bottom as a student gets it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

from helpers._notebooks import LESSONS, LessonError, handouts, has_tag, run

ROOT = Path(__file__).parents[1]
PATHS = sorted((ROOT / "notebooks").glob(LESSONS))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the handouts of all lessons lie."""
    folder = tmp_path_factory.mktemp("build") / "handouts"
    handouts(PATHS, folder)
    return folder


def test_every_lesson_has_a_handout(folder: Path) -> None:
    assert PATHS, f"no lesson {LESSONS} in notebooks/"
    assert sorted(folder.glob("*.ipynb")) == [folder / path.name for path in PATHS]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_handout_is_the_lesson_without_solutions(path: Path, folder: Path) -> None:
    lesson, copy = nbformat.read(path, 4).cells, nbformat.read(folder / path.name, 4).cells
    solutions = [at for at, cell in enumerate(lesson) if has_tag(cell, "solution")]
    kept = [cell.source for cell in lesson]
    for at in reversed(solutions):
        check = next(i for i in range(at + 1, len(lesson)) if lesson[i].cell_type == "code")
        del kept[check], kept[at]
    assert solutions
    assert [cell.source for cell in copy] == kept
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in copy)


def parse(cell: NotebookNode) -> ast.Module:
    return ast.parse(TransformerManager().transform_cell(cell.source))


def outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below, but for what stands inside a function or a class."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.ClassDef | ast.Lambda):
            yield from outside_functions(child)


def bound(cell: NotebookNode) -> set[str]:
    """Names that a cell defines, imports or assigns for later cells."""
    nodes = list(outside_functions(parse(cell)))
    names = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    names |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    return names | {(name.asname or name.name).split(".")[0] for node in imports for name in node.names}


def used(cell: NotebookNode) -> set[str]:
    """Names that a cell reads; a check of an exercise, alone in its cell, reads none."""
    tree = parse(cell)
    if len(tree.body) == 1 and ast.unparse(tree).startswith("check."):
        return set()
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return {name.id for name in names if isinstance(name.ctx, ast.Load)}


def missing_in_handout(cells: list[NotebookNode]) -> list[str]:
    """Names that a cell of the handout reads, and that only a solution gives a meaning.

    So a handout need not be executed: its cells are those of the lesson, which is, and do without.
    """
    solved, known, found = set(), set(), []
    for cell in cells:
        if cell.cell_type != "code":
            continue
        if has_tag(cell, "solution") or has_tag(cell, "exercise"):
            solved |= bound(cell)
        else:
            found += sorted(used(cell) & solved - known - bound(cell))
            known |= bound(cell)
    return found


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_nothing_in_a_handout_needs_a_solution(path: Path) -> None:
    assert missing_in_handout(nbformat.read(path, 4).cells) == []


@pytest.mark.parametrize(
    ("later", "missing"),
    [
        ("check.double(double)", []),
        ("print(double(3))", ["double"]),
        ("math.pi", ["math"]),
        ("import math\nmath.pi", []),
        ("helper", ["helper"]),
        ("other = 3\nother", []),
    ],
)
def test_what_a_handout_lacks_is_found(later: str, missing: list[str]) -> None:
    stub = "def double(x):\n    raise NotImplementedError('x')"
    solution = "import math\nhelper = 2\ndef double(x):\n    return helper * x"
    first = new_code_cell("def unrelated():\n    helper = 1")
    cells = [
        first,
        new_code_cell(stub, metadata={"tags": ["exercise"]}),
        new_code_cell("check.double(double)"),
    ]
    cells += [new_code_cell(solution, metadata={"tags": ["solution"]}), new_code_cell(later)]
    assert missing_in_handout(cells) == missing


def test_a_handout_runs(folder: Path) -> None:
    """The first, as a student gets it; the others hold by the test above."""
    path = sorted(folder.glob("*.ipynb"))[0]
    try:
        run(nbformat.read(path, 4), folder, path.name)
    except LessonError as failure:
        pytest.fail(f"handout of {failure}", pytrace=False)
