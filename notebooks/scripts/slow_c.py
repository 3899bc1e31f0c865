"""A training step that is slower than it need be. Look at its trace before you read on."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

from helpers import accuracy, device, digits, digits_net


def make_step(rank):
    torch.set_num_threads(1)
    place, ranks = device(rank), dist.get_world_size()
    net = DistributedDataParallel(digits_net().to(place))
    images, labels = (whole[:256].chunk(ranks)[rank].to(place) for whole in digits()[0].tensors)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        cross_entropy(net(images), labels).backward()
        optimizer.step()
        if rank == 0:
            with record_function("evaluate"):
                accuracy(net.module, digits()[0])

    return step
