"""A handout is the lesson without solutions and outputs, and runs from top to bottom as a student gets it."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

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


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_handout_runs(path: Path, folder: Path) -> None:
    try:
        run(nbformat.read(folder / path.name, 4), folder, path.name)
    except LessonError as failure:
        pytest.fail(f"handout of {failure}", pytrace=False)
