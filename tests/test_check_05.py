"""The checks of lesson 05, tried on answers as learners give them, with the tests of test_check.py."""

# ruff: noqa: ANN001, ANN002, ANN003, ANN201, ANN202 (learners do not annotate)
from __future__ import annotations

import copy
import math
import random
import sys
from collections.abc import Iterator

import cloudpickle
import numpy as np
import pytest
import torch
import torch.distributed as dist
from test_check import DEADLOCKS, RIGHT, SAYS, WRONG, enter, try_answers
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, Subset

from helpers import device

# evaluate(model, data)


def share(data):
    """Inputs and labels of this rank's share."""
    return data[dist.get_rank() :: dist.get_world_size()]


def hits(model, inputs, labels):
    """How many are right, a Python number; none in an empty share."""
    with torch.no_grad():
        return (model(inputs).argmax(dim=1) == labels).sum().item()


def summed(*numbers, op=dist.ReduceOp.SUM):
    """The numbers added up over the ranks; a single one comes back alone."""
    total = torch.tensor(numbers, dtype=torch.double, device=device(dist.get_rank()))
    dist.all_reduce(total, op=op)
    return total.tolist() if len(numbers) > 1 else total.item()


def of_indices(choose):
    """An answer that scores the indices `choose(samples, rank, ranks)` and divides by all samples."""

    def evaluate(model, data):
        mine = list(choose(len(data), dist.get_rank(), dist.get_world_size()))
        return summed(hits(model, *data[mine]) if mine else 0) / len(data)

    return evaluate


def of_mine(finish):
    """An answer that returns `finish(right ones of this rank, its samples, all samples, ranks)`."""

    def evaluate(model, data):
        inputs, labels = share(data)
        return finish(hits(model, inputs, labels), len(labels), len(data), dist.get_world_size())

    return evaluate


def of_outputs(right):
    """An answer that adds up `right(outputs, labels)`."""

    def evaluate(model, data):
        inputs, labels = share(data)
        return summed(right(model(inputs), labels).sum().item()) / len(data)

    return evaluate


def mean(mine, n):
    """The mean over a share, as a tensor would have it."""
    return mine / n if n else math.nan


def sampled(samples, rank, ranks, **options):
    return list(DistributedSampler(range(samples), ranks, rank, shuffle=False, **options))


def without_padding(samples, rank, ranks):
    mine = sampled(samples, rank, ranks)
    return [index for turn, index in enumerate(mine) if rank + turn * ranks < samples]


def leftovers_dealt_out_by_hand(samples, rank, ranks):
    mine = sampled(samples, rank, ranks, drop_last=True)
    dealt = len(mine) * ranks
    return mine + list(range(dealt, samples))[rank : rank + 1]


def one_shuffle(samples, rank, ranks):
    return torch.randperm(samples, generator=torch.Generator().manual_seed(7)).tolist()[rank::ranks]


def a_shuffle_for_each(samples, rank, ranks):
    return torch.randperm(samples, generator=torch.Generator().manual_seed(rank)).tolist()[rank::ranks]


def first_ranks_take_one_more(samples, rank, ranks):
    each, left = divmod(samples, ranks)
    start = rank * each + min(rank, left)
    return range(start, start + each + (rank < left))


def first_ranks_take_one_more_from_too_early(samples, rank, ranks):
    each, left = divmod(samples, ranks)
    return range(rank * each, (rank + 1) * each + (rank < left))


