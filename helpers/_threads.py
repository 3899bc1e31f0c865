"""DataParallel where there are no GPUs: the same four steps, CPU threads for devices; see lesson 02."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

from ._devices import device, gpu_count


class _Threads(nn.Module):
    def __init__(self, module: nn.Module, n: int) -> None:
        super().__init__()
        self.module, self.n, self.pool = module, n, ThreadPoolExecutor(n)

    def _replicate(self) -> nn.Module:
        tensors = [*self.module.parameters(), *self.module.buffers()]
        return copy.deepcopy(self.module, {id(tensor): tensor.clone() for tensor in tensors})

    def forward(self, batch: Tensor) -> Tensor:
        parts = batch.chunk(self.n)
        replicas = [self.module, *[self._replicate() for _ in parts[1:]]]
        return torch.cat(list(self.pool.map(lambda replica, part: replica(part), replicas, parts)))


def data_parallel(module: nn.Module, n: int) -> nn.Module:
    """`module` run on `n` devices by one process: `nn.DataParallel` on GPUs, else threads on the CPU.

    Each call copies all parameters to the other devices, which run a part of the batch each; their outputs
    are joined on the first, and backward adds their gradients up there: 4 bytes a parameter out and back for
    each device but one.
    """
    on_gpus = device().type == "cuda" and n <= gpu_count()
    return nn.DataParallel(module, list(range(n))) if on_gpus else _Threads(module, n)
