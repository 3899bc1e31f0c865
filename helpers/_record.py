"""Measured results as JSON, a file for each machine, so that a lesson can draw them beside the reader's own.

A file holds what was measured, on what, with which versions, when, and every single value: whoever doubts a
median can take another one.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ._devices import cores, devices
from ._measure import Timing

RECORDED = Path(__file__).parents[1] / "notebooks" / "data" / "recorded"
_KEPT = ("what", "unit", "regime", "versions", "date", "values")


@dataclass(frozen=True)
class Result:
    """What was measured: `values` maps each variant to all its samples, in `unit`, in the order of the runs.

    `regime` says on which kind of devices, as `label` does; `own` is True for what this run has measured.
    """

    name: str
    what: str
    unit: str
    regime: str
    hardware: str
    versions: dict[str, str]
    date: str
    values: dict[str, tuple[float, ...]]
    own: bool = False

    @property
    def repeats(self) -> int:
        """Samples of the variant that has fewest."""
        return min(map(len, self.values.values()))

    @property
    def title(self) -> str:
        """Whose result it is, to stand above a picture of it."""
        whose = "measured just now" if self.own else f"recorded on {self.date}"
        return f"{whose}: {self.regime}, {self.hardware}"


def _processor() -> str:
    """The processor's name as the system gives it."""
    try:
        found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:  # not Linux
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def hardware() -> str:
    """This machine in words: its GPUs where there are any, else its cores, and their kind."""
    gpus = [name for name, _ in devices().gpus]
    if gpus:
        return f"{len(gpus)} x {', '.join(sorted(set(gpus)))}"
    return f"{cores()} {'core' if cores() == 1 else 'cores'} of {_processor()}"


def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), "torch": devices().torch, "system": platform.system()}


def _samples(name: str, values: Any) -> tuple[float, ...]:
    numbers = values.samples if isinstance(values, Timing) else values
    numbers = tuple(map(float, numbers if isinstance(numbers, Iterable) else [numbers]))
    if not numbers:
        raise ValueError(f"there is no value of {name!r} to record: pass one number or more")
    return numbers


def record(
    name: str,
    values: Mapping[str, Timing | Iterable[float] | float],
    *,
    what: str,
    regime: str,
    unit: str = "s",
) -> Result:
    """The values as a `Result` of this run; `make record` also keeps it in this machine's file.

    Args:
        name: what `recorded` finds it by.
        values: variant to its samples in `unit`: a `Timing`, which is in seconds, numbers, or one number.
        what: what one sample is, in words, such as "a training step of 256 samples".
        regime: the devices that took part, as `label(nprocs)` says it.
    """
    samples = {variant: _samples(f"{name}: {variant}", numbers) for variant, numbers in values.items()}
    today = datetime.date.today().isoformat()
    result = Result(name, what, unit, regime, hardware(), _versions(), today, samples, own=True)
    target = os.environ.get("HELPERS_RECORD")
    if target:
        _keep(result, Path(target))
    return result


def _keep(result: Result, path: Path) -> None:
    """Add the result to the file, in place of an older one of its name."""
    content: dict[str, Any] = {"hardware": result.hardware, "results": {}}
    if path.exists():
        content = json.loads(path.read_text("utf-8"))
    content["results"][result.name] = {key: getattr(result, key) for key in (*_KEPT, "repeats")}
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    part.replace(path)


def file_name(machine: str) -> str:
    """The name of a machine's file: "2 cores of AMD EPYC" is in 2-cores-of-amd-epyc.json."""
    return re.sub(r"[^a-z0-9]+", "-", machine.lower()).strip("-") + ".json"


def recorded(name: str, folder: Path = RECORDED) -> list[Result]:
    """The results of that name that were recorded on other days or machines, in order of their files.

    Raises:
        ValueError: a file is not one that `make record` wrote, or nobody has recorded such a result.
    """
    found = [
        result for path in sorted(folder.glob("*.json")) for result in _read(path) if result.name == name
    ]
    if not found:
        raise ValueError(f"no result {name!r} in {folder.parent.name}/{folder.name}/: `make record` makes it")
    return found


def _read(path: Path) -> list[Result]:
    try:
        content = json.loads(path.read_text("utf-8"))
        return [_result(name, content["hardware"], kept) for name, kept in content["results"].items()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        line = f"{path.name} holds no recorded results ({error!r}): take it back from git, or record anew"
        raise ValueError(line) from None


def _result(name: str, machine: str, kept: dict[str, Any]) -> Result:
    fields = {key: kept[key] for key in _KEPT}
    fields["values"] = {variant: tuple(map(float, numbers)) for variant, numbers in kept["values"].items()}
    return Result(name=name, hardware=machine, **fields)
