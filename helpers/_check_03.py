"""The checks of lesson 03."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ._devices import device
from ._exercise import attempt, attempt_on_ranks, exercise, expect


def _without_collectives(rank: int, fn: Callable[..., Any], *args: Any) -> Any:
    """Call fn(*args) in a rank in which the collectives that would answer for it raise."""
    import torch.distributed as dist

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("this exercise is done by sending and receiving only")

    for name in dir(dist):
        if name.startswith(("all_", "broadcast", "gather", "scatter", "reduce")):
            setattr(dist, name, refuse)
    return fn(rank, *args)


def _brought(rank: int, shape: tuple[int, ...]) -> Any:
    import torch

    return torch.arange(math.prod(shape)).reshape(shape) + 10.0 * (rank + 1)


def _gathered(rank: int, gather: Callable[[Any], Any], shape: tuple[int, ...]) -> Any:
    return gather(_brought(rank, shape).to(device(rank)))


@exercise
def ring_all_gather(gather: Callable[[Any], Sequence[Any]]) -> str:
    """Lesson 03: every rank's tensor on every rank, in rank order, by messages alone."""
    for ranks, shape in ((2, (3,)), (3, (1, 2)), (4, (1,))):
        args, expected = (_gathered, gather, shape), [_brought(rank, shape) for rank in range(ranks)]
        tried = f"{ranks} ranks, of which rank 0 brings {expected[0]}"
        results = attempt_on_ranks(tried, _without_collectives, args, ranks)
        for rank, got in enumerate(results):
            hint = "a rank passes on what came in the step before: whose is that? What never came is noise"
            expect(f"{tried}; this is what rank {rank} returned", got, expected, hint)
    return "every rank's tensor on every rank, in order, on 2, 3 and 4 ranks"


@exercise
def ring_seconds(seconds: Callable[[int, float, float, float], float]) -> str:
    """Lesson 03: time of a ring all-reduce from latency and bandwidth (Patarasuk and Yuan, 2009)."""
    cases = (
        (2, 1e6, 0.0, 1e9),
        (4, 0.0, 3e-5, 1e9),
        (8, 1e8, 5e-6, 2e9),
        (1, 1e6, 1e-5, 1e9),
        (3, 7e5, 1e-4, 1e8),
    )
    for n, size, latency, bandwidth in cases:
        expected = 2 * (n - 1) * latency + 2 * (n - 1) / n * size / bandwidth
        tried = f"n={n}, size={size:g}, latency={latency:g}, bandwidth={bandwidth:g}"
        hint = "a ring makes n - 1 steps twice; each takes the latency and one chunk's bytes"
        expect(tried, attempt(tried, seconds, n, size, latency, bandwidth), expected, hint)
    return "five cases, among them no latency, no bytes, and a single rank"
