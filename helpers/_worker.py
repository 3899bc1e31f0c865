"""What runs inside a rank, and the fork server that starts ranks (Linux).

Light on purpose: the fork server imports this module and torch, nothing else of the package. It never
touches CUDA, so that a forked rank can.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import importlib
import json
import linecache
import os
import pickle
import select
import shutil
import signal
import socket
import struct
import sys
import time
import traceback
import types
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from . import _transport

STATUS = struct.Struct("<cq")  # what a status pipe carries: a kind, a value
PID, RETURNED, EXITED = b"p", b"r", b"x"
STACK_SIGNAL = getattr(signal, "SIGRTMAX", getattr(signal, "SIGUSR2", None))
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36

current_rank: int | None = None  # the rank that this process is, None in the notebook
_listening: Any = None  # rank 0's store for backend=None: kept for the life of the process


def torchrun_environment(rank: int, nprocs: int) -> dict[str, str]:
    """The variables that torchrun sets, for one machine (docs.pytorch.org, "torchrun")."""
    local = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0}
    sizes = {"WORLD_SIZE": nprocs, "LOCAL_WORLD_SIZE": nprocs, "GROUP_WORLD_SIZE": 1}
    return {key: str(value) for key, value in (local | sizes).items()}


def _enter(job: dict[str, Any], rank: int) -> None:
    """Make this process see what the notebook sees: environment, folder, import path, cell sources."""
    os.environ.clear()
    os.environ.update(job["environ"] | torchrun_environment(rank, job["nprocs"]))
    os.chdir(job["cwd"])
    sys.path[:], sys.argv[:] = job["path"], job["argv"]
    importlib.invalidate_caches()
    sys.modules["__main__"] = types.ModuleType("__main__")
    for name, text in job["sources"].items():
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)


def _set_threads(threads: int) -> None:
    """Give this rank its share of the cores: torch's pools and, for its children, OpenMP's."""
    import torch

    torch.set_num_threads(threads)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # forked ranks would all draw the same numbers


def _join(job: dict[str, Any], rank: int, folder: str) -> None:
    """Rendezvous through a file in the launch's private folder; gloo binds to loopback."""
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", rank) if job["backend"] == "nccl" else None
    if device is not None:
        torch.cuda.set_device(device)
    dist.init_process_group(
        job["backend"],
        store=dist.FileStore(os.path.join(folder, "store"), job["nprocs"]),
        rank=rank,
        world_size=job["nprocs"],
        timeout=timedelta(seconds=min(job["timeout"] + 60, 1e8)),
        device_id=device,
    )


def _host_store(job: dict[str, Any], listen_fd: int) -> None:
    """Rank 0 serves the env:// rendezvous on a loopback socket that the notebook has bound."""
    global _listening
    import torch.distributed as dist

    port = int(job["environ"]["MASTER_PORT"])
    store = dist.TCPStore("127.0.0.1", port, None, True, wait_for_workers=False, master_listen_fd=listen_fd)
    _listening = store


def _leave() -> None:
    """Destroy the process group, whoever made it, and run the exit handlers."""
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        with contextlib.suppress(Exception):
            dist.destroy_process_group()
    atexit._run_exitfuncs()


def _failure(error: BaseException) -> dict[str, Any]:
    """What is reported of an exception: its kind, its traceback from the user's frame on, itself."""
    tb = error.__traceback__
    while tb is not None and tb.tb_frame.f_code.co_filename == __file__:
        tb = tb.tb_next
    text = "".join(traceback.format_exception(type(error), error, tb))
    summary = "".join(traceback.format_exception_only(type(error), error)).strip()
    return {"summary": f"raised {summary}", "traceback": text, "exception": error}


def _write_failure(path: str, error: BaseException) -> None:
    failure = _failure(error)
    if isinstance(error, _transport.CannotTravel):
        failure |= {"summary": str(error), "traceback": ""}
    try:
        _transport.write(path, ("error", failure))
    except Exception:
        _transport.write(path, ("error", failure | {"exception": None}))


def _call(folder: str, rank: int, listen_fd: int | None) -> Any:
    with open(os.path.join(folder, "job"), "rb") as file:
        job = pickle.load(file)
    _enter(job, rank)
    _set_threads(job["threads"])
    if listen_fd is not None:
        _host_store(job, listen_fd)
    fn, args = _transport.read(os.path.join(folder, "call"))
    vars(sys.modules["__main__"]).update(_transport.classes_from_cells())  # plain pickle looks for them there
    if job["backend"] is not None:
        _join(job, rank, folder)
    return fn(rank, *args)


