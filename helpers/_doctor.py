"""`python -m helpers doctor`: what is missing or wrong on this machine, and the line that mends it.

Each check returns a Finding. Nothing is imported here that an incomplete installation may lack, and what
one check finds wrong does not keep the others from being made.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from . import _devices

_NEEDED = ("numpy", "scipy", "scikit-learn", "matplotlib", "cloudpickle", "ipykernel", "ipywidgets")
_OLDEST_TORCH = "2.9.1"  # as in pyproject.toml, for a folder that was copied and never installed
_TORCH_PAGE = "https://pytorch.org/get-started/locally"
_MIB = 2**20


class Finding(NamedTuple):
    """What a check found: "ok", "warn" (lessons run, with a limit) or "FAIL" (one would not run)."""

    status: str
    found: str
    mend: str = ""


def _unless(well: bool, found: str, trouble: str, mend: str, status: str = "warn") -> Finding:
    return Finding("ok", found) if well else Finding(status, f"{found}: {trouble}", mend)


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _python() -> Finding:
    found, well = "{}.{}.{}".format(*sys.version_info), (3, 10) <= sys.version_info[:2] <= (3, 13)
    mend = "make a new environment: make lab PYTHON=python3.12, or conda create -n course python=3.12"
    return _unless(well, found, "the course runs on 3.10 to 3.13", mend, "FAIL")


def _oldest(name: str) -> str:
    """The oldest version of a package that the course runs with, as the installed metadata says; or ""."""
    lines: list[str] = []
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        lines = importlib.metadata.requires("multi-gpu-course-helpers") or []
    bounds = (re.match(rf"{name}\s*>=\s*([\d.]+)", line) for line in lines)
    return next((bound[1] for bound in bounds if bound), _OLDEST_TORCH if name == "torch" else "")


def _numbers(version: str) -> list[int]:
    """The release that a version names: [2, 13, 0] of "2.13.0+cpu"."""
    return [int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:3]]


def _package(name: str, missing: str = "FAIL") -> Finding:
    """Import a package, since one that is installed may still be broken, and look at its version."""
    oldest = _oldest(name)
    mend = f'python -m pip install "{name}{oldest and ">=" + oldest}"'
    mend += f"  # the build for your GPU: {_TORCH_PAGE}" if name == "torch" else ""
    try:
        module = importlib.import_module(name.replace("scikit-learn", "sklearn"))
    except Exception as error:
        return Finding(missing, f"does not import: {_reason(error)}", mend)
    found = getattr(module, "__version__", "") or importlib.metadata.version(name)
    return _unless(_numbers(found) >= _numbers(oldest), found, f"older than {oldest}", mend, "FAIL")


def _kernel() -> Finding:
    """Notebooks must run in this Python: a kernel named python3 may be there from another installation."""
    kernelspec, here = importlib.import_module("jupyter_client.kernelspec"), Path(sys.executable).parent
    program = here / kernelspec.KernelSpecManager().get_kernel_spec("python3").argv[0]
    mend = "python -m ipykernel install --user, or pick this Python as the notebook's kernel"
    well = program.parent.resolve() == here.resolve()
    return _unless(well, f"notebooks run in {program}", f"this is {sys.executable}", mend)


def _cores() -> Finding:
    mend = "give the container or virtual machine two: docker run --cpus=2 ..."
    return _unless(_devices.cores() > 1, str(_devices.cores()), "ranks take turns on one core", mend)


def _memory() -> Finding:
    mend = "close other programs, or give the container 4 GiB: docker run --memory=4g ..."
    return _unless(_devices.memory() >= 4, f"{_devices.memory():.1f} GiB", "four ranks want 4", mend)


def _shared_memory() -> Finding:
    if not sys.platform.startswith("linux"):
        return Finding("ok", "this system needs none")
    free = shutil.disk_usage("/dev/shm").free // _MIB if Path("/dev/shm").is_dir() else 0
    mend = "docker run --shm-size=1g ..., or as root: mount -o remount,size=1g /dev/shm"
    return _unless(free >= 256, f"{free} MiB free", "a DataLoader's workers may die of a bus error", mend)


def _temporary_folder() -> Finding:
    mend = "export TMPDIR=/a/folder/to/write/in"
    try:
        folder = Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        return Finding("FAIL", _reason(error), mend)
    asked, free = Path(os.environ.get("TMPDIR", folder)), shutil.disk_usage(folder).free // _MIB
    found = f"{free} MiB free in {folder}"
    if free < 100:
        return Finding("FAIL", f"{found}: lessons need 100", mend)
    return _unless(asked.resolve() == folder.resolve(), found, f"TMPDIR={asked} cannot be written", mend)


def _loopback(address: str = "127.0.0.1") -> Finding:
    """Connect where gloo's ranks talk to each other."""
    try:
        with socket.create_server((address, 0)) as server, socket.create_connection(server.getsockname(), 2):
            return Finding("ok", f"{address} answers")
    except OSError as error:
        mend = f"as root: ip link set lo up; and let {address} through the firewall or VPN"
        return Finding("FAIL", f"{address} does not answer: {_reason(error)}", mend)


