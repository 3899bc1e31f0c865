"""Traces whose every moment is known: what they divide into, what is hidden, and what a broken one gets."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

import helpers
from helpers import _timeline

MS = 1000  # microseconds


def event(name: str, start: float, end: float, cat: str = "cpu_op") -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": cat, "ts": start * MS, "dur": (end - start) * MS}


def step(number: int, start: float, end: float) -> dict[str, Any]:
    return event(f"ProfilerStep#{number}", start, end, "user_annotation")


def write(folder: Path, rank: int, *events: dict[str, Any]) -> Path:
    path = folder / f"rank{rank}.json.gz"
    other = {"ph": "M", "name": "process_name", "ts": 0}
    text = json.dumps({"distributedInfo": {"rank": rank}, "traceEvents": [other, *events]})
    path.write_bytes(gzip.compress(text.encode()))
    return path


def milliseconds(parts: dict[str, float]) -> list[float]:
    return [round(1e3 * seconds, 6) for seconds in parts.values()]


def one_rank(folder: Path, rank: int = 0) -> Path:
    """20 ms: 4 of input, 8 of compute, of which 3 hide communication, 5 of bare communication, 3 idle."""
    return write(
        folder, rank,
        step(1, 0, 20),
        event("enumerate(DataLoader)#_Single.__next__", 0, 4, "user_annotation"),
        event("aten::linear", 4, 12), event("aten::addmm", 5, 9),  # within it: counts once
        event("gloo:all_reduce", 9, 17, "user_annotation"),
        event("aten::late", 20, 30),  # after the last step
    )  # fmt: skip


def test_a_step_divides_into_parts_that_add_up(tmp_path: Path) -> None:
    one_rank(tmp_path)
    parts = helpers.step_parts(tmp_path)
    assert list(parts) == ["rank 0"]
    assert list(parts["rank 0"]) == ["input", "compute", "exposed communication", "idle"]
    assert milliseconds(parts["rank 0"]) == [4, 8, 5, 3]


def test_the_exposed_share_is_of_all_communication(tmp_path: Path) -> None:
    one_rank(tmp_path)
    assert helpers.exposed(tmp_path) == pytest.approx(5 / 8)
    write(tmp_path, 1, step(1, 0, 20), event("aten::mm", 0, 20), event("gloo:all_reduce", 0, 8))
    assert helpers.exposed(tmp_path) == pytest.approx(5 / 16)


def test_without_communication_nothing_is_exposed(tmp_path: Path) -> None:
    write(tmp_path, 0, step(1, 0, 10), event("aten::mm", 0, 10))
    assert helpers.exposed(tmp_path) == 0


def test_waiting_is_not_computing(tmp_path: Path) -> None:
    """Backward's frames stand open while it waits; the operators in them are what computes."""
    write(
        tmp_path, 0, step(1, 0, 10),
        event("autograd::engine::evaluate_function: MmBackward0", 0, 10), event("aten::mm", 0, 2),
        event("c10d::allreduce_", 2, 9), event("gloo:all_reduce", 2, 9),
    )  # fmt: skip
    assert milliseconds(helpers.step_parts(tmp_path)["rank 0"]) == [0, 2, 7, 1]


def test_two_steps_give_their_mean(tmp_path: Path) -> None:
    write(
        tmp_path, 0, step(1, 0, 10), step(2, 10, 30),
        event("aten::mm", 0, 10), event("aten::mm", 10, 14), event("input", 14, 20, "user_annotation"),
    )  # fmt: skip
    assert milliseconds(helpers.step_parts(tmp_path)["rank 0"]) == [3, 7, 0, 5]


def test_where_there_are_kernels_these_are_the_work(tmp_path: Path) -> None:
    write(
        tmp_path, 0, step(1, 0, 10), event("aten::mm", 0, 1), event("sgemm", 1, 6, "kernel"),
        event("ncclDevKernel_AllReduce", 4, 9, "kernel"), event("Memcpy HtoD", 9, 10, "gpu_memcpy"),
    )  # fmt: skip
    assert milliseconds(helpers.step_parts(tmp_path)["rank 0"]) == [0, 6, 3, 1]
    assert helpers.exposed(tmp_path) == pytest.approx(3 / 5)


def test_files_come_in_any_order_and_ranks_in_theirs(tmp_path: Path) -> None:
    paths = [one_rank(tmp_path, rank) for rank in (10, 2)]
    assert list(helpers.step_parts(paths)) == list(helpers.step_parts(tmp_path)) == ["rank 2", "rank 10"]


def test_events_are_those_with_a_duration(tmp_path: Path) -> None:
    names = [each["name"] for each in _timeline._read(one_rank(tmp_path))["traceEvents"]]
    assert names[:2] == ["ProfilerStep#1", "enumerate(DataLoader)#_Single.__next__"]
    assert "process_name" not in names


def test_the_picture_has_a_row_a_rank_and_names_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(2):
        one_rank(tmp_path, rank)
    shown: list[Any] = []
    monkeypatch.setattr(plt, "show", lambda: shown.append(plt.gcf()))
    helpers.timeline(tmp_path, "two ranks")
    (axes,) = shown[0].axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["rank 0", "rank 1"]
    assert axes.get_title(loc="left") == "two ranks"
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert legend == ["input", "compute", "exposed communication", "hidden communication"]


@pytest.mark.parametrize("cut", [0, 10, -20])
def test_a_truncated_trace_gets_one_line(tmp_path: Path, cut: int) -> None:
    path = one_rank(tmp_path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ValueError, match=r"bytes\) is not a whole trace: record this rank again$"):
        helpers.step_parts(tmp_path)


def test_no_trace_gets_one_line(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"^no trace .* record one a rank first$"):
        helpers.timeline(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"^no trace at .*did this rank come to"):
        helpers.step_parts([tmp_path / "rank7.json.gz"])


def test_a_trace_without_steps_gets_one_line(tmp_path: Path) -> None:
    path = write(tmp_path, 0, event("aten::mm", 0, 1))
    with pytest.raises(ValueError, match=rf"^{re.escape(str(path))} holds no step: call prof\.step\(\)"):
        helpers.exposed(tmp_path)


def test_the_traces_that_come_with_the_course_are_small_and_name_no_folder() -> None:
    paths = sorted((Path(helpers.__file__).parents[1] / "notebooks/data/traces").glob("*.json.gz"))
    assert len(paths) == 2
    for path in paths:
        assert path.stat().st_size < 300_000
        assert not re.search(r"/(home|root|tmp|work|Users)/", gzip.decompress(path.read_bytes()).decode())
    assert 0 < helpers.exposed(paths) < 1


def test_a_step_that_a_gpu_echoes_counts_once(tmp_path: Path) -> None:
    """With CUDA activities the trace repeats each user annotation on a lane of the GPU."""
    step = {"ph": "X", "name": "ProfilerStep#1", "ts": 0, "dur": 1000, "tid": 1}
    work = {"ph": "X", "ts": 50, "cat": "kernel", "tid": 7}
    events = [
        step | {"cat": "user_annotation"},
        step | {"cat": "gpu_user_annotation", "ts": 50, "dur": 900},
        work | {"name": "gemm", "dur": 600},
        work | {"name": "ncclDevKernel_AllReduce", "ts": 650, "dur": 300},
    ]
    (path := tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": events}))
    parts = helpers.step_parts([path])["rank 0"]
    assert [round(1e6 * part) for part in parts.values()] == [0, 600, 300, 100]
