"""What runs in which number type, and what forward keeps for backward: read off real runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def operation_types(fn: Callable[[], Any]) -> dict[str, torch.dtype]:
    """Run `fn()` and return the type of the (first) result of each operation: `{"mm": torch.bfloat16, ...}`.

    Operations are named as torch's dispatcher names them. Of one that runs several times, the last counts;
    results that are not floating-point numbers do not.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: dict[str, torch.dtype] = {}

    class Note(TorchDispatchMode):
        def __torch_dispatch__(self, operation: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = operation(*args, **(kwargs or {}))
            first = result[0] if isinstance(result, (tuple, list)) and len(result) else result
            if getattr(first, "is_floating_point", bool)():
                seen[operation.overloadpacket.__name__] = first.dtype
            return result

    with Note():
        fn()
    return seen


def saved_bytes(fn: Callable[[], Any]) -> int:
    """Run `fn()` and return the bytes of all that it keeps for backward, each storage counted once."""
    from torch.autograd.graph import saved_tensors_hooks

    kept: dict[int, Any] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor  # alive until all are counted
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        fn()
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
