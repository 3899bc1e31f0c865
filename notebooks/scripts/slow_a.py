"""A training step that is slower than it need be. Look at its trace before you read on."""

import time

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Subset

from helpers import device, digits, digits_net


class Scans(Dataset):
    """The digits, as if each had to be read from a slow disk first."""

    def __len__(self):
        return len(digits()[0])

    def __getitem__(self, index):
        time.sleep(0.001)
        return digits()[0][index]


def loader(scans):
    return DataLoader(scans, batch_size=64)


def make_step(rank, loader=loader):
    """The step of a run whose batches come from `loader(scans of this rank)`."""
    torch.set_num_threads(1)
    place = device(rank)
    net = DistributedDataParallel(digits_net().to(place))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scans = Scans()
    batches = iter(loader(Subset(scans, range(rank, len(scans), dist.get_world_size()))))

    def step():
        images, labels = (part.to(place) for part in next(batches))
        optimizer.zero_grad()
        cross_entropy(net(images), labels).backward()
        optimizer.step()

    return step
