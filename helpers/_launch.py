"""`launch`: run a function on several ranks from a notebook cell or a script.

The notebook's side. A rank is a process that `_worker` runs; here it is a `_Rank`, with a pipe for what it
prints and a pipe for its status. One loop watches all pipes, so nothing here waits for one rank alone, and
nothing is read from a rank but whole files in a folder that only this user can enter.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import linecache
import math
import operator
import os
import pickle
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from . import _transport, _worker
from ._devices import cores, default_nprocs, gpu_count
from ._output import Output, notebook_shell

_TOGETHER = 0.1  # seconds in which failures count as simultaneous
_GRACE = 0.5  # seconds between SIGTERM and SIGKILL
_LEAVING = 2.0  # seconds for exit handlers, once every rank has returned
_BACKENDS = ("auto", "gloo", "nccl", None)
_BOOT = "import sys, json; sys.path[:] = json.loads(sys.argv.pop(1)); from helpers import _worker; _worker."
_PEER_LOST = re.compile(r"closed by peer|reset by peer|Broken pipe|Socket closed|remote process exited", re.I)


class RankError(RuntimeError):
    """A rank failed. `rank`, its own `traceback` as text, and the `exception`, None if it cannot travel."""

    def __init__(self, rank: int, summary: str, traceback: str = "", exception: Any = None) -> None:
        super().__init__(f"rank {rank} {summary}" + (f"\n\n{traceback.rstrip()}" if traceback else ""))
        self.rank, self.traceback, self.exception = rank, traceback, exception

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


class LaunchTimeout(TimeoutError):
    """Ranks were still running at the time limit. `where` maps each of them to what it was doing."""

    def __init__(self, timeout: float, nprocs: int, where: dict[int, str]) -> None:
        lines = [f"{len(where)} of {nprocs} ranks still running after {timeout:g} s"]
        lines += [f"  rank {rank}: {place}" for rank, place in sorted(where.items())]
        super().__init__("\n".join(lines))
        self.where = where

    _render_traceback_ = RankError._render_traceback_


@dataclass
class _Rank:
    """One rank as the notebook sees it; `state` goes running, returned (outcome written), ended."""

    rank: int
    output: int
    status: int
    pid: int | None = None
    state: str = "running"
    code: int | None = None
    received: bytearray = field(default_factory=bytearray)

    def kill(self, signum: int) -> None:
        if self.pid is not None and self.state != "ended":
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signum)

    def hear(self) -> None:
        """Take in what has come through the status pipe; a pipe that ends means the rank has ended."""
        data = os.read(self.status, 4096)
        self.received += data
        while len(self.received) >= _worker.STATUS.size:
            kind, value = _worker.STATUS.unpack(self.received[: _worker.STATUS.size])
            del self.received[: _worker.STATUS.size]
            self._note(kind, value)
        if not data:
            self.state = "ended"

    def _note(self, kind: bytes, value: int) -> None:
        if kind == _worker.PID:
            self.pid = value
        elif kind == _worker.RETURNED:
            self.state = "returned"
        else:
            self.state, self.code = "ended", value


class _ForkServer:
    """The process that forks this notebook's ranks, started at the first launch and kept."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.lock = threading.Lock()
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            boot = f"{_BOOT}serve({theirs.fileno()}, {self.owner})"
            command = [sys.executable, "-c", boot, json.dumps(import_path())]
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True
            )

    def alive(self) -> bool:
        return self.owner == os.getpid() and self.process.poll() is None

    def start(self, folder: str, rank: int, fds: list[int]) -> None:
        with self.lock:
            socket.send_fds(self.control, [json.dumps([folder, rank]).encode()], fds)

    def close(self) -> None:
        self.control.close()
        if self.owner == os.getpid():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5)


_server: _ForkServer | None = None
_server_lock = threading.Lock()


