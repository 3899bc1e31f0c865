"""The checks of lesson 06, tried on answers as learners give them, with the tests of test_check.py."""

# ruff: noqa: ANN001, ANN201, ANN202 (learners do not annotate)
from __future__ import annotations

import math

import torch
from test_check import RIGHT, SAYS, WRONG, enter, try_answers
from torch import nn
from torch.amp import autocast

# scaled_step(loss, optimizer, state)


def gradients(optimizer):
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return [p.grad for p in parameters if p.grad is not None]


def finite(found):
    return all(gradient.isfinite().all() for gradient in found)


def adapt(state, good):
    state["good"] = state["good"] + 1 if good else 0
    if not good:
        state["scale"] /= 2
    elif state["good"] == state["interval"]:
        state["scale"] *= 2
        state["good"] = 0


def scaler(clear=True, multiply=True, divide=True, fits=finite, skip=True, adapt=adapt, every=gradients):
    """An answer of parts, each of which may be left out or replaced."""

    def scaled_step(loss, optimizer, state):
        if clear:
            optimizer.zero_grad()
        (loss * (state["scale"] if multiply else 1)).backward()
        found = every(optimizer)
        for gradient in found if divide else []:
            gradient /= state["scale"]
        good = bool(fits(found))
        if good or not skip:
            optimizer.step()
        adapt(state, good)

    return scaled_step


def never_grows(state, good):
    state["scale"] /= 1 if good else 2


def grows_each_step(state, good):
    state["scale"] *= 2 if good else 0.5


def keeps_counting_after_growth(state, good):
    state["good"] = state["good"] + 1 if good else 0
    state["scale"] *= 0.5 if not good else 2 if state["good"] >= state["interval"] else 1


def overflow_does_not_reset(state, good):
    count = state["good"]
    adapt(state, good)
    if not good:
        state["good"] = count


def one_late(state, good):
    state["interval"] += 1
    adapt(state, good)
    state["interval"] -= 1


def counts_all(state, good):
    state["good"] += 1
    state["scale"] *= 1 if good else 0.5
    if state["good"] == state["interval"]:
        state["scale"], state["good"] = state["scale"] * 2, 0


def never_halves(state, good):
    if good:
        adapt(state, good)


def to_one(state, good):
    adapt(state, good)
    state["scale"] = state["scale"] if good else 1.0


RIGHT["scaled_step"] |= {
    "of parts": scaler(),
    "a norm": scaler(fits=lambda found: math.isfinite(sum(g.norm().item() for g in found))),
    "one sum": scaler(fits=lambda found: torch.stack([g.sum() for g in found]).isfinite().all()),
    "not infinite and itself": scaler(fits=lambda found: all(((g - g) == 0).all() for g in found)),
}
WRONG["scaled_step"] |= {
    "not scaled at all": scaler(multiply=False, divide=False),
    "divided only": scaler(multiply=False),
    "multiplied only": scaler(divide=False),
    "gradients add up": scaler(clear=False),
    "steps all the same": scaler(skip=False),
    "never skips": scaler(fits=lambda found: True),
    "infinite, but not NaN": scaler(fits=lambda found: not any(g.isinf().any() for g in found)),
    "NaN, but not infinite": scaler(fits=lambda found: not any(g.isnan().any() for g in found)),
    "first gradient alone": scaler(fits=lambda found: found[0].isfinite().all()),
    "any finite": scaler(fits=lambda found: any(g.isfinite().all() for g in found)),
    "first group alone": scaler(every=lambda opt: gradients(opt)[:1]),
    "never grows": scaler(adapt=never_grows),
    "never halves": scaler(adapt=never_halves),
    "back to one": scaler(adapt=to_one),
    "grows each step": scaler(adapt=grows_each_step),
    "keeps counting after growth": scaler(adapt=keeps_counting_after_growth),
    "an overflow does not reset": scaler(adapt=overflow_does_not_reset),
    "one step late": scaler(adapt=one_late),
    "counts skipped steps": scaler(adapt=counts_all),
    "changes nothing": scaler(adapt=lambda state, good: None),
    "unused parameter has no gradient": scaler(
        every=lambda opt: [p.grad for group in opt.param_groups for p in group["params"]]
    ),
    "returns": lambda loss, optimizer, state: loss,
}


@enter(WRONG)
def scaled_step__zeroes_what_is_not_finite(loss, optimizer, state):
    optimizer.zero_grad()
    (loss * state["scale"]).backward()
    good = finite(gradients(optimizer))
    for gradient in gradients(optimizer):
        gradient.copy_(gradient / state["scale"] if good else torch.zeros_like(gradient))
    optimizer.step()
    adapt(state, good)


@enter(WRONG)
def scaled_step__looks_at_the_loss(loss, optimizer, state):
    scaler(fits=lambda found: loss.isfinite())(loss, optimizer, state)


