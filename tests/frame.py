"""The rules of a lesson, each a function from a lesson to its problems; each problem says what to do.

`RULES` names them all: test_frame.py runs them over the lessons, test_net.py over notebooks that break them.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterator
from statistics import median

from lesson import HEADING, LINK, Cell, Lesson, broken_links, prose_of, unfenced, words

from helpers._notebooks import clean

MEDIAN_LINES, P90_LINES, MOST_LINES = 5, 13, 25
FEWEST_WORDS, MOST_WORDS, WORDS_A_LINE = 800, 1700, 10
MOST_BYTES = 500_000
OPENING = ["What you'll do", "What you'll learn", "What you need"]
CLOSING = ["Exercises", "What you learned", "In practice", "Going further"]
IGNORED = "nbval-ignore-output"
TAGS = {"exercise", "solution", "script", "raises-exception", IGNORED}
LOOK_AHEAD = 3  # code cells within which a cell that is not compared is followed by one that is
MACHINE_PATH = re.compile(
    r"(?<!\w)/(?:home|root|tmp|Users|private/var|var/folders)/|[A-Z]:\\+Users|site-packages"
)

# The frame


def title(lesson: Lesson) -> list[str]:
    """One title, first of all."""
    first = lesson.cells[0]
    if first.is_code or not first.source.startswith("# "):
        return [first.problem("start with a Markdown cell whose first line is the title, `# Verb phrase`")]
    others = [cell for level, _, cell in lesson.headings if level == 1][1:]
    return [cell.problem("a lesson has one title: make this heading `##`") for cell in others]


def opening(lesson: Lesson) -> list[str]:
    """What you'll do, learn and need, with the measured time, before any code."""
    found = lesson.titles(2)[:3]
    if found != OPENING:
        return [f"below the title stand {as_list(OPENING)} in this order, not {as_list(found)}"]
    before = [cell for cell in lesson.prose if not lesson.code or cell.number < lesson.code[0].number]
    text = "\n".join(cell.source for cell in before)
    need = text.partition("## What you need\n")[2].partition("\n## ")[0]
    if not need:
        return [lesson.code[0].problem("the first code cell stands below `## What you need`, not above it")]
    if not re.search(r"^\*\*Time:\*\* .*\d", need, re.MULTILINE):
        return ["below `## What you need` stands a line `**Time:** ...` with the measured minutes"]
    return []


def closing(lesson: Lesson) -> list[str]:
    """Exercises, what was learned, fine print, links."""
    found = lesson.titles(2)[-4:]
    return (
        []
        if found == CLOSING
        else [f"at the end stand {as_list(CLOSING)} in this order, not {as_list(found)}"]
    )


def as_list(titles: list[str]) -> str:
    return ", ".join(f"`## {title}`" for title in titles) or "none"


def setup_cell(lesson: Lesson) -> list[str]:
    """The first code cell imports helpers and shows the regime."""
    if not lesson.code:
        return ["there is no code cell"]
    first = lesson.code[0]
    if "helpers" in imported_modules(first.tree) and first.calls & {"devices", "helpers.devices"}:
        return []
    return [
        first.problem("the first code cell imports from helpers and calls devices(), which prints the regime")
    ]


# Length and weight


def cell_lengths(lesson: Lesson) -> list[str]:
    """Lines that are not blank, in all code cells; only a script may be long."""
    long = [cell for cell in lesson.code if len(cell.lines) > MOST_LINES and not cell.has("script")]
    found = [cell.problem(f"{len(cell.lines)} lines, {MOST_LINES} at most: split it") for cell in long]
    lengths = sorted(len(cell.lines) for cell in lesson.code) or [0]
    p90 = lengths[math.ceil(0.9 * len(lengths)) - 1]
    if median(lengths) > MEDIAN_LINES:
        found.append(
            f"the median code cell has {median(lengths):g} lines, {MEDIAN_LINES} at most: split cells"
        )
    if p90 > P90_LINES:
        found.append(
            f"nine tenths of the code cells reach {p90} lines, {P90_LINES} at most: split the longest"
        )
    return found


def amount_of_prose(lesson: Lesson) -> list[str]:
    """Words in all, and words a line of code, without stubs and solutions, which are work, and scripts."""
    count = sum(words(cell.source) for cell in lesson.prose)
    read = [cell for cell in lesson.code if not any(map(cell.has, ("exercise", "solution", "script")))]
    lines = sum(len(cell.lines) for cell in read)
    found = []
    if not FEWEST_WORDS <= count <= MOST_WORDS:
        found.append(f"{count} words of prose; a lesson has {FEWEST_WORDS} to {MOST_WORDS}")
    if count < WORDS_A_LINE * lines:
        found.append(
            f"{count} words for {lines} lines of code; a lesson has {WORDS_A_LINE} words a line or more"
        )
    return found


