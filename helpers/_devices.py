"""Which devices this machine offers: the regime in which a notebook runs, found once, said in words."""

from __future__ import annotations

import contextlib
import html
import math
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_OWN_CGROUP, _CGROUP = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
_GIB = 2**30


def _limits(v2: str, *v1: str) -> Iterator[list[int]]:
    """The numbers that control groups, ours and those above it, set for a resource; no limit, nothing."""
    own = Path("/")
    with contextlib.suppress(OSError):
        lines = _OWN_CGROUP.read_text().splitlines()
        own = Path(next((line[3:] for line in lines if line.startswith("0::")), "/"))
    folders = [_CGROUP / folder.relative_to("/") for folder in (own, *own.parents)]
    for files in ([_CGROUP / name for name in v1], *([folder / v2] for folder in folders)):
        with contextlib.suppress(OSError, ValueError, IndexError):  # ValueError: the word "max"
            numbers = [int(word) for file in files for word in file.read_text().split()]
            if numbers[0] > 0:
                yield numbers


def cores() -> int:
    """CPU cores that this process may use: of its affinity and of a container's CPU quota, the smaller."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = _limits("cpu.max", "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")
    return min(allowed, *(math.ceil(quota / period) for quota, period in quotas), allowed)


def memory() -> float:
    """Memory that this process may use, in GiB: of the machine's and of a container's limit, the smaller."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError):  # Windows
        import psutil

        total = psutil.virtual_memory().total
    limits = _limits("memory.max", "memory/memory.limit_in_bytes")
    return min([total, *(limit for limit, *_ in limits)]) / _GIB


def gpu_count() -> int:
    """CUDA devices that torch can use; asking does not initialise CUDA in this process."""
    import torch

    return torch.cuda.device_count() if torch.backends.cuda.is_built() else 0


def default_nprocs() -> int:
    """Ranks that a launch starts when none are asked for: one per GPU, or two on the CPU."""
    return gpu_count() if gpu_count() > 1 else 2


def backend_for(nprocs: int) -> str:
    """The backend for `nprocs` ranks on this machine: "nccl" where each has a GPU of its own, else "gloo"."""
    return "nccl" if nprocs <= gpu_count() and sys.platform != "win32" else "gloo"


def device(rank: int = 0) -> torch.device:
    """The device of a rank: its own GPU when the ranks run on NCCL, else the CPU.

    Outside any rank device() is the first GPU, or the CPU where there is none. Of several machines, `rank`
    counts the ranks on this one (torchrun's LOCAL_RANK).
    """
    import torch
    import torch.distributed as dist

    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", rank + 1))  # set in ranks, of this machine
    joined = dist.is_available() and dist.is_initialized()
    on_gpu = ranks <= gpu_count() and (not joined or "nccl" in dist.get_backend_config())
    return torch.device("cuda", rank) if on_gpu else torch.device("cpu")


def label(nprocs: int, backend: str = "auto") -> str:
    """The words beside a number taken on `nprocs` ranks that `backend` joined: "2 CPU ranks over gloo"."""
    if nprocs < 1:
        raise ValueError(f"nprocs must be a whole number of ranks, 1 or more, not {nprocs!r}")
    chosen = backend_for(nprocs) if backend == "auto" else backend
    kind, name = ("GPU", "NCCL") if chosen == "nccl" else ("CPU", chosen)
    return f"1 {kind} process" if nprocs == 1 else f"{nprocs} {kind} ranks over {name}"


@dataclass(frozen=True)
class Devices:
    """What this machine offers. `gpus` holds a (name, GiB) pair a GPU; `memory` is in GiB."""

    regime: str
    gpus: tuple[tuple[str, float], ...]
    cores: int
    memory: float
    torch: str

    def _meaning(self) -> str:
        if not self.gpus:
            return "Ranks are CPU processes over gloo, each with its share of the cores: timings are of CPUs."
        if backend_for(2) == "gloo":
            return "Work on one device uses the GPU; several ranks run on the CPU over gloo and say so."
        return f"{len(self.gpus)} ranks or fewer have a GPU each, over NCCL; more run on the CPU over gloo."

    def _rows(self) -> list[tuple[str, str]]:
        kinds = Counter(f"{name}, {size:.0f} GiB" for name, size in self.gpus)
        gpus = [("GPU" if count == 1 else f"{count} GPUs", kind) for kind, count in kinds.items()]
        cores = "1 core" if self.cores == 1 else f"{self.cores} cores"
        processor = ("CPU", f"{cores}, {self.memory:.1f} GiB of memory")
        return [("regime", self.regime), *gpus, processor, ("torch", self.torch)]

    def __repr__(self) -> str:
        return "\n".join([f"{what:7} {found}" for what, found in self._rows()] + [self._meaning()])

    def _repr_html_(self) -> str:
        rows = (f"<tr><th>{what}</th><td>{html.escape(found)}</td></tr>" for what, found in self._rows())
        return f"<table>{''.join(rows)}</table><p>{self._meaning()}</p>"


def devices() -> Devices:
    """What this machine offers, and the regime that it puts the lessons in; shows itself as a table.

    Naming the GPUs initialises CUDA in this process, which takes no memory on them.
    """
    import torch

    found = [torch.cuda.get_device_properties(index) for index in range(gpu_count())]
    gpus = tuple((gpu.name, gpu.total_memory / _GIB) for gpu in found)
    regime = {0: "no GPU", 1: "one GPU"}.get(len(gpus), f"{len(gpus)} GPUs")
    return Devices(regime, gpus, cores(), memory(), torch.__version__)
