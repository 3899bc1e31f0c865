"""The checks of lesson 07."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ._exercise import attempt, attempt_on_ranks, exercise, expect, wrong
from ._timeline import step_parts

_PARTS = "input", "compute", "exposed communication", "idle"


def _run(*ranks: tuple[float, ...]) -> dict[str, dict[str, float]]:
    """What `step_parts` would return, from each rank's seconds."""
    return {f"rank {rank}": dict(zip(_PARTS, seconds, strict=True)) for rank, seconds in enumerate(ranks)}


_EVEN = "the largest part, on every rank"
_RUNS = [
    ("input", _run((0.070, 0.050, 0.006, 0.004), (0.068, 0.045, 0.012, 0.005)), _EVEN),
    ("compute", _run((0.0, 0.080, 0.010, 0.006), (0.0, 0.078, 0.012, 0.006)), _EVEN),
    ("communication", _run((0.0, 0.050, 0.075, 0.010), (0.0, 0.048, 0.080, 0.008)), _EVEN),
    ("straggler", _run((0.0, 0.240, 0.010, 0.010), (0.0, 0.070, 0.180, 0.010)), "one waits for the other"),
    (
        "straggler", _run((0.0, 0.060, 0.100, 0.002), (0.0, 0.062, 0.098, 0.002), (0.0, 0.150, 0.010, 0.002)),
        "the late rank need not be rank 0",
    ),
    (
        "straggler", _run((0.002, 0.100, 0.110, 0.001), (0.120, 0.090, 0.002, 0.001)),
        "one rank alone waits for input, and the other one for it",
    ),
    (
        "communication", _run(*[(0.001, 0.040 + 0.002 * r, 0.090 - 0.002 * r, 0.004) for r in range(4)]),
        "a few per cent between ranks are noise",
    ),
    (
        "communication", _run((0, 0.090, 0.080, 0.001), (0.0, 0.075, 0.095, 0.001), (0.0, 0.08, 0.085, 0)),
        "which part is the largest, summed over ranks?",
    ),
    (
        "straggler", _run((0.0, 0.070, 0.100, 0.001), (0.0, 0.050, 0.120, 0.001)),
        "1.4 times is more than 1.3 times",
    ),
    ("compute", _run((0.0, 0.050, 0.010, 0.200), (0.0, 0.045, 0.015, 0.200)), "idle is not among the three"),
    ("input", _run((0.300, 0.050, 0.010, 0.0)), "one rank has nobody to wait for"),
]  # fmt: skip


@exercise
def cause(answer: Callable[[dict[str, dict[str, float]]], str]) -> str:
    """Lesson 07: from each rank's parts of a step: straggler, input, compute or communication."""
    for expected, run, hint in _RUNS:
        tried = "\n    ".join(["ranks with", *(f"{rank}: {parts}" for rank, parts in run.items())])
        got = attempt(tried, answer, {rank: dict(parts) for rank, parts in run.items()})
        expect(tried, got, expected, hint)
    return f"{len(_RUNS)} runs of one to four ranks"


class _Slow:
    """Twelve batches' worth of numbers, each a millisecond to read; `reads` counts those of this process."""

    def __init__(self) -> None:
        self.reads = 0

    def __len__(self) -> int:
        return 384

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(index)
        time.sleep(0.001)
        self.reads += 1
        return index


def _epoch(rank: int, loader: Callable[[Any], Any], folder: str) -> tuple[list[list[int]], int]:
    """Profile steps of 40 ms over the reader's batches: the numbers that these held, and early reads.

    The first batch is waited for in any case, longest where workers start as programs of their own, so it is
    there before the profile begins.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler's own log: nothing
    from torch.profiler import profile, record_function

    seen: list[list[int]] = []
    data = _Slow()
    batches = iter(loader(data))
    batch = next(batches, [])
    early = data.reads
    with profile() as prof:
        for at in range(12):
            with record_function(f"ProfilerStep#{at}"):
                seen.append([int(number) for number in batch])
                with record_function("aten::work"):
                    time.sleep(0.04)
                with record_function("input"):
                    batch = next(batches, [])
    prof.export_chrome_trace(str(Path(folder) / f"rank{rank}.json.gz"))
    return seen, early


@exercise
def loader(answer: Callable[[Any], Any]) -> str:
    """Lesson 07: a DataLoader of the same batches in the same order, for which the step hardly waits."""
    with tempfile.TemporaryDirectory() as folder:
        tried = "12 steps over a data set of 384 numbers, a millisecond each to read"
        ((seen, early),) = attempt_on_ranks(tried, _epoch, (answer, folder), 1)
        expected = [list(range(at, at + 32)) for at in range(0, 384, 32)]
        hint = "same numbers, in batches of 32, in order: what may change is when they are read, and by whom"
        expect(tried, seen, expected, hint)
        if early == 384:
            hint = "reading all of it first takes the same time at once, and all of the memory"
            raise wrong(tried, "all 384 read before the first step", "a few batches ahead", hint)
        parts = step_parts(folder)["rank 0"]
    share = parts["input"] / sum(parts.values())
    if share > 0.3:
        hint = "reading is still done by the process that trains: who else could do it meanwhile?"
        raise wrong(tried, f"{share:.0%} of the steps spent in input", "less than 30 %", hint)
    return "the same batches in the same order, and input is a small share of the trace"
