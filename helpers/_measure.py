"""Timing that can be believed: warm-up, synchronised devices, every sample kept, spread beside the median.

After torch.utils.benchmark, and T. Hoefler and R. Belli, "Scientific Benchmarking of Parallel Computing
Systems", SC 2015, doi:10.1145/2807591.2807644: medians and quartiles, since timings are not normal.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

_UNITS = ("s", 1.0), ("ms", 1e3), ("µs", 1e6)
_TICK = time.get_clock_info("perf_counter").resolution


def _quartiles(values: Sequence[float]) -> list[float]:
    """First quartile, median, third quartile."""
    return statistics.quantiles(values, method="inclusive") if len(values) > 1 else [*values] * 3


def _text(quartiles: list[float], unit: str, runs: str) -> str:
    """The median with three digits, and the quartiles with as many decimals."""
    low, middle, high = quartiles
    decimals = max(0, 2 - math.floor(math.log10(middle))) if middle > 0 else 0
    return f"{middle:.{decimals}f}{unit} ({low:.{decimals}f} to {high:.{decimals}f}{runs})"


@dataclass(frozen=True, repr=False)
class Timing:
    """Seconds that each run of a function took, in the order of the runs."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median of the samples, in seconds."""
        return _quartiles(self.samples)[1]

    @property
    def quartiles(self) -> tuple[float, float]:
        """First and third quartile, in seconds: half of the runs lie between."""
        return _quartiles(self.samples)[0], _quartiles(self.samples)[2]

    def __repr__(self) -> str:
        unit, scale = _UNITS[sum(self.median < least for least in (1, 1e-3))]
        runs = f", {len(self.samples)} {'run' if len(self.samples) == 1 else 'runs'}"
        return _text([scale * value for value in _quartiles(self.samples)], f" {unit}", runs)


@dataclass(frozen=True, repr=False)
class Comparison:
    """Two functions timed in turns: `b` is `ratio` times faster than `a`.

    `ratios` holds the time of `a` over that of `b`, pair by pair; `ratio` is their median, `spread` their
    first and third quartile. If 1 lies within the spread, neither is shown to be faster.
    """

    a: Timing
    b: Timing
    ratios: tuple[float, ...]
    ratio: float
    spread: tuple[float, float]

    def __repr__(self) -> str:
        return _text([self.spread[0], self.ratio, self.spread[1]], "x", "")


def _gpus_in_use() -> list[int]:
    """GPUs on which this process holds memory; where torch is not imported yet, there are none."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    count = cuda.device_count() if cuda and cuda.is_initialized() else 0
    return [gpu for gpu in range(count) if cuda.memory_reserved(gpu)]


def _clock(gpus: list[int]) -> float:
    """The time in seconds, read once the GPUs have nothing left to do."""
    for gpu in gpus:
        sys.modules["torch"].cuda.synchronize(gpu)
    return time.perf_counter()


def _in_turns(fns: tuple[Callable[[], Any], ...], repeats: int, warmup: int) -> list[tuple[float, ...]]:
    """Seconds of each function's runs, in rounds that run all of them: `warmup` of these do not count."""
    for fn in fns:
        if not callable(fn):
            raise TypeError(f"pass a function to call, not the result of a call: {fn!r}")
    for name, value, least in (("repeats", repeats, 1), ("warmup", warmup, 0)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} must be a whole number of runs, {least} or more, not {value!r}")
    samples: list[list[float]] = [[] for _ in fns]
    for _ in range(warmup + repeats):
        for fn, seconds in zip(fns, samples, strict=True):
            gpus = _gpus_in_use()
            start = _clock(gpus)
            fn()
            seconds.append(max(_TICK, _clock(gpus) - start))
    return [tuple(seconds[warmup:]) for seconds in samples]


def measure(fn: Callable[[], Any], *, repeats: int = 20, warmup: int = 3) -> Timing:
    """Time `fn()`: `warmup` runs that do not count, then `repeats` runs, each timed alone, in seconds.

    GPUs that hold memory of this process are waited for before and after each run. The clock adds 0.1 µs
    or so: a shorter function needs a loop inside. In a rank, every rank must measure the same with the same
    numbers: the runs are never more or fewer, so that collectives match. Each rank has its own times.
    """
    return Timing(*_in_turns((fn,), repeats, warmup))


def compare(a: Callable[[], Any], b: Callable[[], Any], *, repeats: int = 10, warmup: int = 2) -> Comparison:
    """How many times faster `b()` is than `a()`, run in turns: a b a b ...

    What slows the machine for a while slows both of a pair and drops out of their ratio.
    """
    seconds_a, seconds_b = _in_turns((a, b), repeats, warmup)
    ratios = tuple(one / other for one, other in zip(seconds_a, seconds_b, strict=True))
    low, middle, high = _quartiles(ratios)
    return Comparison(Timing(seconds_a), Timing(seconds_b), ratios, middle, (low, high))


def measure_in_turns(
    fns: dict[str, Callable[[], Any]], *, repeats: int = 20, warmup: int = 3
) -> dict[str, Timing]:
    """Time several functions in rounds that run each once, so that noise meets all alike; in seconds."""
    samples = _in_turns(tuple(fns.values()), repeats, warmup)
    return {name: Timing(seconds) for name, seconds in zip(fns, samples, strict=True)}