def file_size(lesson: Lesson) -> list[str]:
    """Small enough for GitHub to show and for git to keep."""
    size = lesson.path.stat().st_size
    return (
        [f"{size:,} bytes, {MOST_BYTES:,} at most: draw fewer or smaller figures"]
        if size > MOST_BYTES
        else []
    )


# Stored outputs


def executed_in_order(lesson: Lesson) -> list[str]:
    """Every code cell was executed, once, from top to bottom."""
    return [
        cell.problem(f"execution count {cell.node.execution_count}, not {place}: run `make notebooks`")
        if cell.source.strip()
        else cell.problem("remove this empty code cell")
        for place, cell in enumerate(lesson.code, start=1)
        if cell.node.execution_count != place or not cell.source.strip()
    ][:1]


def stored_errors(lesson: Lesson) -> list[str]:
    """An error is stored where one is announced by the tag, and nowhere else."""
    found = []
    for cell in lesson.code:
        failed = any(output.output_type == "error" for output in cell.node.outputs)
        if failed and not cell.has("raises-exception"):
            found.append(
                cell.problem("stores an error: mend it, or tag it `raises-exception` if the error is meant")
            )
        if cell.has("raises-exception") and not failed:
            found.append(cell.problem("is tagged `raises-exception` and stores no error: drop the tag"))
    return found


def machine_paths(lesson: Lesson) -> list[str]:
    """Nothing names a folder of the machine that the lesson was written on."""
    return [
        cell.problem(f"`{path}` is a path of one machine: show a relative one, or none")
        for cell in lesson.cells
        for path in sorted({m[0] for text in cell.texts() for m in MACHINE_PATH.finditer(text)})
    ]


def tidy(lesson: Lesson) -> list[str]:
    """No widget state, no times of execution, ids that follow from the text."""
    if clean(lesson.nb) == lesson.nb:
        return []
    return ["has metadata or cell ids that differ from run to run: run `python -m helpers._notebooks clean`"]


# What a reader sees


def figures(lesson: Lesson) -> list[str]:
    """The cell below a figure says in words what to see in it."""
    below = [*lesson.cells[1:], None]
    return [
        cell.problem("draws a figure: say in a Markdown cell right below what to see in it")
        for cell, after in zip(lesson.cells, below, strict=True)
        if cell.draws and (after is None or after.is_code or words(HEADING.sub("", after.source)) < 5)
    ]


def alt_texts(lesson: Lesson) -> list[str]:
    """Each picture in Markdown says what it shows to who can't see it."""
    found = []
    for cell in lesson.prose:
        text = unfenced(cell.source)
        silent = [m[0] for m in LINK.finditer(text) if m[1] and not m[2].strip()]
        silent += [tag for tag in re.findall(r"<img[^>]*>", text) if not re.search(r"alt=[\"'][^\"']+", tag)]
        found += [cell.problem(f"{picture} has no alt text: say what it shows") for picture in silent]
    return found


def imports(lesson: Lesson) -> list[str]:
    """A lesson imports from helpers alone, never from a module inside it."""
    return [
        cell.problem(f"imports from {name}: write `from helpers import ...`")
        for cell in lesson.code
        for name in sorted(imported_modules(cell.tree))
        if name.startswith("helpers.")
    ]


def imported_modules(tree: ast.AST) -> set[str]:
    nodes = list(ast.walk(tree))
    froms = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return froms | {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}


def tone(lesson: Lesson) -> list[str]:
    """Plain prose; what is quoted as code or as the text of a link is free."""
    return [
        cell.problem(f"`{m[0]}` in prose: no exclamation marks, no 'simply', no 'as you can see'")
        for cell in lesson.prose
        for m in re.finditer(r"\S*!|\bsimply\b|\bas you can see\b", prose_of(cell.source), re.IGNORECASE)
    ]


def links(lesson: Lesson) -> list[str]:
    """Local links lead to files, and to headings, that are there."""
    return [cell.problem(text) for cell in lesson.prose for text in broken_links(lesson.path, cell.source)]


# What is compared


def tags(lesson: Lesson) -> list[str]:
    """Known tags only, and nbval steered by tags only, so that the rules see all that is not compared."""
    found = []
    for cell in lesson.cells:
        unknown = sorted(set(cell.node.metadata.get("tags", [])) - TAGS)
        found += [
            cell.problem(f"unknown tag `{tag}`; known are {', '.join(sorted(TAGS))}") for tag in unknown
        ]
        if cell.is_code and re.search(r"#\s*(NBVAL|PYTEST_VALIDATE)_", cell.source):
            found.append(cell.problem(f"a comment steers nbval: use the tag `{IGNORED}`"))
    return found


