"""Record the trace of a few training steps on one rank."""

import os
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler's own log: nothing


def trace(rank, step, folder, steps=3):
    """Call step() 2 + `steps` times, and write what the last ones did to a file of this rank."""
    kinds = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        kinds.append(ProfilerActivity.CUDA)
    plan = schedule(wait=1, warmup=1, active=steps, repeat=1)
    with profile(activities=kinds, schedule=plan) as prof:
        for _ in range(2 + steps):
            step()
            prof.step()
    prof.export_chrome_trace(str(Path(folder) / f"rank{rank}.json.gz"))
