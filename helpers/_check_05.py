"""The checks of lesson 05."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

from ._devices import device
from ._exercise import attempt, attempt_on_ranks, exercise, expect, wrong


def _data(samples: int) -> Any:
    """Inputs (samples, 2), whose largest column is the guess, and labels of which every third is wrong."""
    import torch
    from torch.utils.data import TensorDataset

    guesses = torch.arange(samples) % 2
    labels = torch.where(torch.arange(samples) % 3 == 0, 1 - guesses, guesses)
    return TensorDataset(torch.nn.functional.one_hot(guesses, 2).float(), labels)


def _evaluated(rank: int, evaluate: Callable[[Any, Any], Any], samples: int) -> tuple[Any, int]:
    """What `evaluate` returns in this rank, and for how many samples it has called the model."""
    from torch import nn

    seen: list[int] = []
    model = nn.Identity()
    model.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    data = _data(samples)
    data.tensors = tuple(whole.to(device(rank)) for whole in data.tensors)
    result = evaluate(model, data)
    return (result.item() if hasattr(result, "item") else result), sum(seen)


@exercise
def evaluate(evaluate: Callable[[Any, Any], Any]) -> str:
    """Lesson 05: accuracy over ranks in which every sample counts once."""
    for ranks, samples in ((2, 8), (2, 5), (3, 10), (3, 2), (3, 1)):
        labels = _data(samples).tensors
        expected = (labels[0].argmax(dim=1) == labels[1]).double().mean().item()
        tried = f"{samples} samples on {ranks} ranks"
        results = attempt_on_ranks(tried, _evaluated, (evaluate, samples), ranks)
        for rank, (got, _) in enumerate(results):
            hint = "all samples weigh the same, once: which two numbers do the ranks have to add up?"
            expect(f"{tried}; this is what rank {rank} returned", got, expected, hint)
        shares = [seen for _, seen in results]
        hint = "the model is called for this rank's samples alone, and no two ranks differ by more than one"
        if sum(shares) != samples or max(shares) - min(shares) > 1:
            fair = sorted((len(range(rank, samples, ranks)) for rank in range(ranks)), reverse=True)
            raise wrong(f"{tried}; so many went through each rank's model", shares, fair, hint)
    return "8 and 5 samples on 2 ranks; 10, 2 and 1 on 3"


class _Run:
    """A small training run with dropout, momentum and a schedule."""

    def __init__(self, seed: int) -> None:
        import torch
        from torch import nn

        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, 0.5)

    def weights(self) -> Any:
        """All weights in one tensor, a copy."""
        import torch

        return torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()])

    def go_on(self, steps: int) -> Any:
        """Make so many steps, and return the weights."""
        import torch

        for _ in range(steps):
            self.optimizer.zero_grad()
            (self.model(torch.ones(3, 4)) - 1).square().mean().backward()
            self.optimizer.step()
            self.scheduler.step()
        return self.weights()

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

    if any(run.model.get_parameter(key[7:]).ne(value).any() for key, value in state["model"].items()):
        return "these are not the checkpoint's weights: which keys does the bare model go by?"
    if run.scheduler.last_epoch != state["step"]:
        return "the scheduler does not know how many steps were made"
    if not run.optimizer.state or run.optimizer.param_groups[0]["lr"] != run.scheduler.get_last_lr()[0]:
        return "the optimizer has a memory of its own"
    if not torch.equal(torch.get_rng_state(), state["random"][rank]):
        return f"dropout goes on with another random state than rank {rank} had"
    return ""


@exercise
def resume(resume: Callable[..., Any]) -> str:
    """Lesson 05: a checkpoint put back, so that the run goes on as if it had never stopped, bit by bit."""
    import torch

    for rank, ranks, step, per_epoch in ((0, 2, 7, 3), (1, 2, 10, 5), (2, 3, 2, 4)):
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
            raise wrong(f"{tried}, five more steps", got, expected, hint or "the weights differ in some bits")
    return "bit by bit as if never stopped, for ranks of 2 and 3, within an epoch and between two"
