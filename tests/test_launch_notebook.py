"""`launch` from the cells of real notebooks."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernels import Notebook, left_of, processes, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc")

SETUP = """
import os, signal, sys, time
from pathlib import Path
import torch, torch.distributed as dist
from helpers import LaunchTimeout, RankError, launch
import helpers._launch

def mark(folder):
    Path(folder, str(os.getpid())).touch()
"""
QUICK = 10  # seconds, generous: what must be over within 3 s is asserted to be over within these


def opened(folder: Path, **env: str) -> Notebook:
    notebook = Notebook(folder, TMPDIR=str(folder), **env)
    notebook.output(SETUP)
    return notebook


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """One notebook for all tests that leave it as it was."""
    notebook = opened(tmp_path_factory.mktemp("notebook"))
    yield notebook
    notebook.close()


@pytest.fixture
def pids(tmp_path: Path) -> Path:
    """A folder in which ranks leave their pids."""
    folder = tmp_path / "pids"
    folder.mkdir()
    return folder


def ranks(pids: Path) -> list[int]:
    return [int(name) for name in os.listdir(pids)]


def test_what_cells_define_travels_there_and_back(notebook: Notebook) -> None:
    notebook.output("class Pair:\n    def __init__(self, a, b): self.a, self.b = a, b\nfactor = 10")
    notebook.output("def pair(rank, other): return Pair(rank * factor, other.b)")
    assert (
        notebook.output(
            "pairs = launch(pair, (Pair(1, 'b'),))\nprint([(type(p) is Pair, p.a, p.b) for p in pairs])"
        )
        == "[(True, 0, 'b'), (True, 10, 'b')]\n"
    )


def test_output_is_grouped_by_rank_and_the_same_each_time(notebook: Notebook) -> None:
    cell = """
def talk(rank):
    for line in range(3):
        if rank == 1 - line % 2:
            print("line", line, flush=True)
            os.write(1, b"half a line")
        dist.barrier()
    print(", the other half\\n\\nüñí")
    print("to stderr", file=sys.stderr)
launch(talk)
print("done")
"""
    rank_0 = ["line 1", "half a line, the other half", "", "üñí", "to stderr"]
    rank_1 = ["line 0", "half a lineline 2", "half a line, the other half", "", "üñí", "to stderr"]
    lines = [f"[rank 0] {line}" for line in rank_0] + [f"[rank 1] {line}" for line in rank_1]
    for _ in range(3):
        assert notebook.output(cell).splitlines() == [*lines, "done"]


def test_live_output_comes_in_order_of_arrival(notebook: Notebook) -> None:
    cell = """
def talk(rank):
    for turn in range(4):
        if rank == turn % 2:
            print("turn", turn)
            time.sleep(0.2)
        dist.barrier()
launch(talk, grouped=False)
"""
    assert notebook.output(cell).splitlines() == [f"[rank {turn % 2}] turn {turn}" for turn in range(4)]


def test_a_progress_bar_of_rank_0_is_one_bar(notebook: Notebook) -> None:
    cell = """
def progress(rank):
    for percent in range(0, 101, 20):
        sys.stderr.write(f"\\r{percent:3}%")
        sys.stderr.flush()
        time.sleep(0.02)
    sys.stderr.write("\\n")
launch(progress, nprocs=2, grouped=GROUPED)
"""
    assert notebook.output(cell.replace("GROUPED", "True")) == "[rank 0] 100%\n[rank 1] 100%\n"
    live = notebook.output(cell.replace("GROUPED", "False"))
    assert "\r" in live
    assert sorted(screen(live)) == ["[rank 0] 100%", "[rank 1] 100%"]


def screen(text: str) -> list[str]:
    """The lines that a front end shows: what follows \\r overwrites."""
    shown = []
    for line in text.rstrip("\n").split("\n"):
        now = ""
        for part in line.split("\r"):
            now = part + now[len(part) :]
        shown.append(now.rstrip())
    return shown


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        ("launch(lambda rank: 1 / 0)", "RankError", r"rank 0 raised ZeroDivisionError.*cell In\[\d+\]"),
        ("launch(lambda rank: os._exit(2))", "RankError", r"rank 0 left with exit code 2"),
        (
            "launch(lambda rank: time.sleep(9), timeout=0.5)",
            "LaunchTimeout",
            r"rank 1: cell In\[\d+\], line 1",
        ),
        ("launch(print, (open(os.devnull),))", "CannotTravel", r"argument 1 of args \(args\[0\]\) is a Text"),
        (
            "launch(print, nprocs=0)",
            "ValueError",
            r"nprocs must be a whole number of ranks, 1 or more, not 0",
        ),
        ("launch(3)", "TypeError", r"fn must be a function of \(rank, \*args\), not 3"),
    ],
    ids=["raised", "died", "timeout", "cannot travel", "value", "type"],
)
def test_an_error_shows_the_cell_and_no_frame_of_helpers(
    notebook: Notebook, code: str, kind: str, said: str
) -> None:
    cell = notebook.run(code)
    assert cell.error == kind
    assert re.search(said, cell.shown, re.DOTALL), cell.shown
    assert not re.search(r"helpers[/\\]_|ipykernel_", cell.shown)


def test_a_traceback_quotes_the_cell(notebook: Notebook) -> None:
    notebook.output("def inner():\n    raise KeyError('deep')  # here")
    shown = notebook.run("def outer(rank):\n    inner()\nlaunch(outer)").shown
    assert re.findall(r'File "cell In\[\d+\]", line (\d), in (\w+)\n +(.*)', shown) == [
        ("2", "outer", "inner()"),
        ("2", "inner", "raise KeyError('deep')  # here"),
    ]


def test_a_crash_shows_only_lines_of_cells(notebook: Notebook) -> None:
    notebook.output("import ctypes\ndef crash():\n    ctypes.string_at(0)")
    shown = notebook.run("def fn(rank):\n    crash()\nlaunch(fn, nprocs=1)").shown
    assert re.findall(r'File "(.*?)\d+.?", line (\d), in (\w+)', shown) == [
        ("cell In[", "2", "fn"),
        ("cell In[", "3", "crash"),
    ]


LONG = """
def busy(rank, pids):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("started")
    mark(pids)
    time.sleep(600)
