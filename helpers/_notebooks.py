"""Executes, cleans and hands out the lessons: `python -m helpers._notebooks --help`."""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from nbstripout import strip_output

from ._record import RECORDED, file_name, hardware

LESSONS = "[0-9][0-9]_*.ipynb"
CELL_TIMEOUT = 120
RECORDS = re.compile(r"(?<![\w.])record\(")
NOT_HANDED_OUT = shutil.ignore_patterns("*.ipynb", "*.toml", ".*", "__pycache__", "workshop")
CELL_METADATA = ("tags", "jupyter", "slideshow")
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
METADATA = {"kernelspec": KERNEL, "language_info": {"name": "python"}}


class LessonError(Exception):
    """A lesson can't be found or executed; the message is one line."""


def kernel_env(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """A reader's environment: inline figures, no trace of pytest, no transient display of ranks."""
    kept = {key: value for key, value in env.items() if not key.startswith("PYTEST_")}
    return kept | {"MPLBACKEND": "module://matplotlib_inline.backend_inline", "HELPERS_LIVE": "0"}


def has_tag(cell: NotebookNode, tag: str) -> bool:
    """Whether the cell carries the tag."""
    return tag in cell.metadata.get("tags", [])


def first_line(cell: NotebookNode) -> str:
    """The cell's first line, to name it by in a message."""
    return next(iter(cell.source.strip().splitlines()), "(empty)")[:60]


def clean(nb: NotebookNode) -> NotebookNode:
    """Return a copy without the metadata that differ from run to run; outputs and counts stay.

    A cell's id follows from its text, so that a change in one cell leaves the others as they were.
    """
    nb = nbformat.from_dict(nb | {"metadata": METADATA, "nbformat": 4, "nbformat_minor": 5})
    seen: Counter[str] = Counter()
    for cell in nb.cells:
        cell.metadata = {key: value for key, value in cell.metadata.items() if key in CELL_METADATA}
        name = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:8]
        cell["id"] = f"{name}-{seen[name]}" if seen[name] else name
        seen[name] += 1
    return nb


def run(nb: NotebookNode, folder: Path, name: str, env: Mapping[str, str] = os.environ) -> None:
    """Execute the notebook in memory, working in `folder`; LessonError names the cell that failed."""
    started: list[tuple[int, NotebookNode]] = []
    client = NotebookClient(nb, timeout=CELL_TIMEOUT, kernel_name="python3", record_timing=False)
    client.coalesce_streams = True  # how output was cut into messages differs from run to run
    client.resources = {"metadata": {"path": str(folder)}}
    client.extra_arguments = ["--log-level=ERROR"]
    client.on_cell_start = lambda cell, cell_index: started.append((cell_index, cell))
    try:
        client.execute(env=kernel_env(env))
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        index, cell = started[-1]
        reason = f"{error.ename}: {error.evalue}" if isinstance(error, CellExecutionError) else str(error)
        raise LessonError(f"{name}, cell {index} (`{first_line(cell)}`): {reason.splitlines()[0]}") from error


def write(nb: NotebookNode, path: Path) -> None:
    """Write the notebook whole or not at all."""
    nbformat.validate(nb)
    part = path.with_suffix(".part")
    nbformat.write(nb, part)
    part.replace(path)


def handout(nb: NotebookNode) -> NotebookNode:
    """Return a student's copy: no solution, no check of a solution, no output."""
    nb = nbformat.from_dict(nb | {"cells": list(_without_solutions(nb.cells))})
    return strip_output(nb, keep_output=False, keep_count=False, keep_id=True)


def _without_solutions(cells: Iterable[NotebookNode]) -> Iterator[NotebookNode]:
    """Leave out each solution and the first code cell after it, which is its check."""
    check_follows = False
    for cell in cells:
        if has_tag(cell, "solution"):
            check_follows = True
        elif check_follows and cell.cell_type == "code":
            check_follows = False
        else:
            yield cell


def handouts(lessons: list[Path], target: Path) -> None:
    """Fill the folder `target` afresh: a handout of each lesson, and whatever lies beside it to read."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(lessons[0].parent, target, ignore=NOT_HANDED_OUT)
    for lesson in lessons:
        write(handout(nbformat.read(lesson, 4)), target / lesson.name)
    print(f"{len(lessons)} handouts in {target.parent.name}/{target.name}/")


def find(folder: Path, prefixes: Iterable[str] = ()) -> list[Path]:
    """The lessons in reading order, all or those whose names start so; LessonError if there is none."""
    chosen = tuple(prefixes) or ("",)
    found = [path for path in sorted(folder.glob(LESSONS)) if path.name.startswith(chosen)]
    if not found:
        raise LessonError(f"no lesson {'|'.join(chosen)}*.ipynb among {folder.name}/{LESSONS}")
    return found


def refresh(path: Path, execute: bool) -> None:
    """Clean one lesson in place, executed before if so asked, and print what it took."""
    nb, start = nbformat.read(path, 4), time.monotonic()
    if execute:
        run(nb, path.parent, path.name)
    write(clean(nb), path)
    print(f"{path.name}: {time.monotonic() - start:.0f} s", flush=True)


def records(nb: NotebookNode) -> bool:
    """Whether a cell of the notebook calls helpers.record."""
    return any(cell.cell_type == "code" and RECORDS.search(cell.source) for cell in nb.cells)


def record(lessons: list[Path], target: Path) -> None:
    """Execute the lessons that record results and keep these in this machine's file; the lessons stay."""
    notebooks = {path: nbformat.read(path, 4) for path in lessons}
    chosen = {path: nb for path, nb in notebooks.items() if records(nb)}
    if not chosen:
        raise LessonError(f"none of {len(lessons)} lessons records a result")
    target.mkdir(parents=True, exist_ok=True)
    file = target / file_name(hardware())
    for path, nb in chosen.items():
        run(nb, path.parent, path.name, os.environ | {"HELPERS_RECORD": str(file)})
        print(f"{path.name}: recorded in {target.name}/{file.name}", flush=True)


def main(argv: list[str] | None = None, root: Path = Path(__file__).parents[1]) -> None:
    """Execute in place, clean in place of what differs between runs, hand out copies, or record results."""
    parser = argparse.ArgumentParser(prog="python -m helpers._notebooks")
    parser.add_argument("what", choices=["execute", "clean", "handouts", "record"], help=main.__doc__)
    parser.add_argument("prefix", nargs="*", help="lessons whose names start so, as in 03; all if left out")
    asked = parser.parse_args(argv)
    try:
        lessons = find(root / "notebooks", asked.prefix)
        if asked.what == "handouts":
            return handouts(lessons, root / "build" / "handouts")
        if asked.what == "record":
            return record(lessons, RECORDED)
        for path in lessons:
            refresh(path, execute=asked.what == "execute")
    except LessonError as failure:
        sys.exit(str(failure))


if __name__ == "__main__":
    main()
