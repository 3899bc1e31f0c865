"""What every exercise check is made of: try the answer on a case, compare, say what is wrong and give a hint.

An unfilled stub raises NotImplementedError, which counts as not attempted wherever it is raised.
"""

from __future__ import annotations

import functools
import math
import traceback
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

from ._launch import LaunchTimeout, RankError, launch

TIMEOUT = 20.0  # seconds until ranks that wait for each other count as a deadlock


class WrongAnswer(AssertionError):
    """What was tried, what came out, what was expected, and a hint."""

    def _render_traceback_(self) -> list[str]:
        return [f"not yet: {self}"]


def wrong(tried: str, got: Any, expected: Any, hint: str) -> WrongAnswer:
    """The four things that a wrong answer is told, as an exception to raise."""
    return WrongAnswer(f"tried {tried}\n  came out: {got}\n  expected: {expected}\n  hint: {hint}")


def exercise(verify: Callable[[Any], str]) -> Callable[[Any], None]:
    """Make a check of `verify`, which returns what it verified or raises WrongAnswer."""

    @functools.wraps(verify)
    def check(answer: Any) -> None:
        try:
            print(f"passed: {verify(answer)}")
        except NotImplementedError as todo:
            print(f"not attempted: {todo}")

    return check


def attempt(tried: str, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What `fn(*args)` returns. An error is a wrong answer, but for that of a stub, in whatever rank."""
    try:
        return fn(*args, **options)
    except LaunchTimeout as error:
        hint = "ranks wait for each other: does each make the same calls, as often and in the same order?"
        raise wrong(tried, error, "every rank comes to its end", hint) from None
    except Exception as error:
        inner = error.exception if isinstance(error, RankError) else error
        if isinstance(inner, NotImplementedError):
            raise inner from None
        came = error if isinstance(error, RankError) else f"{type(error).__name__}: {error}{_line(error, fn)}"
        hint = "read the last line of the error first, then the line of yours that it names"
        raise wrong(tried, came, "no error", hint) from None


def attempt_on_ranks(tried: str, fn: Callable[..., Any], args: tuple[Any, ...], nprocs: int) -> list[Any]:
    """What each of `nprocs` ranks returns for `fn(rank, *args)`; to wait for ever is a wrong answer."""
    return attempt(tried, launch, fn, args, nprocs=nprocs, timeout=TIMEOUT)


def _line(error: Exception, fn: Callable[..., Any]) -> str:
    """The last line in the file or cell of `fn` that the error has passed."""
    file = getattr(getattr(fn, "__code__", None), "co_filename", None)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"\n    line {frames[-1].lineno}: {frames[-1].line}" if frames else ""


def same(got: Any, expected: Any) -> bool:
    """Equality of numbers (NumPy's too), sequences and tensors, floats to within 1e-5 relative."""
    import torch

    if isinstance(expected, torch.Tensor):
        alike = isinstance(got, torch.Tensor) and got.shape == expected.shape
        return alike and torch.allclose(got.double(), expected.double(), rtol=1e-5, atol=1e-7)
    if isinstance(expected, float):
        return isinstance(got, Real) and math.isclose(got, expected, rel_tol=1e-5)
    if isinstance(expected, (list, tuple)):
        alike = isinstance(got, (list, tuple)) and len(got) == len(expected)
        return alike and all(same(a, b) for a, b in zip(got, expected, strict=True))
    return isinstance(got, Integral if isinstance(expected, int) else type(expected)) and got == expected


def _kind(value: Any, plural: str = "") -> str:
    """`list of tensors of shape (3,)` and the like, by the first element of each list."""
    import torch

    if isinstance(value, (list, tuple)):
        return f"list{plural}" + (f" of {_kind(value[0], 's')}" if value else "")
    if isinstance(value, torch.Tensor):
        return f"tensor{plural} of shape {tuple(value.shape)}"
    return ("number" if isinstance(value, Real) else type(value).__name__) + plural


def unlike(got: Any, expected: Any) -> str:
    """A hint where `got` is not even of the right kind."""
    if got is None:
        return "nothing was returned: is there a `return`, and is it always reached?"
    if not _kind(expected).startswith(_kind(got)):
        return f"it is a {_kind(got)}, and should be a {_kind(expected)}"
    return ""


def expect(
    tried: str, got: Any, expected: Any, hint: str, key: Callable[[Any], Any] = lambda value: value
) -> None:
    """Raise WrongAnswer unless `key(got)` is `key(expected)`."""
    other = unlike(got, expected)
    if other or not same(key(got), key(expected)):
        raise wrong(tried, repr(got), expected, other or hint)
