"""The exercise checks: `check.<topic>(answer)` says not attempted, passed, or what is wrong and a hint.

A check tries the answer on cases of its own, several rank counts where ranks matter, and never shows a
solution. Each lesson's checks stand in a module of their own; here they come together.
"""

from ._check_00 import my_share, prediction
from ._check_01 import gpus_for, gpus_needed, plan
from ._check_02 import gather_means, scatter_any
from ._check_03 import ring_all_gather, ring_seconds
from ._check_04 import average_uneven, fill_buckets
from ._check_05 import evaluate, resume
from ._check_06 import block, scaled_step
from ._check_07 import cause, loader
from ._check_08 import report, suspects
from ._exercise import WrongAnswer

__all__ = [
    "WrongAnswer",
    "average_uneven",
    "block",
    "cause",
    "evaluate",
    "fill_buckets",
    "gather_means",
    "gpus_for",
    "gpus_needed",
    "loader",
    "my_share",
    "plan",
    "prediction",
    "report",
    "resume",
    "ring_all_gather",
    "ring_seconds",
    "scaled_step",
    "scatter_any",
    "suspects",
]
