"""The checks of lesson 01, tried on answers as learners give them, with the tests of test_check.py."""

# ruff: noqa: ANN001, ANN201 (learners do not annotate)
from __future__ import annotations

import math

import numpy as np
from test_check import RIGHT, SAYS, WRONG, enter, try_answers

DAY = 86_400

# gpus_needed(parameters, tokens, days, peak, mfu)


def exactly(parameters, tokens, days, peak, mfu):
    """Without rounding."""
    return 6 * parameters * tokens / (days * DAY * peak * mfu)


RIGHT["gpus_needed"] |= {
    "negative floor": lambda n, d, days, peak, mfu: -int(-exactly(n, d, days, peak, mfu) // 1),
    "NumPy's ceil": lambda n, d, days, peak, mfu: np.ceil(6 * n * d / (peak * mfu) / DAY / days),
    "hours": lambda n, d, days, peak, mfu: math.ceil(6 * n * d / (mfu * peak * 3600 * 24 * days)),
}
WRONG["gpus_needed"] |= {
    "not rounded": exactly,
    "rounded down": lambda *run: math.floor(exactly(*run)),
    "rounded": lambda *run: round(exactly(*run)),
    "one more": lambda *run: math.floor(exactly(*run)) + 1,
    "2 FLOPs, forward alone": lambda *run: math.ceil(exactly(*run) / 3),
    "4 FLOPs, backward alone": lambda *run: math.ceil(exactly(*run) * 2 / 3),
    "8 FLOPs": lambda *run: math.ceil(exactly(*run) * 8 / 6),
    "hours of a day": lambda *run: math.ceil(exactly(*run) * DAY / 24),
    "seconds of an hour": lambda *run: math.ceil(exactly(*run) * 24),
    "times mfu": lambda n, d, days, peak, mfu: math.ceil(exactly(n, d, days, peak, 1) * mfu),
    "mfu forgotten": lambda n, d, days, peak, mfu: math.ceil(exactly(n, d, days, peak, 1)),
    "days forgotten": lambda n, d, days, peak, mfu: math.ceil(exactly(n, d, 1, peak, mfu)),
    "times days": lambda n, d, days, peak, mfu: math.ceil(exactly(n, d, 1, peak, mfu) * days),
    "peak in TFLOP/s": lambda n, d, days, peak, mfu: math.ceil(exactly(n, d, days, peak * 1e12, mfu)),
    "upside down": lambda *run: math.ceil(1 / exactly(*run)),
    "tokens alone": lambda n, d, days, peak, mfu: math.ceil(exactly(1, d, days, peak, mfu)),
    "the days of one GPU": lambda n, d, days, peak, mfu: exactly(n, d, 1, peak, mfu),
    "two at least": lambda *run: max(2, math.ceil(exactly(*run))),
    "text": lambda *run: f"{math.ceil(exactly(*run))} GPUs",
    "a list": lambda *run: [math.ceil(exactly(*run))],
    "prints": lambda *run: print(math.ceil(exactly(*run))),
    "integer division by zero": lambda n, d, days, peak, mfu: 6 * n * d // (days * peak * int(mfu)),
}

# plan(parameters, sample_bytes, memory)


def room(parameters, sample_bytes, memory, state=16):
    """What is left beside the state, in samples, also below nothing."""
    return (memory - state * parameters) / sample_bytes


def named(batch):
    return ("data" if batch >= 1 else "model"), max(0, math.floor(batch))


RIGHT["plan"] |= {
    "floor": lambda *given: named(room(*given)),
    "a list": lambda *given: list(named(room(*given))),
    "NumPy's floor": lambda *given: (named(room(*given))[0], np.maximum(0, np.floor(room(*given)))),
}
WRONG["plan"] |= {
    "weights alone": lambda *given: named(room(*given, state=4)),
    "weights and gradients": lambda *given: named(room(*given, state=8)),
    "one average": lambda *given: named(room(*given, state=12)),
    "two more bytes for a copy": lambda *given: named(room(*given, state=18)),
    "bits, not bytes": lambda *given: named(room(*given, state=128)),
    "no state": lambda *given: named(room(*given, state=0)),
    "below nothing": lambda *given: (named(room(*given))[0], math.floor(room(*given))),
    "always data": lambda *given: ("data", named(room(*given))[1]),
    "always model": lambda *given: ("model", named(room(*given))[1]),
    "swapped names": lambda *given: ("model" if room(*given) >= 1 else "data", named(room(*given))[1]),
    "swapped places": lambda *given: named(room(*given))[::-1],
    "parts of a sample": lambda *given: (named(room(*given))[0], max(0.0, room(*given))),
    "rounded up": lambda *given: named(math.ceil(room(*given))),
    "rounded": lambda *given: named(round(room(*given))),
    "any room will do": lambda *given: ("data" if room(*given) > 0 else "model", named(room(*given))[1]),
    "more than one": lambda *given: ("data" if room(*given) > 1 else "model", named(room(*given))[1]),
    "the state fits": lambda n, sample, memory: (
        "data" if 16 * n <= memory else "model",
        named(room(n, sample, memory))[1],
    ),
    "GiB": lambda n, sample, memory: named(room(n, sample, memory * 2**30 / 1e9)),
    "the name alone": lambda *given: named(room(*given))[0],
    "the number alone": lambda *given: named(room(*given))[1],
    "capital letter": lambda *given: (named(room(*given))[0].title(), named(room(*given))[1]),
    "prints": lambda *given: print(named(room(*given))),
    "dots left": lambda *given: ("data", ...),
}


@enter(RIGHT)
def plan__counts(parameters, sample_bytes, memory):
    batch, left = 0, memory - 16 * parameters
    while left >= sample_bytes:
        batch, left = batch + 1, left - sample_bytes
    return ("model", 0) if batch == 0 else ("data", batch)


# gpus_for(speedup, serial)


def solved(speedup, serial):
    """Amdahl's law solved for the number of GPUs, not rounded."""
    return math.inf if speedup * serial >= 1 else (1 - serial) / (1 / speedup - serial)


def whole(gpus):
    return gpus if gpus == math.inf else math.ceil(gpus)


RIGHT["gpus_for"] |= {
    "solved": lambda speedup, serial: whole(solved(speedup, serial)),
    "as a fraction": lambda s, p: math.inf if p * s >= 1 else math.ceil(s * (1 - p) / (1 - p * s)),
    "NumPy's ceil": lambda s, p: np.ceil(solved(s, p)),
}
WRONG["gpus_for"] |= {
    "not rounded": solved,
    "rounded down": lambda s, p: math.inf if p * s >= 1 else math.floor(solved(s, p)),
    "one more": lambda s, p: math.inf if p * s >= 1 else math.floor(solved(s, p)) + 1,
    "no ceiling": lambda s, p: math.ceil((1 - p) / (1 / s - p)),
    "the ceiling itself will do": lambda s, p: (
        math.inf if p * s > 1 else 10**9 if p * s == 1 else whole(solved(s, p))
    ),
    "no serial part": lambda s, p: s,
    "serial part added": lambda s, p: math.ceil(s * (1 + p)),
    "divided by the rest": lambda s, p: math.ceil(s / (1 - p)),
    "Amdahl's law itself": lambda s, p: math.ceil(1 / (p + (1 - p) / s)),
    "Gustafson's law": lambda s, p: math.ceil((s - p) / (1 - p)),
    "1 forgotten": lambda s, p: math.inf if p * s >= 1 else math.ceil(1 / (1 / s - p)),
    "serial and parallel swapped": lambda s, p: whole(solved(s, 1 - p)),
    "the ceiling": lambda s, p: math.inf if p == 0 else 1 / p,
    "none instead of infinity": lambda s, p: None if p * s >= 1 else whole(solved(s, p)),
    "minus 1 instead of infinity": lambda s, p: -1 if p * s >= 1 else whole(solved(s, p)),
    "text": lambda s, p: str(whole(solved(s, p))),
    "prints": lambda s, p: print(whole(solved(s, p))),
}


@enter(RIGHT)
def gpus_for__tries_one_after_the_other(speedup, serial):
    if serial and speedup >= 1 / serial:
        return math.inf
    n = 1
    while 1 / (serial + (1 - serial) / n) < speedup:
        n += 1
    return n


@enter(WRONG)
def gpus_for__gives_up_at_a_thousand_with_a_number(speedup, serial):
    tried = range(1, 1000)
    return next((n for n in tried if 1 / (serial + (1 - serial) / n) >= speedup), 1000)


@enter(WRONG)
def gpus_for__powers_of_two(speedup, serial):
    if speedup * serial >= 1:
        return math.inf
    return 2 ** math.ceil(math.log2(solved(speedup, serial)))


SAYS |= {
    ("gpus_needed", "prints"): "nothing was returned",
    ("gpus_needed", "text"): "it is a str, and should be a number",
    ("gpus_needed", "integer division by zero"): "ZeroDivisionError",
    ("plan", "the number alone"): "it is a number, and should be a list",
    ("plan", "below nothing"): "expected: ('model', 0.0)",
    ("gpus_for", "no ceiling"): "ZeroDivisionError",
    ("gpus_for", "none instead of infinity"): "expected: inf",
}

# The tests

test_a_right_answer_passes, test_a_wrong_answer_is_told_what_is_wrong = try_answers(
    "gpus_for", "gpus_needed", "plan"
)