def _fork_server() -> _ForkServer:
    """This process's fork server, replaced when it has died."""
    global _server
    with _server_lock:
        if _server is None or not _server.alive():
            if _server is not None:
                _server.close()
            else:
                atexit.register(lambda: _server.close() if _server else None)
            _server = _ForkServer()
        return _server


def import_path() -> list[str]:
    """sys.path with the current folder spelled out, the folder of `helpers` at its end at the least."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = [entry or os.getcwd() for entry in sys.path]
    return path if here in path else [*path, here]


def _spawn(folder: str, rank: int, release: int, output: int, status: int) -> None:
    """Start a rank as a program of its own (Windows, macOS): threads stand in for the fork server."""
    command = [sys.executable, "-c", f"{_BOOT}spawned()", json.dumps(import_path()), folder, str(rank)]
    process = subprocess.Popen(
        command, stdin=release, stdout=output, stderr=output, start_new_session=os.name == "posix"
    )
    os.close(output)
    threading.Thread(target=_watch, args=(process, folder, rank, status), daemon=True).start()


def _watch(process: subprocess.Popen[bytes], folder: str, rank: int, status: int) -> None:
    """Report a spawned rank's pid, that its outcome is written, and its end, as the fork server does."""
    tell = lambda kind, value: os.write(status, _worker.STATUS.pack(kind, value))  # noqa: E731
    tell(_worker.PID, process.pid)
    while process.poll() is None and not os.path.exists(os.path.join(folder, f"result.{rank}")):
        time.sleep(0.01)
    tell(_worker.RETURNED, 0)
    code = process.wait()
    if os.name == "posix":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    tell(_worker.EXITED, code)
    os.close(status)


