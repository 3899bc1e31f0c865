"""The checks of lesson 06."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._exercise import attempt, exercise, expect, unlike, wrong
from ._types import operation_types

_INTERVAL = 3
_FACTORS = {  # of the loss, step by step: gradients of 1e20 overflow fp16, those of 1e-8 vanish
    "gradients of ordinary size": (1.0,) * 4,
    "gradients too small for fp16 without a scale": (1e-8,) * 4,
    "an overflow in step 0": (1e20, 1.0, 1.0, 1.0, 1.0),
    "an overflow in step 2": (1.0, 1.0, 1e20, 1.0, 1.0, 1.0, 1.0),
    "overflows in steps 0 and 1": (1e20, 1e20, 1.0, 1.0, 1.0, 1.0),
    "not a number in step 1": (1.0, float("nan"), 1.0, 1.0, 1.0),
    "seven good steps": (1.0,) * 7,
}


class _Half:
    """Parameters in fp32 whose gradients pass through fp16; one takes no part; SGD with momentum."""

    def __init__(self) -> None:
        import torch

        chance = torch.Generator().manual_seed(0)
        first = torch.randn(4, generator=chance, requires_grad=True)
        self.weights = [first, torch.zeros(4, requires_grad=True)]  # at 0, the smallest step shows
        unused = torch.zeros(2, requires_grad=True)
        groups = [{"params": [self.weights[0], unused]}, {"params": [self.weights[1]]}]
        self.optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)

    def loss(self, factor: float) -> Any:
        """A loss in fp32. The factor is felt by the second parameter alone, after which comes fp16."""
        first, second = (weight.half() for weight in self.weights)
        return first.float().square().sum() + (second.float() * factor).sum()

    def now(self) -> Any:
        """All weights, shape (8,)."""
        import torch

        return torch.cat([weight.detach() for weight in self.weights])


def _as_torch_does(run: _Half, scaler: Any, factor: float) -> float:
    """One step with torch's own scaler; returns the scale for the next one."""
    run.optimizer.zero_grad()
    scaler.scale(run.loss(factor)).backward()
    scaler.step(run.optimizer)
    scaler.update()
    return scaler.get_scale()


def _scale_hint(before: float, got: Any, expected: float) -> str:
    """A hint at why the scale is not the expected one."""
    if expected < before:
        return "a gradient was not finite: half the scale"
    if expected > before:
        return "so many good steps in a row have been made: double the scale"
    return "the scale changes after an overflow, and after `interval` good steps in a row: who counts them?"


def _weights_hint(tried: str, moved: Any, right: Any, scale: float) -> str:
    """A hint at why the weights are not the expected ones."""
    if not moved.isfinite().all():
        return "no step may be made where any gradient is infinite or not a number"
    if right.abs().max() == 0:
        return "this step is to be skipped whole, and no memory of the optimizer may change either"
    if moved.abs().max() > 100 * right.abs().max():
        return "are the gradients divided by the scale before the optimizer sees them?"
    if moved.abs().max() == 0:
        return "all gradients were finite, and no step was made"
    return (
        "which gradients does the optimizer see: this step's alone, divided by the scale they were made with?"
    )


@exercise
def scaled_step(scaled_step: Callable[[Any, Any, dict[str, Any]], Any]) -> str:
    """Lesson 06: one step with a loss scale that adapts, beside torch.amp.GradScaler."""
    import torch

    for case, factors in _FACTORS.items():
        mine, theirs, start = _Half(), _Half(), 2.0**10
        options = {"init_scale": start, "growth_interval": _INTERVAL}
        scaler = torch.amp.GradScaler("cpu", **options)
        state = {"scale": start, "good": 0, "interval": _INTERVAL}
        for step, factor in enumerate(factors):
            tried = f"{case}, scale {state['scale']:g}; after step {step}"
            before, scale, was = mine.now(), state["scale"], theirs.now()
            attempt(tried, scaled_step, mine.loss(factor), mine.optimizer, state)
            following = _as_torch_does(theirs, scaler, factor)
            moved, right = mine.now() - before, theirs.now() - was
            if not torch.allclose(mine.now(), theirs.now(), rtol=1e-4, atol=1e-12):
                hint = _weights_hint(tried, moved, right, scale)
                raise wrong(f"{tried}, how the weights moved", moved.tolist(), right.tolist(), hint)
            hint = _scale_hint(scale, state["scale"], following)
            expect(f'{tried}, state["scale"]', float(state["scale"]), following, hint)
    return f"the steps and scales of torch.amp.GradScaler in {len(_FACTORS)} runs"


def _normalised(inputs: Any, weight: Any) -> Any:
    """The block in float64: a product, then each row divided by the root of its mean square."""
    hidden = inputs.double() @ weight.double()
    return hidden * (hidden.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


def _in_half(tried: str, block: Callable[[Any, Any], Any], *args: Any) -> tuple[Any, set[Any]]:
    """What the block returns under autocast to fp16, and the types of the matrix products that it makes."""
    import torch

    got: list[Any] = []
    with torch.autocast("cpu", torch.float16):
        run = operation_types(lambda: got.append(attempt(tried, block, *(part.clone() for part in args))))
    return got[0], {kind for name, kind in run.items() if name in ("mm", "addmm", "bmm", "mv")}


@exercise
def block(block: Callable[[Any, Any], Any]) -> str:
    """Lesson 06: a block that stays right in fp16, and whose product stays in fp16."""
    import torch

    chance = torch.Generator().manual_seed(0)
    for size in (1.0, 0.003, 300.0, 3000.0):
        inputs, weight = (torch.randn(shape, generator=chance) for shape in ((4, 16), (16, 8)))
        inputs *= size / 4
        tried = f"hidden values of about {size:g}, in fp16"
        expected = _normalised(inputs.half(), weight.half())
        got, kinds = _in_half(tried, block, inputs, weight)
        other = unlike(got, expected)
        if other:
            raise wrong(tried, repr(got), "a tensor of shape (4, 8)", other)
        apart = (got.double() - expected).abs().max().item()
        if not apart < 0.02:
            hint = "which value on the way is beyond 65504, though the result is not?"
            raise wrong(f"{tried}; the largest error of the result", apart, "below 0.02", hint)
        if kinds != {torch.float16}:
            hint = "the product is the costly part: leave it to autocast"
            raise wrong(f"{tried}; types of matrix products", kinds, {torch.float16}, hint)
        if got.dtype != torch.float16:
            hint = "the next layer wants fp16: convert back once the delicate part is over"
            raise wrong(f"{tried}; the type of the result", got.dtype, torch.float16, hint)
    return "values of 0.003 to 3,000, with the product and the result in fp16"
