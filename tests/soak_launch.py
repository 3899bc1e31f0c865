"""The launcher for minutes on end: python -m pytest -s tests/soak_launch.py, which `make test` leaves out.

SOAK_LAUNCHES and SOAK_NOTEBOOKS say how many (300 and 8 where they are not set).
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from kernels import Notebook, children

import helpers._launch
from helpers import RankError, launch

LAUNCHES = int(os.environ.get("SOAK_LAUNCHES", "300"))
NOTEBOOKS = int(os.environ.get("SOAK_NOTEBOOKS", "8"))
WARM_UP = 30  # launches after which what a process keeps for good has settled


def resident(pid: int) -> int:
    """Memory of a process, in pages."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1])


def held() -> dict[str, int]:
    """What this process and its fork server hold of things that could pile up."""
    server = helpers._launch._fork_server().process.pid
    return {
        "files": len(os.listdir("/proc/self/fd")),
        "files of the server": len(os.listdir(f"/proc/{server}/fd")),
        "threads": threading.active_count(),
        "processes": len(children(os.getpid())) + len(children(server)),
        "shared memory": len(os.listdir("/dev/shm")),
    }


def one(number: int) -> None:
    """A launch; each tenth fails, in turn by an exception and by SIGKILL."""

    def fn(rank: int) -> int:
        if number % 10 == 9 and rank == 1:
            os.kill(os.getpid(), 9) if number % 20 == 9 else int("no number")
        return rank + number

    if number % 10 == 9:
        with pytest.raises(RankError, match="rank 1"):
            launch(fn, nprocs=2)
    else:
        assert launch(fn, nprocs=2) == [number, number + 1]


def test_many_launches_leave_nothing_behind() -> None:
    for number in range(WARM_UP):
        one(number)
    server = helpers._launch._fork_server().process.pid
    before, memory = held(), (resident(os.getpid()), resident(server))
    for number in range(LAUNCHES):
        one(number)
    grown = [now - then for now, then in zip((resident(os.getpid()), resident(server)), memory, strict=True)]
    print(
        f"{LAUNCHES} launches: resident memory grew by {grown} pages (notebook, fork server), held {held()}"
    )
    assert helpers._launch._fork_server().process.pid == server
    assert held() == before
    assert max(grown) < 5000  # 20 MB


CELL = """
import time
from helpers import launch

def add(rank):
    import torch
    import torch.distributed as dist
    total = torch.tensor(rank)
    dist.all_reduce(total)
    return int(total)

times, end = [], time.monotonic() + 30
while time.monotonic() < end:
    began = time.monotonic()
    assert launch(add, nprocs=2, backend="gloo") == [1, 1]
    times.append(time.monotonic() - began)
print(len(times), sorted(times)[len(times) // 2], max(times))
"""


def test_many_notebooks_launch_at_once(tmp_path: Path) -> None:
    notebooks = [Notebook(tmp_path) for _ in range(NOTEBOOKS)]
    requests = [notebook.start(CELL) for notebook in notebooks]
    cells = [n.finish(request, 300) for n, request in zip(notebooks, requests, strict=True)]
    for notebook, cell in zip(notebooks, cells, strict=True):
        notebook.close()
        print("launches, median and longest in s:", cell.stdout.strip())
    assert [cell.shown for cell in cells] == [""] * NOTEBOOKS
