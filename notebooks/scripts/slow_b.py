"""A training step that is slower than it need be. Look at its trace before you read on."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from helpers import device, digits


def make_net():
    torch.manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(64, 512), nn.ReLU()]
    for _ in range(6):
        layers += [nn.Linear(512, 512), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(512, 10))


def make_step(rank):
    torch.set_num_threads(1)
    place, ranks = device(rank), dist.get_world_size()
    net = make_net().to(place)
    images, labels = (whole[:512].chunk(ranks)[rank].to(place) for whole in digits()[0].tensors)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        cross_entropy(net(images), labels).backward()
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= ranks
        optimizer.step()

    return step