@enter(WRONG)
def scaled_step__divides_by_the_next_scale(loss, optimizer, state):
    optimizer.zero_grad()
    (loss * state["scale"]).backward()
    adapt(state, good := finite(gradients(optimizer)))
    for gradient in gradients(optimizer):
        gradient /= state["scale"]
    if good:
        optimizer.step()


@enter(WRONG)
def scaled_step__divides_after_the_step(loss, optimizer, state):
    optimizer.zero_grad()
    (loss * state["scale"]).backward()
    if good := finite(gradients(optimizer)):
        optimizer.step()
    for gradient in gradients(optimizer):
        gradient /= state["scale"]
    adapt(state, good)


@enter(RIGHT)
def scaled_step__leaves_early(loss, optimizer, state):
    optimizer.zero_grad(set_to_none=True)
    loss.mul(state["scale"]).backward()
    for gradient in gradients(optimizer):
        if not torch.isfinite(gradient).all():
            state.update(scale=state["scale"] * 0.5, good=0)
            return
        gradient.mul_(1 / state["scale"])
    optimizer.step()
    state["good"] += 1
    if state["good"] >= state["interval"]:
        state.update(scale=state["scale"] * 2, good=0)


# block(inputs, weight)


def normalised(mean_square, product=torch.matmul, back=True):
    """An answer with its own mean square of `hidden`, its own product, and a result in fp16 or not."""

    def block(inputs, weight):
        hidden = product(inputs, weight)
        result = hidden * (mean_square(hidden) + 1e-6).rsqrt()
        return result.to(torch.float16) if back else result

    return block


def mean(x):
    return x.mean(dim=-1, keepdim=True)


def in_fp32(inputs, weight):
    with autocast("cpu", enabled=False):
        return inputs.float() @ weight.float()


def in_bf16(inputs, weight):
    with autocast("cpu", dtype=torch.bfloat16):
        return inputs @ weight


RIGHT["block"] |= {
    "float": normalised(lambda h: mean(h.float().square())),
    "to fp32": normalised(lambda h: mean(h.to(torch.float32) ** 2)),
    "bf16, which is rough but has the range": normalised(lambda h: mean(h.bfloat16().square())),
    "float64": normalised(lambda h: mean(h.double().square())),
    "a norm": normalised(lambda h: torch.linalg.vector_norm(h.float(), dim=-1, keepdim=True) ** 2 / 8),
    "torch's own": lambda x, w: nn.functional.rms_norm((x @ w).float(), (8,), eps=1e-6).half(),
    "F.linear": normalised(
        lambda h: mean(h.float().square()), product=lambda x, w: nn.functional.linear(x, w.T)
    ),
    "the square root divides": lambda x, w: ((h := x @ w) / (mean(h.float().square()) + 1e-6).sqrt()).half(),
}
WRONG["block"] |= {
    "as it was": normalised(lambda h: mean(h.square())),
    "float after the square": normalised(lambda h: mean(h.square().float())),
    "float after the mean": normalised(lambda h: mean(h.square()).float()),
    "the result stays fp32": normalised(lambda h: mean(h.float().square()), back=False),
    "product in fp32": normalised(lambda h: mean(h.square()), product=in_fp32),
    "product in bf16": normalised(lambda h: mean(h.float().square()), product=in_bf16),
    "clamped": normalised(lambda h: mean(h.clamp(-250, 250).square())),
    "infinities replaced": normalised(lambda h: mean(h.square()).nan_to_num(posinf=65504)),
    "mean of the whole": normalised(lambda h: h.float().square().mean()),
    "sum": normalised(lambda h: h.float().square().sum(dim=-1, keepdim=True)),
    "no root": lambda x, w: ((h := x @ w) / (mean(h.float().square()) + 1e-6)).half(),
    "not normalised": lambda x, w: x @ w,
    "inputs scaled down": normalised(lambda h: mean((h / 64).square())),
    "prints": lambda x, w: print(x @ w),
    "type of the input": lambda x, w: normalised(lambda h: mean(h.float().square()), back=False)(x, w).to(
        x.dtype
    ),
}


@enter(WRONG)
def block__autocast_off(inputs, weight):
    with autocast("cpu", enabled=False):
        return normalised(lambda h: mean(h.square()))(inputs, weight)


SAYS |= {
    ("scaled_step", "multiplied only"): "divided by the scale before the optimizer sees them",
    ("scaled_step", "steps all the same"): "no step may be made",
    ("scaled_step", "zeroes what is not finite"): "no memory of the optimizer may change",
    ("scaled_step", "never grows"): "double the scale",
    ("scaled_step", "never halves"): "half the scale",
    ("scaled_step", "gradients add up"): "this step's alone",
    ("block", "as it was"): "beyond 65504",
    ("block", "product in fp32"): "leave it to autocast",
    ("block", "the result stays fp32"): "the next layer wants fp16",
    ("block", "prints"): "nothing was returned",
}

# The tests

test_a_right_answer_passes, test_a_wrong_answer_is_told_what_is_wrong = try_answers("scaled_step", "block")
