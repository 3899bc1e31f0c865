"""What nbval lacks, as a pytest plugin: word of a dead kernel, a reader's environment, times, no empty pass.

pyproject.toml loads it for every run of pytest in this repository; without `--nbval` it does nothing.
"""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from queue import Empty
from typing import Any
from unittest import mock

import nbval.plugin
import pytest
from nbval.kernel import RunningKernel
from nbval.plugin import IPyNbCell

from helpers._notebooks import first_line, kernel_env

CELL_BUDGET, LESSON_BUDGET = 20, 90  # seconds; reported, never asserted: this machine may be a slow one
LOOK_EVERY = 1.0  # seconds between two looks at whether the kernel lives


class WatchedKernel(RunningKernel):
    """nbval's kernel, started as a reader's would be, and missed within a second or two when it dies."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        with mock.patch.dict(os.environ, kernel_env(), clear=True):
            super().__init__(*args, **kwargs)

    def execute_cell_input(self, cell_input: str, allow_stdin: bool | None = None) -> str:
        """Send a cell, counted as a reader's are, so that a traceback names the same `In[8]`."""
        return self.kc.execute(cell_input, allow_stdin=allow_stdin, stop_on_error=False)

    def await_reply(self, msg_id: str, timeout: float | None = None) -> None:
        """Wait for a cell's reply; Empty after `timeout` seconds, RuntimeError if the kernel died."""
        deadline = time.monotonic() + (timeout or float("inf"))
        while True:
            try:
                return super().await_reply(msg_id, timeout=LOOK_EVERY)
            except Empty:
                if not self.is_alive():
                    raise RuntimeError("the kernel died in this cell") from None
                if time.monotonic() > deadline:
                    raise


def pytest_configure(config: pytest.Config) -> None:
    nbval.plugin.RunningKernel = WatchedKernel
    if config.option.color == "auto" and not sys.stdout.isatty():
        config.option.color = "no"  # nbval would write its colours into a file, too


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A run over notebooks that finds no code cell is an error, not a pass."""
    if config.option.nbval and not any(isinstance(item, IPyNbCell) for item in items):
        raise pytest.UsageError(f"no notebook with code cells in {' '.join(config.args)}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Once a notebook's kernel is gone, its remaining cells are skipped."""
    kernel = getattr(item.parent, "kernel", None)
    if isinstance(item, IPyNbCell) and kernel is not None and not kernel.is_alive():
        pytest.skip("the kernel is gone since an earlier cell")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    report = yield
    if isinstance(item, IPyNbCell):
        report.lesson, report.cell = item.path.name, f"{item.name}: {first_line(item.cell)}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Each lesson's time and the ten slowest cells."""
    reports = [r for rs in terminalreporter.stats.values() for r in rs if hasattr(r, "lesson")]
    if not reports:
        return
    lessons: dict[str, float] = defaultdict(float)
    for report in reports:
        lessons[report.lesson] += report.duration
    write = terminalreporter.write_line
    terminalreporter.write_sep("=", f"times (budgets: a cell {CELL_BUDGET} s, a lesson {LESSON_BUDGET} s)")
    for name, seconds in lessons.items():
        write(f"{seconds:6.1f} s  {name}{over(seconds, LESSON_BUDGET)}")
    write("slowest cells")
    calls = sorted((r for r in reports if r.when == "call"), key=lambda r: -r.duration)
    for report in calls[:10]:
        write(f"{report.duration:6.1f} s  {report.lesson} {report.cell}{over(report.duration, CELL_BUDGET)}")


def over(seconds: float, budget: float) -> str:
    return "   OVER BUDGET" if seconds > budget else ""
