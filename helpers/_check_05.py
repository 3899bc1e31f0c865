"""The checks of lesson 05."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

from ._devices import device
from ._exercise import attempt, attempt_on_ranks, exercise, expect, wrong


def _data(samples: int) -> Any:
    """Inputs (samples, 2), each with numbers of its own, and labels of which every third is wrong."""
    import torch
    from torch.utils.data import TensorDataset

    numbers = torch.arange(samples)
    guesses = numbers % 2
    labels = torch.where(numbers % 3 == 0, 1 - guesses, guesses)
    return TensorDataset(torch.nn.functional.one_hot(guesses, 2) * (numbers[:, None] + 1.0), labels)


def _evaluated(rank: int, evaluate: Callable[[Any, Any], Any], samples: int) -> tuple[Any, list[int]]:
    """What `evaluate` returns in this rank, and the samples on which it has called the model."""
    import torch
    from torch import nn

    seen: list[int] = []
    nn.init.eye_((model := nn.Linear(2, 2, bias=False)).weight)
    model.register_forward_hook(lambda _, x, __: seen.extend((x[0].reshape(-1, 2).sum(dim=1) - 1).tolist()))
    data = _data(samples)
    data.tensors = tuple(whole.to(device(rank)) for whole in data.tensors)
    result = evaluate(model.to(device(rank)), data)
    scalar = isinstance(result, torch.Tensor) and result.ndim == 0
    return (result.item() if scalar else result), [round(sample) for sample in seen]


def _miscounted(result: Any, everywhere: set[Any]) -> str:
    """A hint at why an accuracy is not the expected one."""
    if result != result:
        return "not a number: what does a rank with an empty share divide by?"
    if len(everywhere) > 1:
        return "this number is not the same on every rank: who has the others' results?"
    return "all samples weigh the same, once: which two numbers do the ranks have to add up?"


@exercise
def evaluate(evaluate: Callable[[Any, Any], Any]) -> str:
    """Lesson 05: accuracy over ranks in which every sample counts once."""
    for ranks, samples in ((2, 8), (2, 5), (3, 10), (3, 2), (3, 1)):
        inputs, labels = _data(samples).tensors
        expected = (inputs.argmax(dim=1) == labels).double().mean().item()
        tried = f"{samples} samples on {ranks} ranks"
        results = attempt_on_ranks(tried, _evaluated, (evaluate, samples), ranks)
        for rank, (got, _) in enumerate(results):
            hint = _miscounted(got, {repr(other) for other, _ in results})
            expect(f"{tried}; this is what rank {rank} returned", got, expected, hint)
        shares = [len(seen) for _, seen in results]
        if sorted(sample for _, seen in results for sample in seen) != list(range(samples)):
            came = [sorted(seen) for _, seen in results]
            hint = (
                "the shares together are the data set: is a sample left out, or taken twice, as padding does?"
            )
            raise wrong(f"{tried}; the samples that the ranks' models saw", came, "each sample once", hint)
        if max(shares) - min(shares) > 1:
            fair = sorted((len(range(rank, samples, ranks)) for rank in range(ranks)), reverse=True)
            hint = "no two shares differ by more than one sample"
            raise wrong(f"{tried}; so many went through each rank's model", shares, fair, hint)
    return "8 and 5 samples on 2 ranks; 10, 2 and 1 on 3"


class _Run:
    """A small training run with dropout, batch norm, momentum and a schedule."""

    def __init__(self, seed: int) -> None:
        import torch
        from torch import nn

        torch.manual_seed(seed)
        self.model = nn.Sequential()
        layers = {"layer": nn.Linear(4, 4), "drop": nn.Dropout(), "module": nn.BatchNorm1d(4)}
        for name, layer in (layers | {"out": nn.Linear(4, 2)}).items():
            self.model.add_module(name, layer)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, 0.5)

    def go_on(self, steps: int) -> Any:
        """Make so many steps, and return all parameters and buffers, float64, in one tensor."""
        import torch

        for _ in range(steps):
            self.optimizer.zero_grad()
            (self.model(torch.arange(12.0).reshape(3, 4)) - 1).square().mean().backward()
            self.optimizer.step()
            self.scheduler.step()
        return torch.cat([value.double().flatten() for value in self.model.state_dict().values()])

    def checkpoint(self, rank: int, ranks: int, **position: int) -> dict[str, Any]:
        """What the run would have saved from inside a wrapper, come back from a file."""
        import torch

        states = [torch.Generator().manual_seed(100 + other).get_state() for other in range(ranks)]
        states[rank] = torch.get_rng_state()
        parts = {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "scheduler")}
        parts["model"] = {f"module.{key}": value for key, value in parts["model"].items()}
        torch.save({**parts, "random": states, **position}, file := io.BytesIO())
        file.seek(0)
        return torch.load(file, weights_only=True)


def _left_out(state: dict[str, Any], run: _Run, rank: int) -> str:
    """A hint at what of the state is not in the run, or an empty string."""
    import torch

    weights = run.model.state_dict()
    unlike = [key for key, value in state["model"].items() if not torch.equal(weights[key[7:]], value)]
    if unlike:
        return f"{unlike[0]!r} has not come back: under which key does the bare model look for it?"
    if run.scheduler.last_epoch != state["step"]:
        return "the scheduler does not know how many steps were made"
    if len(run.optimizer.state) < len(state["optimizer"]["state"]):
        return "the optimizer has a memory of its own: what does momentum add to?"
    if run.optimizer.param_groups[0]["lr"] != state["optimizer"]["param_groups"][0]["lr"]:
        return "the optimizer goes on with another learning rate than it had"
    if not torch.equal(torch.get_rng_state(), state["random"][rank]):
        return f"dropout goes on with another random state than rank {rank} had"
    return ""


@exercise
def resume(resume: Callable[..., Any]) -> str:
    """Lesson 05: a checkpoint put back, so that the run goes on as if it had never stopped, bit by bit."""
    import torch

    for rank, ranks, step, per_epoch in ((0, 2, 8, 3), (1, 2, 10, 5), (2, 3, 2, 4)):
        tried = f"rank {rank} of {ranks}, stopped after {step} steps, {per_epoch} steps an epoch"
        with torch.random.fork_rng(devices=[]):
            run = _Run(rank)
            run.go_on(step)
            state = run.checkpoint(rank, ranks, step=step, steps_per_epoch=per_epoch)
            expected, kept = run.go_on(5), copy.deepcopy(state)
            again = _Run(50 + rank)
            parts = again.model, again.optimizer, again.scheduler
            position = attempt(tried, resume, state, *parts, rank)
            hint = _left_out(kept, again, rank)
            got = again.go_on(5)
        where = "whole epochs first, then the batches made in the one that has begun"
        expect(f"{tried}; this was returned", position, divmod(step, per_epoch), where)
        if not torch.equal(got, expected):
            tried = f"{tried}, then five more steps; the largest difference of a weight or a running mean"
            raise wrong(tried, (got - expected).abs().max().item(), 0.0, hint or "some bits differ")
    return "bit by bit as if never stopped, for ranks of 2 and 3, within an epoch and between two"
