"""The checks of lesson 02, tried on answers as learners give them."""

# ruff: noqa: ANN001, ANN201, ANN202 (learners do not annotate)
from __future__ import annotations

import statistics
from typing import Any

import pytest
import test_check
import torch
from test_check import RIGHT, WRONG, enter, try_answers

# scatter_any(value, n)


@enter(RIGHT)
def scatter_any__as_torch_does(value, n):
    def go(obj):
        if isinstance(obj, torch.Tensor):
            return obj.chunk(n)
        if isinstance(obj, tuple) and len(obj) > 0:
            return list(zip(*map(go, obj), strict=False))
        if isinstance(obj, list) and len(obj) > 0:
            return [list(part) for part in zip(*map(go, obj), strict=False)]
        if isinstance(obj, dict) and len(obj) > 0:
            return [dict(part) for part in zip(*map(go, obj.items()), strict=False)]
        return [obj for _ in range(n)]

    return go(value)


@enter(RIGHT)
def scatter_any__device_by_device(value, n):
    def chunks(obj):
        if isinstance(obj, torch.Tensor):
            return len(obj.chunk(n))
        entries = obj.values() if isinstance(obj, dict) else obj if isinstance(obj, (list, tuple)) else ()
        return min((chunks(entry) for entry in entries), default=n)

    def part(obj, i):
        if isinstance(obj, torch.Tensor):
            return obj.chunk(n)[i]
        if isinstance(obj, dict):
            return {key: part(entry, i) for key, entry in obj.items()}
        if isinstance(obj, (list, tuple)):
            return type(obj)([part(entry, i) for entry in obj])
        return obj

    return tuple(part(value, i) for i in range(chunks(value)))


def scatter_like(
    value, n, *, chunk=torch.chunk, kinds=(dict, list, tuple), empty=True, keep=True, strict=False, rest=None
):
    """A right answer, but for what the options change."""
    again = {"chunk": chunk, "kinds": kinds, "empty": empty, "keep": keep, "strict": strict, "rest": rest}
    if isinstance(value, torch.Tensor):
        return list(chunk(value, n))
    if isinstance(value, dict) and dict in kinds and (value or not empty):
        columns = zip(*[scatter_like(v, n, **again) for v in value.values()], strict=strict)
        return [dict(zip(value, column, strict=True)) for column in columns]
    if isinstance(value, (list, tuple)) and type(value) in kinds and (value or not empty):
        columns = zip(*[scatter_like(v, n, **again) for v in value], strict=strict)
        return [type(value)(column) if keep else list(column) for column in columns]
    return rest(value, n) if rest else [value] * n


