"""What runs inside a rank, and the fork server that starts ranks (Linux).

Light on purpose: the fork server imports this module and torch, nothing else of the package. It never
touches CUDA, so that a forked rank can.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import functools
import gc
import importlib
import json
import linecache
import mmap
import os
import pickle
import select
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
import types
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import cloudpickle

from . import _transport

RETURNED = b"returned"  # what a status pipe says once the outcome is written; then, an exit code
STACK_SIGNAL = getattr(signal, "SIGRTMAX", getattr(signal, "SIGUSR2", None))
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
# Imported once the server has nothing to do, or as soon as a rank had to import one of them itself, a part at
# a time, so that no launch waits long. DDP and a first optimizer step import torch._dynamo, in 1 to 2 s.
_LATER = ["sympy", "torch.distributed.fsdp", "torch._dynamo", "sklearn.datasets"]

current_rank: int | None = None  # the rank that this process is, None in the notebook
_listening: Any = None  # rank 0's store for backend=None: kept for the life of the process


def _enter(job: dict[str, Any], rank: int) -> None:
    """Make this process see what the notebook sees: environment, folder, import path, cell sources.

    To the environment it adds what torchrun sets, for one machine (docs.pytorch.org, "torchrun").
    """
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "OMP_NUM_THREADS": job["threads"]}
    sizes = {"WORLD_SIZE": job["nprocs"], "LOCAL_WORLD_SIZE": job["nprocs"], "GROUP_WORLD_SIZE": 1}
    os.environ.clear()
    os.environ.update(job["environ"] | {key: str(value) for key, value in (ranks | sizes).items()})
    os.chdir(job["cwd"])
    sys.path[:], sys.argv[:] = job["path"], job["argv"]
    importlib.invalidate_caches()
    sys.modules["__main__"] = types.ModuleType("__main__")
    for name, text in job["sources"].items():
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)


def _set_up_libraries(threads: int) -> None:
    """Give torch this rank's share of the cores, and numpy a seed: forked ranks would draw alike."""
    import torch

    torch.set_num_threads(threads)
    if torch.distributed.is_available():
        torch.distributed.set_debug_level_from_env()  # torch reads TORCH_DISTRIBUTED_DEBUG on import only
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()


@contextlib.contextmanager
def _silent_stdout() -> Iterator[None]:
    """Drop what C code writes to standard output: gloo of torch 2.9 reports its connections there."""
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _join(job: dict[str, Any], rank: int, folder: str) -> None:
    """Rendezvous through a file in the launch's private folder; gloo binds to loopback.

    All are connected before any goes on: a rank that dies at once doesn't make gloo log errors elsewhere.
    """
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", rank) if job["backend"] == "nccl" else None
    if device is not None:
        torch.cuda.set_device(device)
    with _silent_stdout():
        dist.init_process_group(
            job["backend"],
            store=dist.FileStore(os.path.join(folder, "store"), job["nprocs"]),
            rank=rank,
            world_size=job["nprocs"],
            timeout=timedelta(seconds=min(job["timeout"] + 60, 1e8)),
            device_id=device,
        )
        if device is None:
            dist.barrier()


def _host_store(job: dict[str, Any], listen_fd: int) -> None:
    """Rank 0 serves the env:// rendezvous on a loopback socket that the notebook has bound."""
    global _listening
    import torch.distributed as dist

    port = int(job["environ"]["MASTER_PORT"])
    store = dist.TCPStore("127.0.0.1", port, None, True, wait_for_workers=False, master_listen_fd=listen_fd)
    _listening = store


def _call(folder: str, rank: int, listen_fd: int | None) -> Any:
    with open(os.path.join(folder, "job"), "rb") as file:
        job = pickle.load(file)
    _enter(job, rank)
    _set_up_libraries(job["threads"])
    if listen_fd is not None:
        _host_store(job, listen_fd)
    fn, args = _transport.read(os.path.join(folder, "call"))
    _transport.settle_cells()
    if job["backend"] is not None:
        _join(job, rank, folder)
    return fn(rank, *args)


def _own_traceback(error: BaseException) -> str:
    """The traceback from the user's first frame on."""
    tb, own = error.__traceback__, os.path.dirname(__file__)
    while tb is not None and os.path.dirname(tb.tb_frame.f_code.co_filename) == own:
        tb = tb.tb_next
    return "".join(traceback.format_exception(type(error), error, tb))


