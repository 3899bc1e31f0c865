"""The checks of lesson 04."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._devices import device
from ._exercise import attempt, attempt_on_ranks, exercise, expect, same


def _uneven(rank: int, average: Callable[[list[Any], int], None], counts: tuple[int, ...]) -> Any:
    """Gradients of a mean over rank `rank`'s `counts[rank]` samples, before and after; of all samples."""
    import torch

    data = torch.randn(sum(counts), 3, generator=torch.Generator().manual_seed(1))
    mine = data.split(counts)[rank]
    before = [mine.sum(0) / max(1, len(mine)), mine.square().sum() / max(1, len(mine))]
    gradients = [gradient.clone().to(device(rank)) for gradient in before]
    average(list(gradients), counts[rank])
    return before, gradients, [data.mean(0), data.square().sum() / len(data)]


@exercise
def average_uneven(average: Callable[[list[Any], int], None]) -> str:
    """Lesson 04: gradients over ranks with different numbers of samples, equal to one process."""
    for counts in ((5, 3), (4, 4), (1, 2, 6), (3, 0)):
        tried = f"ranks with {counts} samples"
        results = attempt_on_ranks(tried, _uneven, (average, counts), len(counts))
        for rank, (_, got, expected) in enumerate(results):
            hint = "a rank's mean counts for as many samples as it was taken over, out of all ranks' samples"
            if all(same(after, before) for before, after, _ in results):
                hint = "they are as they were: the tensors themselves have to change, not a copy or a name"
            expect(f"{tried}; these are rank {rank}'s gradients", got, expected, hint)
    return "the gradients of one process for shards of 5 and 3, 4 and 4, 1 and 2 and 6, 3 and 0 samples"


def _unordered(buckets: Any) -> Any:
    """Buckets without an order inside."""
    return [sorted(bucket, key=str) if isinstance(bucket, (list, tuple)) else bucket for bucket in buckets]


@exercise
def fill_buckets(fill: Callable[[list[int], int], list[list[int]]]) -> str:
    """Lesson 04: DDP's rule for buckets, compared with torch's own assignment."""
    import torch
    import torch.distributed as dist

    for sizes, cap in (
        ([8, 8, 8, 8], 16),
        ([4, 100, 4, 4], 8),
        ([40], 16),
        ([4, 4, 4], 1000),
        ([12, 4, 8, 20, 4], 12),
    ):
        order = [torch.empty(size // 4) for size in reversed(sizes)]
        buckets, _ = dist._compute_bucket_assignment_by_size(order, [cap])
        expected = [[len(sizes) - 1 - index for index in bucket] for bucket in buckets]
        tried = f"sizes {sizes}, cap {cap}"
        hint = "indices into sizes; the last gradient is ready first; a bucket takes the one that fills it"
        expect(tried, attempt(tried, fill, list(sizes), cap), expected, hint, key=_unordered)
    return "the buckets that torch itself assigns, in five cases"
