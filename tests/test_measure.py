"""Timings with a clock that the functions timed set forward themselves, so that every figure is known."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

import helpers
from helpers import _measure
from helpers._measure import Comparison, Timing


class Clock:
    """Stands in for the module `time`: its seconds pass only when `work` is called."""

    def __init__(self) -> None:
        self.now = 0.0
        self.runs = ""

    def perf_counter(self) -> float:
        return self.now

    def work(self, seconds: float, name: str = "") -> None:
        self.now += seconds
        self.runs += name


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(_measure, "time", clock)
    return clock


def test_warm_up_runs_are_run_and_not_counted(clock: Clock) -> None:
    durations = iter([9.0, 8.0, 1.0, 2.0, 3.0, 4.0, 7.0])
    timing = helpers.measure(lambda: clock.work(next(durations), "f"), repeats=5, warmup=2)
    assert clock.runs == "f" * 7
    assert timing.samples == pytest.approx((1, 2, 3, 4, 7))
    assert timing.median == pytest.approx(3)
    assert timing.quartiles == pytest.approx((2, 4))


def test_one_run_has_no_spread(clock: Clock) -> None:
    timing = helpers.measure(lambda: clock.work(0.25), repeats=1, warmup=0)
    assert (timing.median, timing.quartiles) == (0.25, (0.25, 0.25))
    assert str(timing) == "250 ms (250 to 250, 1 run)"


@pytest.mark.parametrize(
    ("samples", "text"),
    [
        ((1.0, 2.0, 3.0, 4.0, 5.0), "3.00 s (2.00 to 4.00, 5 runs)"),
        ((120.0, 125.0), "122 s (121 to 124, 2 runs)"),
        ((0.00179, 0.00184, 0.00195), "1.84 ms (1.81 to 1.90, 3 runs)"),
        ((0.0184,) * 20, "18.4 ms (18.4 to 18.4, 20 runs)"),
        ((0.0005, 0.0009, 0.0021), "900 µs (700 to 1500, 3 runs)"),
        ((2.5e-7, 2.5e-7), "0.250 µs (0.250 to 0.250, 2 runs)"),
    ],
)
def test_a_timing_shows_three_digits_and_a_unit(samples: tuple[float, ...], text: str) -> None:
    assert str(Timing(samples)) == repr(Timing(samples)) == text


def test_compare_runs_in_turns(clock: Clock) -> None:
    found = helpers.compare(lambda: clock.work(3.0, "a"), lambda: clock.work(2.0, "b"), repeats=3, warmup=1)
    assert clock.runs == "abababab"
    assert (found.ratio, found.spread) == (1.5, (1.5, 1.5))
    assert (found.a.samples, found.b.samples) == ((3.0,) * 3, (2.0,) * 3)
    assert str(found) == "1.50x (1.50 to 1.50)"


def test_compare_is_not_misled_by_a_machine_that_slows_down(clock: Clock) -> None:
    slow = iter([1.0] * 6 + [10.0] * 6)
    found = helpers.compare(
        lambda: clock.work(4.0 * next(slow)), lambda: clock.work(2.0 * next(slow)), repeats=6, warmup=0
    )
    assert found.a.quartiles[0] < found.a.quartiles[1]
    assert (found.ratio, found.spread) == (2.0, (2.0, 2.0))


def test_the_spread_says_when_nothing_is_shown_to_be_faster(clock: Clock) -> None:
    a, b = iter([1.0, 2.0, 1.0, 2.0]), iter([2.0, 1.0, 2.0, 1.0])
    found = helpers.compare(lambda: clock.work(next(a)), lambda: clock.work(next(b)), repeats=4, warmup=0)
    assert found.ratios == (0.5, 2.0, 0.5, 2.0)
    assert found.spread[0] < 1 < found.spread[1]
    assert str(found) == "1.25x (0.50 to 2.00)"


def test_functions_too_short_for_the_clock_still_have_a_ratio(clock: Clock) -> None:
    found = helpers.compare(lambda: None, lambda: None)
    assert found.ratio == 1
    assert found.a.median > 0


@pytest.mark.parametrize(
    ("call", "error", "line"),
    [
        (lambda: helpers.measure(42), TypeError, "pass a function to call, not the result of a call: 42"),
        (
            lambda: helpers.compare(len, None),
            TypeError,
            "pass a function to call, not the result of a call: None",
        ),
        (
            lambda: helpers.measure(list, repeats=0),
            ValueError,
            "repeats must be a whole number of runs, 1 or more, not 0",
        ),
        (
            lambda: helpers.measure(list, repeats=2.5),
            ValueError,
            "repeats must be a whole number of runs, 1 or more, not 2.5",
        ),
        (
            lambda: helpers.compare(list, list, warmup=-1),
            ValueError,
            "warmup must be a whole number of runs, 0 or more, not -1",
        ),
    ],
)
def test_bad_input_gets_one_line(call: object, error: type[Exception], line: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(line)}$"):
        call()


def test_gpus_in_use_are_waited_for_and_others_left_alone(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU takes work and returns at once; what it has left to do is done while it is waited for."""
    left, waited = {0: 0.0, 1: 5.0}, []

    def synchronize(gpu: int) -> None:
        waited.append(gpu)
        clock.work(left[gpu])
        left[gpu] = 0.0

    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 2,
        memory_reserved=lambda gpu: gpu,
        synchronize=synchronize,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    timing = helpers.measure(lambda: left.update({1: 3.0}), repeats=2, warmup=0)
    assert timing.samples == (3.0, 3.0)
    assert set(waited) == {1}


def test_seconds_are_seconds() -> None:
    timing = helpers.measure(lambda: time.sleep(0.02), repeats=3, warmup=0)
    assert all(0.02 <= seconds < 1 for seconds in timing.samples)


def test_in_ranks_collectives_match_and_timings_come_back() -> None:
    def double(rank: int) -> tuple[float, Timing, Comparison]:
        number = torch.ones(1)
        timing = helpers.measure(lambda: dist.all_reduce(number), repeats=5, warmup=2)
        compared = helpers.compare(dist.barrier, lambda: dist.all_reduce(number), repeats=2, warmup=1)
        return number.item(), timing, compared

    results = helpers.launch(double, nprocs=2, backend="gloo")
    assert [number for number, _, _ in results] == [2.0 ** (5 + 2 + 2 + 1)] * 2  # each all-reduce doubles it
    assert [len(timing.samples) for _, timing, _ in results] == [5, 5]
    assert results[0][1] != results[1][1]
    assert [len(compared.ratios) for _, _, compared in results] == [2, 2]
    assert pickle.loads(pickle.dumps(results[0][2])) == results[0][2]


def test_measuring_does_not_import_torch() -> None:
    code = "import helpers, sys; helpers.measure(list); print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


@pytest.mark.gpu
def test_a_gpu_s_work_is_timed_to_its_end() -> None:
    matrix = torch.ones(4096, 4096, device="cuda")
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def work() -> None:
        start.record()
        for _ in range(10):
            matrix @ matrix
        end.record()

    timing = helpers.measure(work, repeats=3)
    assert timing.samples[-1] * 1000 >= start.elapsed_time(end)  # milliseconds