RIGHT["scatter_any"]["with options"] = scatter_like
WRONG["scatter_any"] |= {
    "tensors alone": lambda value, n: list(value.chunk(n)),
    "everything but tensors whole": lambda value, n: scatter_like(value, n, kinds=()),
    "no dicts": lambda value, n: scatter_like(value, n, kinds=(list, tuple)),
    "no lists": lambda value, n: scatter_like(value, n, kinds=(dict, tuple)),
    "no tuples": lambda value, n: scatter_like(value, n, kinds=(dict, list)),
    "empty ones end the list": lambda value, n: scatter_like(value, n, empty=False),
    "tuples become lists": lambda value, n: scatter_like(value, n, keep=False),
    "as many of everything": lambda value, n: scatter_like(value, n, strict=True),
    "numbers once": lambda value, n: scatter_like(value, n, rest=lambda v, n: [v]),
    "numbers divided": lambda value, n: scatter_like(
        value, n, rest=lambda v, n: [v / n if isinstance(v, float) else v] * n
    ),
    "texts cut": lambda value, n: scatter_like(
        value, n, rest=lambda v, n: [v[i::n] for i in range(n)] if isinstance(v, str) else [v] * n
    ),
    "tensor split": lambda value, n: scatter_like(value, n, chunk=torch.tensor_split),
    "parts of n rows": lambda value, n: scatter_like(value, n, chunk=torch.split),
    "every nth row": lambda value, n: scatter_like(value, n, chunk=lambda t, n: [t[i::n] for i in range(n)]),
    "the whole tensor to each": lambda value, n: [value] * n,
    "along the last dimension": lambda value, n: scatter_like(value, n, chunk=lambda t, n: t.chunk(n, -1)),
    "rest dropped": lambda value, n: scatter_like(value, n, chunk=lambda t, n: t.split(len(t) // n)[:n]),
    "reversed": lambda value, n: scatter_like(value, n)[::-1],
    "the first device's": lambda value, n: scatter_like(value, n)[0],
    "a generator": lambda value, n: (part for part in scatter_like(value, n)),
    "numbered": lambda value, n: dict(enumerate(scatter_like(value, n))),
    "prints": lambda value, n: print(scatter_like(value, n)),
}  # fmt: skip


@enter(WRONG)
def scatter_any__a_dict_of_lists(value, n):
    if isinstance(value, torch.Tensor):
        return list(value.chunk(n))
    if isinstance(value, dict):
        return {key: scatter_any__a_dict_of_lists(entry, n) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [scatter_any__a_dict_of_lists(entry, n) for entry in value]
    return [value] * n


@enter(WRONG)
def scatter_any__one_level_deep(value, n):
    def flat(entry):
        return list(entry.chunk(n)) if isinstance(entry, torch.Tensor) else [entry] * n

    if isinstance(value, dict) and value:
        return [dict(zip(value, c, strict=True)) for c in zip(*map(flat, value.values()), strict=False)]
    if isinstance(value, (list, tuple)) and value:
        return [type(value)(column) for column in zip(*map(flat, value), strict=False)]
    return flat(value)


@enter(WRONG)
def scatter_any__keys_lost(value, n):
    if isinstance(value, dict) and value:
        return scatter_like(list(value.values()), n)
    return scatter_like(value, n)


# gather_means(means, sizes)


def weighted(means, sizes):
    return sum(mean * size for mean, size in zip(means, sizes, strict=True)) / sum(sizes)


RIGHT["gather_means"] |= {
    "stacked": lambda means, sizes: (torch.stack(means) * torch.tensor(sizes)).sum() / sum(sizes),
    "shares first": lambda means, sizes: sum(
        mean * (size / sum(sizes)) for mean, size in zip(means, sizes, strict=True)
    ),
    "a dot product": lambda means, sizes: torch.stack(means) @ (torch.tensor(sizes) / sum(sizes)),
    "each mean repeated": lambda means, sizes: torch.cat(
        [mean.expand(size) for mean, size in zip(means, sizes, strict=True)]
    ).mean(),
}  # fmt: skip
WRONG["gather_means"] |= {
    "mean of the means": lambda means, sizes: torch.stack(means).mean(),
    "sum of the means": lambda means, sizes: sum(means),
    "not divided": lambda means, sizes: weighted(means, sizes) * sum(sizes),
    "divided by the devices": lambda means, sizes: weighted(means, sizes) * sum(sizes) / len(sizes),
    "divided, not multiplied": lambda means, sizes: sum(
        mean / size for mean, size in zip(means, sizes, strict=True)
    ),
    "weights swapped": lambda means, sizes: weighted(means, sizes[::-1]),
    "the first": lambda means, sizes: means[0],
    "a vector": lambda means, sizes: torch.stack(means),
    "of one entry": lambda means, sizes: weighted(means, sizes).reshape(1),
    "items": lambda means, sizes: torch.tensor(weighted([mean.item() for mean in means], sizes)),
    "a number": lambda means, sizes: weighted(means, sizes).item(),
    "a new tensor": lambda means, sizes: torch.tensor([weighted(means, sizes).item()]).mean(),
    "detached": lambda means, sizes: weighted(means, sizes).detach(),
    "first device alone learns": lambda means, sizes: weighted(
        [means[0], *(mean.detach() for mean in means[1:])], sizes
    ),
    "gradient of the plain mean": lambda means, sizes: (
        weighted(means, sizes).detach() + (mean := torch.stack(means).mean()) - mean.detach()
    ),
    "right in total, gradient of the sum": lambda means, sizes: (
        weighted(means, sizes).detach() + sum(means) - sum(means).detach()
    ),
    "median": lambda means, sizes: torch.stack(means).median(),
    "statistics": lambda means, sizes: statistics.mean(mean.item() for mean in means),
    "concatenated": lambda means, sizes: torch.cat(means).mean(),
    "times a list": lambda means, sizes: torch.stack(means) * sizes,
    "all but the last": lambda means, sizes: weighted(means[:-1], sizes[:-1]),
    "prints": lambda means, sizes: print(weighted(means, sizes)),
}  # fmt: skip

TOPICS = ("scatter_any", "gather_means")
test_check.SAYS |= {
    ("scatter_any", "numbers once"): "what does the shortest of the entries allow?",
    ("scatter_any", "a dict of lists"): "it is a dict, and should be a list",
    ("scatter_any", "prints"): "nothing was returned",
    ("scatter_any", "keys lost"): "it is a list of lists",
    ("scatter_any", "every nth row"): "an entry is the value as one device sees it",
    ("gather_means", "mean of the means"): "all samples weigh the same",
    ("gather_means", "concatenated"): "zero-dimensional tensor",
    ("gather_means", "items"): "cut a number off from what it came from",
    ("gather_means", "first device alone learns"): "every mean has to take part",
    ("gather_means", "prints"): "nothing was returned",
}


test_a_right_answer_passes, test_a_wrong_answer_is_told_what_is_wrong = try_answers(*TOPICS)


def test_the_solutions_of_the_lesson_pass(capsys: pytest.CaptureFixture[str]) -> None:
    for topic in TOPICS:
        names: dict[str, Any] = {"torch": torch}
        exec(test_check.SOLUTIONS[topic], names)
        getattr(test_check.check, topic)(names[topic])
    assert capsys.readouterr().out.count("passed: ") == len(TOPICS)