class _Run:
    """One launch: the private folder, the ranks, and the loop that watches them."""

    def __init__(self, nprocs: int, timeout: float, grouped: bool) -> None:
        self.timeout, self.started = timeout, time.monotonic()
        self.folder = tempfile.mkdtemp(prefix="launch-")  # mode 0700
        self.selector = selectors.DefaultSelector()
        self.output = Output(nprocs, grouped)
        self.ranks: list[_Rank] = []
        self.nprocs = nprocs
        self.release: int | None = None

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def start(self, method: str, listener: socket.socket | None) -> None:
        """Start the ranks, one pipe pair each; all share the pipe whose end releases them."""
        server = _fork_server() if method == "fork server" else None
        released, self.release = os.pipe()
        for rank in range(self.nprocs):
            output, output_end = os.pipe()
            status, status_end = os.pipe()
            os.set_blocking(output, False)
            self.ranks.append(_Rank(rank, output, status))
            if server is None:
                _spawn(self.folder, rank, released, output_end, status_end)
                continue
            fds = [released, output_end, status_end]
            if listener is not None and rank == 0:
                fds.append(listener.fileno())
            server.start(self.folder, rank, fds)
            os.close(output_end)
            os.close(status_end)
        os.close(released)
        for rank in self.ranks:
            self.selector.register(rank.output, selectors.EVENT_READ, lambda rank=rank: self._drain(rank))
            self.selector.register(rank.status, selectors.EVENT_READ, lambda rank=rank: self._status(rank))

    def _drain(self, rank: _Rank) -> bool:
        """Read what the rank's pipe holds now, 1 MB at the most; False when there was nothing."""
        try:
            data = os.read(rank.output, 1 << 20)
        except BlockingIOError:
            return False
        if not data:
            self.selector.unregister(rank.output)
        self.output.take(rank.rank, data)
        return bool(data)

    def _status(self, rank: _Rank) -> None:
        rank.hear()
        if rank.state == "ended":
            self.selector.unregister(rank.status)
            while rank.output in self.selector.get_map() and self._drain(rank):
                pass

    def turn(self, seconds: float) -> None:
        """Wait for the next events, `seconds` at the most, and handle them."""
        for key, _ in self.selector.select(max(0.0, seconds)):
            if key.fd in self.selector.get_map():
                key.data()

    def wait(self, done: Callable[[], bool], seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not done() and time.monotonic() < until:
            self.turn(min(0.25, until - time.monotonic()))
            self.output.show(time.monotonic() - self.started)
        return done()

    def failed(self) -> list[_Rank]:
        """Ranks that have failed: those that died without an outcome first, then those that raised."""
        died = [r for r in self.ranks if r.state == "ended" and not os.path.exists(self.outcome(r))]
        raised = [r for r in self.ranks if r not in died and r.state != "running" and self.raised(r)]
        return died + raised

    def outcome(self, rank: _Rank) -> str:
        return self.path(f"result.{rank.rank}")

    def raised(self, rank: _Rank) -> bool:
        return self.read(rank)[0] == "error"

    def read(self, rank: _Rank) -> tuple[str, Any]:
        """A rank's outcome, read once: ("value", what it returned) or ("error", what it raised)."""
        if not hasattr(rank, "outcome"):
            rank.outcome = _transport.read(self.outcome(rank))
        return rank.outcome

    def results(self) -> list[Any]:
        """Wait until every rank has returned, and give what they returned, or raise."""
        finished = lambda: all(r.state != "running" for r in self.ranks) or bool(self.failed())  # noqa: E731
        if not self.wait(finished, self.timeout):
            raise LaunchTimeout(self.timeout, self.nprocs, self.places())
        if self.failed():
            raise self.error()
        return [self.read(rank)[1] for rank in self.ranks]

    def error(self) -> RankError:
        """The failure that came first: a peer's "connection closed" gives way to the cause behind it.

        Ranks that fail together, as when all meet the same bug, are heard out: the lowest one is reported.
        """
        causes = lambda: [r for r in self.failed() if not self.lost_peer(r)]  # noqa: E731
        self.wait(lambda: bool(causes()), 1.0)
        self.wait(lambda: len(self.failed()) == self.nprocs, _TOGETHER)
        rank = (causes() or self.failed())[0]
        if not os.path.exists(self.outcome(rank)):
            return RankError(rank.rank, _death(rank.code), _user_stack(self.stack(rank)))
        failure = self.read(rank)[1]
        text = _readable(failure["traceback"])
        return RankError(rank.rank, failure["summary"], text, failure["exception"])

    def lost_peer(self, rank: _Rank) -> bool:
        return os.path.exists(self.outcome(rank)) and bool(_PEER_LOST.search(self.read(rank)[1]["summary"]))

    def places(self) -> dict[int, str]:
        """Where each rank that is still running stands, from a stack that it dumps on a signal."""
        running = [rank for rank in self.ranks if rank.state == "running"]
        if hasattr(signal, "pthread_kill") and _worker.STACK_SIGNAL is not None:
            for rank in running:
                rank.kill(_worker.STACK_SIGNAL)
            self.wait(lambda: all(self.stack(rank) for rank in running), 0.5)
        return {rank.rank: _place(self.stack(rank)) for rank in running}

    def stack(self, rank: _Rank) -> str:
        with contextlib.suppress(OSError), open(self.path(f"stack.{rank.rank}")) as file:
            return file.read()
        return ""

    def stop(self) -> None:
        """End every rank: ask those still running, release those that returned, then insist."""
        ended = lambda: all(rank.state == "ended" for rank in self.ranks)  # noqa: E731
        running = [rank for rank in self.ranks if rank.state == "running"]
        try:
            for rank in running:
                rank.kill(signal.SIGTERM)
            self.wait(lambda: all(rank.state == "ended" for rank in running), _GRACE)
            for rank in running:
                rank.kill(signal.SIGKILL)
            self._let_go()
            self.wait(ended, _LEAVING)
        finally:
            self._let_go()
            for rank in self.ranks:
                rank.kill(signal.SIGKILL)
            self.wait(ended, _LEAVING)

    def _let_go(self) -> None:
        if self.release is not None:
            os.close(self.release)
            self.release = None

    def close(self) -> None:
        for rank in self.ranks:
            os.close(rank.output)
            os.close(rank.status)
        self.selector.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.output.finish()


def _death(code: int | None) -> str:
    if code is None:
        return "ended without a word (its fork server died)"
    if code >= 0:
        return f"left with exit code {code} before it returned (os._exit?)"
    name = signal.Signals(-code).name
    hint = ", likely because the machine ran out of memory" if name == "SIGKILL" else ""
    return f"died by {name}{hint}"


def _cell(filename: str) -> str:
    """A short name for a source file: cell In[3], a path inside site-packages, or the path itself."""
    shell = notebook_shell()
    named = shell.compile.format_code_name(filename) if shell is not None else None
    if named:
        return " ".join(named).lower().replace("in[", "In[")
    return re.split(r"(?:site|dist)-packages[/\\]", filename)[-1]


def _readable(traceback: str) -> str:
    return re.sub(r'File "([^"]+)"', lambda found: f'File "{_cell(found[1])}"', traceback)


def _frames(stack: str) -> Iterator[tuple[str, int, str]]:
    for found in re.finditer(r'File "([^"]+)", line (\d+) in (\S+)', stack):
        yield found[1], int(found[2]), found[3]


def _user_stack(stack: str) -> str:
    """The stack of a rank that crashed, down to the function launched, innermost frame first."""
    inside = itertools.takewhile(lambda frame: "_worker.py" not in frame[0], _frames(stack))
    return "\n".join(f'  File "{_cell(file)}", line {line}, in {name}' for file, line, name in inside)


def _place(stack: str) -> str:
    """One line from a stack, innermost frame first: the user's line, and the collective it waits in."""
    frames = list(_frames(stack))
    library = re.compile(r"(?:site|dist)-packages|[/\\]lib[/\\]python3|^<frozen|[/\\]helpers[/\\]_")
    own = next((frame for frame in frames if not library.search(frame[0])), None)
    waits = next((name for file, _, name in frames if "distributed" in file and name != "wrapper"), None)
    if own is None:
        return "no line known (stopped, or busy outside Python)" if not frames else "before its first line"
    line = linecache.getline(own[0], own[1]).strip()
    place = f"{_cell(own[0])}, line {own[1]}, in {own[2]}: {line}".rstrip(": ")
    return place + (f"  (waits in {waits})" if waits else "")


def _checked(fn: Any, args: Any, nprocs: Any, timeout: Any, backend: Any) -> int:
    """The number of ranks, or one line that says which argument is wrong and what is allowed."""
    if _worker.current_rank is not None:
        raise RuntimeError(f"launch was called inside rank {_worker.current_rank}: call it from the notebook")
    if not callable(fn):
        raise TypeError(f"fn must be a function of (rank, *args), not {fn!r}")
    if not isinstance(args, (tuple, list)):
        raise TypeError(f"args must be a tuple, such as args=({args!r},), not {type(args).__name__}")
    if backend not in _BACKENDS:
        raise ValueError(f"backend must be 'auto', 'gloo', 'nccl' or None, not {backend!r}")
    real = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if not real or math.isnan(timeout) or timeout <= 0:
        raise ValueError(f"timeout must be a number of seconds above 0, not {timeout!r}")
    return default_nprocs() if nprocs is None else _checked_nprocs(nprocs, backend)


def _checked_nprocs(nprocs: Any, backend: str | None) -> int:
    try:
        number = operator.index(nprocs) if not isinstance(nprocs, bool) else 0
    except TypeError:
        number = 0
    if number < 1:
        raise ValueError(f"nprocs must be a whole number of ranks, 1 or more, not {nprocs!r}")
    if backend == "nccl" and number > gpu_count():
        raise ValueError(f"backend 'nccl' needs a GPU per rank: {number} ranks, {gpu_count()} GPUs here")
    return number


def _chosen_backend(backend: str | None, nprocs: int) -> str | None:
    """nccl where each rank has a GPU, else gloo; says so where GPUs are left unused."""
    if backend != "auto":
        return backend
    gpus = gpu_count()
    if 0 < gpus < nprocs:
        plural = "GPU" if gpus == 1 else "GPUs"
        print(f"{nprocs} ranks, {gpus} {plural}: NCCL needs a GPU per rank, so these ranks use the CPU and gloo")
    return "nccl" if gpus >= nprocs else "gloo"


def _loopback() -> dict[str, str]:
    """What keeps gloo and NCCL on the loopback interface of this platform."""
    name = {"darwin": "lo0", "win32": None}.get(sys.platform, "lo")
    return {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name} if name else {"USE_LIBUV": "0"}


def _rendezvous(method: str) -> tuple[socket.socket, dict[str, str]]:
    """For ranks that call init_process_group themselves: a loopback port, and the variables that name it.

    The fork server's rank 0 inherits the bound socket, so that nobody else can take the port.
    """
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    named = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(listener.getsockname()[1])}
    if method == "fork server":
        named["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # every rank is a client of that store, rank 0 too
    else:
        listener.close()
    return listener, named


def _cell_sources() -> dict[str, str]:
    """The sources of the notebook's cells, so that a rank's traceback can quote them."""
    cells = {name: entry for name, entry in linecache.cache.items() if _cell(name).startswith("cell ")}
    return {name: "".join(entry[2]) for name, entry in cells.items() if len(entry) > 2}


def _call_parts(fn: Any, args: Any) -> dict[str, Any]:
    return {"fn": fn} | {f"argument {index} of args": value for index, value in enumerate(args)}


def launch(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int | None = None,
    *,
    timeout: float = 120.0,
    backend: str | None = "auto",
    grouped: bool = True,
) -> list[Any]:
    """Run `fn(rank, *args)` in `nprocs` fresh processes and return what each returned, in rank order.

    The signature is that of `torch.multiprocessing.spawn`; `fn` may be defined in a cell (a function, a
    lambda, a closure). The process group is initialised before `fn` and destroyed after it.

    Args:
        nprocs: number of ranks; by default a rank per GPU, or two ranks where there are fewer GPUs.
        timeout: seconds after which ranks still running are stopped.
        backend: "auto" (NCCL where each rank has a GPU, else gloo), "gloo", "nccl", or None: `fn` calls
            `init_process_group` itself, with the environment that torchrun sets.
        grouped: show each rank's lines together when all is done; False: live, in order of arrival.

    Returns:
        One value a rank. Tensors come back on the CPU, detached.

    Raises:
        RankError: the first rank to fail, with its own traceback; the others are stopped.
        LaunchTimeout: ranks were still running after `timeout` seconds, and where each stood.
        TypeError, ValueError: an argument is wrong, or cannot travel to another process.
    """
    ranks = _checked(fn, args, nprocs, timeout, backend)
    method = os.environ.get("HELPERS_START", "fork server" if sys.platform == "linux" else "spawn")
    if method == "fork server":
        _fork_server()  # it imports torch while this process prepares
    chosen = _chosen_backend(backend, ranks)
    run = _Run(ranks, timeout, grouped)
    listener, named = (None, {}) if chosen is not None else _rendezvous(method)
    try:
        job = {
            "environ": dict(os.environ) | _loopback() | named,
            "cwd": os.getcwd(),
            "path": import_path(),
            "argv": sys.argv,
            "sources": _cell_sources(),
            "nprocs": ranks,
            "backend": chosen,
            "timeout": timeout,
            "threads": max(1, cores() // ranks),
        }
        with open(run.path("job"), "wb") as file:
            pickle.dump(job, file)
        parts = lambda: _call_parts(fn, args)  # noqa: E731
        _transport.write_or_refuse(run.path("call"), (fn, tuple(args)), parts)
        try:
            run.start(method, listener)
            return run.results()
        finally:
            run.stop()
    finally:
        if listener is not None:
            listener.close()
        run.close()
