"""A complete program with DistributedDataParallel: a student learns from a teacher."""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(rank, world_size, meeting_place):
    dist.init_process_group("gloo", init_method=meeting_place, rank=rank, world_size=world_size)
    torch.manual_seed(0)
    inputs, teacher = torch.randn(256, 10), nn.Linear(10, 5)
    mine = inputs[rank::world_size]
    model = DistributedDataParallel(nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(200):
        loss = nn.functional.mse_loss(model(mine), teacher(mine).detach())
        if rank == 0 and step in (0, 199):
            print(f"step {step}: loss on rank 0's half {loss.item():.1f}")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.barrier()  # nobody leaves while another still talks
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, args=(2, Path(folder, "store").as_uri()), nprocs=2)