RIGHT["evaluate"] |= {
    "one sum": of_mine(lambda right, mine, n, ranks: summed(right) / n),
    "two sums": of_mine(lambda right, mine, n, ranks: np.divide(*summed(right, mine))),
    "wrong ones counted": of_mine(lambda right, mine, n, ranks: 1 - summed(mine - right) / n),
    "mean of parts of the whole": of_mine(lambda right, mine, n, ranks: summed(ranks * right / n) / ranks),
    "means weighted": of_mine(
        lambda right, mine, n, ranks: summed((mean(right, mine) if mine else 0) * mine / n)
    ),
    "consecutive": of_indices(lambda n, rank, ranks: range(n * rank // ranks, n * (rank + 1) // ranks)),
    "first ranks take one more": of_indices(first_ranks_take_one_more),
    "tensor split": of_indices(lambda n, rank, ranks: torch.arange(n).tensor_split(ranks)[rank].tolist()),
    "NumPy's array_split": of_indices(
        lambda n, rank, ranks: np.array_split(range(n), ranks)[rank].astype(int)
    ),
    "a comprehension": of_indices(lambda n, rank, ranks: [i for i in range(n) if i % ranks == rank]),
    "last rank first": of_indices(lambda n, rank, ranks: range(n)[ranks - 1 - rank :: ranks]),
    "sampler without its padding": of_indices(without_padding),
    "sampler, leftovers by hand": of_indices(leftovers_dealt_out_by_hand),
    "one shuffle for all": of_indices(one_shuffle),
    "argmax along the last": of_outputs(lambda outputs, labels: outputs.argmax(-1).eq(labels)),
    "by max": of_outputs(lambda outputs, labels: outputs.max(1).indices == labels),
    "by topk": of_outputs(lambda outputs, labels: outputs.topk(1).indices.flatten() == labels),
    "by softmax": of_outputs(lambda outputs, labels: outputs.softmax(1).argmax(1) == labels),
}


@enter(RIGHT)
def evaluate__a_loader_over_a_subset(model, data):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    correct = seen = 0
    for inputs, labels in DataLoader(Subset(data, range(rank, len(data), world_size)), batch_size=4):
        correct += hits(model, inputs, labels)
        seen += len(labels)
    correct, seen = summed(correct, seen)
    return correct / seen


@enter(RIGHT)
def evaluate__sample_by_sample(model, data):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right = 0
    for index in range(rank, len(data), world_size):
        image, label = data[index]
        right += int(model(image[None])[0].argmax() == label)
    return summed(right) / len(data)


@enter(RIGHT)
def evaluate__gathers_objects(model, data):
    counts = [None] * dist.get_world_size()
    inputs, labels = share(data)
    dist.all_gather_object(counts, (hits(model, inputs, labels), len(labels)))
    return sum(right for right, _ in counts) / sum(n for _, n in counts)


@enter(RIGHT)
def evaluate__gathers_who_is_right(model, data):
    inputs, labels = share(data)
    lists = [None] * dist.get_world_size()
    dist.all_gather_object(lists, (model(inputs).argmax(dim=1) == labels).tolist())
    return np.mean(np.concatenate(lists))


@enter(RIGHT)
def evaluate__gathers_predictions_of_one_length(model, data):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    predicted = torch.full((math.ceil(len(data) / world_size),), -1, device=device(rank))
    inputs, _ = share(data)
    if len(inputs):
        predicted[: len(inputs)] = model(inputs).argmax(dim=1)
    parts = [torch.empty_like(predicted) for _ in range(world_size)]
    dist.all_gather(parts, predicted)
    labels = data.tensors[1].to(device(rank))
    ordered = torch.stack(parts, dim=1).flatten()[: len(data)]
    return (ordered == labels).double().mean().item()


@enter(RIGHT)
def evaluate__a_vector_of_zeros_and_ones(model, data):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right = torch.zeros(len(data), device=device(rank))
    inputs, labels = share(data)
    right[rank::world_size] = (model(inputs).argmax(dim=1) == labels).to(right)
    dist.all_reduce(right)
    return right.mean().item()


@enter(RIGHT)
def evaluate__rank_0_divides_and_tells_all(model, data):
    rank = dist.get_rank()
    correct = torch.tensor(hits(model, *share(data)), device=device(rank))
    dist.reduce(correct, dst=0)
    result = [correct.item() / len(data) if rank == 0 else None]
    dist.broadcast_object_list(result, src=0)
    return result[0]


@enter(RIGHT)
def evaluate__sent_to_rank_0_and_back(model, data):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    correct = torch.tensor(hits(model, *share(data)), device=device(rank))
    if rank > 0:
        dist.send(correct, dst=0)
    else:
        for other in range(1, world_size):
            part = torch.empty_like(correct)
            dist.recv(part, src=other)
            correct += part
    dist.broadcast(correct, src=0)
    return correct.item() / len(data)


@enter(RIGHT)
def evaluate__as_the_lesson_does_it(model, data):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    images, labels = data[rank::world_size]
    with torch.inference_mode():
        correct = (model(images).argmax(dim=1) == labels).sum()
    total = torch.stack([correct, torch.full_like(correct, len(labels))]).to(device(rank))
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


@enter(RIGHT)
def evaluate__in_evaluation_mode(model, data):
    training = model.training
    model.eval()
    right = summed(hits(model, *share(data)))
    model.train(training)
    return right / len(data)


@enter(RIGHT)
def evaluate__nothing_to_do_without_samples(model, data):
    inputs, labels = share(data)
    correct = torch.zeros((), dtype=torch.long, device=device(dist.get_rank()))
    if len(labels) > 0:
        correct += hits(model, inputs, labels)
    dist.all_reduce(correct)
    return int(correct) / len(data)


@enter(RIGHT)
def evaluate__asks_the_model_for_its_device(model, data):
    inputs, labels = (part.to(next(model.parameters()).device) for part in share(data))
    total = torch.tensor(hits(model, inputs, labels), device=inputs.device)
    dist.all_reduce(total)
    return total / len(data)


WRONG["evaluate"] |= {
    "a tensor of one number": of_mine(lambda right, mine, n, ranks: torch.tensor([summed(right) / n])),
    "a table of one number": of_mine(lambda right, mine, n, ranks: torch.tensor([[summed(right) / n]])),
    "a list of one number": of_mine(lambda right, mine, n, ranks: [summed(right) / n]),
    "sampler, divided by all": of_indices(sampled),
    "sampler with drop_last": of_indices(lambda n, rank, ranks: sampled(n, rank, ranks, drop_last=True)),
    "sampler that shuffles": of_indices(
        lambda n, rank, ranks: list(DistributedSampler(range(n), ranks, rank))
    ),
    "leftovers dropped": of_indices(
        lambda n, rank, ranks: range(rank * (n // ranks), (rank + 1) * (n // ranks))
    ),
    "leftovers to the last": of_indices(
        lambda n, rank, ranks: range(
            rank * (n // ranks), n if rank == ranks - 1 else (rank + 1) * (n // ranks)
        )
    ),
    "leftovers to rank 0": of_indices(
        lambda n, rank, ranks: (
            [*range(rank, n // ranks * ranks, ranks)] + [*range(n // ranks * ranks, n)] * (rank == 0)
        )
    ),
    "rounded up": of_indices(
        lambda n, rank, ranks: range(n)[rank * math.ceil(n / ranks) : (rank + 1) * math.ceil(n / ranks)]
    ),
    "chunk": of_indices(lambda n, rank, ranks: torch.arange(n).chunk(ranks)[rank].tolist()),
    "one at least": of_indices(
        lambda n, rank, ranks: [
            i % n for i in range(rank * max(1, n // ranks), (rank + 1) * max(1, n // ranks))
        ]
    ),
    "for two ranks": of_indices(lambda n, rank, ranks: range(rank, n, 2)),
    "starts one too late": of_indices(lambda n, rank, ranks: range(rank + 1, n, ranks)),
    "start and step swapped": of_indices(lambda n, rank, ranks: range(ranks, n, rank)),
    "each rank shuffles": of_indices(a_shuffle_for_each),
    "starts not shifted": of_indices(first_ranks_take_one_more_from_too_early),
    "first ones on every rank": of_indices(lambda n, rank, ranks: range(len(range(rank, n, ranks)))),
    "everybody scores all": of_indices(lambda n, rank, ranks: range(n)),
    "rank 0 scores all": of_indices(lambda n, rank, ranks: range(n) if rank == 0 else []),
    "parts overlap by one": of_indices(
        lambda n, rank, ranks: range(n)[n * rank // ranks : n * (rank + 1) // ranks + 1]
    ),
    "mean of the means": of_mine(lambda right, mine, n, ranks: summed(mean(right, mine)) / ranks),
    "mean of the means, none is 0": of_mine(
        lambda right, mine, n, ranks: summed(right / max(mine, 1)) / ranks
    ),
    "mean of the means, none is 1": of_mine(
        lambda right, mine, n, ranks: summed(right / mine if mine else 1.0) / ranks
    ),
    "mean of the means that there are": of_mine(
        lambda right, mine, n, ranks: np.divide(*summed(right / max(mine, 1), float(mine > 0)))
    ),
    "sum of the means": of_mine(lambda right, mine, n, ranks: summed(right / max(mine, 1))),
    "means weighted, nan and all": of_mine(
        lambda right, mine, n, ranks: summed(mean(right, mine) * mine) / n
    ),
    "my share's": of_mine(lambda right, mine, n, ranks: right / max(mine, 1)),
    "my share's part of the whole": of_mine(lambda right, mine, n, ranks: right / n),
    "divided by my samples": of_mine(lambda right, mine, n, ranks: summed(right) / max(mine, 1)),
    "divided by ranks times mine": of_mine(
        lambda right, mine, n, ranks: summed(right) / max(mine * ranks, 1)
    ),
    "divided by ranks times the floor": of_mine(
        lambda right, mine, n, ranks: summed(right) / max(n // ranks * ranks, 1)
    ),
    "divided by ranks times the ceiling": of_mine(
        lambda right, mine, n, ranks: summed(right) / (math.ceil(n / ranks) * ranks)
    ),
    "divided by the ranks": of_mine(lambda right, mine, n, ranks: summed(right) / ranks),
    "divided by the ranks too": of_mine(lambda right, mine, n, ranks: summed(right) / n / ranks),
    "not divided": of_mine(lambda right, mine, n, ranks: summed(right)),
    "integer division": of_mine(lambda right, mine, n, ranks: summed(right) // n),
    "percent": of_mine(lambda right, mine, n, ranks: 100 * summed(right) / n),
    "rounded": of_mine(lambda right, mine, n, ranks: round(summed(right) / n)),
    "to two digits": of_mine(lambda right, mine, n, ranks: round(summed(right) / n, 2)),
    "error rate": of_mine(lambda right, mine, n, ranks: summed(mine - right) / n),
    "largest for sum": of_mine(lambda right, mine, n, ranks: summed(right, op=dist.ReduceOp.MAX) / n),
    "mine over the sum": of_mine(lambda right, mine, n, ranks: right / max(summed(mine), 1)),
    "added up twice": of_mine(lambda right, mine, n, ranks: summed(summed(right)) / n),
    "both numbers": of_mine(lambda right, mine, n, ranks: summed(right, mine)),
    "text": of_mine(lambda right, mine, n, ranks: f"{summed(right) / n:.1%}"),
    "prints": of_mine(lambda right, mine, n, ranks: print(summed(right) / n)),
    "on rank 0 only": of_mine(
        lambda right, mine, n, ranks: acc if (acc := summed(right) / n) and dist.get_rank() == 0 else None
    ),
    "means in integers": of_mine(lambda right, mine, n, ranks: summed(int(right / max(mine, 1))) / ranks),
    "argmax over samples": of_outputs(lambda outputs, labels: outputs.argmax(dim=0) == labels),
    "argmax of everything": of_outputs(lambda outputs, labels: outputs.argmax() == labels),
    "largest value for its index": of_outputs(lambda outputs, labels: outputs.max(dim=1).values == labels),
    "outputs themselves": of_outputs(lambda outputs, labels: outputs == labels),
    "probability of the label": of_outputs(
        lambda outputs, labels: outputs.softmax(dim=1)[torch.arange(len(labels)), labels]
    ),
    "loss": of_outputs(lambda outputs, labels: cross_entropy(outputs, labels, reduction="sum")),
    "in the best two": of_outputs(
        lambda outputs, labels: (outputs.topk(2, dim=1).indices == labels[:, None]).any(dim=1)
    ),
    "argmin": of_outputs(lambda outputs, labels: outputs.argmin(dim=1) == labels),
    "a number reduced": lambda model, data: dist.all_reduce(hits(model, *share(data))) / len(data),
    "what all_reduce returns": lambda model, data: (
        dist.all_reduce(torch.tensor(hits(model, *share(data)))) / len(data)
    ),
}


@enter(WRONG)
def evaluate__sampler_and_its_mean(model, data):
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False))
    correct = seen = 0
    for inputs, labels in loader:
        correct += hits(model, inputs, labels)
        seen += len(labels)
    correct, seen = summed(correct, seen)
    return correct / seen


@enter(WRONG)
def evaluate__reduced_to_rank_0(model, data):
    correct = torch.tensor(hits(model, *share(data)), device=device(dist.get_rank()))
    dist.reduce(correct, dst=0)
    return correct.item() / len(data)


@enter(WRONG)
def evaluate__rank_0s_for_all(model, data):
    inputs, labels = share(data)
    result = torch.tensor(mean(hits(model, inputs, labels), len(labels)), device=device(dist.get_rank()))
    dist.broadcast(result, src=0)
    return result.item()


@enter(WRONG)
def evaluate__without_a_group(model, data):
    inputs, labels = data.tensors
    return hits(model, inputs, labels) / len(labels)


@enter(WRONG)
def evaluate__list_of_all_ranks(model, data):
    inputs, labels = share(data)
    counts = [None] * dist.get_world_size()
    dist.all_gather_object(counts, hits(model, inputs, labels) / max(len(labels), 1))
    return counts


@enter(WRONG)
def evaluate__gathered_means(model, data):
    inputs, labels = share(data)
    counts = [None] * dist.get_world_size()
    dist.all_gather_object(counts, hits(model, inputs, labels) / max(len(labels), 1))
    return sum(counts) / len(counts)


@enter(WRONG)
def evaluate__gathers_parts_of_unequal_length(model, data):
    inputs, labels = share(data)
    right = (model(inputs).argmax(dim=1) == labels).float().to(device(dist.get_rank()))
    parts = [torch.empty_like(right) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, right)
    return torch.cat(parts).mean().item()


@enter(WRONG)
def evaluate__goes_home_without_samples(model, data):
    inputs, labels = share(data)
    if len(labels) == 0:
        return 0.0
    return summed(hits(model, inputs, labels)) / len(data)


@enter(WRONG)
def evaluate__reduced_batch_by_batch(model, data):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    correct = 0
    for inputs, labels in DataLoader(Subset(data, range(rank, len(data), world_size)), batch_size=1):
        correct += summed(hits(model, inputs, labels))
    return correct / len(data)


@enter(WRONG)
def evaluate__running_total_reduced(model, data):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    correct = torch.zeros(1, device=device(rank))
    for index in range(math.ceil(len(data) / world_size)):
        inputs, labels = data[rank + index * world_size :][:2]
        correct += hits(model, inputs[:1], labels[:1])
        dist.all_reduce(correct)
    return correct.item() / len(data)


@enter(WRONG)
def evaluate__batches_dropped(model, data):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine = Subset(data, range(rank, len(data), world_size))
    correct = seen = 0
    for inputs, labels in DataLoader(mine, batch_size=2, drop_last=True):
        correct += hits(model, inputs, labels)
        seen += len(labels)
    correct, seen = summed(correct, seen)
    return correct / max(seen, 1)


@enter(WRONG)
def evaluate__mean_over_batches(model, data):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    loader = DataLoader(Subset(data, range(rank, len(data), world_size)), batch_size=2)
    accuracies = [hits(model, inputs, labels) / len(labels) for inputs, labels in loader]
    total, batches = summed(sum(accuracies), len(accuracies))
    return total / batches


@enter(WRONG)
def evaluate__last_batch_only(model, data):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    correct = 0
    for inputs, labels in DataLoader(Subset(data, range(rank, len(data), world_size)), batch_size=2):
        correct = hits(model, inputs, labels)
    return summed(correct) / len(data)


@enter(WRONG)
def evaluate__batches_times_batch_size(model, data):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    loader = DataLoader(Subset(data, range(rank, len(data), world_size)), batch_size=2)
    correct = sum(hits(model, inputs, labels) for inputs, labels in loader)
    correct, seen = summed(correct, len(loader) * loader.batch_size)
    return correct / seen


@enter(WRONG)
def evaluate__inputs_dealt_out_labels_not(model, data):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    inputs, labels = data.tensors
    return summed(hits(model, inputs[rank::world_size], labels)) / len(data)


@enter(WRONG)
def evaluate__first_labels_for_all(model, data):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    inputs, labels = data.tensors
    mine = inputs[rank::world_size]
    return summed(hits(model, mine, labels[: len(mine)])) / len(data)


@enter(WRONG)
def evaluate__all_scored_and_a_share_counted(model, data):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    inputs, labels = data.tensors
    right = model(inputs).argmax(dim=1) == labels
    return summed(right[rank::world_size].sum().item()) / len(data)


@enter(WRONG)
def evaluate__wraps_around(model, data):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    each = math.ceil(len(data) / world_size)
    mine = [index % len(data) for index in range(rank * each, (rank + 1) * each)]
    correct, seen = summed(hits(model, *data[mine]), each)
    return correct / seen


@enter(WRONG)
def evaluate__padded_and_not_counted(model, data):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    each = math.ceil(len(data) / world_size)
    mine = range(rank, each * world_size, world_size)
    inputs, labels = data[[min(index, len(data) - 1) for index in mine]]
    right = model(inputs).argmax(dim=1) == labels
    return summed(sum(ok for ok, index in zip(right.tolist(), mine, strict=True) if index < len(data))) / len(
        data
    )


@enter(WRONG)
def evaluate__float_16(model, data):
    inputs, labels = share(data)
    total = torch.tensor([hits(model, inputs, labels), len(labels)], device=device(dist.get_rank())).half()
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


@enter(WRONG)
def evaluate__bytes(model, data):
    inputs, labels = share(data)
    mean = (model(inputs).argmax(dim=1) == labels).float().mean()
    total = mean.nan_to_num().to(device(dist.get_rank()), torch.uint8)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


@enter(WRONG)
def evaluate__any_one_right(model, data):
    inputs, labels = share(data)
    right = (model(inputs).argmax(dim=1) == labels).any().to(device(dist.get_rank())).int()
    dist.all_reduce(right)
    return right.item() / len(data)


@enter(WRONG)
def evaluate__shows_the_model_the_first_share_alone(model, data):
    ranks = dist.get_world_size()
    model(data[:: dist.get_world_size()][0][: len(range(dist.get_rank(), len(data), ranks))])
    return (data.tensors[0].argmax(dim=1) == data.tensors[1]).double().mean().item()


DEADLOCKS |= {"reduced batch by batch"}

# resume(state, model, optimizer, scheduler, rank)


def bare(state, cut=lambda key: key.removeprefix("module.")):
    return {cut(key): value for key, value in state["model"].items()}


def progress(state):
    return divmod(state["step"], state["steps_per_epoch"])


def put_back(
    state,
    model,
    optimizer,
    scheduler,
    rank,
    *,
    weights=lambda state, model: model.load_state_dict(bare(state)),
    moments=lambda state, optimizer: optimizer.load_state_dict(state["optimizer"]),
    schedule=lambda state, scheduler: scheduler.load_state_dict(state["scheduler"]),
    randomness=lambda state, rank: torch.set_rng_state(state["random"][rank]),
    where=progress,
):
    """A right answer, but for what the options change."""
    weights(state, model)
    moments(state, optimizer)
    schedule(state, scheduler)
    randomness(state, rank)
    return where(state)


def but(**options):
    return lambda *args: put_back(*args, **options)


def cutting(cut, **options):
    return but(weights=lambda state, model: model.load_state_dict(bare(state, cut), **options))


def returning(count):
    """An answer that returns `count(steps, steps per epoch)`."""
    return but(where=lambda state: count(state["step"], state["steps_per_epoch"]))


def nothing(*_):
    return None


def inside_a_wrapper(state, model):
    wrapper = nn.Module()
    wrapper.module = model
    wrapper.load_state_dict(state["model"])


def copied_tensor_by_tensor(state, model):
    for name, tensor in model.state_dict().items():
        tensor.copy_(state["model"]["module." + name])


def prefix_consumed(state, model):
    nn.modules.utils.consume_prefix_in_state_dict_if_present(state["model"], "module.")
    model.load_state_dict(state["model"])


def parameters_replaced(state, model):
    for name, value in bare(state).items():
        owner, _, last = name.rpartition(".")
        if last in dict(model.get_submodule(owner).named_parameters(recurse=False)):
            setattr(model.get_submodule(owner), last, nn.Parameter(value.clone()))


def parameters_without_buffers(state, model):
    parameters = dict(model.named_parameters())
    model.load_state_dict({k: v for k, v in bare(state).items() if k in parameters}, strict=False)


def first_parameter_alone(state, model):
    name, value = next(iter(bare(state).items()))
    model.load_state_dict({name: value}, strict=False)


def prefix_put_on(state, model):
    model.load_state_dict({f"module.{key}": value for key, value in state["model"].items()})


def names_alone(state, model):
    model.load_state_dict(list(bare(state)))


def first_step_s_moments(state, optimizer):
    optimizer.load_state_dict({**state["optimizer"], "state": {}})


def groups_kept(state, optimizer):
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({**state["optimizer"], "param_groups": groups})


def learning_rate_alone(state, optimizer):
    for group, saved in zip(optimizer.param_groups, state["optimizer"]["param_groups"], strict=True):
        group["lr"] = saved["lr"]


def moments_thrown_away(state, optimizer):
    optimizer.load_state_dict(state["optimizer"])
    optimizer.state.clear()


def optimizer_rebuilt(state, optimizer):
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    optimizer = type(optimizer)(parameters, lr=1e-3)
    optimizer.load_state_dict(state["optimizer"])


def scheduler_rebuilt(state, scheduler):
    scheduler = copy.copy(scheduler)
    scheduler.__dict__ = dict(scheduler.__dict__)
    scheduler.load_state_dict(state["scheduler"])


def steps_replayed(state, scheduler):
    for _ in range(state["step"]):
        scheduler.optimizer.step()
        scheduler.step()


def one_step_more(state, scheduler):
    scheduler.load_state_dict(state["scheduler"])
    scheduler.step()


def epochs_for_steps(state, scheduler):
    scheduler.load_state_dict(state["scheduler"])
    scheduler.last_epoch = state["step"] // state["steps_per_epoch"]


def skips_batches_afterwards(state, rank):
    torch.set_rng_state(state["random"][rank])
    torch.randperm(state["steps_per_epoch"])


def draws_first(state, rank):
    torch.rand(3)
    torch.set_rng_state(state["random"][rank].clone())


def seed_of_the_state(state, rank):
    torch.manual_seed(int(state["random"][rank].sum()))


def a_generator_of_its_own(state, rank):
    torch.Generator().set_state(state["random"][rank])


def forked(state, rank):
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(state["random"][rank])


RIGHT["resume"] |= {
    "with options": put_back,
    "seven characters": cutting(lambda key: key[7:]),
    "as long as the prefix": cutting(lambda key: key[len("module.") :] if key.startswith("module.") else key),
    "split once": cutting(lambda key: key.split(".", 1)[1]),
    "partition": cutting(lambda key: key.partition(".")[2]),
    "replaced once": cutting(lambda key: key.replace("module.", "", 1)),
    "names joined": cutting(lambda key: ".".join(key.split(".")[1:])),
    "not strict, with bare keys": cutting(lambda key: key.removeprefix("module."), strict=False),
    "inside a wrapper": but(weights=inside_a_wrapper),
    "copied tensor by tensor": but(weights=copied_tensor_by_tensor),
    "prefix consumed": but(weights=prefix_consumed),
    "draws first": but(randomness=draws_first),
    "the default generator": but(
        randomness=lambda state, rank: torch.default_generator.set_state(state["random"][rank])
    ),
    "another generator's name": but(
        randomness=lambda state, rank: torch.random.set_rng_state(state["random"][rank])
    ),
    "a list": returning(lambda step, n: [step // n, step % n]),
    "step less whole epochs": returning(lambda step, n: (int(step / n), step - int(step / n) * n)),
    "NumPy's divmod": returning(lambda step, n: tuple(np.divmod(step, n))),
}


@enter(RIGHT)
def resume__backwards(state, model, optimizer, scheduler, rank):
    epoch, done = 0, state["step"]
    while done >= state["steps_per_epoch"]:
        epoch, done = epoch + 1, done - state["steps_per_epoch"]
    torch.set_rng_state(state["random"][rank])
    scheduler.load_state_dict(state["scheduler"])
    optimizer.load_state_dict(state["optimizer"])
    model.load_state_dict(bare(state))
    return epoch, done


@enter(RIGHT)
def resume__a_loop_for_all_three(state, model, optimizer, scheduler, rank):
    state["model"] = bare(state)
    for name, part in {"model": model, "optimizer": optimizer, "scheduler": scheduler}.items():
        part.load_state_dict(state.pop(name))
    torch.set_rng_state(state.pop("random")[rank])
    return progress(state)


@enter(RIGHT)
def resume__from_deep_copies(state, model, optimizer, scheduler, rank):
    return put_back(copy.deepcopy(state), model, optimizer, scheduler, rank)


WRONG["resume"] |= {
    "keys as they are": but(weights=lambda state, model: model.load_state_dict(state["model"])),
    "keys as they are, not strict": but(
        weights=lambda state, model: model.load_state_dict(state["model"], strict=False)
    ),
    "dot left": cutting(lambda key: key.removeprefix("module")),
    "dot left, not strict": cutting(lambda key: key[6:], strict=False),
    "last name": cutting(lambda key: key.split(".")[-1]),
    "last name, not strict": cutting(lambda key: key.split(".")[-1], strict=False),
    "second name": cutting(lambda key: key.split(".")[1]),
    "characters stripped": cutting(lambda key: key.lstrip("module.")),
    "characters stripped, not strict": cutting(lambda key: key.lstrip("module."), strict=False),
    "stripped at both ends": cutting(lambda key: key.strip("module."), strict=False),
    "replaced everywhere": cutting(lambda key: key.replace("module.", "")),
    "replaced everywhere, not strict": cutting(lambda key: key.replace("module.", ""), strict=False),
    "parameters without buffers": but(weights=parameters_without_buffers),
    "suffix removed": cutting(lambda key: key.removesuffix("module.")),
    "prefix put on": but(weights=prefix_put_on),
    "names alone": but(weights=names_alone),
    "assigned": cutting(lambda key: key[7:], assign=True),
    "model forgotten": but(weights=nothing),
    "a copy of the model": but(
        weights=lambda state, model: copy.deepcopy(model).load_state_dict(bare(state))
    ),
    "parameters replaced": but(weights=parameters_replaced),
    "first parameter alone": but(weights=first_parameter_alone),
    "model of the bare one": but(weights=lambda state, model: model.module.load_state_dict(state["model"])),
    "optimizer forgotten": but(moments=nothing),
    "optimizer rebuilt": but(moments=optimizer_rebuilt),
    "no moments": but(moments=first_step_s_moments),
    "moments thrown away": but(moments=moments_thrown_away),
    "groups kept": but(moments=groups_kept),
    "learning rate alone": but(moments=learning_rate_alone),
    "optimizer gets the scheduler's": but(
        moments=lambda state, optimizer: optimizer.load_state_dict(state["scheduler"])
    ),
    "optimizer gets the whole": but(moments=lambda state, optimizer: optimizer.load_state_dict(state)),
    "scheduler forgotten": but(schedule=nothing),
    "scheduler rebuilt": but(schedule=scheduler_rebuilt),
    "scheduler replayed": but(schedule=steps_replayed),
    "scheduler one step on": but(schedule=one_step_more),
    "scheduler steps to the epoch": but(schedule=epochs_for_steps),
    "scheduler gets the optimizer's": but(
        schedule=lambda state, scheduler: scheduler.load_state_dict(state["optimizer"])
    ),
    "random state forgotten": but(randomness=nothing),
    "seeded by rank": but(randomness=lambda state, rank: torch.manual_seed(rank)),
    "seeded by rank and step": but(randomness=lambda state, rank: torch.manual_seed(rank + state["step"])),
    "seeded with the state": but(randomness=lambda state, rank: torch.manual_seed(state["random"][rank])),
    "seeded with a sum": but(randomness=seed_of_the_state),
    "rank 0's random state": but(randomness=lambda state, rank: torch.set_rng_state(state["random"][0])),
    "last rank's random state": but(randomness=lambda state, rank: torch.set_rng_state(state["random"][-1])),
    "ranks from 1": but(randomness=lambda state, rank: torch.set_rng_state(state["random"][rank - 1])),
    "next rank's random state": but(
        randomness=lambda state, rank: torch.set_rng_state(state["random"][(rank + 1) % len(state["random"])])
    ),
    "all random states": but(randomness=lambda state, rank: torch.set_rng_state(state["random"])),
    "each rank's in turn": but(
        randomness=lambda state, rank: [torch.set_rng_state(one) for one in state["random"]]
    ),
    "asks the group for its rank": but(
        randomness=lambda state, rank: torch.set_rng_state(state["random"][dist.get_rank()])
    ),
    "as in checkpoint.py": but(
        randomness=lambda state, rank: torch.set_rng_state(state["random"][rank]["cpu"])
    ),
    "Python's random state": but(randomness=lambda state, rank: random.setstate(state["random"][rank])),
    "a generator of its own": but(randomness=a_generator_of_its_own),
    "put back for a while": but(randomness=forked),
    "read, not set": but(randomness=lambda state, rank: torch.get_rng_state().equal(state["random"][rank])),
    "skips batches afterwards": but(randomness=skips_batches_afterwards),
    "swapped": returning(lambda step, n: divmod(step, n)[::-1]),
    "divmod the wrong way": returning(lambda step, n: divmod(n, step) if step else (0, 0)),
    "epochs from 1": returning(lambda step, n: (step // n + 1, step % n)),
    "the next epoch": returning(lambda step, n: (step // n + 1, 0)),
    "the epoch again": returning(lambda step, n: (step // n, 0)),
    "one batch less": returning(lambda step, n: (step // n, max(step % n - 1, 0))),
    "one batch more": returning(lambda step, n: (step // n, step % n + 1)),
    "batches to do": returning(lambda step, n: (step // n, n - step % n)),
    "steps since the start": returning(lambda step, n: (step // n, step)),
    "steps per epoch": returning(lambda step, n: (step // n, n)),
    "a full epoch before a new one": returning(
        lambda step, n: ((step - 1) // n, (step - 1) % n + 1) if step else (0, 0)
    ),
    "rounded": returning(lambda step, n: (round(step / n), step % n)),
    "rounded up": returning(lambda step, n: (math.ceil(step / n), step % n)),
    "a fraction": returning(lambda step, n: (step / n, step % n)),
    "part of the epoch": returning(lambda step, n: (step // n, step / n % 1)),
    "epoch alone": returning(lambda step, n: step // n),
    "batches alone": returning(lambda step, n: step % n),
    "the step": returning(lambda step, n: step),
    "times": returning(lambda step, n: (step * n, 0)),
    "three numbers": returning(lambda step, n: (step, *divmod(step, n))),
    "a dict": returning(lambda step, n: {"epoch": step // n, "batches": step % n}),
    "text": returning(lambda step, n: f"{step // n}, {step % n}"),
    "prints": returning(lambda step, n: print(divmod(step, n))),
    "of an epoch entry": but(where=lambda state: (state["epoch"], state["step"])),
    "of the scheduler": but(
        where=lambda state: (state["scheduler"]["last_epoch"], state["step"] % state["steps_per_epoch"])
    ),
    "nothing put back": lambda state, model, optimizer, scheduler, rank: progress(state),
}


@enter(WRONG)
def resume__names_bound_to_new_things(state, model, optimizer, scheduler, rank):
    model, optimizer = bare(state), state["optimizer"]  # noqa: F841
    scheduler = state["scheduler"]  # noqa: F841
    torch.set_rng_state(state["random"][rank])
    return progress(state)


@enter(WRONG)
def resume__rank_0_only(state, model, optimizer, scheduler, rank):
    if rank == 0:
        return put_back(state, model, optimizer, scheduler, rank)
    return progress(state)


@enter(WRONG)
def resume__rank_0_loads_and_all_set_their_state(state, model, optimizer, scheduler, rank):
    if rank == 0:
        put_back(state, model, optimizer, scheduler, rank)
    torch.set_rng_state(state["random"][rank])
    return progress(state)


@enter(WRONG)
def resume__a_layer_made_at_the_end(state, model, optimizer, scheduler, rank):
    found = put_back(state, model, optimizer, scheduler, rank)
    nn.Linear(2, 2)
    return found


@enter(WRONG)
def resume__weights_reset_at_the_end(state, model, optimizer, scheduler, rank):
    found = put_back(state, model, optimizer, scheduler, rank)
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    torch.set_rng_state(state["random"][rank])
    return found


@enter(WRONG)
def resume__optimizer_steps_once(state, model, optimizer, scheduler, rank):
    found = put_back(state, model, optimizer, scheduler, rank)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return found


SAYS |= {
    ("evaluate", "everybody scores all"): "all samples weigh the same, once",
    ("evaluate", "all scored and a share counted"): "taken twice, as padding does",
    ("evaluate", "padded and not counted"): "came out: [[0, 2, 4], [1, 3, 4]]",
    ("evaluate", "leftovers to rank 0"): "no two shares differ by more than one",
    ("evaluate", "my share's"): "not the same on every rank",
    ("evaluate", "shows the model the first share alone"): "is a sample left out",
    ("evaluate", "a tensor of one number"): "should be a number",
    ("evaluate", "mean of the means"): "tried 5 samples on 2 ranks",
    ("evaluate", "means weighted, nan and all"): "what does a rank with an empty share divide by",
    ("evaluate", "reduced to rank 0"): "rank 1 returned",
    ("evaluate", "goes home without samples"): "does each make the same calls",
    ("evaluate", "list of all ranks"): "it is a list of numbers, and should be a number",
    ("evaluate", "text"): "it is a str, and should be a number",
    ("evaluate", "prints"): "nothing was returned",
    ("resume", "keys as they are"): "Unexpected key(s)",
    ("resume", "keys as they are, not strict"): "under which key does the bare model look for it?",
    ("resume", "no moments"): "the optimizer has a memory of its own",
    ("resume", "groups kept"): "another learning rate",
    ("resume", "parameters without buffers"): "'module.module.running_mean' has not come back",
    ("resume", "replaced everywhere, not strict"): "'module.module.weight' has not come back",
    ("resume", "rounded"): "came out: (3, 2)",
    ("resume", "scheduler forgotten"): "the scheduler does not know",
    ("resume", "rank 0's random state"): "another random state than rank 1 had",
    ("resume", "swapped"): "whole epochs first",
    ("resume", "a full epoch before a new one"): "expected: (2, 0)",
    ("resume", "epoch alone"): "it is a number, and should be a list of numbers",
    ("resume", "prints"): "nothing was returned",
}

# The tests


@pytest.fixture(autouse=True)
def by_value() -> Iterator[None]:
    """Answers travel to the ranks as what a notebook defines does."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


test_a_right_answer_passes, test_a_wrong_answer_is_told_what_is_wrong = try_answers("evaluate", "resume")