def _write_failure(path: str, error: BaseException) -> None:
    """Write what is said of an exception, and itself where it can travel: bytes, to be opened with care."""
    said = "raised " + "".join(traceback.format_exception_only(type(error), error)).strip()
    text = _own_traceback(error)
    if isinstance(error, SystemExit):
        said = f"called sys.exit({'' if error.code is None else repr(error.code)}) before it returned"
    elif hasattr(error, "_render_traceback_"):  # one of this package's, which say it all in one line
        said, text = str(error) if isinstance(error, _transport.CannotTravel) else said, ""
    try:
        itself = cloudpickle.dumps(error)
    except Exception:
        itself = b""
    _transport.write(path, (said, text, itself))


def _rank_streams() -> None:
    """Text streams on the rank's pipe: UTF-8, a line at a time, never an encoding error."""
    for fd, name in ((1, "stdout"), (2, "stderr")):
        stream = open(fd, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.stdin = open(os.devnull)


def _flush() -> None:
    """Send off what Python and C hold of the rank's output; `fn` may have closed or replaced the streams."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    if os.name == "posix":
        ctypes.CDLL(None).fflush(None)


def _dump_stacks_to(path: str) -> None:
    """When this process crashes, or on a signal, write where it stands; the notebook reads it."""
    stacks = open(path, "w")
    faulthandler.enable(stacks, all_threads=False)
    if hasattr(faulthandler, "register"):
        faulthandler.register(STACK_SIGNAL, stacks, all_threads=False)


def _leave() -> None:
    """Run the exit handlers and destroy the process group, unless it is gloo's.

    gloo's sockets close with the process, and to tear it down takes 20 ms: two polls of its event loop.
    """
    dist = sys.modules.get("torch.distributed")
    with contextlib.suppress(Exception):
        if dist.is_initialized() and dist.get_backend() != "gloo":
            dist.destroy_process_group()
    atexit._run_exitfuncs()


def run_rank(
    folder: str,
    rank: int,
    returned: Callable[[], Any],
    released: Callable[[], Any],
    listen: int | None = None,
) -> None:
    """Run one rank to its end: call, write the outcome, say so, wait to be released, leave.

    The process group stays open until every rank has returned, which is when the notebook releases them: a
    rank that finishes early does not break the collectives of the others, and a mismatch of collectives
    hangs as it does on GPUs, until the launch times out.
    """
    global current_rank
    current_rank = rank
    _rank_streams()
    _dump_stacks_to(os.path.join(folder, f"stack.{rank}"))
    try:
        value = _call(folder, rank, listen)
        _transport.write(os.path.join(folder, f"value.{rank}"), value, lambda: {"returned": value})
    except BaseException as error:
        _write_failure(os.path.join(folder, f"error.{rank}"), error)
    _flush()
    returned()
    released()
    _leave()
    _flush()
    os._exit(0)


def spawned() -> None:
    """Entry of a rank started as a program of its own: `folder` and `rank` on the command line.

    Its standard input ends when the notebook releases it, or when the notebook is gone.
    """
    folder, rank = sys.argv[1], int(sys.argv[2])  # before sys.argv is the notebook's
    release = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    returned, released = threading.Event(), threading.Event()

    def wait() -> None:
        os.read(release, 1)
        shutil.rmtree(folder, ignore_errors=True)  # a notebook that is gone does not
        if not returned.wait(1):
            os._exit(1)
        released.set()

    threading.Thread(target=wait, daemon=True).start()
    run_rank(folder, rank, returned.set, released.wait)


# The fork server


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _tell(status: int, said: bytes) -> None:
    with contextlib.suppress(OSError):
        os.write(status, said + b"\n")


def _released(release: int) -> None:
    """Wait for the notebook to close its end of the release pipe."""
    with contextlib.suppress(OSError):
        os.read(release, 1)


class _Server:
    """Forks ranks on request, reports how each ends, and lets nothing outlive its rank or the notebook."""

    def __init__(self, control: socket.socket, parent: int) -> None:
        self.control = control
        self.ranks: dict[int, tuple[int, str, int]] = {}  # pid: (status pipe, folder, rank)
        self.folders: set[str] = set()
        self.missed = mmap.mmap(-1, 1)  # shared with the ranks: 1 once one has imported what is in _LATER
        self.wake, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        os.set_blocking(self.wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self.watched = [control.fileno(), self.wake]
        with contextlib.suppress(OSError):
            self.watched.append(os.pidfd_open(parent))

    def serve(self) -> None:
        """Serve until the notebook closes its end of the control socket, sends SIGTERM, or dies."""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        later = list(_LATER)
        try:
            while True:
                pause = 0.0 if self.missed[0] else 0.3
                ready = select.select(self.watched, [], [], pause if later and not self.ranks else None)[0]
                if not ready:
                    _preload(later.pop(0))
                if self.wake in ready:
                    self._reap()
                if set(ready) & set(self.watched[2:]) or (self.watched[0] in ready and not self._accept()):
                    return
        finally:
            self._end()

    def _accept(self) -> bool:
        """Take a request: fork a rank, which comes with its pipes, or send a signal to one."""
        message, fds, _, _ = socket.recv_fds(self.control, 1 << 16, 8)
        if not message:
            return False
        folder, rank, signum = json.loads(message)
        if fds:
            self._fork(folder, rank, *fds)
        else:
            for pid in [pid for pid, (_, *whose) in self.ranks.items() if whose == [folder, rank]]:
                os.kill(pid, signum)  # not reaped: the number is still its own
        return True

    def _fork(self, folder: str, rank: int, *fds: int) -> None:
        server, pid = os.getpid(), os.fork()
        if pid == 0:
            self._become(folder, rank, server, *fds)
        output, status, *others = fds
        for fd in (output, *others):
            os.close(fd)
        self.ranks[pid] = (status, folder, rank)
        self.folders = {known for known in self.folders if os.path.exists(known)} | {folder}

    def _become(self, folder: str, rank: int, server: int, *fds: int) -> None:
        """In the forked child: leave the server behind, put the rank's pipes in place, run it."""
        output, status, release, *listen = fds
        try:
            os.setsid()
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            _prctl(_PR_SET_CHILD_SUBREAPER, 1)
            if os.getppid() != server:
                os._exit(1)
            os.close(signal.set_wakeup_fd(-1))
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for fd in (*self.watched, *(other for other, *_ in self.ranks.values())):
                os.close(fd)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)
            gc.enable()
            returned = functools.partial(self._returned, status, set(sys.modules))
            run_rank(folder, rank, returned, lambda: _released(release), *listen)
        finally:
            traceback.print_exc()
            os._exit(1)

    def _returned(self, status: int, loaded: set[str]) -> None:
        """In the rank: its outcome is written."""
        if (set(sys.modules) - loaded).intersection(_LATER):
            self.missed[0] = 1
        _tell(status, RETURNED)

    def _reap(self) -> None:
        """Report the ranks that have ended, once nothing is left of them."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake, 4096)
        while (ended := _next_ended()) is not None:
            if ended in self.ranks:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(ended, signal.SIGKILL)  # while the zombie still holds the number
            code = os.waitstatus_to_exitcode(os.waitpid(ended, 0)[1])
            if ended in self.ranks:
                status, *_ = self.ranks.pop(ended)
                self._end_orphans()
                _tell(status, str(code).encode())
                os.close(status)

    def _end_orphans(self) -> None:
        """End what ended ranks have left: a subreaper inherits the orphans of its descendants."""
        while orphans := [pid for pid in _children() if pid not in self.ranks]:
            for pid in orphans:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def _end(self) -> None:
        """The notebook is gone: end every rank and remove the private folders it left."""
        for pid in self.ranks:
            os.kill(pid, signal.SIGKILL)
        while self.ranks:
            self._reap()
            time.sleep(0.005)
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)


def _next_ended() -> int | None:
    """The pid of a child that has ended and is not reaped yet."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return found.si_pid if found else None


def _children() -> list[int]:
    with contextlib.suppress(OSError), open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(pid) for pid in file.read().split()]
    return []


def _preload(*modules: str) -> None:
    """Import what ranks need, and keep it out of the way: of the collector, so that its pages stay shared,
    and of the end of every rank, where its exit handlers would take 20 ms.
    """
    for name in modules:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    for finalizer in list(weakref.finalize._registry):
        finalizer.atexit = False
    gc.freeze()


def serve(control_fd: int, parent: int) -> None:
    """Run the fork server until the notebook closes its end of the control socket, or dies."""
    gc.disable()
    server = _Server(socket.socket(fileno=control_fd), parent)
    import torch  # noqa: F401  (a missing torch must be heard of: no _preload here)

    _preload("torch.distributed", "numpy.random")
    server.serve()