def _host_name() -> Finding:
    """Without a network the look-up may take half a minute: nothing needs it, and it is not waited for."""
    name, addresses = socket.gethostname(), ["no address, which is fine: the launcher needs none"]

    def look_up() -> None:
        with contextlib.suppress(OSError):
            addresses.append(socket.gethostbyname(name))

    thread = threading.Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(2)
    return Finding("ok", f"{name} has {addresses[-1]}")


def _driver() -> str:
    """The version of the NVIDIA driver, or "" where there is none."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        return answer.stdout.partition("\n")[0].strip()
    return ""


def _gpus() -> Finding:
    """Compute on every GPU that torch sees: an old driver or a build of torch may not fit it."""
    import torch

    driver, mend = _driver(), f"install the build of torch that fits the driver: {_TORCH_PAGE}"
    try:
        names = [name for name, _ in _devices.devices().gpus]
        for index in range(len(names)):
            torch.ones(1, device=f"cuda:{index}").item()
    except Exception as error:
        return Finding("FAIL", f"cannot be used with driver {driver}: {_reason(error)}", mend)
    build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    trouble = f"driver {driver} is here, but torch {torch.__version__} is {build} and sees no GPU"
    return _unless(bool(names) or not driver, ", ".join(names) or "none, ranks run on the CPU", trouble, mend)


def _one_plus(rank: int) -> float:
    import torch

    number = torch.tensor([1.0 + rank], device=_devices.device(rank))
    torch.distributed.all_reduce(number)  # 4 bytes
    return number.item()


def _all_reduce() -> Finding:
    """What every lesson does: launch ranks, let them add up their numbers, take the sum from each."""
    from . import launch

    start = time.perf_counter()
    sums = launch(_one_plus, nprocs=2, timeout=60, backend=_devices.backend_for(2))
    found = f"1 + 2 = {sums[0]:g}, {_devices.label(2)}, {time.perf_counter() - start:.1f} s with their start"
    return _unless(sums == [3, 3], found, f"3 was expected, not {sums}", "install torch anew", "FAIL")


def _made(check: Callable[[], Finding]) -> Finding:
    """The finding of a check; one that cannot be made to its end has found a fault."""
    try:
        return check()
    except Exception as error:
        return Finding("FAIL", _reason(error), "mend the lines above; if all are ok, report this table")


def examine() -> Iterator[tuple[str, Finding]]:
    """Make every check; what it looks at, and its finding."""
    packages = {name: partial(_package, name) for name in ("torch", *_NEEDED)}
    packages["jupyterlab"] = partial(_package, "jupyterlab", missing="warn")  # other programs do as well
    machine = {"kernel": _kernel, "cores": _cores, "memory": _memory, "/dev/shm": _shared_memory}
    places = {"temporary": _temporary_folder, "loopback": _loopback, "host name": _host_name}
    work, faults = {"GPUs": _gpus, "all-reduce": _all_reduce}, set()
    for what, check in {"Python": _python, **packages, **machine, **places, **work}.items():
        skipped = what in work and "torch" in faults
        finding = Finding("FAIL", "not tried", "mend torch first") if skipped else _made(check)
        if finding.status != "ok":
            faults.add(what)
        yield what, finding


def main() -> int:
    """Print each finding as it comes. Returns the exit status: 1 if a lesson would not run, else 0."""
    failed = 0
    for what, (status, found, mend) in examine():
        failed += status == "FAIL"
        print(f"{status:6}{what:14}{found}" + (f"\n{'mend: ':>20}{mend}" if mend else ""), flush=True)
    print(f"Lines marked FAIL: {failed}. Mend them first." if failed else "The lessons run here.")
    return min(failed, 1)
