"""The checks of lesson 01."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from ._exercise import attempt, exercise, expect


@exercise
def gpus_needed(needed: Callable[[float, float, float, float, float], float]) -> str:
    """Lesson 01: whole GPUs for a run of 6 N D FLOPs (Kaplan et al. 2020) to end within the days given."""
    cases = (
        (1e9, 7.2e9, 5, 1e14, 0.5, 2.0),
        (7e9, 1e12, 30, 989e12, 0.4, 41.0),
        (124e6, 300e9, 4, 312e12, 0.3, 7.0),
        (1e6, 1e6, 1, 65e12, 0.25, 1.0),
    )
    for *given, expected in cases:
        tried = "parameters={:g}, tokens={:g}, days={}, peak={:g}, mfu={}".format(*given)
        hint = "FLOPs of the run over FLOPs of one GPU in all these seconds; a started GPU is a whole one"
        expect(tried, attempt(tried, needed, *given), expected, hint)
    return "four runs, among them one that needs exactly 2 GPUs and one that needs a piece of one"


@exercise
def plan(plan: Callable[[int, int, int], tuple[str, int]]) -> str:
    """Lesson 01: which parallelism, by bytes of training state (ZeRO, arXiv 1910.02054) and activations."""
    cases = ((1000, 50, 24, 160.0), (500, 300, 16, 26.0), (4000, 16_000, 80, 1.0))
    cases += ((4000, 17_000, 80, 0.0), (1000, 1000, 16, 0.0), (7000, 50, 80, 0.0))
    for millions, megabytes, gigabytes, batch in cases:
        given = millions * 10**6, megabytes * 10**6, gigabytes * 10**9
        tried = "parameters={:g}, sample_bytes={:g}, memory={:g}".format(*given)
        hint = "first the state, by its bytes a parameter; then whole samples in what is left, if anything"
        expect(tried, attempt(tried, plan, *given), ("data" if batch else "model", batch), hint)
    return "six models, among them one whose state alone fills the GPU, and one with room for one sample"


@exercise
def gpus_for(gpus: Callable[[float, float], float]) -> str:
    """Lesson 01: the fewest GPUs that reach a speed-up under Amdahl's law (1967), or infinity."""
    cases = ((2, 0.25, 3.0), (4, 0.125, 7.0), (8, 0.0, 8.0), (9, 0.05, 16.0), (1, 0.3, 1.0))
    for speedup, serial, expected in (*cases, (10, 0.1, inf), (5, 0.25, inf)):
        tried = f"speedup={speedup}, serial={serial}"
        hint = "solve Amdahl's law for n, and round up; the serial part sets a ceiling for any n"
        expect(tried, attempt(tried, gpus, speedup, serial), expected, hint)
    return "seven cases, among them no serial part, a ceiling met exactly, and one passed"
