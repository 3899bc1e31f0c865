"""What a machine offers, for machines with no GPU, one and several: only their number is made up."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch
import torch.distributed as dist

import helpers
from helpers import _devices, _launch

Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """machine(gpus) makes this machine one with that many GPUs, as far as asking for them goes."""

    def make(gpus: int, name: str = "NVIDIA A100-SXM4-80GB") -> None:
        properties = SimpleNamespace(name=name, total_memory=80 * 2**30)
        monkeypatch.setattr(_devices, "gpu_count", lambda: gpus)
        monkeypatch.setattr(_launch, "gpu_count", lambda: gpus)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)

    return make


# Cores and memory


@pytest.fixture
def control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], None]:
    """A host with 64 cores, whose control groups hold the files given; this process is in /job/step."""

    def make(files: dict[str, str]) -> None:
        own = tmp_path / "own"
        own.write_text("1:cpu:/elsewhere\n0::/job/step\n")
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        monkeypatch.setattr(_devices, "_OWN_CGROUP", own)
        monkeypatch.setattr(_devices, "_CGROUP", tmp_path)
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)

    return make


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 64),
        ({"cpu.max": "max 100000\n"}, 64),
        ({"cpu.max": "200000 100000\n"}, 2),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "20000 100000\n"}, 1),
        ({"cpu.max": "12800000 100000\n"}, 64),
        ({"cpu.max": ""}, 64),
        ({"job/step/cpu.max": "max 100000\n", "job/cpu.max": "400000 100000\n"}, 4),
        ({"job/step/cpu.max": "300000 100000\n", "job/cpu.max": "400000 100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "250000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 64),
    ],
)
def test_cores_keeps_to_a_container_s_quota(
    control_group: Callable[[dict[str, str]], None], files: dict[str, str], cores: int
) -> None:
    control_group(files)
    assert helpers.cores() == cores


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity of processes")
def test_cores_keeps_to_the_affinity_of_the_process() -> None:
    code = (
        "import os, helpers; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); print(helpers.cores())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "1"


@pytest.mark.parametrize(
    "files", [{"memory.max": "1610612736\n"}, {"memory/memory.limit_in_bytes": "1610612736\n"}]
)
def test_memory_keeps_to_a_container_s_limit(
    control_group: Callable[[dict[str, str]], None], files: dict[str, str]
) -> None:
    machine = _devices.memory()
    control_group(files | {"job/memory.max": "max\n"})
    assert _devices.memory() == 1.5 < machine


# The regime


@pytest.mark.parametrize(
    ("gpus", "default", "labels"),
    [
        (0, 2, ["1 CPU process", "2 CPU ranks over gloo", "4 CPU ranks over gloo", "8 CPU ranks over gloo"]),
        (1, 2, ["1 GPU process", "2 CPU ranks over gloo", "4 CPU ranks over gloo", "8 CPU ranks over gloo"]),
        (4, 4, ["1 GPU process", "2 GPU ranks over NCCL", "4 GPU ranks over NCCL", "8 CPU ranks over gloo"]),
    ],
)
def test_label_calls_ranks_gpu_ranks_only_where_each_has_one(
    machine: Machine, gpus: int, default: int, labels: list[str]
) -> None:
    machine(gpus)
    assert [helpers.label(nprocs) for nprocs in (1, 2, 4, 8)] == labels
    assert helpers.default_nprocs() == default


@pytest.mark.parametrize("gpus", [0, 1, 2, 4])
@pytest.mark.parametrize("nprocs", [1, 2, 3, 4, 5])
def test_label_and_launch_choose_the_same_backend(machine: Machine, gpus: int, nprocs: int) -> None:
    machine(gpus)
    assert _launch._chosen_backend("auto", nprocs) == _devices.backend_for(nprocs)


def test_label_names_the_backend_that_was_asked_for(machine: Machine) -> None:
    machine(4)
    assert helpers.label(2, "gloo") == "2 CPU ranks over gloo"
    assert helpers.label(2) == helpers.label(2, "nccl") == "2 GPU ranks over NCCL"


def test_label_without_ranks_says_so() -> None:
    with pytest.raises(ValueError, match=r"^nprocs must be a whole number of ranks, 1 or more, not 0$"):
        helpers.label(0)


def test_windows_has_no_nccl(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(4)
    monkeypatch.setattr(sys, "platform", "win32")
    assert _devices.backend_for(2) == "gloo"


@pytest.mark.parametrize(
    ("gpus", "expected"), [(0, ["cpu"] * 2), (1, ["cuda:0", "cpu"]), (2, ["cuda:0", "cuda:1"])]
)
def test_device_in_the_notebook(machine: Machine, gpus: int, expected: list[str]) -> None:
    machine(gpus)
    assert str(helpers.device()) == expected[0]
    assert [str(helpers.device(rank)) for rank in range(2)] == expected


def _device_with(rank: int, gpus: int) -> str:
    _devices.gpu_count = lambda: gpus  # in this rank's process alone
    return str(helpers.device(rank))


@pytest.mark.parametrize(
    ("gpus", "backend", "expected"),
    [
        (0, None, ["cpu", "cpu"]),
        (1, None, ["cpu", "cpu"]),
        (2, None, ["cuda:0", "cuda:1"]),
        (2, "gloo", ["cpu", "cpu"]),
    ],
)
def test_device_in_a_rank(gpus: int, backend: str | None, expected: list[str]) -> None:
    assert helpers.launch(_device_with, args=(gpus,), nprocs=2, backend=backend) == expected


def test_label_of_this_machine_is_what_its_ranks_use() -> None:
    def use(rank: int) -> tuple[str, str]:
        return helpers.device(rank).type, dist.get_backend()

    kind, backend = {"CPU": "cpu", "GPU": "cuda"}, {"gloo": "gloo", "NCCL": "nccl"}
    _, named, _, _, over = helpers.label(2).split()
    assert helpers.launch(use, nprocs=2) == [(kind[named], backend[over])] * 2


@pytest.mark.parametrize(
    ("gpus", "regime", "row", "words"),
    [
        (0, "no GPU", "torch", "Ranks are CPU processes over gloo"),
        (1, "one GPU", "GPU     NVIDIA A100-SXM4-80GB, 80 GiB", "several ranks run on the CPU over gloo"),
        (8, "8 GPUs", "8 GPUs  NVIDIA A100-SXM4-80GB, 80 GiB", "8 ranks or fewer have a GPU each, over NCCL"),
    ],
)
def test_devices_says_the_regime_and_what_it_means(
    machine: Machine, gpus: int, regime: str, row: str, words: str
) -> None:
    machine(gpus)
    found = helpers.devices()
    lines = repr(found).splitlines()
    assert found.regime == regime
    assert len(found.gpus) == gpus
    assert lines[0] == f"regime  {regime}"
    assert any(line.startswith(row) for line in lines)
    assert words in lines[-1]
    assert 4 <= len(lines) <= 6


def test_devices_draws_itself_as_a_table_in_the_colours_of_the_theme(machine: Machine) -> None:
    machine(2, name="NVIDIA <odd> & new")
    drawn = helpers.devices()._repr_html_()
    table = ElementTree.fromstring(f"<div>{drawn}</div>")
    cells = ["".join(cell.itertext()) for cell in table.iter("td")]
    assert cells[:2] == ["2 GPUs", "NVIDIA <odd> & new, 80 GiB"]
    assert not {"style", "color", "bgcolor", "class"} & {key for cell in table.iter() for key in cell.attrib}


@pytest.mark.gpu
def test_a_machine_with_a_gpu_says_so() -> None:
    found = helpers.devices()
    assert found.regime != "no GPU"
    assert all(size > 1 for _, size in found.gpus)
    assert torch.ones(1, device=helpers.device()).device == helpers.device()
