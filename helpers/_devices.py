"""Which devices this machine offers: the regime in which a notebook runs, found once, said in words."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import Any


def cores() -> int:
    """CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def gpu_count() -> int:
    """CUDA devices that torch can use; asking does not initialise CUDA in this process."""
    import torch

    return torch.cuda.device_count() if torch.backends.cuda.is_built() else 0


def default_nprocs() -> int:
    """Ranks that a launch starts when none are asked for: one per GPU, or two on the CPU."""
    return gpu_count() if gpu_count() > 1 else 2
