"""Two ranks add two numbers: the smallest complete program with mp.spawn."""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def add_up(rank, world_size, meeting_place):
    dist.init_process_group("gloo", init_method=meeting_place, rank=rank, world_size=world_size)
    mine = torch.tensor([10.0 * (rank + 1)])
    dist.all_reduce(mine)
    if rank == 0:
        print(f"the sum over {world_size} ranks is {mine.item()}")
    dist.barrier()  # nobody leaves while another still talks
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(add_up, args=(2, Path(folder, "store").as_uri()), nprocs=2)
