"""The net itself: for each rule and each kind of failure, a small notebook that it must catch."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import nbformat
import pytest
from frame import RULES
from lesson import Lesson, broken_links
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from helpers import _notebooks
from helpers._notebooks import LessonError, clean, kernel_env, main

ROOT = Path(__file__).parents[1]

# A lesson that keeps to the frame


def prose(text: str) -> NotebookNode:
    return new_markdown_cell(text)


def code(source: str, *tags: str, prints: str = "", **extra: Any) -> NotebookNode:
    outputs = [new_output("stream", name="stdout", text=prints)] if prints else []
    return new_code_cell(
        source, outputs=outputs, metadata={"tags": list(tags), **extra} if tags or extra else {}
    )


def exercise(number: int) -> list[NotebookNode]:
    """Heading, stub, check, solution, check."""
    stub = 'def twice(x: int) -> int:\n    """Doubles."""\n    y = ... * x\n    ...\n'
    stub += '    raise NotImplementedError("double x")'
    solution = 'def twice(x: int) -> int:\n    """Doubles."""\n    y = (\n        2 * x\n    )\n    return y'
    return [
        prose(f"### Exercise {number}: double a number"),
        code(stub, "exercise"),
        code("check.twice(twice)", prints="not attempted: double x"),
        code(solution, "solution", jupyter={"source_hidden": True}),
        code("check.twice(twice)", prints="passed"),
    ]


def good_lesson() -> NotebookNode:
    figure = new_output("display_data", data={"image/png": "aGk=", "text/plain": "<Figure>"})
    cells = [
        prose("# Double numbers\n\n## What you'll do\n\nDouble.\n\n## What you'll learn\n\n- To double."),
        prose("## What you need\n\nTwo cores.\n\n**Time:** 2 minutes"),
        code(
            "from helpers import check, devices\n\ndevices()", "nbval-ignore-output", prints="2 cores, no GPU"
        ),
        prose("## Numbers grow when doubled\n\n" + "A word follows another here. " * 170),
        code("print(2 * 2)", prints="4\n"),
        code("plot()"),
        prose("The line rises: twice the input, twice the output."),
        prose("## Exercises"),
        *exercise(1),
        *exercise(2),
        prose("## What you learned\n\n- To double."),
        prose("## In practice\n\nNumbers end."),
        prose("## Going further\n\n[This lesson](00_good.ipynb#Exercises), [the web](https://example.com)"),
    ]
    cells[5].outputs = [figure]
    return numbered(new_notebook(cells=cells))


def numbered(nb: NotebookNode) -> NotebookNode:
    """Clean, and counted as if executed from top to bottom."""
    for count, cell in enumerate((cell for cell in nb.cells if cell.cell_type == "code"), start=1):
        cell.execution_count = count
    return clean(nb)


def written(nb: NotebookNode, path: Path) -> Path:
    nbformat.write(nb, path)
    return path


def problems(nb: NotebookNode, folder: Path, rule: str) -> list[str]:
    return list(RULES[rule](Lesson.read(written(nb, folder / "00_good.ipynb"))))


@pytest.mark.parametrize("rule", RULES)
def test_good_lesson_passes(rule: str, tmp_path: Path) -> None:
    assert problems(good_lesson(), tmp_path, rule) == []


# For each rule, lessons that break it: a name, the rule, what it must say, and how to spoil the good lesson

Spoil = Callable[[NotebookNode], Any]
BROKEN: list[tuple[str, str, str, Spoil]] = []


def broken(rule: str, says: str) -> Callable[[Spoil], Spoil]:
    """Note that the decorated function, applied to the good lesson, breaks `rule`, which then `says` so."""

    def note(spoil: Spoil) -> Spoil:
        BROKEN.append((spoil.__name__, rule, says, spoil))
        return spoil

    return note


def replace(nb: NotebookNode, old: str, new: str) -> None:
    """Replace the text in the one cell, or in each cell, that has it."""
    found = [cell for cell in nb.cells if old in cell.source]
    assert found, old
    for cell in found:
        cell.source = cell.source.replace(old, new)


def setup(nb: NotebookNode) -> NotebookNode:
    return nb.cells[2]


def tagged(nb: NotebookNode, tag: str) -> NotebookNode:
    return next(cell for cell in nb.cells if tag in cell.metadata.get("tags", []))


@broken("title", "start with a Markdown cell")
def no_title(nb: NotebookNode) -> None:
    replace(nb, "# Double numbers", "Double numbers")


@broken("title", "one title")
def two_titles(nb: NotebookNode) -> None:
    replace(nb, "## In practice", "# In practice")


@broken("opening", "in this order")
def opening_in_another_order(nb: NotebookNode) -> None:
    replace(nb, "## What you'll do", "## What you'll get")


@broken("opening", "Time")
def no_time(nb: NotebookNode) -> None:
    replace(nb, "**Time:** 2 minutes", "Some minutes")


@broken("opening", "not above it")
def code_above_opening(nb: NotebookNode) -> None:
    nb.cells.insert(1, nb.cells.pop(2))


@broken("closing", "in this order")
def no_fine_print(nb: NotebookNode) -> None:
    replace(nb, "## In practice", "## Fine print")


@broken("setup_cell", "devices")
def regime_not_shown(nb: NotebookNode) -> None:
    replace(nb, "\ndevices()", "\ncheck")


@broken("setup_cell", "no code cell")
def no_code(nb: NotebookNode) -> None:
    nb.cells = [cell for cell in nb.cells if cell.cell_type == "markdown"]


@broken("cell_lengths", "26 lines, 25 at most")
def long_cell(nb: NotebookNode) -> None:
    setup(nb).source += "\nx = 1" * 24


@broken("cell_lengths", "median code cell has 7 lines")
def long_median(nb: NotebookNode) -> None:
    for cell in nb.cells:
        cell.source = "x\n" * 7 if cell.cell_type == "code" else cell.source


@broken("cell_lengths", "nine tenths of the code cells reach 14 lines")
def long_tail(nb: NotebookNode) -> None:
    for cell in nb.cells[-6:] + nb.cells[2:6]:
        cell.source = "x\n" * 14 if cell.cell_type == "code" else cell.source


@broken("amount_of_prose", "words of prose")
def too_few_words(nb: NotebookNode) -> None:
    replace(nb, "follows another here", "")


@broken("amount_of_prose", "words of prose")
def too_many_words(nb: NotebookNode) -> None:
    replace(nb, "follows another here", "follows another here " * 4)


@broken("amount_of_prose", "10 words a line or more")
def much_code_few_words(nb: NotebookNode) -> None:
    setup(nb).source += "\nx = 1" * 150


@broken("file_size", "500,000 at most")
def large_file(nb: NotebookNode) -> None:
    nb.cells[5].outputs[0].data["image/png"] = "a" * 500_000


@broken("executed_in_order", "execution count None, not 1")
def not_executed(nb: NotebookNode) -> None:
    setup(nb).execution_count = None


@broken("executed_in_order", "execution count 7, not 2")
def executed_out_of_order(nb: NotebookNode) -> None:
    nb.cells[4].execution_count = 7


@broken("executed_in_order", "empty code cell")
def empty_cell(nb: NotebookNode) -> None:
    nb.cells.append(new_code_cell(""))


@broken("stored_errors", "stores an error")
def stored_error(nb: NotebookNode) -> None:
    setup(nb).outputs = [new_output("error", ename="ValueError", evalue="no", traceback=[])]


@broken("stored_errors", "stores no error")
def announced_error_missing(nb: NotebookNode) -> None:
    setup(nb).metadata.tags = ["raises-exception"]


@broken("machine_paths", "/home/")
def path_in_source(nb: NotebookNode) -> None:
    setup(nb).source += '\nopen("/home/me/x")'


@broken("machine_paths", "/root/")
def path_in_coloured_traceback(nb: NotebookNode) -> None:
    traceback = ["\x1b[32m/root/course/x.py\x1b[0m in f"]
    setup(nb).outputs = [new_output("error", ename="E", evalue="", traceback=traceback)]


@broken("machine_paths", "site-packages")
def path_in_result(nb: NotebookNode) -> None:
    setup(nb).outputs = [new_output("execute_result", data={"text/html": "<b>lib/site-packages/torch</b>"})]


@broken("machine_paths", "Users")
def path_of_windows(nb: NotebookNode) -> None:
    setup(nb).outputs = [new_output("stream", name="stderr", text=r"C:\Users\me")]


@broken("tidy", "clean")
def widget_state(nb: NotebookNode) -> None:
    nb.metadata["widgets"] = {"state": {}}


@broken("tidy", "clean")
def times_of_execution(nb: NotebookNode) -> None:
    setup(nb).metadata["execution"] = {"iopub.status.busy": "2026-01-01"}


@broken("tidy", "clean")
def random_id(nb: NotebookNode) -> None:
    setup(nb)["id"] = "random"


@broken("figures", "what to see in it")
def figure_without_words(nb: NotebookNode) -> None:
    replace(nb, "The line rises: twice the input, twice the output.", "### Next")


@broken("figures", "what to see in it")
def figure_before_code(nb: NotebookNode) -> None:
    nb.cells.insert(6, code("x"))


@broken("alt_texts", "no alt text")
def picture_without_alt(nb: NotebookNode) -> None:
    replace(nb, "Numbers end.", "![](ring.svg)")


@broken("alt_texts", "no alt text")
def html_picture_without_alt(nb: NotebookNode) -> None:
    replace(nb, "Numbers end.", '<img src="ring.svg" alt="">')


@broken("imports", "helpers._launch")
def import_from_inside(nb: NotebookNode) -> None:
    setup(nb).source += "\nfrom helpers._launch import launch"


@broken("imports", "helpers.check")
def import_of_module(nb: NotebookNode) -> None:
    setup(nb).source = "%%writefile scripts/x.py\nimport helpers.check"


@broken("tone", "end!")
def exclamation(nb: NotebookNode) -> None:
    replace(nb, "Numbers end.", "Numbers end! And `x != y`, and [go!](https://example.com).")


@broken("tone", "Simply")
def simply(nb: NotebookNode) -> None:
    replace(nb, "Numbers end.", "Simply double.")


@broken("tone", "as you can see")
def as_you_can_see(nb: NotebookNode) -> None:
    replace(nb, "Numbers end.", "Numbers, as you can see, end.")


@broken("links", "there is no 99_none.ipynb")
def dead_link(nb: NotebookNode) -> None:
    replace(nb, "00_good.ipynb", "99_none.ipynb")


@broken("links", "no heading for #Nothing")
def dead_anchor(nb: NotebookNode) -> None:
    replace(nb, "#Exercises", "#Nothing")


@broken("tags", "unknown tag `nbval-skip`")
def unknown_tag(nb: NotebookNode) -> None:
    setup(nb).metadata.tags = ["nbval-skip"]


@broken("tags", "a comment steers nbval")
def comment_for_nbval(nb: NotebookNode) -> None:
    setup(nb).source += "\n# NBVAL_IGNORE_OUTPUT"


@broken("compared", "of 11 code cells are tagged")
def mostly_ignored(nb: NotebookNode) -> None:
    for cell in nb.cells:
        if cell.cell_type == "code" and not cell.outputs:
            cell.metadata.tags = [*cell.metadata.get("tags", []), "nbval-ignore-output"]
    tagged(nb, "nbval-ignore-output")
    nb.cells[4].metadata.tags = ["nbval-ignore-output"]


@broken("compared", "code cells with output are tagged")
def mostly_ignored_where_it_matters(nb: NotebookNode) -> None:
    for cell in nb.cells:
        if cell.get("outputs"):
            cell.metadata.tags = ["nbval-ignore-output"]


@broken("ignored_then_compared", "state what must hold")
def ignored_in_a_row(nb: NotebookNode) -> None:
    for cell in [cell for cell in nb.cells if cell.cell_type == "code"][:4]:
        cell.metadata.tags = ["nbval-ignore-output"]


@broken("exercises", "two exercises or more")
def one_exercise(nb: NotebookNode) -> None:
    del nb.cells[13:18]


@broken("exercises", "### Exercise 2: ...")
def exercise_misnumbered(nb: NotebookNode) -> None:
    replace(nb, "### Exercise 2:", "### Exercise 3:")


@broken("exercises", "three code cells")
def stub_without_check(nb: NotebookNode) -> None:
    nb.cells.remove(next(cell for cell in nb.cells if cell.source.startswith("check.")))


@broken("exercises", "a solution stands below a stub")
def stray_solution(nb: NotebookNode) -> None:
    setup(nb).metadata.tags = ["solution"]


@broken("exercises", "the same `check.<topic>")
def another_check(nb: NotebookNode) -> None:
    nb.cells[10].source = "check.thrice(twice)"


@broken("exercises", "fold the solution")
def solution_in_sight(nb: NotebookNode) -> None:
    del tagged(nb, "solution").metadata["jupyter"]


@broken("exercises", "the same functions")
def stub_with_another_signature(nb: NotebookNode) -> None:
    replace(nb, "x: int", "x: float")
    tagged(nb, "solution").source = tagged(nb, "solution").source.replace("float", "int")


@broken("exercises", "raise NotImplementedError")
def stub_without_error(nb: NotebookNode) -> None:
    replace(nb, 'raise NotImplementedError("double x")', "return 0")


@broken("exercises", "raise NotImplementedError")
def stub_with_silent_error(nb: NotebookNode) -> None:
    replace(nb, '"double x"', "")


@broken("exercises", "`y = ... * x` is not a line of the solution")
def stub_drifted(nb: NotebookNode) -> None:
    replace(nb, "2 * x", "x + x")


@broken("exercises", "`z = 1` is not a line of the solution")
def stub_with_a_line_more(nb: NotebookNode) -> None:
    replace(nb, "    ...\n", "    z = 1\n")


@broken("exercises", "nothing to fill in")
def stub_without_hole(nb: NotebookNode) -> None:
    replace(nb, "    y = ... * x\n    ...\n", "    y = 2 * x\n    return y\n")


@pytest.mark.parametrize(("name", "rule", "says", "spoil"), BROKEN, ids=[name for name, *_ in BROKEN])
def test_broken_lesson_is_caught(name: str, rule: str, says: str, spoil: Spoil, tmp_path: Path) -> None:
    nb = good_lesson()
    spoil(nb)
    found = problems(nb, tmp_path, rule)
    assert any(says in problem for problem in found), found


def test_each_rule_is_broken_by_some_lesson() -> None:
    assert {rule for _, rule, *_ in BROKEN} == set(RULES)


def test_a_script_may_be_long(tmp_path: Path) -> None:
    nb = good_lesson()
    setup(nb).source += "\nx = 1" * 30
    setup(nb).metadata.tags = ["script"]
    assert problems(nb, tmp_path, "cell_lengths") == []


@pytest.mark.parametrize(
    ("link", "leads"),
    [
        ("[a](page.md)", True),
        ("[a](page.md#two-words)", True),
        ("[a](#two-words)", True),
        ("`[a](none.md)`", True),
        ("[a](https://example.com/none)", True),
        ("[a](none.md)", False),
        ("[a](page.md#two)", False),
        ("[a]()", False),
        ("![a](none.png)", False),
        ("[![a](none.png)](page.md)", False),
        ('<img alt="a" src="none.png">', False),
        ("[a]: none.md", False),
    ],
)
def test_links_of_a_page(link: str, leads: bool, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# `Two` words\n\n{link}\n")
    assert (broken_links(page, page.read_text()) == []) == leads


# nbval, over notebooks that fail in one way each


def nbval(*arguments: object) -> tuple[int, str, float]:
    """Exit status, output and seconds of a strict run over the notebooks named."""
    command = [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "-p", "no:cacheprovider", "-v"]
    command += ["--color=no", "--nbval", "--nbval-current-env", *arguments]
    start = time.monotonic()
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr, time.monotonic() - start


def cells(*sources: str | NotebookNode) -> NotebookNode:
    return numbered(
        new_notebook(cells=[code(source) if isinstance(source, str) else source for source in sources])
    )


def outcomes(output: str) -> list[str]:
    return re.findall(r"::Cell \d+ ([A-Z]+)", output)


def test_what_is_well_passes_and_is_timed(tmp_path: Path) -> None:
    seen = "import os\nprint([k for k in os.environ if k.startswith('PYTEST_')], os.environ['HELPERS_LIVE'])"
    nb = cells(
        code(seen, prints="[] 0\n"),
        code("import time; time.sleep(0.3); print(time.time())", "nbval-ignore-output", prints="0\n"),
        code("print(len(In) - 1)", prints="3\n"),
        code("import matplotlib; print('inline' in matplotlib.get_backend())", prints="True\n"),
    )
    status, output, _ = nbval(written(nb, tmp_path / "well.ipynb"))
    assert status == 0, output
    assert re.search(r"slowest cells\n +\d\.\d s  well.ipynb Cell \d: import", output)


def test_other_output_and_errors_fail(tmp_path: Path) -> None:
    nb = cells(
        code("print(1)", prints="2\n"),
        code("print(1)"),
        code("1 / 0", "nbval-ignore-output"),
        code("print(1)", prints="1\n"),
    )
    status, output, _ = nbval(written(nb, tmp_path / "other.ipynb"))
    assert (status, outcomes(output)) == (1, ["FAILED", "FAILED", "FAILED", "PASSED"]), output


def test_dead_kernel_is_told_quickly_and_the_rest_skipped(tmp_path: Path) -> None:
    nb = cells("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "1", "2")
    status, output, seconds = nbval(written(nb, tmp_path / "dead.ipynb"))
    assert (status, outcomes(output)) == (1, ["FAILED", "SKIPPED", "SKIPPED"]), output
    assert "the kernel died in this cell" in output
    assert seconds < 30  # the timeout of a cell is 120


def test_timeout_interrupts_and_goes_on(tmp_path: Path) -> None:
    nb = cells("import time; time.sleep(100)", code("print(1)", prints="1\n"))
    status, output, seconds = nbval("--nbval-cell-timeout=2", written(nb, tmp_path / "slow.ipynb"))
    assert status == 1
    assert "Timeout of 2 seconds exceeded" in output
    assert outcomes(output)[:1] == ["FAILED"]
    assert outcomes(output)[1:] == ["XPASS"], output
    assert seconds < 60


def test_no_notebook_is_a_failure(tmp_path: Path) -> None:
    status, output, _ = nbval(tmp_path)
    assert status != 0
    assert "no notebook" in output


# helpers._notebooks


def course(folder: Path, **lessons: NotebookNode) -> Path:
    """A course with the lessons named, in `folder`."""
    (folder / "notebooks" / "data").mkdir(parents=True)
    (folder / "notebooks" / "data" / "x.json").write_text("7")
    for name, nb in lessons.items():
        written(nb, folder / "notebooks" / f"{name[1:]}.ipynb")
    return folder


def test_execute_writes_outputs_and_nothing_that_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = course(tmp_path, _00_a=cells("print(open('data/x.json').read())", "2"), _01_b=cells("1 / 0"))
    main(["execute", "00"], root)
    first = (root / "notebooks" / "00_a.ipynb").read_bytes()
    main(["execute", "00"], root)
    assert (root / "notebooks" / "00_a.ipynb").read_bytes() == first
    nb = nbformat.reads(first.decode(), 4)
    assert [cell.execution_count for cell in nb.cells] == [1, 2]
    assert nb.cells[0].outputs[0].text == "7\n"
    assert "00_a.ipynb: " in capsys.readouterr().out


def test_failing_lesson_is_one_line_and_not_written(tmp_path: Path) -> None:
    root = course(tmp_path, _01_b=cells("print('new')", "x = 1\n1 / 0"))
    before = (root / "notebooks" / "01_b.ipynb").read_bytes()
    with pytest.raises(SystemExit) as stop:
        main(["execute"], root)
    assert stop.value.code == "01_b.ipynb, cell 1 (`x = 1`): ZeroDivisionError: division by zero"
    assert (root / "notebooks" / "01_b.ipynb").read_bytes() == before


def test_dead_and_slow_kernels_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LessonError, match=r"^x, cell 0 \(`import os; os._exit\(1\)`\): Kernel died$"):
        _notebooks.run(cells("import os; os._exit(1)"), tmp_path, "x")
    monkeypatch.setattr(_notebooks, "CELL_TIMEOUT", 1)
    with pytest.raises(LessonError, match=r"^x, cell 0 .*timed out"):
        _notebooks.run(cells("import time; time.sleep(60)"), tmp_path, "x")


@pytest.mark.parametrize("what", ["execute", "clean", "handouts"])
def test_no_lesson_is_one_line(what: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no lesson"):
        main([what], course(tmp_path))


def test_ids_follow_from_the_text() -> None:
    before, after = cells("1", "2", "2", "3"), cells("1", "2", "2", "4")
    ids, others = ([cell.id for cell in nb.cells] for nb in (before, after))
    assert len(set(ids)) == 4
    assert ids[:3] == others[:3]
    assert ids[3] != others[3]
    assert clean(before) == before


def test_handouts_have_data_and_no_solution(tmp_path: Path) -> None:
    root = course(tmp_path, _00_a=good_lesson())
    (root / "build" / "handouts").mkdir(parents=True)
    (root / "build" / "handouts" / "99_old.ipynb").touch()
    main(["handouts"], root)
    folder = root / "build" / "handouts"
    assert sorted(path.name for path in folder.rglob("*")) == ["00_a.ipynb", "data", "x.json"]
    sources = [cell.source for cell in nbformat.read(folder / "00_a.ipynb", 4).cells]
    assert [source for source in sources if "return y" in source] == []
    assert sources.count("check.twice(twice)") == 2


def test_kernel_env_hides_pytest() -> None:
    assert kernel_env({"PYTEST_CURRENT_TEST": "x", "MPLBACKEND": "agg", "HOME": "h"}) == {
        "HOME": "h",
        "HELPERS_LIVE": "0",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }


# What stands around the lessons


@pytest.mark.parametrize(
    ("options", "says"), [(["-m", "gpu"], "torch finds no NVIDIA GPU"), ([], "1 deselected")]
)
def test_gpu_tests_fail_without_gpu_and_are_left_out_unasked(
    options: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    test = tmp_path / "test_one.py"
    test.write_text("import pytest\n@pytest.mark.gpu\ndef test_one(): pass\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        ROOT / "pyproject.toml",
        "-p",
        "conftest",
        *options,
        test,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode != 0
    assert says in done.stdout


def test_lower_bounds_are_written_once() -> None:
    declared = {line.replace(">=", "==") for line in metadata.requires("multi-gpu-course-helpers") or []}
    lines = (ROOT / "tests" / "lower_bounds.txt").read_text().splitlines()
    pinned = {line for line in lines if not line.startswith("#")}
    assert pinned - declared == {"pyparsing==3.1.4"}  # not ours: the comment above it says why
    assert declared <= pinned


def test_requirements_are_pinned_torch_first() -> None:
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    wanted = [line for line in lines if line and not line.startswith("#")]
    assert wanted[0].startswith("torch==")
    assert wanted[-1] == "-e ."
    assert all(re.fullmatch(r"[\w-]+==[\w.]+", line) for line in wanted[:-1])
