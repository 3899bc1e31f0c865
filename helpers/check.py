"""The exercise checks: `check.<topic>(answer)` says not attempted, passed, or what is wrong and a hint.

A check tries the answer on cases of its own, several rank counts where ranks matter, and never shows a
solution. An unfilled stub raises NotImplementedError, which counts as not attempted wherever it is raised.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from ._launch import LaunchTimeout, RankError, launch

_TIMEOUT = 20.0  # seconds until ranks that wait for each other count as a deadlock


class WrongAnswer(AssertionError):
    """What was tried, what came out, what was expected, and a hint."""

    def _render_traceback_(self) -> list[str]:
        return [f"not yet: {self}"]


def wrong(tried: str, got: Any, expected: Any, hint: str) -> WrongAnswer:
    """The four things that a wrong answer is told, as an exception to raise."""
    return WrongAnswer(f"tried {tried}\n  came out: {got}\n  expected: {expected}\n  hint: {hint}")


def _exercise(verify: Callable[[Any], str]) -> Callable[[Any], None]:
    """Make a check of `verify`, which returns what it verified or raises WrongAnswer."""

    @functools.wraps(verify)
    def check(answer: Any) -> None:
        try:
            print(f"passed: {verify(answer)}")
        except NotImplementedError as todo:
            print(f"not attempted: {todo}")
        except RankError as error:
            if not isinstance(error.exception, NotImplementedError):
                raise _as_wrong(verify, error) from None
            print(f"not attempted: {error.exception}")
        except WrongAnswer:
            raise
        except Exception as error:
            raise _as_wrong(verify, error) from None

    return check


def _as_wrong(verify: Callable[[Any], str], error: Exception) -> WrongAnswer:
    came = f"{type(error).__name__}: {error}" if not isinstance(error, RankError) else str(error)
    hint = "read the last line of the error first, then the line of yours that it names"
    if isinstance(error, LaunchTimeout):
        hint = "a rank waits for a message that no other rank sends: write down who sends what, step by step"
    return wrong(f"your function on the cases of check.{verify.__name__}", came, "an answer", hint)


def _same(got: Any, expected: Any) -> bool:
    """Equality of numbers, sequences and tensors, floats to within 1e-5 relative."""
    import torch

    if isinstance(expected, torch.Tensor):
        alike = isinstance(got, torch.Tensor) and got.shape == expected.shape
        return alike and torch.allclose(got.double(), expected.double(), rtol=1e-5, atol=1e-7)
    if isinstance(expected, float):
        number = isinstance(got, (int, float)) and not isinstance(got, bool)
        return number and math.isclose(got, expected, rel_tol=1e-5)
    if isinstance(expected, (list, tuple)):
        alike = isinstance(got, (list, tuple)) and len(got) == len(expected)
        return alike and all(_same(a, b) for a, b in zip(got, expected, strict=True))
    return type(got) is type(expected) and got == expected


def expect(tried: str, got: Any, expected: Any, hint: str) -> None:
    """Raise WrongAnswer unless `got` is `expected`."""
    if not _same(got, expected):
        raise wrong(tried, got, expected, hint)


@_exercise
def my_share(share: Callable[[int, int, list[Any]], Sequence[Any]]) -> str:
    """Lesson 00: every item to exactly one rank, shares equal to within one item."""
    for ranks, count in ((2, 10), (3, 10), (4, 9), (1, 5), (3, 2), (2, 0)):
        items = [f"item {index}" for index in range(count)]
        shares = [list(share(rank, ranks, list(items))) for rank in range(ranks)]
        tried = f"{count} items on {ranks} ranks"
        taken = sorted(item for part in shares for item in part)
        hint = "an item is missing or taken twice: look at the first and last items of each rank's part"
        expect(tried, taken, sorted(items), hint)
        sizes = sorted(len(part) for part in shares)
        if sizes[-1] - sizes[0] > 1:
            raise wrong(
                tried, f"parts of {sizes} items", "sizes that differ by 1 at most", "who gets the rest?"
            )
    return "every item to one rank, shares equal to within one, for 1 to 4 ranks and 0 to 10 items"


@_exercise
def prediction(predict: Callable[[], tuple[list[list[int]], list[int]]]) -> str:
    """Lesson 00: what two launches in a row leave in a list, compared with two real launches."""
    seen: list[int] = []

    def look(rank: int) -> list[int]:
        seen.append(rank)
        return seen

    answer = predict()
    launch(look, nprocs=2)
    second = launch(look, nprocs=2)
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise wrong("your prediction", answer, "two lists", "return second_launch, seen_in_the_notebook")
    hint = "each launch starts fresh processes, with copies of what the notebook holds"
    for name, said, real in zip(("second launch", "notebook"), answer, (second, seen), strict=True):
        if said != real:
            raise wrong(f"a real run: the {name}", f"you predicted {said}", "something else", hint)
    return "two real launches came out as you predicted"


def _without_collectives(rank: int, fn: Callable[..., Any], *args: Any) -> Any:
    """Call fn(*args) in a rank in which the collectives that would answer for it raise."""
    import torch.distributed as dist

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("this exercise is done by sending and receiving only")

    for name in dir(dist):
        if name.startswith(
            ("all_gather", "all_reduce", "all_to_all", "broadcast", "gather", "scatter", "reduce")
        ):
            setattr(dist, name, refuse)
    return fn(rank, *args)


def _gathered(rank: int, gather: Callable[[Any], Any], shape: tuple[int, ...]) -> Any:
    import torch

    from ._devices import device

    mine = torch.full(shape, float(rank + 1), device=device(rank))
    return [part.clone() for part in gather(mine)]


@_exercise
def ring_all_gather(gather: Callable[[Any], Sequence[Any]]) -> str:
    """Lesson 03: every rank's tensor on every rank, in rank order, by messages alone."""
    import torch

    for ranks, shape in ((2, (3,)), (3, (2, 2)), (4, (1,))):
        expected = [torch.full(shape, float(rank + 1)) for rank in range(ranks)]
        results = launch(_without_collectives, (_gathered, gather, shape), nprocs=ranks, timeout=_TIMEOUT)
        for rank, got in enumerate(results):
            tried = (
                f"{ranks} ranks, where rank r brings {shape} filled with r + 1; this is rank {rank}'s list"
            )
            hint = "in step s a rank passes on what it received in step s - 1: whose tensor is that?"
            expect(tried, got, expected, hint)
    return "every rank's tensor on every rank, in order, on 2, 3 and 4 ranks"


