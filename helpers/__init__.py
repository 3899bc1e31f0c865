"""helpers: launch ranks from a cell, measure, draw, and check exercises.

Names are loaded when first used: `import helpers` is quick and does not import torch.
"""

from __future__ import annotations

import importlib
from typing import Any

_PLACES = {
    "launch": "_launch",
    "RankError": "_launch",
    "LaunchTimeout": "_launch",
    "cores": "_devices",
    "device": "_devices",
    "devices": "_devices",
    "default_nprocs": "_devices",
    "label": "_devices",
    "measure": "_measure",
    "compare": "_measure",
    "measure_in_turns": "_measure",
    "accuracy": "_digits",
    "digits": "_digits",
    "digits_net": "_digits",
    "draw_curves": "_draw",
    "draw_formats": "_draw",
    "draw_ranks": "_draw",
    "draw_scales": "_draw",
    "draw_steps": "_draw",
    "draw_underflow": "_draw",
    "figure": "_draw",
    "show": "_draw",
    "data_parallel": "_threads",
    "draw_spread": "_draw",
    "record": "_record",
    "recorded": "_record",
    "operation_types": "_types",
    "saved_bytes": "_types",
    "exposed": "_timeline",
    "step_parts": "_timeline",
    "timeline": "_timeline",
    "run_script": "_scripts",
    "child_errors": "_scripts",
}

__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'helpers' has no name {name!r}")
    return getattr(importlib.import_module(f"helpers.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
