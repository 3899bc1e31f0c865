"""Profiler traces of all ranks in one picture, and how a step's time divides.

The parts are those of Holistic Trace Analysis (github.com/facebookresearch/HolisticTraceAnalysis): compute,
communication, idle; communication is exposed where its rank computes nothing meanwhile. Input is added.
"""

from __future__ import annotations

import gzip
import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ._draw import COLOURS, figure, show

Traces = str | Path | Sequence[str | Path]  # a folder, or files
Spans = list[tuple[float, float]]  # from, to, in seconds: in order, without overlap

_TALK = r"nccl|gloo:"
_NO_WORK = rf"{_TALK}|autograd::engine|c10d::|record_param_comms|torch\.distributed"  # or only around it
_INPUT = r"enumerate\(DataLoader\)|input$"
_GPU = {"kernel", "gpu_memcpy", "gpu_memset"}
_LOOKS = {
    "input": (COLOURS[4], "xx"),
    "compute": (COLOURS[0], ""),
    "exposed communication": (COLOURS[6], "//"),
    "hidden communication": ("white", ".."),
}


def _merged(spans: Iterable[tuple[float, float]]) -> Spans:
    """The same moments, each once."""
    merged: Spans = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        elif end > start:
            merged.append((start, end))
    return merged


def _without(spans: Spans, others: Spans) -> Spans:
    """The moments of `spans` that are in none of `others`."""
    left: Spans = []
    for start, end in spans:
        for low, high in others[max(0, bisect_left(others, (start,)) - 1) :]:
            if low >= end:
                break
            if high > start:
                left.append((start, low))
                start = max(start, high)
        left.append((start, end))
    return _merged(left)


def _seconds(spans: Spans) -> float:
    return sum(end - start for start, end in spans)


def _read(path: Path) -> dict[str, Any]:
    """A trace, `.json` or `.json.gz`; of its events those with a duration (`ts` and `dur` in microseconds).

    Format: docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
    """
    if not path.is_file():
        raise FileNotFoundError(f"no trace at {path}: did this rank come to prof.export_chrome_trace(...)?")
    raw = path.read_bytes()
    try:
        trace = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
        return {**trace, "traceEvents": [event for event in trace["traceEvents"] if event.get("ph") == "X"]}
    except (OSError, EOFError, ValueError, KeyError, TypeError):
        why = f"{path} ({len(raw):,} bytes) is not a whole trace: record this rank again"
        raise ValueError(why) from None


@dataclass(frozen=True)
class _Rank:
    """One rank's steps, and when it did what, by a clock that all ranks of a machine share."""

    name: str
    steps: Spans
    parts: dict[str, Spans]  # as in _LOOKS


def _rank(path: Path) -> _Rank:
    """What a trace shows. Where GPU kernels are in it these are the work, else the CPU's operators are."""
    trace = _read(path)
    events = [e for e in trace["traceEvents"] if e.get("cat") != "gpu_user_annotation"]  # echoes of the CPU's
    timed = [(e["name"], e.get("cat"), (e["ts"] * 1e-6, (e["ts"] + e["dur"]) * 1e-6)) for e in events]
    steps = sorted(span for name, _, span in timed if name.startswith("ProfilerStep"))
    if not steps:
        raise ValueError(f"{path} holds no step: call prof.step() after each, as often as the schedule asks")
    gpu = any(cat == "kernel" for _, cat, _ in timed)
    work = _GPU if gpu else {"cpu_op"}
    talk = _merged(span for name, cat, span in timed if re.match(_TALK, name) and (not gpu or cat in _GPU))
    busy = _merged(span for name, cat, span in timed if cat in work and not re.match(_NO_WORK, name))
    loads = _merged(span for name, _, span in timed if re.match(_INPUT, name))
    loads, busy = (_without(loads, busy), busy) if gpu else (loads, _without(busy, loads))
    exposed = _without(_without(talk, busy), loads)
    found = zip(_LOOKS, (loads, busy, exposed, _without(talk, exposed)), strict=True)
    outside = [(-1.0, steps[0][0]), (steps[-1][1], float("inf"))]
    parts = {part: _without(spans, outside) for part, spans in found}
    return _Rank(f"rank {trace.get('distributedInfo', {}).get('rank', 0)}", steps, parts)


def _ranks(traces: Traces) -> list[_Rank]:
    """The traces in a folder, or of a list of files, by rank."""
    if isinstance(traces, str | Path):
        paths = sorted([*Path(traces).glob("*.json"), *Path(traces).glob("*.json.gz")])
        if not paths:
            raise FileNotFoundError(f"no trace (*.json or *.json.gz) in {traces}: record one a rank first")
        traces = paths
    return sorted((_rank(Path(path)) for path in traces), key=lambda rank: int(rank.name[5:]))


def step_parts(traces: Traces) -> dict[str, dict[str, float]]:
    """How a step divides: "rank 0" and so on to seconds of input, compute, exposed communication, idle.

    `traces` is a folder or a list of files. The four add up to the mean duration of the recorded steps.
    Input is where the rank waits in a DataLoader or in `record_function("input")`; idle is all the rest.
    """
    parts = {}
    for rank in _ranks(traces):
        n, whole = len(rank.steps), rank.steps[-1][1] - rank.steps[0][0]
        own = {part: _seconds(rank.parts[part]) / n for part in [*_LOOKS][:3]}
        parts[rank.name] = own | {"idle": max(0.0, whole / n - sum(own.values()))}
    return parts


def exposed(traces: Traces) -> float:
    """The share of all ranks' communication, from 0 to 1, during which the same rank does nothing else."""
    ranks = _ranks(traces)
    both = ("hidden communication", "exposed communication")
    hidden, bare = (sum(_seconds(rank.parts[part]) for rank in ranks) for part in both)
    return bare / (hidden + bare) if hidden + bare else 0.0


def timeline(traces: Traces, title: str = "", steps: int = 2) -> None:
    """Draw the first recorded steps of all ranks: two lanes a rank, its own work and its communication.

    `traces` is a folder or a list of files. What is blank in both lanes is idle.
    """
    ranks = _ranks(traces)
    zero, end = min(rank.steps[0][0] for rank in ranks), max(rank.steps[:steps][-1][1] for rank in ranks)
    _, axes = figure(7.2, 0.75 * len(ranks) + 1.3)
    for row, rank in enumerate(ranks):
        for part, (colour, hatch) in _LOOKS.items():
            bars = [(1e3 * (start - zero), 1e3 * (stop - start)) for start, stop in rank.parts[part]]
            lane = row + 0.42 * part.endswith("communication")
            axes.broken_barh(
                bars, (lane, 0.38), facecolor=colour, hatch=hatch, edgecolor="black", linewidth=0.3,
                label=None if row else part,
            )  # fmt: skip
        for start, _ in rank.steps[:steps]:
            axes.plot([1e3 * (start - zero)] * 2, [row - 0.06, row + 0.86], color="black", linewidth=1.5)
    axes.set(xlim=(0, 1e3 * (end - zero)), ylim=(len(ranks), -0.1), xlabel="milliseconds", title=title)
    axes.set_yticks([row + 0.4 for row in range(len(ranks))], [rank.name for rank in ranks])
    axes.legend(ncols=4, loc="lower right", bbox_to_anchor=(1.02, 1.08), fontsize=9, columnspacing=1)
    show()