def compared(lesson: Lesson) -> list[str]:
    """Half of the code cells or more are compared, and half of those that print anything."""
    printing = [cell for cell in lesson.code if cell.node.outputs]
    groups = {"code cells": lesson.code, "code cells with output": printing}
    counts = [(what, sum(cell.has(IGNORED) for cell in cells), len(cells)) for what, cells in groups.items()]
    return [
        f"{ignored} of {total} {what} are tagged `{IGNORED}`, half at most: state what must hold instead"
        for what, ignored, total in counts
        if 2 * ignored > total
    ]


def ignored_then_compared(lesson: Lesson) -> list[str]:
    """What is measured is soon followed by a cell, compared, that states what must hold."""
    return [
        cell.problem(
            f"is not compared, nor are the {LOOK_AHEAD} code cells below: state what must hold in one"
        )
        for at, cell in enumerate(lesson.code)
        if all(other.has(IGNORED) for other in lesson.code[at : at + 1 + LOOK_AHEAD])
    ]


# Exercises


def exercises(lesson: Lesson) -> list[str]:
    """Two or more, each: heading, stub, check, folded solution, the same check."""
    stubs = [at for at, cell in enumerate(lesson.code) if cell.has("exercise")]
    found = [problem for number, at in enumerate(stubs, start=1) for problem in exercise(lesson, number, at)]
    if len(stubs) < 2:
        found.append(f"{len(stubs)} cells are tagged `exercise`; a lesson has two exercises or more")
    places = {at + 2 for at in stubs}
    stray = [cell for at, cell in enumerate(lesson.code) if cell.has("solution") and at not in places]
    return found + [
        cell.problem("a solution stands below a stub, tagged `exercise`, and its check") for cell in stray
    ]


def exercise(lesson: Lesson, number: int, at: int) -> Iterator[str]:
    """The problems of the exercise whose stub is the code cell `at`."""
    stub, *below = lesson.code[at : at + 4]
    above = [(level, text) for level, text, cell in lesson.headings if cell.number < stub.number]
    if not above or above[-1][0] != 3 or not re.match(rf"Exercise {number}: \S", above[-1][1]):
        yield stub.problem(f"the heading above it is `### Exercise {number}: ...`")
    if len(below) < 3 or not below[1].has("solution"):
        yield stub.problem("below it stand three code cells: check, solution (so tagged), the same check")
        return
    check, solution, again = below
    if not (checkers(check) and checkers(check) == checkers(again)):
        yield check.problem("the same `check.<topic>(...)` stands below the stub and below the solution")
    if not solution.node.metadata.get("jupyter", {}).get("source_hidden"):
        yield solution.problem('fold the solution: metadata `"jupyter": {"source_hidden": true}`')
    yield from (stub.problem(text) for text in drift(stub.tree, solution.tree))


def checkers(cell: Cell) -> set[str]:
    return {name for name in cell.calls if name.startswith("check.")}


def drift(stub: ast.Module, solution: ast.Module) -> list[str]:
    """Where a stub is not its solution with holes: `...` is any expression, and alone on a line any lines.

    Both are compared as Python prints them, so comments and line breaks don't count.
    """
    if not functions(stub) or signatures(stub) != signatures(solution):
        return [
            f"stub and solution define the same functions, not {signatures(stub)} and {signatures(solution)}"
        ]
    if not any(asks_for(node) for node in ast.walk(stub)):
        return ['where the work is left, stands `raise NotImplementedError("what to fill in")`']
    given = [line for line in ast.unparse(stub).splitlines() if not is_hole(line)]
    solved = ast.unparse(solution).splitlines()
    if given == solved:
        return ["the stub leaves nothing to fill in"]
    left = iter(solved)
    lost = [line for line in given if not any(re.fullmatch(as_pattern(line), other) for other in left)]
    return [f"`{lost[0].strip()}` is not a line of the solution, or not in this order"] if lost else []


def is_hole(line: str) -> bool:
    return line.strip() == "..." or line.strip().startswith("raise NotImplementedError(")


def as_pattern(line: str) -> str:
    return re.escape(line).replace(re.escape("..."), ".+")


def functions(tree: ast.Module) -> list[ast.FunctionDef]:
    return [node for node in tree.body if isinstance(node, ast.FunctionDef)]


def signatures(tree: ast.Module) -> list[str]:
    return [f"{node.name}({ast.unparse(node.args)})" for node in functions(tree)]


def asks_for(node: ast.AST) -> str:
    """What the statement says to fill in, if it is the one error that a stub raises."""
    match node:
        case ast.Raise(
            exc=ast.Call(func=ast.Name(id="NotImplementedError"), args=[ast.Constant(value=str(what))])
        ):
            return what.strip()
    return ""


RULES: dict[str, Callable[[Lesson], list[str]]] = {
    rule.__name__: rule
    for rule in (
        title, opening, closing, setup_cell, cell_lengths, amount_of_prose, file_size, executed_in_order,
        stored_errors, machine_paths, tidy, figures, alt_texts, imports, tone, links, tags, compared,
        ignored_then_compared, exercises,
    )
}  # fmt: skip
