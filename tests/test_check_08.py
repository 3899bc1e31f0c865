"""Wrong answers to the exercises of lesson 08, which must be told so, and right ones in other styles."""

from __future__ import annotations

import itertools
import statistics

import numpy as np
from test_check import RIGHT, SAYS, WRONG, try_answers

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


def upper_median(seconds: Times, batch: int, single: list[float]) -> tuple[float, float, float]:
    step, alone = (sorted(times)[len(times) // 2] for times in (rounds(seconds), single))
    rate = len(seconds) * batch / step
    return rate, rate * alone / batch, rate * alone / batch / len(seconds)


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


WRONG["report"] |= {
    "one rank counts": one_rank_counts,
    "rank 0 only": rank_0_only,
    "slowest median": slowest_median,
    "mean of steps": mean_of_steps,
    "sum of rates": sum_of_rates,
    "fastest step": fastest_step,
    "upper median": upper_median,
    "ratio of steps": ratio_of_steps,
    "inverted": inverted,
    "in per cent": in_per_cent,
    "nothing": lambda *_: None,
    "the rate alone": lambda *given: by_steps(*given)[0],
    "no efficiency": lambda *given: by_steps(*given)[:2],
    "an error": lambda seconds, batch, single: seconds["rank"],
}
SAYS |= {
    ("report", "one rank counts"): "count those of all ranks",
    ("report", "rank 0 only"): "which rank is that",
    ("report", "slowest median"): "slowest",
    ("report", "mean of steps"): "moves a mean and not a median",
    ("report", "sum of rates"): "slowest",
    ("report", "nothing"): "nothing was returned",
    ("report", "the rate alone"): "should be a list",
    ("report", "an error"): "no error",
}


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


WRONG["suspects"] |= {
    "base is one": base_is_one,
    "base is the first": base_is_the_first,
    "no falls": no_falls,
    "only falls": only_falls,
    "falls behind the last only": falls_behind_the_last_only,
    "ten times": ten_times,
    "whatever is above linear": lambda series: right(series, 1.0),
    "twice linear": lambda series: right(series, 2.0),
    "names": lambda series: [name for name, _ in right(series)],
    "the first": lambda series: right(series)[:1],
    "each twice": lambda series: right(series) * 2,
    "none": lambda series: [],
    "a dict": lambda series: dict(right(series)),
    "nothing": lambda series: None,
    "how many": lambda series: len(right(series)),
    "all": lambda series: [(name, n) for name, rates in series.items() for n in rates],
    "the other way round": lambda series: [(n, name) for name, n in right(series)],
}

test_a_right_answer_passes, test_a_wrong_answer_is_told_what_is_wrong = try_answers("report", "suspects")
