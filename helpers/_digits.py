"""The training run that the lessons take up again and again: handwritten digits, a small network."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.utils.data import TensorDataset


@functools.cache
def digits() -> tuple[TensorDataset, TensorDataset]:
    """scikit-learn's digits: 1,437 to train on and 360 to test on, images (1, 8, 8) from 0 to 1, labels.

    Source: Alpaydin and Kaynak (1998), Optical Recognition of Handwritten Digits, UCI repository; the copy
    that scikit-learn carries. The split is random but fixed.
    """
    import torch
    from sklearn.datasets import load_digits
    from torch.utils.data import TensorDataset

    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(data.images, dtype=torch.float32)[order, None] / 16
    labels = torch.tensor(data.target, dtype=torch.int64)[order]
    return TensorDataset(images[:1437], labels[:1437]), TensorDataset(images[1437:], labels[1437:])


def digits_net(seed: int = 0) -> torch.nn.Module:
    """A convolutional network for `digits`, 151,306 parameters, the same weights for the same seed."""
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10),
        )  # fmt: skip


def accuracy(model: torch.nn.Module, data: TensorDataset) -> float:
    """The share of `data` that `model` labels rightly, from 0 to 1."""
    import torch

    images, labels = data.tensors
    parameter = next(model.parameters())
    with torch.no_grad():
        guesses: Tensor = model(images.to(parameter.device)).argmax(dim=1).cpu()
    return (guesses == labels).double().mean().item()
