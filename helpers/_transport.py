"""How functions, arguments and results travel between the notebook and its ranks.

cloudpickle carries what a cell defines (functions, lambdas, closures, classes); tensors travel as raw
bytes beside the pickle, detached and on the CPU.
"""

from __future__ import annotations

import io
import os
import pickle
import struct
import sys
import types
from collections import ChainMap
from collections.abc import Callable
from typing import Any

import cloudpickle

_HEADER = struct.Struct("<QI")  # bytes of the pickle, number of buffers
_LENGTH = struct.Struct("<Q")


class CannotTravel(TypeError):
    """A value that cannot be sent to a rank or come back from one, named in one line."""


def _tensor_from(buffer: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    import torch

    if not len(buffer):
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(buffer, dtype=torch.uint8).view(dtype).reshape(shape)


def _code_from(filename: str, make: Callable[..., types.CodeType], args: tuple[Any, ...]) -> types.CodeType:
    return make(*args).replace(co_filename=filename)


def _code_with_file(code: types.CodeType) -> Any:
    """cloudpickle 3.1.3 drops the file name, which a rank's traceback needs to name the cell."""
    return _code_from, (code.co_filename, *cloudpickle.cloudpickle._code_reduce(code))


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
                raw = data.reshape(-1).view(torch.uint8).numpy()
                return _tensor_from, (pickle.PickleBuffer(raw), obj.dtype, tuple(obj.shape))
            if obj.device.type not in ("cpu", "meta"):
                return obj.detach().cpu().__reduce_ex__(self.proto)
        return super().reducer_override(obj)


def _pickled(value: Any) -> tuple[bytes, list[memoryview]]:
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    pickler = _Pickler(stream, protocol=5, buffer_callback=buffers.append)
    pickler.proto = 5
    pickler.dump(value)
    return stream.getvalue(), [buffer.raw() for buffer in buffers]


def write(path: str, value: Any) -> None:
    """Write `value` to `path` whole or not at all (temporary file, then rename)."""
    body, buffers = _pickled(value)
    with open(path + ".part", "wb") as file:
        file.write(_HEADER.pack(len(body), len(buffers)))
        for buffer in buffers:
            file.write(_LENGTH.pack(buffer.nbytes))
        file.write(body)
        for buffer in buffers:
            file.write(buffer)
    os.replace(path + ".part", path)


def read(path: str) -> Any:
    """Read what `write` wrote; buffers come back writable and owned by the reader."""
    with open(path, "rb") as file:
        body_length, count = _HEADER.unpack(file.read(_HEADER.size))
        lengths = [_LENGTH.unpack(file.read(_LENGTH.size))[0] for _ in range(count)]
        body = file.read(body_length)
        buffers = []
        for length in lengths:
            buffers.append(bytearray(length))
            file.readinto(buffers[-1])
    return pickle.loads(body, buffers=buffers)


def classes_from_cells() -> dict[str, type]:
    """Classes of the notebook that have travelled here by value, by name."""
    found = list(cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS)
    return {cls.__name__: cls for cls in found if cls.__module__ == "__main__"}


def _refusal(value: Any) -> str | None:
    try:
        _pickled(value)
    except Exception as error:
        return str(error) or type(error).__name__
    return None


def _refused(value: Any) -> str:
    return f"a {type(value).__name__}, which cannot travel to another process: {_refusal(value)}"


def _culprit(name: str, value: Any) -> str | None:
    """Name `value`, or the variable that the function `value` uses, that refuses to travel."""
    if _refusal(value) is None:
        return None
    if hasattr(value, "__code__"):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        used = {key: cell.cell_contents for key, cell in cells}
        used |= {key: value.__globals__[key] for key in value.__code__.co_names if key in value.__globals__}
        for key, item in used.items():
            if item is not value and _refusal(item) is not None:
                return f"{name} uses {key!r}, {_refused(item)}"
    verb = name if name == "returned" else f"{name} is"
    return f"{verb} {_refused(value)}"


def refuse(parts: dict[str, Any], error: Exception) -> CannotTravel:
    """Say in one line which of the named `parts` made pickling fail with `error`."""
    for name, value in parts.items():
        said = _culprit(name, value)
        if said is not None:
            return CannotTravel(said)
    return CannotTravel(str(error))


def write_or_refuse(path: str, value: Any, parts: Callable[[], dict[str, Any]]) -> None:
    """`write`, or raise CannotTravel naming the one of `parts()` that cannot be pickled."""
    try:
        write(path, value)
    except OSError:
        raise
    except Exception as error:
        raise refuse(parts(), error) from None
