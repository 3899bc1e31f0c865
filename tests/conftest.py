"""What all unit tests share. What runs under notebooks/ is in nbval_net.py."""

from __future__ import annotations

import os

import pytest

os.environ["MPLBACKEND"] = "agg"  # before anything imports matplotlib: no test opens a window


def pytest_runtest_setup(item: pytest.Item) -> None:
    """`-m gpu` asks for GPUs: where there is none, its tests fail rather than pass by being skipped."""
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.fail("torch finds no NVIDIA GPU here, and the tests marked gpu need one", pytrace=False)
