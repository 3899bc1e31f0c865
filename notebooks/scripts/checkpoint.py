"""Checkpoints that are written whole or not at all, and that an exact resume can start from."""

import os

import torch
import torch.distributed as dist


def save(path, state, open_file=open):
    """Write beside the old file, wait until the disk has it, then rename: whole or not at all."""
    part = path.with_suffix(".part")
    with open_file(part, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def random_state(device):
    """What dropout (on the device) and data loading (on the CPU) will draw next."""
    states = {"cpu": torch.get_rng_state()}
    return states | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def snapshot(net, optimizer, epoch, device):
    """All that the next step depends on. Every rank calls it: random states are gathered."""
    states = [None] * dist.get_world_size()
    dist.all_gather_object(states, random_state(device))
    parts = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
    return {**parts, "epoch": epoch, "random": states}


def restore(path, net, optimizer, device):
    """Put a snapshot back, and return the number of epochs made."""
    state = torch.load(path, map_location="cpu", weights_only=True)
    net.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    mine = state["random"][dist.get_rank()]
    torch.set_rng_state(mine["cpu"])
    if "cuda" in mine:
        torch.cuda.set_rng_state(mine["cuda"], device)
    return state["epoch"]
