"""How functions, arguments and results travel between the notebook and its ranks.

cloudpickle carries what a cell defines (functions, lambdas, closures, classes); tensors travel as raw
bytes beside the pickle, detached and on the CPU.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import sys
import types
from collections import ChainMap
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import cloudpickle
from cloudpickle import cloudpickle as internals


class CannotTravel(TypeError):
    """A value that cannot be sent to a rank or come back from one, named in one line."""


def plain(error: Exception) -> Exception:
    """Let a notebook show `error` as what it says, without the frames of this package."""
    error._render_traceback_ = lambda: [f"{type(error).__name__}: {error}"]
    return error


def _tensor_from(buffer: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    import torch

    if not len(buffer):
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(buffer, dtype=torch.uint8).view(dtype).reshape(shape)


def _code_from(filename: str, make: Callable[..., types.CodeType], args: tuple[Any, ...]) -> types.CodeType:
    return make(*args).replace(co_filename=filename)


def _code_with_file(code: types.CodeType) -> Any:
    """cloudpickle 3.1.3 drops the file name, which a rank's traceback needs to name the cell."""
    return _code_from, (code.co_filename, *internals._code_reduce(code))


def _refuse_file(file: Any) -> Any:
    """cloudpickle would send a copy of an open file's text; a file that is read twice is a surprise."""
    if file in (sys.stdout, sys.stderr):
        return getattr, (sys, "stdout" if file is sys.stdout else "stderr")
    raise TypeError(f"cannot pickle an open file ({file.name!r})")


class _Pickler(cloudpickle.Pickler):
    dispatch_table = ChainMap(
        {types.CodeType: _code_with_file, io.TextIOWrapper: _refuse_file}, cloudpickle.Pickler.dispatch_table
    )

    def reducer_override(self, obj: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(obj, torch.Tensor):
            if type(obj) is torch.Tensor and obj.layout is torch.strided and not obj.is_quantized:
                data = obj.detach().cpu().resolve_conj().resolve_neg().contiguous()
                flat = data.as_strided((data.numel(),), (1,))  # the stride of a single number may be any
                raw = flat.view(torch.uint8).numpy()
                return _tensor_from, (pickle.PickleBuffer(raw), obj.dtype, tuple(obj.shape))
            if obj.device.type not in ("cpu", "meta"):
                return obj.detach().cpu().__reduce_ex__(5)
        return super().reducer_override(obj)


def _pickled(value: Any) -> tuple[bytes, list[memoryview]]:
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    _Pickler(stream, protocol=5, buffer_callback=buffers.append).dump(value)
    return stream.getvalue(), [buffer.raw() for buffer in buffers]


def write(path: str, value: Any, parts: Callable[[], dict[str, Any]] = dict) -> None:
    """Write `value` to `path` whole or not at all (temporary file, then rename).

    Raises CannotTravel, naming the one of `parts()` that cannot be pickled.
    """
    try:
        body, buffers = _pickled(value)
    except Exception as error:
        raise plain(_refused(parts(), error)) from None
    part = path + ".part"
    try:
        with open(part, "wb") as file:
            pickle.dump([len(body), *(buffer.nbytes for buffer in buffers)], file)
            file.writelines([body, *buffers])
        os.replace(part, path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(part)  # a disk that filled up has room again for what is said of it


def read(path: str) -> Any:
    """Read what `write` wrote; buffers come back writable and owned by the reader."""
    with open(path, "rb") as file:
        body, *buffers = (bytearray(length) for length in pickle.load(file))
        for buffer in (body, *buffers):
            file.readinto(buffer)
    return pickle.loads(body, buffers=buffers)


def settle_cells() -> None:
    """In a rank: let plain pickle and multiprocessing find what cells define, which has travelled by value.

    Classes stand in `__main__`, where pickle looks for them. What multiprocessing sends to a process that
    it starts afresh, such as a worker of a DataLoader, goes by value again.
    """
    classes = [cls for cls in list(internals._DYNAMIC_CLASS_TRACKER_BY_CLASS) if cls.__module__ == "__main__"]
    vars(sys.modules["__main__"]).update({cls.__name__: cls for cls in classes})
    ForkingPickler.reducer_override = _by_value


def _by_value(pickler: ForkingPickler, obj: Any) -> Any:
    if isinstance(obj, (type, types.FunctionType)) and obj.__module__ == "__main__":
        return cloudpickle.loads, (cloudpickle.dumps(obj),)
    return NotImplemented


def _refusal(value: Any) -> str | None:
    try:
        _pickled(value)
    except Exception as error:
        return str(error) or type(error).__name__
    return None


def _variables(function: Any) -> dict[str, Any]:
    """The variables outside it that a function uses: of the functions around it, and globals."""
    used = {key: function.__globals__.get(key) for key in internals._extract_code_globals(function.__code__)}
    for key, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a cell that is still empty
            used[key] = cell.cell_contents
    return used


def _culprit(name: str, value: Any, seen: tuple[Any, ...] = ()) -> str | None:
    """Name `value`, or the variable that the function `value` uses, that refuses to travel."""
    why = _refusal(value)
    if why is None or any(value is other for other in seen):
        return None
    inner = _variables(value) if hasattr(value, "__code__") else {}
    uses = "which uses" if seen else "uses"
    found = (_culprit(f"{name} {uses} {key!r},", item, (*seen, value)) for key, item in inner.items())
    is_a = "" if name.endswith(",") or name == "returned" else " is"
    own = f"{name}{is_a} a {type(value).__name__}, which cannot travel to another process: {why}"
    return next(filter(None, found), own)


def _refused(parts: dict[str, Any], error: Exception) -> CannotTravel:
    """Say in one line which of the named `parts` made pickling fail with `error`."""
    said = (_culprit(name, value) for name, value in parts.items())
    return CannotTravel(next(filter(None, said), str(error)))
