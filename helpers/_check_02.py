"""The checks of lesson 02."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ._exercise import attempt, exercise, expect, unlike, wrong


def _plain(value: Any) -> Any:
    """The value with dicts as lists of their keys and entries, so that tensors in them can be compared."""
    if isinstance(value, dict):
        return ["dict", *([key, _plain(entry)] for key, entry in value.items())]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(_plain, value)]
    return value


def _cases() -> list[tuple[str, Any, int, list[Any]]]:
    """What is tried in words, the value, the devices, and what each of them gets."""
    import torch

    table, x, y = torch.arange(10.0).view(5, 2), torch.arange(5), 10 * torch.arange(5)
    (a, b, c), (d, e, f) = x.chunk(3), y.chunk(3)
    return [
        ("a tensor of 5 rows", table, 3, list(table.chunk(3))),
        ("a dict of two tensors", {"x": x, "y": y}, 2, [{"x": x[:3], "y": y[:3]}, {"x": x[3:], "y": y[3:]}]),
        ("a list of two tensors", [x, y], 3, [[a, d], [b, e], [c, f]]),
        ("a number", 0.5, 3, [0.5, 0.5, 0.5]),
        ("a text", "mean", 2, ["mean", "mean"]),
        ("a tensor and a number in a dict", {"x": x, "p": 0.5}, 2, [{"x": p, "p": 0.5} for p in x.chunk(2)]),
        ("4 rows on 3 devices", {"x": x[:4], "p": True}, 3, [{"x": p, "p": True} for p in x[:4].chunk(2)]),
        ("args and no kwargs", ((x,), {}), 3, [((a,), {}), ((b,), {}), ((c,), {})]),
        ("no args, and kwargs", ((), {"x": x}), 3, [((), {"x": a}), ((), {"x": b}), ((), {"x": c})]),
        ("a tuple in a list in a dict", {"x": [(x, None)]}, 2, [{"x": [(p, None)]} for p in x.chunk(2)]),
    ]  # fmt: skip


@exercise
def scatter_any(scatter: Callable[[Any, int], Sequence[Any]]) -> str:
    """Lesson 02: the parts of tensors in dicts, lists and tuples, a part a device; the rest as it is."""
    for words, value, n, expected in _cases():
        tried = f"{words}, n={n}: {value}"
        got = attempt(tried, scatter, value, n)
        if not isinstance(got, (list, tuple)):
            hint = unlike(got, expected) or "a list, with an entry for each device that gets something"
            raise wrong(tried, repr(got), expected, hint)
        hint = f"{len(got)} entries, {len(expected)} expected: what does the shortest of the entries allow?"
        if len(got) == len(expected):
            hint = (
                "an entry is the value as one device sees it: same kind, same keys, same order, parts within"
            )
        expect(tried, list(got), expected, hint, key=_plain)
    return "tensors, dicts, lists, tuples, nested and empty ones, a batch too small for all devices"


@exercise
def gather_means(gather: Callable[[list[Any], list[int]], Any]) -> str:
    """Lesson 02: the mean over all samples from the means of uneven parts, and its gradient."""
    import torch

    for sizes in ([2, 2], [34, 34, 32], [5, 1], [7], [1, 2, 3, 4]):
        means = [torch.tensor(float(i * i + 1), requires_grad=True) for i in range(len(sizes))]
        numbers = [mean.item() for mean in means]
        total = sum(number * size for number, size in zip(numbers, sizes, strict=True)) / sum(sizes)
        tried = f"means {numbers} of parts of {sizes} samples"
        got = attempt(tried, gather, list(means), list(sizes))
        hint = "all samples weigh the same: what does a part's mean times its size give?"
        expect(tried, got, torch.tensor(total), hint)
        _gradients_reach(got, means, sizes, tried)
    return "value and gradients, on even and uneven parts, and on a single one"


def _gradients_reach(mean: Any, means: list[Any], sizes: list[int], tried: str) -> None:
    """Raise WrongAnswer unless backward gives each part's mean the gradient size / total."""
    expected = [size / sum(sizes) for size in sizes]
    try:
        mean.backward()
    except RuntimeError as error:
        hint = "`.item()`, `float()` and `torch.tensor([...])` cut a number off from what it came from"
        raise wrong(f"{tried}, then backward", error, f"gradients {expected}", hint) from None
    got = [None if part.grad is None else part.grad.item() for part in means]
    hint = "every mean has to take part as a tensor, so that backward finds its way to it"
    if None in got:
        raise wrong(f"{tried}, then backward", got, expected, hint)
    expect(f"{tried}, then backward", got, expected, hint)
