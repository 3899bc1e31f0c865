"""Trains the digits network on any number of ranks, and goes on from the last checkpoint."""

import time

import torch
import torch.distributed as dist
from torch.nn import Dropout, Sequential
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from tqdm import tqdm

from helpers import accuracy, device, digits, digits_net
from scripts.checkpoint import restore, save, snapshot

GLOBAL_BATCH = 128  # samples in a step, on all ranks together


def build(rank):
    """The network with dropout, weights from one seed, and the optimizer."""
    net = digits_net(seed=0)
    net = Sequential(*net[:-1], Dropout(0.5), net[-1]).to(device(rank))
    return net, torch.optim.AdamW(net.parameters(), lr=2e-3)


def train(rank, path, epochs=4, save=save, quiet=False):
    """Train to the end of `epochs`; return the weights and samples per second over all ranks."""
    (net, optimizer), where = build(rank), device(rank)
    torch.manual_seed(1 + rank)
    first = restore(path, net, optimizer, where) if path.exists() else 0
    model, sampler = DistributedDataParallel(net), DistributedSampler(digits()[0])
    batch = GLOBAL_BATCH // dist.get_world_size()
    loader, rate = DataLoader(digits()[0], batch, sampler=sampler), 0.0
    for epoch in range(first, epochs):
        sampler.set_epoch(epoch)
        sums, started = torch.zeros(2, device=where), time.perf_counter()  # of losses, of samples
        for images, labels in tqdm(loader, f"epoch {epoch}", disable=quiet or rank > 0):
            loss = cross_entropy(model(images.to(where)), labels.to(where))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sums += torch.stack([loss.detach(), torch.ones_like(loss)]) * len(labels)
        dist.all_reduce(sums)
        rate = sums[1].item() / (time.perf_counter() - started)
        state = snapshot(net, optimizer, epoch + 1, where)
        if rank == 0:
            save(path, state)
            if not quiet:
                log(net, epoch, (sums[0] / sums[1]).item(), rate)
    return torch.cat([parameter.flatten() for parameter in net.parameters()]), rate


def log(net, epoch, loss, rate):
    """One line an epoch, from rank 0. The test set is small, so rank 0 scores it alone."""
    net.eval()
    score = accuracy(net, digits()[1])
    net.train()
    print(f"epoch {epoch}: loss {loss:.3f}, accuracy {score:.1%}, {rate:,.0f} samples/s in all")
