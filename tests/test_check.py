"""The checks of the exercises, tried on answers as learners give them: wrong ones, right ones, and stubs."""

# ruff: noqa: ANN001, ANN201, ANN202 (learners do not annotate)
from __future__ import annotations

import importlib
import itertools
import math
import random
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import nbformat
import numpy as np
import pytest
import torch
import torch.distributed as dist

from helpers import _exercise, check, device, launch
from helpers._notebooks import has_tag

Answer = Callable[..., Any]

WRONG: dict[str, dict[str, Answer]] = defaultdict(dict)
RIGHT: dict[str, dict[str, Answer]] = defaultdict(dict)


def enter(table: dict[str, dict[str, Answer]]) -> Callable[[Answer], Answer]:
    """A decorator for an answer, named `topic__what_is_special_about_it`."""

    def add(fn: Answer) -> Answer:
        topic, _, name = fn.__name__.partition("__")
        table[topic][name.replace("_", " ")] = fn
        return fn

    return add


# my_share(rank, world_size, items)

RIGHT["my_share"] |= {
    "a tuple": lambda rank, n, items: tuple(items[rank::n]),
    "backwards": lambda rank, n, items: items[::-1][rank::n],
    "consecutive": lambda rank, n, items: items[len(items) * rank // n : len(items) * (rank + 1) // n],
    "NumPy's array_split": lambda rank, n, items: np.array_split(items, n)[rank].tolist(),
    "a comprehension": lambda rank, n, items: [item for i, item in enumerate(items) if i % n == rank],
}
WRONG["my_share"] |= {
    "hard-coded to two ranks": lambda rank, n, items: items[rank::2],
    "starts one too late": lambda rank, n, items: items[rank + 1 :: n],
    "counts ranks from 1": lambda rank, n, items: items[rank - 1 :: n],
    "start and step swapped": lambda rank, n, items: items[n::rank],
    "indices, not items": lambda rank, n, items: list(range(rank, len(items), n)),
    "how many": lambda rank, n, items: len(items[rank::n]),
    "one item": lambda rank, n, items: items[rank],
    "one item in a list": lambda rank, n, items: items[rank : rank + 1],
    "everything": lambda rank, n, items: items,
    "nothing": lambda rank, n, items: [],
    "all parts": lambda rank, n, items: [items[r::n] for r in range(n)],
    "prints": lambda rank, n, items: print(items[rank::n]),
    "by value": lambda rank, n, items: [item for item in items if item % n == rank],
    "by first place of an equal item": lambda rank, n, items: [
        x for x in items if items.index(x) % n == rank
    ],
    "a set": lambda rank, n, items: set(items[rank::n]),
    "each rank shuffles": lambda rank, n, items: random.sample(items, len(items))[rank::n],
    "asks the group": lambda rank, n, items: items[dist.get_rank() :: dist.get_world_size()],
}


@enter(RIGHT)
def my_share__first_ranks_take_one_more(rank, world_size, items):
    each, left = divmod(len(items), world_size)
    start = rank * each + min(rank, left)
    return items[start : start + each + (rank < left)]


@enter(RIGHT)
def my_share__empties_its_own_copy(rank, world_size, items):
    mine = []
    for index in range(len(items)):
        item = items.pop(0)
        if index % world_size == rank:
            mine.append(item)
    return mine


@enter(WRONG)
def my_share__drops_what_is_left_over(rank, world_size, items):
    each = len(items) // world_size
    return items[rank * each : (rank + 1) * each]


@enter(WRONG)
def my_share__one_at_least(rank, world_size, items):
    each = max(1, len(items) // world_size)
    return items[rank * each : (rank + 1) * each]


@enter(WRONG)
def my_share__rounds_up(rank, world_size, items):
    each = math.ceil(len(items) / world_size)
    return items[rank * each : (rank + 1) * each]


@enter(WRONG)
def my_share__all_that_is_left_over_to_the_last(rank, world_size, items):
    each = len(items) // world_size
    return items[rank * each :] if rank == world_size - 1 else items[rank * each : (rank + 1) * each]


@enter(WRONG)
def my_share__parts_overlap_by_one(rank, world_size, items):
    start, end = len(items) * rank // world_size, len(items) * (rank + 1) // world_size
    return items[start : end + 1]


@enter(WRONG)
def my_share__takes_from_a_list_thought_to_be_shared(rank, world_size, items):
    each = math.ceil(len(items) / (world_size - rank))
    mine = items[:each]
    del items[:each]
    return mine


# prediction()

RIGHT["prediction"] |= {
    "a list of two": lambda: [[[0], [1]], []],
    "computed": lambda: ([[rank] for rank in range(2)], []),
}
WRONG["prediction"] |= {
    "a rank lives on": lambda: ([[0, 0], [1, 1]], []),
    "ranks share": lambda: ([[0, 1], [0, 1]], []),
    "ranks share, one after the other": lambda: ([[0], [0, 1]], []),
    "all shared": lambda: ([[0, 1, 0, 1], [0, 1, 0, 1]], [0, 1, 0, 1]),
    "the notebook sees both": lambda: ([[0], [1]], [0, 1, 0, 1]),
    "the notebook sees the last": lambda: ([[0], [1]], [0, 1]),
    "launches add up": lambda: ([[0], [1], [0], [1]], []),
    "one list of numbers": lambda: ([0, 1], []),
    "one rank": lambda: ([[0]], []),
    "ranks from 1": lambda: ([[1], [2]], []),
    "wrong order": lambda: ([[1], [0]], []),
    "swapped": lambda: ([], [[0], [1]]),
    "the first alone": lambda: [[0], [1]],
    "the first launch too": lambda: ([[0], [1]], [[0], [1]], []),
    "nothing seen": lambda: ([[0], [1]], None),
    "a list in a list": lambda: ([[0], [1]], [[]]),
    "text": lambda: ("[[0], [1]]", "[]"),
    "dots left": lambda: (..., ...),
    "prints": lambda: print([[0], [1]], []),
    "append returns nothing": lambda: ([None, None], []),
}


@enter(RIGHT)
def prediction__tried_out():
    seen = []

    def look(rank):
        seen.append(rank)
        return seen

    launch(look, nprocs=2)
    return launch(look, nprocs=2), seen


# ring_all_gather(mine)


def pass_on(outgoing, incoming):
    """As lesson 03 has it."""
    rank, n = dist.get_rank(), dist.get_world_size()
    send = dist.P2POp(dist.isend, outgoing, (rank + 1) % n)
    receive = dist.P2POp(dist.irecv, incoming, (rank - 1) % n)
    for work in dist.batch_isend_irecv([send, receive]):
        work.wait()


def stub_parts(mine):
    """What the stub has in place."""
    rank, n = dist.get_rank(), dist.get_world_size()
    parts = [torch.empty_like(mine) for _ in range(n)]
    parts[rank].copy_(mine)
    return rank, n, parts


def around(goes_out: Callable[[int, int], int], comes_in: Callable[[int, int], int], steps: Answer) -> Answer:
    """An answer that passes on part `goes_out(rank, step)` and fills `comes_in(rank, step)`, modulo n."""

    def gather(mine):
        rank, n, parts = stub_parts(mine)
        for step in range(steps(rank, n)):
            pass_on(parts[goes_out(rank, step) % n], parts[comes_in(rank, step) % n])
        return parts

    return gather


ring = around(lambda rank, step: rank - step, lambda rank, step: rank - step - 1, lambda rank, n: n - 1)

WRONG["ring_all_gather"] |= {
    "wrong direction": around(lambda rank, s: rank + s, lambda rank, s: rank + s + 1, lambda rank, n: n - 1),
    "indices of ring all-reduce": around(
        lambda rank, s: rank + 1 - s, lambda rank, s: rank - s, lambda _, n: n - 1
    ),
    "one step": around(lambda rank, s: rank, lambda rank, s: rank - 1, lambda rank, n: 1),
    "one step short": around(lambda rank, s: rank - s, lambda rank, s: rank - s - 1, lambda rank, n: n - 2),
    "no step": around(lambda rank, s: rank - s, lambda rank, s: rank - s - 1, lambda rank, n: 0),
    "sends only its own": around(lambda rank, s: rank, lambda rank, s: rank - s - 1, lambda rank, n: n - 1),
    "as many steps as its rank": around(
        lambda rank, s: rank - s, lambda rank, s: rank - s - 1, lambda rank, n: rank
    ),
    "rank 0 does not start": around(
        lambda rank, s: rank - s, lambda rank, s: rank - s - 1, lambda rank, n: n - 1 if rank else 0
    ),
    "on rank 0 only": lambda mine: parts if (parts := ring(mine)) and dist.get_rank() == 0 else None,
    "prints": lambda mine: print(ring(mine)),
    "its own": lambda mine: ring(mine)[dist.get_rank()],
    "one long tensor": lambda mine: torch.cat(ring(mine)),
    "stacked": lambda mine: torch.stack(ring(mine)),
    "numbers": lambda mine: [part.tolist() for part in ring(mine)],
    "flattened": lambda mine: ring(mine.flatten()),
    "transposed": lambda mine: [part.reshape(mine.shape[::-1]) for part in ring(mine)],
    "the first number of each": lambda mine: ring(mine.flatten()[:1]),
    "numbered": lambda mine: list(enumerate(ring(mine))),
    "a dict": lambda mine: dict(enumerate(ring(mine))),
    "all in all, twice": lambda mine: ring(mine) + ring(mine),
    "reversed": lambda mine: ring(mine)[::-1],
}


@enter(RIGHT)
def ring_all_gather__negative_indices(mine):
    rank, n, parts = stub_parts(mine)
    for step in range(n - 1):
        pass_on(parts[rank - step], parts[rank - step - 1])
    return parts


@enter(RIGHT)
def ring_all_gather__a_new_tensor_each_step(mine):
    rank, n = dist.get_rank(), dist.get_world_size()
    parts = {rank: mine}
    for step in range(1, n):
        parts[(rank - step) % n] = torch.empty_like(mine)
        pass_on(parts[(rank - step + 1) % n], parts[(rank - step) % n])
    return [parts[r] for r in range(n)]


@enter(RIGHT)
def ring_all_gather__as_they_come_then_sorted(mine):
    rank, n = dist.get_rank(), dist.get_world_size()
    came = [mine]
    while len(came) < n:
        came.append(torch.empty_like(mine))
        pass_on(came[-2], came[-1])
    return [came[(rank - r) % n] for r in range(n)]


@enter(RIGHT)
def ring_all_gather__rows_of_one_tensor(mine):
    rank, n = dist.get_rank(), dist.get_world_size()
    whole = mine.new_zeros(n, *mine.shape)
    whole[rank] = mine
    for step in range(n - 1):
        pass_on(whole[(rank - step) % n], whole[(rank - step - 1) % n])
    return list(whole)


@enter(RIGHT)
def ring_all_gather__writes_over_mine(mine):
    rank, n, parts = stub_parts(mine)
    arriving = torch.empty_like(mine)
    for step in range(1, n):
        pass_on(mine, arriving)
        mine.copy_(arriving)
        parts[(rank - step) % n] = mine.clone()
    return parts


@enter(WRONG)
def ring_all_gather__all_gather(mine):
    _, _, parts = stub_parts(mine)
    dist.all_gather(parts, mine)
    return parts


@enter(WRONG)
def ring_all_gather__all_gather_object(mine):
    _, _, parts = stub_parts(mine)
    dist.all_gather_object(parts, mine)
    return parts


@enter(WRONG)
def ring_all_gather__all_gather_into_tensor(mine):
    whole = mine.new_zeros(dist.get_world_size(), *mine.shape)
    dist.all_gather_into_tensor(whole, mine)
    return list(whole)


@enter(WRONG)
def ring_all_gather__a_broadcast_from_each(mine):
    _, n, parts = stub_parts(mine)
    for r in range(n):
        dist.broadcast(parts[r], src=r)
    return parts


@enter(WRONG)
def ring_all_gather__a_sum_with_zeros(mine):
    rank, n = dist.get_rank(), dist.get_world_size()
    parts = [mine if r == rank else torch.zeros_like(mine) for r in range(n)]
    for part in parts:
        dist.all_reduce(part)
    return parts


@enter(WRONG)
def ring_all_gather__two_ranks_only(mine):
    other = torch.empty_like(mine)
    pass_on(mine, other)
    return [mine, other] if dist.get_rank() == 0 else [other, mine]


@enter(WRONG)
def ring_all_gather__in_order_of_arrival(mine):
    parts = [mine]
    for _ in range(dist.get_world_size() - 1):
        parts.append(torch.empty_like(mine))
        pass_on(parts[-2], parts[-1])
    return parts


@enter(WRONG)
def ring_all_gather__own_part_forgotten(mine):
    rank, n = dist.get_rank(), dist.get_world_size()
    parts = [torch.zeros_like(mine) for _ in range(n)]
    for step in range(n - 1):
        pass_on(mine if step == 0 else parts[(rank - step) % n], parts[(rank - step - 1) % n])
    return parts


@enter(WRONG)
def ring_all_gather__one_tensor_n_times(mine):
    rank, n = dist.get_rank(), dist.get_world_size()
    parts = [torch.empty_like(mine)] * n
    parts[rank].copy_(mine)
    for step in range(n - 1):
        pass_on(parts[(rank - step) % n].clone(), parts[(rank - step - 1) % n])
    return parts


@enter(WRONG)
def ring_all_gather__one_buffer_for_all_that_comes(mine):
    rank, n, parts = stub_parts(mine)
    outgoing, arriving = mine, torch.empty_like(mine)
    for step in range(1, n):
        pass_on(outgoing, arriving)
        parts[(rank - step) % n] = arriving
        outgoing = arriving.clone()
    return parts


@enter(WRONG)
def ring_all_gather__adds(mine):
    rank, n, parts = stub_parts(mine)
    for part in parts:
        part.copy_(mine)
    for step in range(n - 1):
        arriving = torch.empty_like(mine)
        pass_on(parts[(rank - step) % n], arriving)
        parts[(rank - step - 1) % n].add_(arriving)
    return parts


@enter(WRONG)
def ring_all_gather__index_out_of_range(mine):
    rank, n, parts = stub_parts(mine)
    for step in range(n - 1):
        pass_on(parts[rank + step], parts[rank + step + 1])
    return parts


# ring_seconds(n, size, latency, bandwidth)

NOTEBOOK_LATENCY, NOTEBOOK_BANDWIDTH = 1e-4, 1e9

RIGHT["ring_seconds"] |= {
    "two sums": lambda n, size, lat, bw: 2 * (n - 1) * lat + 2 * (n - 1) / n * size / bw,
    "bytes first": lambda n, size, lat, bw: (size * 2 * (n - 1)) / (n * bw) + lat * (2 * n - 2),
    "step by step": lambda n, size, lat, bw: sum(lat + (size / n) / bw for _ in range(2 * (n - 1))),
    "a NumPy number": lambda n, size, lat, bw: np.float64(2 * n - 2) * (lat + size / (n * bw)),
}
WRONG["ring_seconds"] |= {
    "half the steps": lambda n, size, lat, bw: (n - 1) * (lat + size / n / bw),
    "n steps": lambda n, size, lat, bw: n * (lat + size / n / bw),
    "2 n steps": lambda n, size, lat, bw: 2 * n * (lat + size / n / bw),
    "one step less": lambda n, size, lat, bw: (2 * n - 3) * (lat + size / n / bw),
    "brackets forgotten": lambda n, size, lat, bw: 2 * (n - 1) * lat + size / n / bw,
    "precedence of n - 1": lambda n, size, lat, bw: 2 * n - 1 * (lat + size / n / bw),
    "one step": lambda n, size, lat, bw: lat + size / n / bw,
    "whole tensors": lambda n, size, lat, bw: 2 * (n - 1) * (lat + size / bw),
    "chunks of n - 1": lambda n, size, lat, bw: 2 * (n - 1) * (lat + size / (n - 1) / bw),
    "n times the bytes": lambda n, size, lat, bw: 2 * (n - 1) * (lat + size * n / bw),
    "latency once": lambda n, size, lat, bw: lat + 2 * (n - 1) / n * size / bw,
    "latency in one half": lambda n, size, lat, bw: (n - 1) * (lat + 2 * size / n / bw),
    "bytes in one half": lambda n, size, lat, bw: (n - 1) * (2 * lat + size / n / bw),
    "no latency": lambda n, size, lat, bw: 2 * (n - 1) / n * size / bw,
    "latency alone": lambda n, size, lat, bw: 2 * (n - 1) * lat,
    "latency divided too": lambda n, size, lat, bw: 2 * (n - 1) / n * (lat + size / bw) / n,
    "latency and bandwidth swapped": lambda n, size, lat, bw: 2 * (n - 1) * (bw + size / n / lat),
    "times bandwidth": lambda n, size, lat, bw: 2 * (n - 1) * (lat + size / n * bw),
    "bandwidth per byte upside down": lambda n, size, lat, bw: 2 * (n - 1) * (lat + bw / (size / n)),
    "hard-coded to two ranks": lambda n, size, lat, bw: 2 * (lat + size / 2 / bw),
    "all ranks in turn": lambda n, size, lat, bw: n * 2 * (n - 1) * (lat + size / n / bw),
    "a tree": lambda n, size, lat, bw: 2 * math.log2(n) * (lat + size / bw),
    "whole numbers": lambda n, size, lat, bw: 2 * (n - 1) * (lat + size // n // bw),
    "rounded": lambda n, size, lat, bw: round(2 * (n - 1) * (lat + size / n / bw), 2),
    "milliseconds": lambda n, size, lat, bw: 2000 * (n - 1) * (lat + size / n / bw),
    "bits": lambda n, size, lat, bw: 2 * (n - 1) * (lat + 8 * size / n / bw),
    "the two parts": lambda n, size, lat, bw: (2 * (n - 1) * lat, 2 * (n - 1) * size / n / bw),
    "text": lambda n, size, lat, bw: f"{2 * (n - 1) * (lat + size / n / bw)} s",
    "prints": lambda n, size, lat, bw: print(2 * (n - 1) * (lat + size / n / bw)),
    "the notebook's figures": lambda n, size, lat, bw: (
        2 * (n - 1) * (NOTEBOOK_LATENCY + size / n / NOTEBOOK_BANDWIDTH)
    ),
}

# average_uneven(gradients, samples)


def sum_of(samples):
    total = torch.tensor(float(samples), device=device(dist.get_rank()))
    dist.all_reduce(total)
    return total.item()


def with_each(change: Answer) -> Answer:
    """An answer that calls `change(gradient, samples, total, n)` for each gradient."""

    def average(gradients, samples):
        total = sum_of(samples)
        for gradient in gradients:
            change(gradient, samples, total, dist.get_world_size())

    return average


WRONG["average_uneven"] |= {
    "plain average": with_each(lambda g, mine, total, n: dist.all_reduce(g.div_(n))),
    "sum": with_each(lambda g, mine, total, n: dist.all_reduce(g)),
    "not divided": with_each(lambda g, mine, total, n: dist.all_reduce(g.mul_(mine))),
    "divided by the ranks": with_each(lambda g, mine, total, n: dist.all_reduce(g.mul_(mine / n))),
    "divided by both": with_each(lambda g, mine, total, n: dist.all_reduce(g.mul_(mine / total / n))),
    "weight upside down": with_each(lambda g, mine, total, n: dist.all_reduce(g.mul_(total / max(mine, 1)))),
    "divides by samples": with_each(lambda g, mine, total, n: dist.all_reduce(g.div_(total / mine))),
    "the others' weight": with_each(lambda g, mine, total, n: dist.all_reduce(g.mul_(1 - mine / total))),
    "total of n like me": with_each(lambda g, mine, total, n: dist.all_reduce(g.mul_(mine / (mine * n)))),
    "total of the text": with_each(lambda g, mine, total, n: dist.all_reduce(g.mul_(mine / 8))),
    "total is mine": with_each(lambda g, mine, total, n: dist.all_reduce(g.mul_(mine / mine))),
    "whole numbers": with_each(lambda g, mine, total, n: dist.all_reduce(g.mul_(mine // total))),
    "weighted only": with_each(lambda g, mine, total, n: g.mul_(mine / total)),
    "weighted afterwards": with_each(lambda g, mine, total, n: (dist.all_reduce(g), g.mul_(mine / total))),
    "on rank 0 only": with_each(lambda g, mine, total, n: dist.reduce(g.mul_(mine / total), dst=0)),
    "rank 0's for all": with_each(lambda g, mine, total, n: dist.broadcast(g, src=0)),
    "product in a new tensor": with_each(lambda g, mine, total, n: dist.all_reduce(g * mine / total)),
    "product thrown away": with_each(lambda g, mine, total, n: (g.mul(mine / total), dist.all_reduce(g))),
    "averages by ranks": with_each(
        lambda g, mine, total, n: dist.all_reduce(g.mul_(mine), op=dist.ReduceOp.AVG)
    ),
    "prints": lambda gradients, samples: print(gradients, samples),
}


@enter(RIGHT)
def average_uneven__divided_afterwards(gradients, samples):
    total = torch.tensor([samples], device=gradients[0].device)
    dist.all_reduce(total)
    for gradient in gradients:
        gradient.mul_(samples)
        dist.all_reduce(gradient)
        gradient.div_(total.item())


@enter(RIGHT)
def average_uneven__all_in_one(gradients, samples):
    one = gradients[0].new_ones(1)
    flat = torch.cat([gradient.flatten() for gradient in gradients] + [one]) * samples
    dist.all_reduce(flat)
    parts = (flat[:-1] / flat[-1]).split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


@enter(RIGHT)
def average_uneven__counts_gathered_and_the_list_returned(gradients, samples):
    counts = [None] * dist.get_world_size()
    dist.all_gather_object(counts, samples)
    for gradient in gradients:
        gradient[...] = gradient * (samples / sum(counts))
        dist.all_reduce(gradient)
    return gradients


@enter(RIGHT)
def average_uneven__without_waiting(gradients, samples):
    share = samples / sum_of(samples)
    sending = [dist.all_reduce(gradient.mul_(share), async_op=True) for gradient in gradients]
    for work in sending:
        work.wait()


@enter(RIGHT)
def average_uneven__scaled_for_a_plain_average(gradients, samples):
    n, total = dist.get_world_size(), sum_of(samples)
    for gradient in gradients:
        gradient *= samples * n / total
        dist.all_reduce(gradient)
        gradient /= n


@enter(RIGHT)
def average_uneven__empties_its_list(gradients, samples):
    total = sum_of(samples)
    while gradients:
        dist.all_reduce(gradients.pop().mul_(samples / total))


@enter(WRONG)
def average_uneven__largest_for_total(gradients, samples):
    total = torch.tensor(float(samples))
    dist.all_reduce(total, op=dist.ReduceOp.MAX)
    for gradient in gradients:
        gradient *= samples / total
        dist.all_reduce(gradient)


@enter(WRONG)
def average_uneven__total_reduced_in_the_loop(gradients, samples):
    total = torch.tensor(float(samples))
    for gradient in gradients:
        dist.all_reduce(total)
        gradient *= samples / total
        dist.all_reduce(gradient)


@enter(WRONG)
def average_uneven__total_of_an_int(gradients, samples):
    total = dist.all_reduce(samples)
    for gradient in gradients:
        gradient *= samples / total
        dist.all_reduce(gradient)


@enter(WRONG)
def average_uneven__total_is_what_all_reduce_returns(gradients, samples):
    total = dist.all_reduce(torch.tensor(float(samples)))
    for gradient in gradients:
        gradient *= samples / total
        dist.all_reduce(gradient)


@enter(WRONG)
def average_uneven__first_gradient_only(gradients, samples):
    gradients[0] *= samples / sum_of(samples)
    dist.all_reduce(gradients[0])


@enter(WRONG)
def average_uneven__leaves_the_loop_early(gradients, samples):
    total = sum_of(samples)
    for gradient in gradients:
        gradient *= samples / total
        dist.all_reduce(gradient)
        return gradients


@enter(WRONG)
def average_uneven__returned_not_in_place(gradients, samples):
    total = sum_of(samples)
    averaged = [gradient * samples / total for gradient in gradients]
    for gradient in averaged:
        dist.all_reduce(gradient)
    return averaged


@enter(WRONG)
def average_uneven__new_tensors_in_the_list(gradients, samples):
    total = sum_of(samples)
    for index, gradient in enumerate(gradients):
        gradients[index] = gradient * samples / total
        dist.all_reduce(gradients[index])


@enter(WRONG)
def average_uneven__goes_home_without_samples(gradients, samples):
    if samples == 0:
        return
    total = sum_of(samples)
    for gradient in gradients:
        gradient *= samples / total
        dist.all_reduce(gradient)


@enter(WRONG)
def average_uneven__goes_home_after_the_total(gradients, samples):
    total = sum_of(samples)
    if samples:
        for gradient in gradients:
            gradient *= samples / total
            dist.all_reduce(gradient)


@enter(WRONG)
def average_uneven__no_total_without_samples(gradients, samples):
    share = samples / sum_of(samples) if samples else 0
    for gradient in gradients:
        gradient *= share
        dist.all_reduce(gradient)


# fill_buckets(sizes, cap)


def cut(new_bucket: Callable[[int, int, int], bool]) -> Answer:
    """An answer that opens a bucket where `new_bucket(bytes in it, bytes of the next, cap)`."""

    def fill(sizes, cap):
        buckets = [[]]
        for index in reversed(range(len(sizes))):
            if buckets[-1] and new_bucket(sum(sizes[i] for i in buckets[-1]), sizes[index], cap):
                buckets.append([])
            buckets[-1].append(index)
        return buckets

    return fill


filled = cut(lambda held, coming, cap: held >= cap)


def from_the_first(sizes, cap):
    return [[len(sizes) - 1 - index for index in bucket] for bucket in filled(sizes[::-1], cap)]


RIGHT["fill_buckets"] |= {
    "sums anew": filled,
    "a tuple": lambda sizes, cap: tuple(filled(sizes, cap)),
    "tuples in a list": lambda sizes, cap: [tuple(bucket) for bucket in filled(sizes, cap)],
    "ascending inside a bucket": lambda sizes, cap: [sorted(bucket) for bucket in filled(sizes, cap)],
    "NumPy's integers": lambda sizes, cap: [list(np.array(bucket)) for bucket in filled(sizes, cap)],
}
WRONG["fill_buckets"] |= {
    "from the first": from_the_first,
    "from the first, then turned": lambda sizes, cap: from_the_first(sizes, cap)[::-1],
    "last sent first": lambda sizes, cap: filled(sizes, cap)[::-1],
    "never more than cap": cut(lambda held, coming, cap: held + coming > cap),
    "always less than cap": cut(lambda held, coming, cap: held + coming >= cap),
    "more than cap": cut(lambda held, coming, cap: held > cap),
    "large ones open a bucket": cut(lambda held, coming, cap: held >= cap or coming >= cap),
    "cap of DDP": lambda sizes, cap: filled(sizes, 25 * 2**20),
    "the first layer forgotten": lambda sizes, cap: [[i for i in b if i > 0] for b in filled(sizes, cap)],
    "counts from the end": lambda sizes, cap: [[len(sizes) - 1 - i for i in b] for b in filled(sizes, cap)],
    "counts from 1": lambda sizes, cap: [[i + 1 for i in b] for b in filled(sizes, cap)],
    "sizes, not indices": lambda sizes, cap: [[sizes[i] for i in b] for b in filled(sizes, cap)],
    "index of an equal size": lambda sizes, cap: [
        [sizes.index(sizes[i]) for i in b] for b in filled(sizes, cap)
    ],
    "index and size": lambda sizes, cap: [[(i, sizes[i]) for i in b] for b in filled(sizes, cap)],
    "bytes of each bucket": lambda sizes, cap: [sum(sizes[i] for i in b) for b in filled(sizes, cap)],
    "how many buckets": lambda sizes, cap: len(filled(sizes, cap)),
    "one list of indices": lambda sizes, cap: [i for b in filled(sizes, cap) for i in b],
    "one bucket": lambda sizes, cap: [list(reversed(range(len(sizes))))],
    "a bucket for each": lambda sizes, cap: [[i] for i in reversed(range(len(sizes)))],
    "one sent again in the next": lambda sizes, cap: [
        b if k == 0 else [b[0] + 1, *b] for k, b in enumerate(filled(sizes, cap))
    ],
    "an empty one at the start": lambda sizes, cap: [[], *filled(sizes, cap)],
    "text": lambda sizes, cap: str(filled(sizes, cap)),
    "prints": lambda sizes, cap: print(filled(sizes, cap)),
    "index out of range": lambda sizes, cap: [[i] for i in range(len(sizes), 0, -1) if sizes[i] < cap],
    "sizes of the notebook": lambda sizes, cap: filled([4 * 256 * 256, 4 * 256] * 13, cap),
}


@enter(RIGHT)
def fill_buckets__closed_when_full(sizes, cap):
    buckets, bucket, held = [], [], 0
    for index in range(len(sizes) - 1, -1, -1):
        bucket.append(index)
        held += sizes[index]
        if held >= cap:
            buckets.append(bucket)
            bucket, held = [], 0
    return [*buckets, bucket] if bucket else buckets


@enter(RIGHT)
def fill_buckets__pops_from_sizes(sizes, cap):
    buckets = []
    while sizes:
        bucket, held = [], 0
        while sizes and held < cap:
            held += sizes.pop()
            bucket.append(len(sizes))
        buckets.append(bucket)
    return buckets


@enter(WRONG)
def fill_buckets__never_emptied(sizes, cap):
    buckets, held = [[]], 0
    for index in reversed(range(len(sizes))):
        if held >= cap:
            buckets.append([])
        buckets[-1].append(index)
        held += sizes[index]
    return buckets


@enter(WRONG)
def fill_buckets__first_of_a_bucket_not_counted(sizes, cap):
    buckets, held = [[]], 0
    for index in reversed(range(len(sizes))):
        if held >= cap:
            buckets.append([index])
            held = 0
        else:
            buckets[-1].append(index)
            held += sizes[index]
    return buckets


@enter(WRONG)
def fill_buckets__rest_dropped(sizes, cap):
    buckets, bucket, held = [], [], 0
    for index in reversed(range(len(sizes))):
        bucket.append(index)
        held += sizes[index]
        if held >= cap:
            buckets.append(bucket)
            bucket, held = [], 0
    return buckets


@enter(WRONG)
def fill_buckets__an_empty_one_at_the_end(sizes, cap):
    buckets, held = [[]], 0
    for index in reversed(range(len(sizes))):
        buckets[-1].append(index)
        held += sizes[index]
        if held >= cap:
            buckets.append([])
            held = 0
    return buckets


@enter(WRONG)
def fill_buckets__one_list_cleared(sizes, cap):
    buckets, bucket, held = [], [], 0
    for index in reversed(range(len(sizes))):
        bucket.append(index)
        held += sizes[index]
        if held >= cap:
            buckets.append(bucket)
            bucket.clear()
            held = 0
    return [*buckets, bucket] if bucket else buckets


@enter(WRONG)
def fill_buckets__pops_from_the_front(sizes, cap):
    total, buckets = len(sizes), []
    while sizes:
        bucket, held = [], 0
        while sizes and held < cap:
            held += sizes.pop(0)
            bucket.append(total - len(sizes) - 1)
        buckets.append(bucket)
    return buckets


# The tests

NOTEBOOKS = (Path(__file__).parent.parent / "notebooks").glob("*.ipynb")
CELLS = [nbformat.read(path, as_version=4).cells for path in NOTEBOOKS]
CHECKED = re.compile(r"^check\.(\w+)\(", re.MULTILINE)
DEADLOCKS = {"as many steps as its rank", "rank 0 does not start"}
DEADLOCKS |= {"goes home without samples", "goes home after the total", "no total without samples"}
SAYS = {
    ("my_share", "by first place of an equal item"): "who gets what is left over",
    ("my_share", "start and step swapped"): "ValueError: slice step cannot be zero\n    line ",
    ("my_share", "one item"): "it is a str, and should be a list",
    ("my_share", "prints"): "nothing was returned",
    ("prediction", "text"): "second_launch is not '[[0], [1]]'",
    ("ring_all_gather", "all gather"): "sending and receiving only",
    ("ring_all_gather", "as many steps as its rank"): "rank 1: ",
    ("ring_all_gather", "on rank 0 only"): "nothing was returned",
    ("ring_all_gather", "stacked"): "it is a tensor of shape (2, 3), and should be a list of tensors",
    ("ring_all_gather", "flattened"): "it is a list of tensors of shape (2,), and",
    ("ring_all_gather", "numbers"): "it is a list of lists of numbers, and",
    ("ring_seconds", "prints"): "nothing was returned",
    ("ring_seconds", "the two parts"): "it is a list of numbers, and should be a number",
    ("ring_seconds", "latency and bandwidth swapped"): "ZeroDivisionError",
    ("average_uneven", "goes home without samples"): "does each make the same calls",
    ("average_uneven", "rank 0's for all"): "a rank's mean counts",
    ("average_uneven", "new tensors in the list"): "the tensors themselves have to change",
    ("average_uneven", "returned not in place"): "the tensors themselves have to change",
    ("average_uneven", "total is what all reduce returns"): "samples / total",
    ("fill_buckets", "one list of indices"): "and should be a list of lists of numbers",
    ("fill_buckets", "prints"): "nothing was returned",
    ("fill_buckets", "text"): "came out: '[[3, 2], [1, 0]]'",
    ("fill_buckets", "index out of range"): "list index out of range\n    line ",
}


def of_notebooks(tag: str) -> Iterator[tuple[str, str]]:
    """The topic that is checked below each cell with that tag, and the cell's source."""
    for above, cell in itertools.chain(*(itertools.pairwise(cells) for cells in CELLS)):
        if has_tag(above, tag):
            yield from ((topic, above.source) for topic in CHECKED.findall(cell.source))


STUBS, SOLUTIONS = dict(of_notebooks("exercise")), dict(of_notebooks("solution"))
TOPICS = sorted({topic for cells in CELLS for cell in cells for topic in CHECKED.findall(cell.source)})


def named(table: dict[str, dict[str, Answer]], topics: Iterable[str]) -> list[Any]:
    return [pytest.param(topic, name, id=f"{topic}, {name}") for topic in topics for name in table[topic]]


def shown(topic: str, text: str) -> list[str]:
    """The lines of the solution that the text shows and the stub does not."""
    lines = [line.strip() for line in SOLUTIONS[topic].splitlines()[1:]]
    return [line for line in lines if line in text and line not in STUBS[topic]]


@pytest.fixture(autouse=True)
def by_value() -> Iterator[None]:
    """Answers travel to the ranks as what a notebook defines does."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module", autouse=True)
def answers_of_all_lessons() -> None:
    """Files beside this one enter the answers of further lessons in the same tables."""
    for path in sorted(Path(__file__).parent.glob("test_check_*.py")):
        importlib.import_module(path.stem)


def try_answers(*topics: str) -> tuple[Callable[..., None], Callable[..., None]]:
    """The two tests of a file of answers: right ones of these topics pass, wrong ones are told why."""

    @pytest.mark.parametrize(("topic", "name"), named(RIGHT, topics))
    def passes(topic: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
        getattr(check, topic)(RIGHT[topic][name])
        assert re.fullmatch(r"passed: .+\n", capsys.readouterr().out)

    @pytest.mark.parametrize(("topic", "name"), named(WRONG, topics))
    def is_told(
        topic: str, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        if name in DEADLOCKS:
            monkeypatch.setattr(_exercise, "TIMEOUT", 1.0)
        with pytest.raises(check.WrongAnswer) as caught:
            getattr(check, topic)(WRONG[topic][name])
        parts = re.fullmatch(
            r"tried (.+)\n  came out: (.+)\n  expected: (.+)\n  hint: (.+)", str(caught.value), re.S
        )
        assert parts
        # what came out may show lines of the answer
        assert shown(topic, parts[1] + parts[3] + parts[4]) == []
        assert SAYS.get((topic, name), "") in str(caught.value)
        assert "passed" not in capsys.readouterr().out

    return passes, is_told


test_a_right_answer_passes, test_a_wrong_answer_is_told_what_is_wrong = try_answers(*RIGHT)


@pytest.mark.parametrize("topic", TOPICS)
def test_a_stub_is_not_attempted(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    def stub(*_: Any) -> None:
        raise NotImplementedError("x")

    getattr(check, topic)(stub)
    assert capsys.readouterr().out == "not attempted: x\n"


def test_a_stub_that_one_rank_reaches_is_not_attempted(capsys: pytest.CaptureFixture[str]) -> None:
    def stub(gradients, samples):
        if samples == 3:
            raise NotImplementedError("x")
        sum_of(samples)

    check.average_uneven(stub)
    assert capsys.readouterr().out == "not attempted: x\n"


def test_a_notebook_shows_a_wrong_answer_without_a_traceback() -> None:
    with pytest.raises(check.WrongAnswer) as caught:
        check.my_share(WRONG["my_share"]["nothing"])
    assert caught.value._render_traceback_() == [f"not yet: {caught.value}"]


@pytest.mark.parametrize("topic", TOPICS)
def test_a_check_is_tried_on_five_mistakes(topic: str) -> None:
    assert len(WRONG[topic]) >= 5
    assert len(RIGHT[topic]) >= 2  # and on other ways to be right


def test_no_entry_is_stale() -> None:
    assert {*WRONG, *RIGHT} == {*TOPICS}
    assert set(SAYS) <= {(topic, name) for topic in WRONG for name in WRONG[topic]}
    assert {name for answers in WRONG.values() for name in answers} >= DEADLOCKS