@_exercise
def ring_seconds(seconds: Callable[[int, float, float, float], float]) -> str:
    """Lesson 03: time of a ring all-reduce from latency and bandwidth (Patarasuk and Yuan, 2009)."""
    cases = (
        (2, 1e6, 0.0, 1e9),
        (4, 0.0, 1e-5, 1e9),
        (8, 1e8, 5e-6, 2e9),
        (1, 1e6, 1e-5, 1e9),
        (3, 7e5, 1e-4, 1e8),
    )
    for n, size, latency, bandwidth in cases:
        expected = 2 * (n - 1) * latency + 2 * (n - 1) / n * size / bandwidth
        tried = f"n={n}, size={size:g}, latency={latency:g}, bandwidth={bandwidth:g}"
        hint = "a ring makes n - 1 steps twice; what a step moves is one chunk, not the whole tensor"
        expect(tried, float(seconds(n, size, latency, bandwidth)), expected, hint)
    return "five cases, among them no latency, no bytes, and a single rank"


def _uneven(rank: int, average: Callable[[list[Any], int], None], counts: tuple[int, ...]) -> Any:
    """Gradients on rank `rank` of a mean loss over its `counts[rank]` samples, before and after `average`."""
    import torch

    from ._devices import device

    data = torch.randn(sum(counts), 3, generator=torch.Generator().manual_seed(1))
    mine = data.split(counts)[rank]
    weight, bias = mine.sum(0) / max(1, len(mine)), mine.square().sum() / max(1, len(mine))
    gradients = [weight.to(device(rank)), bias.to(device(rank))]
    average(gradients, counts[rank])
    return gradients, [data.mean(0), data.square().sum() / len(data)]


@_exercise
def average_uneven(average: Callable[[list[Any], int], None]) -> str:
    """Lesson 04: gradients over ranks with different numbers of samples, equal to one process."""
    for counts in ((5, 3), (4, 4), (1, 2, 6), (3, 0)):
        results = launch(_uneven, (average, counts), nprocs=len(counts), timeout=_TIMEOUT)
        for rank, (got, expected) in enumerate(results):
            hint = "a rank's mean counts for as many samples as it was taken over, out of all ranks' samples"
            expect(f"ranks with {counts} samples; these are rank {rank}'s gradients", got, expected, hint)
    return "the gradients of one process for shards of 5 and 3, 4 and 4, 1 and 2 and 6, 3 and 0 samples"


@_exercise
def fill_buckets(fill: Callable[[list[int], int], list[list[int]]]) -> str:
    """Lesson 04: DDP's rule for buckets, compared with torch's own assignment."""
    import torch
    import torch.distributed as dist

    for sizes, cap in (
        ([8, 8, 8, 8], 16),
        ([4, 100, 4, 4], 8),
        ([40], 16),
        ([4, 4, 4], 1000),
        ([12, 4, 8, 20, 4], 12),
    ):
        order = [torch.empty(size // 4) for size in reversed(sizes)]
        buckets, _ = dist._compute_bucket_assignment_by_size(order, [cap])
        expected = [[len(sizes) - 1 - index for index in bucket] for bucket in buckets]
        got = [list(bucket) for bucket in fill(list(sizes), cap)]
        hint = (
            "the last gradient is ready first; a bucket takes the gradient that fills it, then it is closed"
        )
        expect(f"sizes {sizes}, cap {cap}", got, expected, hint)
    return "the buckets that torch itself assigns, in five cases"
