"""Wrong answers to the exercises of lesson 08, which must be told so, and right ones in other styles."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable

import numpy as np
import pytest
from test_check import RIGHT, WRONG

from helpers import check
from helpers.check import WrongAnswer

Times = list[list[float]]


def rounds(seconds: Times) -> list[float]:
    return [max(times) for times in zip(*seconds, strict=True)]


def made(rate: float, batch: int, single: list[float], ranks: int) -> tuple[float, float, float]:
    speedup = rate / (batch / statistics.median(single))
    return rate, speedup, speedup / ranks


def by_numpy(seconds: Times, batch: int, single: list[float]) -> list[np.float64]:
    rate = len(seconds) * batch / np.median(np.max(seconds, axis=0))
    speedup = rate * np.median(single) / batch
    return [rate, speedup, speedup / len(seconds)]


def by_steps(seconds: Times, batch: int, single: list[float]) -> tuple[float, float, float]:
    step = statistics.median(rounds(seconds))
    return made(len(seconds) * batch / step, batch, single, len(seconds))


RIGHT["report"] |= {"by numpy": by_numpy, "by steps": by_steps}


@pytest.mark.parametrize("answer", RIGHT["report"].values(), ids=RIGHT["report"])
def test_report_accepts(answer: Callable[..., object], capsys: pytest.CaptureFixture[str]) -> None:
    check.report(answer)
    assert capsys.readouterr().out.startswith("passed: ")


def one_rank_counts(seconds: Times, batch: int, single: list[float]) -> tuple[float, float, float]:
    return made(batch / statistics.median(rounds(seconds)), batch, single, len(seconds))


def rank_0_only(seconds: Times, batch: int, single: list[float]) -> tuple[float, float, float]:
    return made(len(seconds) * batch / statistics.median(seconds[0]), batch, single, len(seconds))


def slowest_median(seconds: Times, batch: int, single: list[float]) -> tuple[float, float, float]:
    step = max(map(statistics.median, seconds))
    return made(len(seconds) * batch / step, batch, single, len(seconds))


def mean_of_steps(seconds: Times, batch: int, single: list[float]) -> tuple[float, float, float]:
    return made(len(seconds) * batch / statistics.mean(rounds(seconds)), batch, single, len(seconds))


def sum_of_rates(seconds: Times, batch: int, single: list[float]) -> tuple[float, float, float]:
    rate = sum(batch / statistics.median(times) for times in seconds)
    return made(rate, batch, single, len(seconds))


def fastest_step(seconds: Times, batch: int, single: list[float]) -> tuple[float, float, float]:
    return made(len(seconds) * batch / min(rounds(seconds)), batch, single, len(seconds))


def ratio_of_steps(seconds: Times, batch: int, single: list[float]) -> tuple[float, float, float]:
    rate, _, _ = by_steps(seconds, batch, single)
    speedup = statistics.median(single) / statistics.median(rounds(seconds))
    return rate, speedup, speedup / len(seconds)


def inverted(seconds: Times, batch: int, single: list[float]) -> tuple[float, float, float]:
    rate, speedup, efficiency = by_steps(seconds, batch, single)
    return rate, 1 / speedup, efficiency


def in_per_cent(seconds: Times, batch: int, single: list[float]) -> tuple[float, float, float]:
    rate, speedup, efficiency = by_steps(seconds, batch, single)
    return rate, speedup, 100 * efficiency


REPORTS = [
    (one_rank_counts, "count those of all ranks"),
    (rank_0_only, "which rank is that"),
    (slowest_median, "slowest"),
    (mean_of_steps, "moves a mean and not a median"),
    (sum_of_rates, "slowest"),
    (fastest_step, "hint"),
    (ratio_of_steps, "hint"),
    (inverted, "hint"),
    (in_per_cent, "hint"),
    (lambda *_: None, "nothing was returned"),
    (lambda seconds, batch, single: by_steps(seconds, batch, single)[0], "should be a list"),
    (lambda *given: by_steps(*given)[:2], "hint"),
    (lambda seconds, batch, single: seconds["rank"], "no error"),
]
WRONG["report"] |= {f"{at}, {answer.__name__}": answer for at, (answer, _) in enumerate(REPORTS)}


@pytest.mark.parametrize(("answer", "hint"), REPORTS)
def test_report_rejects(answer: Callable[..., object], hint: str) -> None:
    with pytest.raises(WrongAnswer, match=hint):
        check.report(answer)


Series = dict[str, dict[int, float]]
Found = list[tuple[str, int]]


def right(series: Series, limit: float = 1.1) -> Found:
    found = []
    for name, rates in series.items():
        base = min(rates)
        for n, rate in rates.items():
            best = max((other for count, other in rates.items() if count < n), default=0)
            if rate / rates[base] > limit * n / base or rate < best:
                found.append((name, n))
    return found


RIGHT["suspects"] |= {
    "by the book": right,
    "lists, in another order": lambda series: [list(pair) for pair in reversed(right(series))],
    "a tuple": lambda series: tuple(right(series)),
}


@pytest.mark.parametrize("answer", RIGHT["suspects"].values(), ids=RIGHT["suspects"])
def test_suspects_accepts(answer: Callable[..., object], capsys: pytest.CaptureFixture[str]) -> None:
    check.suspects(answer)
    assert capsys.readouterr().out.startswith("passed: ")


def base_is_one(series: Series) -> Found:
    return right({name: rates for name, rates in series.items() if 1 in rates})


def base_is_the_first(series: Series) -> Found:
    return [
        (name, n)
        for name, rates in series.items()
        for n in rates
        if rates[n] > 1.1 * next(iter(rates.values())) * n / next(iter(rates))
    ]


def no_falls(series: Series) -> Found:
    return [
        (name, n)
        for name, rates in series.items()
        for n in rates
        if rates[n] > 1.1 * rates[min(rates)] * n / min(rates)
    ]


def only_falls(series: Series) -> Found:
    return [pair for pair in right(series) if pair not in no_falls(series)]


def falls_behind_the_last_only(series: Series) -> Found:
    found = set(no_falls(series))
    for name, rates in series.items():
        counts = sorted(rates)
        found |= {(name, b) for a, b in itertools.pairwise(counts) if rates[b] < rates[a]}
    return sorted(found)


def ten_times(series: Series) -> Found:
    return [(name, n) for name, rates in series.items() for n in rates if rates[n] > 10 * rates[min(rates)]]


MISTAKES = [
        base_is_one, base_is_the_first, no_falls, only_falls, falls_behind_the_last_only, ten_times,
        lambda series: right(series, 1.0), lambda series: right(series, 2.0),
        lambda series: [name for name, _ in right(series)],
        lambda series: right(series)[:1], lambda series: right(series) * 2, lambda series: [],
        lambda series: dict(right(series)), lambda series: None, lambda series: len(right(series)),
        lambda series: [(name, n) for name, rates in series.items() for n in rates],
        lambda series: [(n, name) for name, n in right(series)],
    ]  # fmt: skip
WRONG["suspects"] |= {f"{at}, {answer.__name__}": answer for at, answer in enumerate(MISTAKES)}


@pytest.mark.parametrize("answer", WRONG["suspects"].values(), ids=WRONG["suspects"])
def test_suspects_rejects(answer: Callable[..., object]) -> None:
    with pytest.raises(WrongAnswer, match="hint"):
        check.suspects(answer)


def test_stubs_are_not_attempted(capsys: pytest.CaptureFixture[str]) -> None:
    def stub(*_: object) -> None:
        raise NotImplementedError("what to do")

    check.report(stub)
    check.suspects(stub)
    assert capsys.readouterr().out == "not attempted: what to do\n" * 2
