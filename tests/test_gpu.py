"""What only a machine with NVIDIA GPUs can show: `make gpu`."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from helpers import launch

pytestmark = pytest.mark.gpu
GPUS = torch.cuda.device_count()


def test_a_rank_per_gpu_runs_on_nccl_each_on_its_own() -> None:
    def fn(rank: int) -> tuple[str, int, float]:
        total = torch.tensor(float(rank), device="cuda")
        dist.all_reduce(total)
        return dist.get_backend(), torch.cuda.current_device(), total.item()

    assert launch(fn, nprocs=GPUS) == [("nccl", rank, float(sum(range(GPUS)))) for rank in range(GPUS)]


def test_a_launch_works_after_the_notebook_has_used_cuda() -> None:
    before = torch.ones(1000, device="cuda").sum().item()
    assert torch.cuda.is_initialized()
    assert launch(lambda rank: torch.ones(1000, device="cuda").sum().item(), nprocs=1) == [before]


def test_gpu_tensors_come_back_on_the_cpu_detached() -> None:
    def fn(rank: int, given: torch.Tensor) -> tuple[str, torch.Tensor]:
        return given.device.type, torch.ones(3, device="cuda", requires_grad=True) * 2

    for device, back in launch(fn, (torch.ones(2, device="cuda"),), nprocs=1):
        assert (device, back.device.type, back.requires_grad, back.tolist()) == (
            "cpu",
            "cpu",
            False,
            [2, 2, 2],
        )


def test_more_ranks_than_gpus_run_on_gloo_and_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    def fn(rank: int) -> tuple[str, float]:
        total = torch.tensor(float(rank))
        dist.all_reduce(total)
        return dist.get_backend(), total.item()

    nprocs = GPUS + 1
    assert launch(fn, nprocs=nprocs) == [("gloo", float(sum(range(nprocs))))] * nprocs
    said = capsys.readouterr().out
    assert said.startswith(f"{nprocs} ranks, {GPUS} GPU")
    assert "gloo" in said


def test_a_rank_that_fails_in_nccl_is_named_and_the_next_launch_works() -> None:
    def fn(rank: int) -> None:
        if rank == GPUS - 1:
            raise ValueError("cause")
        dist.all_reduce(torch.ones(1, device="cuda"))
        torch.cuda.synchronize()

    with pytest.raises(RuntimeError, match=f"rank {GPUS - 1} raised ValueError: cause"):
        launch(fn, nprocs=GPUS, timeout=60)
    assert launch(lambda rank: rank, nprocs=GPUS) == list(range(GPUS))
