"""The checks of lesson 08."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from ._exercise import attempt, exercise, expect, same, wrong

_REPORTS = [
    ([[0.5, 0.5, 0.5]], 32, [0.5, 0.5, 0.5]),
    ([[0.10, 0.20, 0.30], [0.30, 0.20, 0.10]], 64, [0.2, 0.4, 0.3]),
    ([[0.2, 0.2, 9.0, 0.2, 0.2], [0.1, 0.1, 0.1, 0.1, 0.1]], 256, [0.3, 0.3, 0.3, 4.0]),
    ([[0.1, 0.4, 0.2, 0.3]], 8, [0.1, 0.2, 0.4, 0.5]),
    ([[1.0, 2.0], [2.0, 1.0], [1.0, 1.0], [1.5, 1.0]], 10, [1.0]),
]


def _reports(seconds: list[list[float]], batch: int, single: list[float]) -> dict[str, tuple[float, ...]]:
    """The report, and those that usual mistakes come to."""
    ranks, alone = len(seconds), batch / statistics.median(single)

    def made(step: float, count: int = ranks, one: float = alone) -> tuple[float, ...]:
        rate = count * batch / step
        return rate, rate / one, rate / one / ranks

    rounds = [max(each) for each in zip(*seconds, strict=True)]
    step = statistics.median(rounds)
    return {
        "": made(step),
        "every rank has `batch` samples of its own in a step: count those of all ranks": made(step, 1),
        "a step ends when its slowest rank has: which rank is that, step by step?": made(
            statistics.median(seconds[0])
        ),
        "the slowest rank is another one in another step: take the slowest of each step first": made(
            max(map(statistics.median, seconds))
        ),
        "a step ends when its slowest rank has, so no mean or median over ranks": made(
            statistics.median(value for rank in seconds for value in rank)
        ),
        "one disturbed step moves a mean and not a median": made(statistics.mean(rounds)),
        "of one device, too, the median counts": made(step, one=batch / statistics.mean(single)),
    }


@exercise
def report(answer: Callable[[list[list[float]], int, list[float]], tuple[float, float, float]]) -> str:
    """Lesson 08: samples per second of all ranks, speed-up and efficiency, from every rank's step times."""
    for seconds, batch, single in _REPORTS:
        tried = f"report(seconds={seconds}, batch={batch}, single={single})"
        got = attempt(tried, answer, [[*rank] for rank in seconds], batch, [*single])
        made = _reports(seconds, batch, single)
        expected = made.pop("")
        hints = [hint for hint, mistaken in made.items() if same(got, mistaken)]
        hint = "the rate is all samples of a step over its seconds; the others follow from it"
        expect(tried, got, expected, (hints or [hint])[0])
    return "one rank and several, ranks that are slow in turn, a disturbed step, an even number of steps"


_PUBLISHED: list[tuple[str, dict[str, dict[int, float]], list[tuple[str, int]], str]] = [
    ("scaling as one would expect", {"a": {1: 100.0, 2: 195.0, 8: 700.0}}, [], "nothing is wrong here"),
    (
        "linear, and a little above it", {"a": {1: 100.0, 2: 200.0, 4: 420.0}}, [],
        "exactly n times, or a few per cent more, is no error: up to a tenth is allowed",
    ),
    (
        "17 times on 8", {"a": {1: 36.0, 8: 641.0}, "b": {1: 83.0, 8: 616.0}}, [("a", 8)],
        "8 give at most 8 times",
    ),
    ("a fall", {"a": {1: 318.0, 2: 610.0, 4: 115.0, 8: 1428.0}}, [("a", 4)], "4 are slower than 2"),
    (
        "two faults in one series", {"a": {2: 100.0, 4: 300.0, 8: 250.0}}, [("a", 4), ("a", 8)],
        "each number of GPUs is looked at by itself",
    ),
    (
        "a series that begins with 8", {"a": {8: 100.0, 16: 190.0, 64: 760.0}, "b": {8: 100.0, 16: 230.0}},
        [("b", 16)], "the least number of GPUs is the base, and it need not be 1",
    ),
    (
        "numbers of GPUs in another order", {"a": {8: 700.0, 1: 100.0, 2: 195.0}, "b": {4: 90.0, 1: 100.0}},
        [("b", 4)], "sort by the number of GPUs first",
    ),
    (
        "below an earlier one, not the last", {"a": {1: 100.0, 2: 190.0, 4: 120.0, 8: 150.0}},
        [("a", 4), ("a", 8)], "8 are faster than 4 here, and slower than 2",
    ),
    ("one number of GPUs only", {"a": {1: 100.0}}, [], "there is nothing to compare with"),
]  # fmt: skip


def _pairs(got: Sequence[object]) -> list[Sequence[object]]:
    """The entries, where one that is not a pair stands for itself."""
    return [entry if isinstance(entry, (list, tuple)) else (entry,) for entry in got]


@exercise
def suspects(answer: Callable[[dict[str, dict[int, float]]], list[tuple[str, int]]]) -> str:
    """Lesson 08: the published points that beat linear scaling by a tenth, or fall behind fewer GPUs."""
    for words, series, expected, hint in _PUBLISHED:
        tried = f"{words}: {series}"
        got = attempt(tried, answer, {name: dict(rates) for name, rates in series.items()})
        if not isinstance(got, (list, tuple)):
            raise wrong(tried, repr(got), expected, "return a list of pairs: a series, a number of GPUs")
        if sorted(map(repr, map(tuple, _pairs(got)))) != sorted(map(repr, expected)):
            raise wrong(tried, got, expected, hint)
    return "series that are sound, too good, falling, out of order, and that begin with 8 GPUs"
