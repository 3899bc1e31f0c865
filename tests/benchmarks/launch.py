"""How long a launch takes, beside the other ways to start ranks: python tests/benchmarks/launch.py

Each way starts the ranks, joins them over gloo, does one all-reduce and ends them. The ways take turns, and a
ratio is of two times of the same round, so that what else the machine does touches both. Under two minutes.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from helpers import cores, launch

BUDGET = 100.0  # seconds for all rounds
WARM = 5  # warm launches a round, of which the median counts

FIRST = """
import time, torch
from helpers import launch
def nothing(rank): torch.distributed.all_reduce(torch.ones(1))
began = time.perf_counter()
launch(nothing, nprocs=2, backend="gloo")
print(time.perf_counter() - began)
"""


def all_reduce(rank: int) -> None:
    """What every rank does once it has joined."""
    dist.all_reduce(torch.ones(1))


def joined(rank: int, nprocs: int, store: str) -> None:
    """The same for ranks of mp.spawn, which join by themselves, through a file as launch does."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=nprocs)
    all_reduce(rank)
    dist.destroy_process_group()


def under_torchrun() -> None:
    """The same for ranks of torchrun and of accelerate, which join through the environment."""
    dist.init_process_group("gloo")
    all_reduce(dist.get_rank())
    dist.destroy_process_group()


def warm(nprocs: int) -> None:
    launch(all_reduce, nprocs=nprocs, backend="gloo")


def mp_spawn(nprocs: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(joined, args=(nprocs, os.path.join(folder, "store")), nprocs=nprocs)


def torchrun(nprocs: int) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={nprocs}"]
    subprocess.run([*command, __file__], check=True, capture_output=True)


def notebook_launcher(nprocs: int) -> None:
    from accelerate import notebook_launcher

    notebook_launcher(under_torchrun, num_processes=nprocs)


def first(_: int) -> float:
    """The first launch of a process that has imported torch, as a notebook has."""
    ended = subprocess.run([sys.executable, "-c", FIRST], check=True, capture_output=True, text=True)
    return float(ended.stdout)


def import_torch(_: int) -> float:
    """The second of two, so that torch's files are in memory, as they are for a first launch."""
    for _ in range(2):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - began


def timed(way: Callable[[int], float | None], nprocs: int) -> float:
    began = time.perf_counter()
    measured = way(nprocs)
    return time.perf_counter() - began if measured is None else measured


def rounds(ways: list[Callable[[int], float | None]], nprocs: int, seconds: float) -> list[list[float]]:
    """A time a way and round, the ways in turn, as many rounds as fit; of `warm` the median of some."""
    until, taken = time.monotonic() + seconds, []
    while not taken or time.monotonic() + sum(taken[-1]) < until:
        taken.append(
            [statistics.median(timed(w, nprocs) for _ in range(WARM if w is warm else 1)) for w in ways]
        )
    return taken


def spread(values: list[float], form: str) -> str:
    middle, *ends = (format(v, form) for v in (statistics.median(values), min(values), max(values)))
    return f"{middle} ({ends[0]} to {ends[1]})"


def report(ways: list[Callable[[int], float | None]], nprocs: int, seconds: float) -> None:
    """Print each way's time, and its ratio to the first of them."""
    taken = rounds(ways, nprocs, seconds)
    for index, way in enumerate(ways):
        times = spread([row[index] for row in taken], ".3f")
        ratio = spread([row[index] / row[0] for row in taken], ".1f" if way is not first else ".2f")
        print(f"  {way.__name__:18} {times:26} s   {ratio} times {ways[0].__name__}")
    print(f"  median (least to most) of {len(taken)} rounds\n", flush=True)


def main() -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    print(f"torch {torch.__version__}, {cores()} cores, load {os.getloadavg()[0]:.1f}\n")
    print("the first launch of 2 ranks, beside a Python that imports torch and ends")
    report([import_torch, first], 2, BUDGET * 0.2)
    others = [mp_spawn, torchrun] + [notebook_launcher] * bool(importlib.util.find_spec("accelerate"))
    for nprocs in (2, 4):
        warm(nprocs)
        time.sleep(3)  # the fork server imports the rest of what it imports
        print(f"{nprocs} ranks")
        report([warm, *others], nprocs, BUDGET * 0.4)


if __name__ == "__main__":
    under_torchrun() if "TORCHELASTIC_RUN_ID" in os.environ else main()
