"""The exercise checks: `check.<topic>(answer)` says not attempted, passed, or what is wrong and a hint.

A check tries the answer on cases of its own, several rank counts where ranks matter, and never shows a
solution. An unfilled stub raises NotImplementedError, which counts as not attempted wherever it is raised.
"""

from __future__ import annotations

import functools
import itertools
import math
import traceback
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral, Real
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

    return check


def attempt(tried: str, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What `fn(*args)` returns. An error is a wrong answer, but for that of a stub, in whatever rank."""
    try:
        return fn(*args, **options)
    except LaunchTimeout as error:
        hint = "ranks wait for each other: does each make the same calls, as often and in the same order?"
        raise wrong(tried, error, "every rank comes to its end", hint) from None
    except Exception as error:
        inner = error.exception if isinstance(error, RankError) else error
        if isinstance(inner, NotImplementedError):
            raise inner from None
        came = error if isinstance(error, RankError) else f"{type(error).__name__}: {error}{_line(error, fn)}"
        hint = "read the last line of the error first, then the line of yours that it names"
        raise wrong(tried, came, "no error", hint) from None


def _line(error: Exception, fn: Callable[..., Any]) -> str:
    """The last line in the file or cell of `fn` that the error has passed."""
    file = getattr(getattr(fn, "__code__", None), "co_filename", None)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"\n    line {frames[-1].lineno}: {frames[-1].line}" if frames else ""


def _same(got: Any, expected: Any) -> bool:
    """Equality of numbers (NumPy's too), sequences and tensors, floats to within 1e-5 relative."""
    import torch

    if isinstance(expected, torch.Tensor):
        alike = isinstance(got, torch.Tensor) and got.shape == expected.shape
        return alike and torch.allclose(got.double(), expected.double(), rtol=1e-5, atol=1e-7)
    if isinstance(expected, float):
        return isinstance(got, Real) and math.isclose(got, expected, rel_tol=1e-5)
    if isinstance(expected, (list, tuple)):
        alike = isinstance(got, (list, tuple)) and len(got) == len(expected)
        return alike and all(_same(a, b) for a, b in zip(got, expected, strict=True))
    return isinstance(got, Integral if isinstance(expected, int) else type(expected)) and got == expected


def _kind(value: Any, plural: str = "") -> str:
    """`list of tensors of shape (3,)` and the like, by the first element of each list."""
    import torch

    if isinstance(value, (list, tuple)):
        return f"list{plural}" + (f" of {_kind(value[0], 's')}" if value else "")
    if isinstance(value, torch.Tensor):
        return f"tensor{plural} of shape {tuple(value.shape)}"
    return ("number" if isinstance(value, Real) else type(value).__name__) + plural


def _unlike(got: Any, expected: Any) -> str:
    """A hint where `got` is not even of the right kind."""
    if got is None:
        return "nothing was returned: is there a `return`, and is it always reached?"
    if not _kind(expected).startswith(_kind(got)):
        return f"it is a {_kind(got)}, and should be a {_kind(expected)}"
    return ""


def expect(
    tried: str, got: Any, expected: Any, hint: str, key: Callable[[Any], Any] = lambda value: value
) -> None:
    """Raise WrongAnswer unless `key(got)` is `key(expected)`."""
    unlike = _unlike(got, expected)
    if unlike or not _same(key(got), key(expected)):
        raise wrong(tried, repr(got), expected, unlike or hint)


@_exercise
def my_share(share: Callable[[int, int, list[Any]], Sequence[Any]]) -> str:
    """Lesson 00: every item to exactly one rank, shares equal to within one item."""
    for ranks, word in (
        (2, "ABCDEFGHIJ"),
        (3, "ABCDEFGHIJ"),
        (4, "BALALAIKA"),
        (1, "ABCDE"),
        (3, "AB"),
        (2, ""),
    ):
        tried, parts = f"items = list({word!r}), world_size = {ranks}", []
        for rank in range(ranks):
            part = attempt(f"{tried}, rank = {rank}", share, rank, ranks, list(word))
            if isinstance(part, (str, dict)) or not isinstance(part, Iterable):
                hint = _unlike(part, [])
                raise wrong(f"{tried}, rank = {rank}", repr(part), "a list of items", hint)
            parts.append(list(part))
        if sorted(map(str, itertools.chain(*parts))) != sorted(word):
            hint = "one is missing, taken twice or not an item: look at both ends of each rank's part"
            raise wrong(tried, f"the parts {parts}", "every item in exactly one part", hint)
        if max(map(len, parts)) - min(map(len, parts)) > 1:
            hint = "count the items of each rank: who gets what is left over?"
            raise wrong(tried, f"the parts {parts}", "sizes that differ by 1 at most", hint)
    return "every item to one rank, shares equal to within one, for 1 to 4 ranks and 0 to 10 items"


@_exercise
def prediction(predict: Callable[[], tuple[list[list[int]], list[int]]]) -> str:
    """Lesson 00: what two launches in a row leave in a list, compared with two real launches."""
    seen: list[int] = []

    def look(rank: int) -> list[int]:
        seen.append(rank)
        return seen

    answer = attempt("your prediction", predict)
    if not isinstance(answer, (list, tuple)) or len(answer) != 2:
        raise wrong("your prediction", answer, "two lists", "return second_launch, seen_in_the_notebook")
    launch(look, nprocs=2)
    real = {"second_launch": launch(look, nprocs=2), "seen_in_the_notebook": seen}
    hint = "each launch starts fresh processes, with copies of what the notebook holds"
    for said, (name, came) in zip(answer, real.items(), strict=True):
        if not _same(said, came):
            right = "a prediction that holds; the right one is not shown"
            raise wrong("two real launches", f"{name} is not {said!r}", right, hint)
    return "two real launches came out as you predicted"


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
    from ._devices import device

    return gather(_brought(rank, shape).to(device(rank)))


@_exercise
def ring_all_gather(gather: Callable[[Any], Sequence[Any]]) -> str:
    """Lesson 03: every rank's tensor on every rank, in rank order, by messages alone."""
    for ranks, shape in ((2, (3,)), (3, (1, 2)), (4, (1,))):
        args, expected = (_gathered, gather, shape), [_brought(rank, shape) for rank in range(ranks)]
        tried = f"{ranks} ranks, of which rank 0 brings {expected[0]}"
        results = attempt(tried, launch, _without_collectives, args, nprocs=ranks, timeout=_TIMEOUT)
        for rank, got in enumerate(results):
            hint = "a rank passes on what came in the step before: whose is that? What never came is noise"
            expect(f"{tried}; this is what rank {rank} returned", got, expected, hint)
    return "every rank's tensor on every rank, in order, on 2, 3 and 4 ranks"


@_exercise
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


def _uneven(rank: int, average: Callable[[list[Any], int], None], counts: tuple[int, ...]) -> Any:
    """Gradients of a mean over rank `rank`'s `counts[rank]` samples, before and after; of all samples."""
    import torch

    from ._devices import device

    data = torch.randn(sum(counts), 3, generator=torch.Generator().manual_seed(1))
    mine = data.split(counts)[rank]
    before = [mine.sum(0) / max(1, len(mine)), mine.square().sum() / max(1, len(mine))]
    gradients = [gradient.clone().to(device(rank)) for gradient in before]
    average(list(gradients), counts[rank])
    return before, gradients, [data.mean(0), data.square().sum() / len(data)]


@_exercise
def average_uneven(average: Callable[[list[Any], int], None]) -> str:
    """Lesson 04: gradients over ranks with different numbers of samples, equal to one process."""
    for counts in ((5, 3), (4, 4), (1, 2, 6), (3, 0)):
        tried = f"ranks with {counts} samples"
        results = attempt(tried, launch, _uneven, (average, counts), nprocs=len(counts), timeout=_TIMEOUT)
        for rank, (_, got, expected) in enumerate(results):
            hint = "a rank's mean counts for as many samples as it was taken over, out of all ranks' samples"
            if all(_same(after, before) for before, after, _ in results):
                hint = "they are as they were: the tensors themselves have to change, not a copy or a name"
            expect(f"{tried}; these are rank {rank}'s gradients", got, expected, hint)
    return "the gradients of one process for shards of 5 and 3, 4 and 4, 1 and 2 and 6, 3 and 0 samples"


def _unordered(buckets: Any) -> Any:
    """Buckets without an order inside."""
    return [sorted(bucket, key=str) if isinstance(bucket, (list, tuple)) else bucket for bucket in buckets]


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
        tried = f"sizes {sizes}, cap {cap}"
        hint = "indices into sizes; the last gradient is ready first; a bucket takes the one that fills it"
        expect(tried, attempt(tried, fill, list(sizes), cap), expected, hint, key=_unordered)
    return "the buckets that torch itself assigns, in five cases"