launch(busy, ({pids!r},), nprocs=2, timeout=600)
"""


@pytest.mark.parametrize("presses", [1, 5])
def test_an_interrupt_shows_the_output_so_far_and_leaves_no_rank(
    notebook: Notebook, pids: Path, presses: int
) -> None:
    request = notebook.start(LONG.format(pids=str(pids)))
    until(lambda: len(ranks(pids)) == 2, "the ranks' start", 60)
    began = time.monotonic()
    for _ in range(presses):
        notebook.interrupt()
        time.sleep(0.05)  # a nervous finger
    cell = notebook.finish(request)
    assert time.monotonic() - began < QUICK
    assert (cell.error, cell.stdout) == ("KeyboardInterrupt", "[rank 0] started\n[rank 1] started\n")
    assert left_of(ranks(pids)) == []
    assert notebook.output("print(launch(lambda rank: rank))") == "[0, 1]\n"


def test_modules_of_the_user_are_seen_as_the_notebook_sees_them(notebook: Notebook) -> None:
    notebook.output("import importlib\nPath('mine.py').write_text('value = 1')\nimport mine")
    seen = "print(launch(lambda rank: mine.value), mine.value)"
    assert notebook.output(seen) == "[1, 1] 1\n"
    notebook.output("Path('mine.py').write_text('value = 1 + 1')\nimportlib.reload(mine)")
    assert notebook.output(seen) == "[2, 2] 2\n"


def test_the_environment_and_the_folder_of_the_moment_are_seen(notebook: Notebook) -> None:
    cell = """
os.environ["NEW"] = "set"
os.makedirs("below", exist_ok=True)
os.chdir("below")
print(launch(lambda rank: (os.environ["NEW"], Path.cwd().name), nprocs=1))
os.chdir("..")
"""
    assert notebook.output(cell) == "[('set', 'below')]\n"


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_of_a_loader_find_a_dataset_that_a_cell_defines(notebook: Notebook, context: str) -> None:
    notebook.output(
        "class Squares(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 4\n"
        "    def __getitem__(self, index): return scale(index * index)\n"
        "def scale(x): return 10 * x"
    )
    cell = f"""
def load(rank):
    loader = torch.utils.data.DataLoader(Squares(), num_workers=1, multiprocessing_context={context!r})
    return [int(x) for x in loader]
print(launch(load, nprocs=1))
"""
    assert notebook.output(cell) == "[[0, 10, 40, 90]]\n"


def test_objects_of_a_cells_class_pass_between_ranks(notebook: Notebook) -> None:
    cell = """
class Box:
    def __init__(self, x): self.x = x
def gather(rank):
    boxes = [None, None]
    dist.all_gather_object(boxes, Box(rank))
    return [box.x for box in boxes]
print(launch(gather))
"""
    assert notebook.output(cell) == "[[0, 1], [0, 1]]\n"


def test_a_launch_from_a_thread_and_from_an_async_cell(notebook: Notebook) -> None:
    assert (
        notebook.output(
            "import asyncio\nprint(await asyncio.to_thread(launch, lambda rank: print('hello', rank)))"
        )
        == "[rank 0] hello 0\n[rank 1] hello 1\n[None, None]\n"
    )


def test_a_long_silent_launch_shows_that_it_runs_and_for_how_long(notebook: Notebook) -> None:
    cell = notebook.run("launch(lambda rank: (print('begun'), time.sleep(2.7)), nprocs=1);")
    assert cell.displays[0] == "[rank 0] begun\nrunning for 2 s\n"
    assert cell.displays[-1] == ""
    assert cell.stdout == "[rank 0] begun\n"
    notebook.output("os.environ['HELPERS_LIVE'] = '0'")
    assert notebook.run("launch(lambda rank: time.sleep(2.2), nprocs=1);").displays == []
    notebook.output("del os.environ['HELPERS_LIVE']")


def test_two_notebooks_at_once_and_one_of_them_killed(notebook: Notebook, pids: Path) -> None:
    other = opened(pids.parent)
    cell = "print([launch(lambda rank: dist.barrier() or rank) for _ in range(5)])"
    requests = [(each, each.start(cell)) for each in (notebook, other)]
    assert [each.finish(request).stdout for each, request in requests] == [f"{[[0, 1]] * 5}\n"] * 2

    server = int(other.output("print(helpers._launch._server.process.pid)"))
    other.start(LONG.format(pids=str(pids)))
    until(lambda: len(ranks(pids)) == 2, "the ranks' start")
    other.kill()
    until(lambda: left_of(ranks(pids)) == [], "the end of the killed notebook's ranks")
    until(lambda: processes().get(server, "Z")[0] == "Z", "the end of its fork server")
    until(lambda: not list(pids.parent.glob("launch-*")), "the end of its folder")
    other.close()
    assert notebook.output("print(launch(lambda rank: rank))") == "[0, 1]\n"