def _rank_streams() -> None:
    """Text streams on the rank's pipe: UTF-8, a line at a time, never an encoding error."""
    for name in ("stdout", "stderr"):
        fd = 1 if name == "stdout" else 2
        stream = open(fd, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.stdin = open(os.devnull)


def run_rank(folder: str, rank: int, returned: Callable[[], None], listen_fd: int | None = None) -> None:
    """Run one rank to its end: call, write the outcome, wait to be released, leave.

    The process group stays open until the notebook closes this rank's standard input, which it does when
    every rank has returned: a rank that finishes early does not break the collectives of the others, and
    a mismatch of collectives hangs as it does on GPUs, until the launch times out.
    """
    global current_rank
    current_rank = rank
    release = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    _rank_streams()
    stacks = open(os.path.join(folder, f"stack.{rank}"), "w")
    faulthandler.enable(stacks, all_threads=False)
    if hasattr(faulthandler, "register"):
        faulthandler.register(STACK_SIGNAL, stacks, all_threads=False)
    path = os.path.join(folder, f"result.{rank}")
    try:
        value = _call(folder, rank, listen_fd)
        _transport.write_or_refuse(path, ("value", value), lambda: {"returned": value})
    except BaseException as error:
        _write_failure(path, error)
    sys.stdout.flush()
    sys.stderr.flush()
    returned()
    while os.read(release, 1):
        pass
    _leave()
    sys.stdout.flush()
    os._exit(0)


def spawned() -> None:
    """Entry of a rank started as a program of its own: `folder` and `rank` on the command line."""
    run_rank(sys.argv[1], int(sys.argv[2]), lambda: None)


# The fork server


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


class _Server:
    """Forks ranks on request, reports how each ends, and lets nothing outlive its rank or the notebook."""

    def __init__(self, control: socket.socket, parent: int) -> None:
        self.control = control
        self.ranks: dict[int, tuple[int, str]] = {}  # pid: (status pipe, folder)
        self.wake, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        os.set_blocking(self.wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self.watched = [control.fileno(), self.wake]
        with contextlib.suppress(OSError, AttributeError):
            self.watched.append(os.pidfd_open(parent))

    def serve(self) -> None:
        warm = False
        while True:
            idle = not (warm or self.ranks)
            ready = select.select(self.watched, [], [], 0.3 if idle else None)[0]
            if not ready and idle:
                warm = True
                _preload("torch._dynamo")  # a rank's first optimizer step would import it, 1 to 2 s
            if self.wake in ready:
                self._reap()
            if len(self.watched) > 2 and self.watched[2] in ready:
                return self._end()
            if self.control.fileno() in ready and not self._accept():
                return self._end()

    def _accept(self) -> bool:
        message, fds, _, _ = socket.recv_fds(self.control, 1 << 16, 8)
        if not message:
            return False
        folder, rank = json.loads(message)
        if not fds:
            return True
        server, pid = os.getpid(), os.fork()
        if pid == 0:
            self._become(folder, rank, fds, server)
        release, output, status, *rest = fds
        for fd in (release, output, *rest):
            os.close(fd)
        self.ranks[pid] = (status, folder)
        self._tell(status, PID, pid)
        return True

    def _become(self, folder: str, rank: int, fds: list[int], server: int) -> None:
        """In the forked child: leave the server behind, put the rank's pipes in place, run it."""
        try:
            os.setsid()
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            _prctl(_PR_SET_CHILD_SUBREAPER, 1)
            if os.getppid() != server:
                os._exit(1)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for fd in (*self.watched, *(status for status, _ in self.ranks.values())):
                os.close(fd)
            release, output, status, *listen = fds
            for fd, target in ((release, 0), (output, 1), (output, 2)):
                os.dup2(fd, target)
            os.close(release)
            os.close(output)
            gc.enable()
            run_rank(folder, rank, lambda: self._tell(status, RETURNED, 0), *listen)
        finally:
            traceback.print_exc()
            os._exit(1)

    def _tell(self, status: int, kind: bytes, value: int) -> None:
        with contextlib.suppress(OSError):
            os.write(status, STATUS.pack(kind, value))

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake, 4096)
        while (ended := _next_ended()) is not None:
            if ended in self.ranks:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(ended, signal.SIGKILL)  # while the zombie still holds the number
            code = os.waitstatus_to_exitcode(os.waitpid(ended, 0)[1])
            if ended in self.ranks:
                status, _ = self.ranks.pop(ended)
                self._kill_orphans()
                self._tell(status, EXITED, code)
                os.close(status)

    def _kill_orphans(self) -> None:
        """End what ended ranks have left: a subreaper inherits the orphans of its descendants."""
        for pid in _children():
            if pid not in self.ranks:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _end(self) -> None:
        """The notebook is gone: end every rank and remove the private folders it left."""
        for pid in list(self.ranks):
            os.kill(pid, signal.SIGKILL)
        folders = {folder for _, folder in self.ranks.values()}
        while self.ranks:
            self._reap()
            time.sleep(0.005)
        self._kill_orphans()
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def _next_ended() -> int | None:
    """The pid of a child that has ended and is not reaped yet."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return found.si_pid if found else None


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def _preload(*modules: str) -> None:
    """Import what ranks need, then keep it out of the collector's way: its pages stay shared."""
    for name in modules:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    gc.freeze()


def serve(control_fd: int, parent: int) -> None:
    """Run the fork server until the notebook closes its end of the control socket, or dies."""
    gc.disable()
    server = _Server(socket.socket(fileno=control_fd), parent)
    import torch  # noqa: F401  (a missing torch must be heard of: no _preload here)

    _preload("torch.distributed", "numpy")
    server.serve()
