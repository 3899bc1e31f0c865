"""`launch`: run a function on several ranks from a notebook cell or a script.

The notebook's side; `_worker` is the ranks' side. What a rank prints comes through a pipe, what becomes of it
stands in files in a folder that only this user can enter, written whole or not at all. One loop looks at all
ranks in turn, so nothing here waits for one rank alone, nor for a writer that has died.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
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
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from . import _transport, _worker
from ._devices import backend_for, cores, default_nprocs, gpu_count
from ._output import Output, notebook_shell
from ._transport import plain

_TOGETHER = 0.1  # seconds in which failures count as simultaneous
_GRACE = 0.5  # seconds between SIGTERM and SIGKILL
_LEAVING = 2.0  # seconds for exit handlers, once every rank has returned
_CHUNK = 1 << 16  # bytes taken from a rank at once: what its pipe can hold
_LOST = 1 << 32  # in place of an exit code: the rank was lost with its fork server
_POLL = 0.02  # seconds between two looks at ranks that no selector can watch
_BACKENDS = ("auto", "gloo", "nccl", None)
_BOOT = "import sys, json; sys.path[:] = json.loads(sys.argv.pop(1)); from helpers import _worker; _worker."
_PEER_LOST = re.compile(r"closed by peer|reset by peer|Broken pipe|Socket closed|remote process exited", re.I)
_LIBRARY = re.compile(r"(?:site|dist)-packages|[/\\]lib[/\\]python3|^<frozen|[/\\]helpers[/\\]_")
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has one signal that ends a process


class RankError(RuntimeError):
    """A rank failed. `rank`, its own `traceback` as text, and the `exception`, None if it cannot travel."""

    def __init__(self, rank: int, summary: str, traceback: str = "", exception: Any = None) -> None:
        super().__init__(f"rank {rank} {summary}" + (f"\n\n{traceback.rstrip()}" if traceback else ""))
        self.rank, self.traceback, self.exception = rank, traceback, exception


class LaunchTimeout(TimeoutError):
    """Ranks were still running at the time limit. `where` maps each of them to what it was doing."""

    def __init__(self, timeout: float, nprocs: int, where: dict[int, str]) -> None:
        lines = [f"{len(where)} of {nprocs} ranks still running after {timeout:g} s"]
        lines += [f"  rank {rank}: {place}" for rank, place in sorted(where.items())]
        super().__init__("\n".join(lines))
        self.where = where


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

    The first three arguments are those of `torch.multiprocessing.spawn`; `fn` may be defined in a cell (a
    function, a lambda, a closure). The process group is initialised before `fn` and destroyed after it.
    Tensors travel both ways as copies, on the CPU and detached.

    Args:
        nprocs: number of ranks; by default a rank per GPU, or two ranks where there are fewer GPUs.
        timeout: seconds after which ranks still running are stopped.
        backend: "auto" (NCCL where each rank has a GPU, else gloo), "gloo", "nccl", or None: `fn` calls
            `init_process_group` itself, with the environment that torchrun sets.
        grouped: show each rank's lines together when all is done; False: live, in order of arrival.

    Raises:
        RankError: the first rank to fail, with its own traceback; the others are stopped.
        LaunchTimeout: ranks were still running after `timeout` seconds, and where each stood.
        TypeError, ValueError: an argument is wrong, or cannot travel to another process.
    """
    ranks = _checked(fn, args, nprocs, timeout, backend)
    server = _fork_server() if _forks() else None  # it imports torch while this process prepares
    chosen = _chosen_backend(backend, ranks)
    job = _job(ranks, timeout, chosen)
    run = _Run(ranks, timeout, grouped, server)
    try:
        with contextlib.nullcontext() if chosen else _rendezvous(job) as listener:
            run.prepare(job, fn, tuple(args))
            run.start(listener)
        return run.results()
    finally:
        run.end()


# What a launch is given


def _checked(fn: Any, args: Any, nprocs: Any, timeout: Any, backend: Any) -> int:
    """The number of ranks, or one line that says which argument is wrong and what is allowed."""
    if _worker.current_rank is not None:
        where = f"rank {_worker.current_rank}"
        raise plain(RuntimeError(f"launch was called inside {where}: call it from the notebook"))
    if not callable(fn):
        raise plain(TypeError(f"fn must be a function of (rank, *args), not {fn!r}"))
    if not isinstance(args, (tuple, list)):
        raise plain(TypeError(f"args must be a tuple, such as args=({args!r},), not {type(args).__name__}"))
    if backend not in _BACKENDS:
        raise plain(ValueError(f"backend must be 'auto', 'gloo', 'nccl' or None, not {backend!r}"))
    real = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if not real or math.isnan(timeout) or timeout <= 0:
        raise plain(ValueError(f"timeout must be a number of seconds above 0, not {timeout!r}"))
    return default_nprocs() if nprocs is None else _checked_nprocs(nprocs, backend)


def _checked_nprocs(nprocs: Any, backend: str | None) -> int:
    try:
        number = operator.index(nprocs) if not isinstance(nprocs, bool) else 0
    except TypeError:
        number = 0
    if number < 1:
        raise plain(ValueError(f"nprocs must be a whole number of ranks, 1 or more, not {nprocs!r}"))
    if backend == "nccl" and number > gpu_count():
        needs = f"{number} ranks, {gpu_count()} GPUs here"
        raise plain(ValueError(f"backend 'nccl' needs a GPU per rank: {needs}"))
    return number


def _chosen_backend(backend: str | None, nprocs: int) -> str | None:
    """nccl where each rank has a GPU, else gloo; says so where GPUs are left unused."""
    if backend != "auto":
        return backend
    gpus = gpu_count()
    if 0 < gpus < nprocs:
        found = f"{nprocs} ranks, {gpus} {'GPU' if gpus == 1 else 'GPUs'}"
        print(f"{found}: NCCL needs a GPU per rank, so these ranks use the CPU and gloo")
    return backend_for(nprocs)


def _job(nprocs: int, timeout: float, backend: str | None) -> dict[str, Any]:
    """What every rank takes over from this process, and what it is told about the launch."""
    # gloo and NCCL stay on the loopback interface; torch for Windows has no libuv.
    loopback = {"darwin": "lo0", "win32": None}.get(sys.platform, "lo")
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    pinned = dict.fromkeys(names, loopback) if loopback else {"USE_LIBUV": "0"}
    cells = {name: entry for name, entry in linecache.cache.items() if _cell(name).startswith("cell ")}
    return {
        "environ": dict(os.environ) | pinned,
        "cwd": os.getcwd(),
        "path": _import_path(),
        "argv": sys.argv,
        "sources": {name: "".join(entry[2]) for name, entry in cells.items() if len(entry) > 2},
        "nprocs": nprocs,
        "backend": backend,
        "timeout": timeout,
        "threads": max(1, cores() // nprocs),
    }


def _import_path() -> list[str]:
    """sys.path with the current folder spelled out, the folder of `helpers` at its end at the least."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = [str(entry) or os.getcwd() for entry in sys.path]
    return path if here in path else [*path, here]


def _rendezvous(job: dict[str, Any]) -> socket.socket:
    """For ranks that call init_process_group themselves: a loopback port, and the variables that name it.

    The fork server's rank 0 inherits the bound socket, so that nobody else can take the port.
    """
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    job["environ"] |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(listener.getsockname()[1])}
    if _forks():
        job["environ"]["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # rank 0 too is a client of that store
    else:
        listener.close()
    return listener


# How ranks are started


class _Rank:
    """One rank as the notebook sees it, however it was started.

    `output` holds what it has printed and never makes the reader wait; `poll` gives its exit code, None until
    there is one. `watched` are the pipes whose news a selector can wait for.
    """

    def __init__(self, rank: int, folder: str, output: Any, poll: Any, kill: Any, *watched: Any) -> None:
        self.rank, self.folder, self.output = rank, folder, output
        self.poll, self.kill, self.watched = poll, kill, watched
        self.code: int | None = None

    def path(self, kind: str) -> str:
        return os.path.join(self.folder, f"{kind}.{self.rank}")

    def outcome(self) -> str | None:
        """The file that the rank has written, value or error; "died" without one; None while it runs."""
        written = (kind for kind in ("value", "error") if os.path.exists(self.path(kind)))
        return next(written, None if self.code is None else "died")

    def stack(self) -> str:
        with contextlib.suppress(OSError), open(self.path("stack")) as file:
            return file.read()
        return ""


class _ForkServer:
    """The process that forks this notebook's ranks, started at the first launch and kept."""

    def __init__(self) -> None:
        self.owner, self.lock, self.said = os.getpid(), threading.Lock(), tempfile.TemporaryFile()
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            boot = f"{_BOOT}serve({theirs.fileno()}, {self.owner})"
            self.process = subprocess.Popen(
                [sys.executable, "-c", boot, json.dumps(_import_path())],
                stdin=subprocess.DEVNULL,
                stdout=self.said,
                stderr=self.said,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def alive(self) -> bool:
        return self.owner == os.getpid() and self.process.poll() is None

    def start(self, folder: str, rank: int, inherited: list[int]) -> _Rank:
        (output, output_end), (status, status_end) = os.pipe(), os.pipe()
        self._ask(folder, rank, None, [output_end, status_end, *inherited])
        for fd in (output_end, status_end):
            os.close(fd)
        for fd in (output, status):
            os.set_blocking(fd, False)
        pipes = open(output, "rb", 0), open(status, "rb", 0)
        poll, kill = functools.partial(_exit_said, pipes[1]), functools.partial(self._ask, folder, rank)
        return _Rank(rank, folder, pipes[0], poll, kill, *pipes)

    def _ask(self, folder: str, rank: int, signum: int | None, fds: Sequence[int] = ()) -> None:
        """Have a rank started with these pipes, or sent a signal; that the server is gone shows later."""
        with self.lock, contextlib.suppress(OSError):
            socket.send_fds(self.control, [json.dumps([folder, rank, signum]).encode()], fds)

    def last_words(self) -> str:
        """How the server ended, for a rank that was lost with it."""
        code = self.process.wait(5)
        self.said.seek(0)
        said = self.said.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
        return f"was lost: the process that starts ranks {f'said {said}' if said else _death(code)}"

    def close(self) -> None:
        self.control.close()
        self.said.close()
        if self.owner != os.getpid():
            self.process.returncode = 0  # the process that forked this one waits for it
            return
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)


def _exit_said(status: Any) -> int | None:
    """A rank's exit code once the fork server says it, _LOST when the server itself has died."""
    said = status.read(4096)
    codes = [int(word) for word in (said or b"").split() if word != _worker.RETURNED]
    return codes[0] if codes else _LOST if said == b"" else None


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


def _forks() -> bool:
    return sys.platform == "linux" and os.environ.get("HELPERS_START") != "spawn"


def _spawn(folder: str, rank: int, inherited: list[int]) -> _Rank:
    """Start a rank as a program of its own (Windows, macOS).

    Its output goes to a file, which is looked at now and then: Windows can watch no pipe.
    """
    path = os.path.join(folder, f"output.{rank}")
    with open(path, "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", f"{_BOOT}spawned()", json.dumps(_import_path()), folder, str(rank)],
            stdin=inherited[0],
            stdout=output,
            stderr=output,
            start_new_session=os.name == "posix",
        )
    poll = functools.partial(_poll_program, process)
    return _Rank(rank, folder, open(path, "rb", 0), poll, process.send_signal)


def _poll_program(process: subprocess.Popen[bytes]) -> int | None:
    """The exit code of a spawned rank; what is left of its process group ends with it."""
    code = process.poll()
    if code is not None and os.name == "posix":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    return code


# One launch


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back until this block is done: ranks are neither half started nor half stopped."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda signum, _: came.append(signum))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.default_int_handler)
    if came and sys.exc_info()[0] is None:
        raise KeyboardInterrupt


class _Run:
    """One launch: the private folder, the ranks, and the loop that looks at them."""

    def __init__(self, nprocs: int, timeout: float, grouped: bool, server: _ForkServer | None) -> None:
        self.nprocs, self.timeout, self.server = nprocs, timeout, server
        self.began = time.monotonic()
        self.folder = tempfile.mkdtemp(prefix="launch-")  # mode 0700
        self.output = Output(nprocs, grouped)
        self.selector = selectors.DefaultSelector()
        self.ranks: list[_Rank] = []
        self.release: int | None = None

    def prepare(self, job: dict[str, Any], fn: Any, args: tuple[Any, ...]) -> None:
        """Write down what every rank shall do."""
        with open(os.path.join(self.folder, "job"), "wb") as file:
            pickle.dump(job, file)
        parts = {"fn": fn} | {f"argument {i + 1} of args (args[{i}])": value for i, value in enumerate(args)}
        _transport.write(os.path.join(self.folder, "call"), (fn, args), lambda: parts)

    def start(self, listener: socket.socket | None) -> None:
        """Start the ranks; all share the pipe whose end releases them."""
        with _uninterrupted():
            read_end, self.release = os.pipe()
            with open(read_end, "rb", 0) as released:
                for rank in range(self.nprocs):
                    own = [listener.fileno()] if listener is not None and rank == 0 else []
                    start = _spawn if self.server is None else self.server.start
                    self.ranks.append(start(self.folder, rank, [released.fileno(), *own]))
        for file in (file for rank in self.ranks for file in rank.watched):
            self.selector.register(file, selectors.EVENT_READ)

    def look(self, rank: _Rank) -> None:
        """Take in whether a rank has ended and what it has printed: some of it, or all once it has ended."""
        if rank.code is None:
            rank.code = rank.poll()
        while data := rank.output.read(_CHUNK):
            self.output.take(rank.rank, data)
            if rank.code is None:
                return
        silent = [rank.output] if data == b"" else []  # an ended pipe, which a selector would report for ever
        for file in silent if rank.code is None else rank.watched:
            with contextlib.suppress(KeyError):
                self.selector.unregister(file)

    def wait(self, done: Callable[[], Any], seconds: float) -> bool:
        """Look at the ranks, whenever there is news of one, until `done`, `seconds` at the most."""
        until = time.monotonic() + seconds
        while not done() and (left := until - time.monotonic()) > 0:
            if self.server is None:
                time.sleep(min(left, _POLL))
            else:
                self.selector.select(min(left, 0.25))
            for rank in self.ranks:
                self.look(rank)
            self.output.show(time.monotonic() - self.began)
        return bool(done())

    def failed(self) -> list[_Rank]:
        """Ranks that have failed: those that died without a word first, then those that raised."""
        failed = [rank for rank in self.ranks if rank.outcome() in ("died", "error")]
        return sorted(failed, key=_Rank.outcome)

    def results(self) -> list[Any]:
        """Wait until every rank has returned, and give what they returned, or raise."""
        finished = lambda: all(rank.outcome() for rank in self.ranks) or self.failed()  # noqa: E731
        if not self.wait(finished, self.timeout):
            raise plain(LaunchTimeout(self.timeout, self.nprocs, self.places()))
        if self.failed():
            raise plain(self.error())
        return [self.value(rank) for rank in self.ranks]

    def value(self, rank: _Rank) -> Any:
        try:
            return _transport.read(rank.path("value"))
        except Exception as error:
            said = "".join(traceback.format_exception_only(type(error), error)).strip()
            raise plain(RankError(rank.rank, f"returned what this process cannot read: {said}")) from None

    def error(self) -> RankError:
        """The failure that came first: a peer's "connection closed" gives way to the cause behind it.

        Ranks that fail together, as when all meet the same bug, are heard out: the lowest one is reported.
        """
        causes = lambda: [rank for rank in self.failed() if not _lost_peer(rank)]  # noqa: E731
        self.wait(causes, 1.0)
        self.wait(lambda: len(self.failed()) == self.nprocs, _TOGETHER)
        rank = (causes() or self.failed())[0]
        if rank.code == _LOST:
            return RankError(rank.rank, self.server.last_words())
        if rank.outcome() == "died":
            return RankError(rank.rank, _death(rank.code), _user_stack(rank.stack()))
        said, text, itself = _transport.read(rank.path("error"))
        exception = None
        with contextlib.suppress(Exception):
            exception = pickle.loads(itself)
        return RankError(rank.rank, said, _readable(text), exception)

    def places(self) -> dict[int, str]:
        """Where each rank that is still running stands, from a stack that it dumps on a signal."""
        running = [rank for rank in self.ranks if rank.outcome() is None]
        if _worker.STACK_SIGNAL is not None:
            for rank in running:
                rank.kill(_worker.STACK_SIGNAL)
            self.wait(lambda: all(rank.stack() for rank in running), 0.5)
        return {rank.rank: _place(rank.stack()) for rank in running}

    def end(self) -> None:
        """End the ranks, remove the folder, write what is left to write."""
        with _uninterrupted():
            try:
                self._stop()
            finally:
                for file in {file for rank in self.ranks for file in (rank.output, *rank.watched)}:
                    file.close()
                self.selector.close()
                shutil.rmtree(self.folder, ignore_errors=True)
        self.output.finish()

    def _stop(self) -> None:
        """Ask the ranks still running to end, release those that returned, then insist."""
        running = [rank for rank in self.ranks if rank.outcome() is None]
        self._kill(running, signal.SIGTERM, _GRACE)
        self._kill(running, _KILL, 0)
        if self.release is not None:
            os.close(self.release)
        ended = self.wait(lambda: not _alive(self.ranks), _LEAVING) or self._kill(self.ranks, _KILL, _LEAVING)
        if not ended and self.server is not None:
            self.server.process.kill()  # it doesn't answer; its ranks die with it

    def _kill(self, ranks: list[_Rank], signum: int, seconds: float) -> bool:
        """Send a signal to ranks and wait until they have ended, `seconds` at the most."""
        for rank in _alive(ranks):
            rank.kill(signum)
        return self.wait(lambda: not _alive(ranks), seconds)


def _alive(ranks: list[_Rank]) -> list[_Rank]:
    return [rank for rank in ranks if rank.code is None]


# What is said of ranks


def _lost_peer(rank: _Rank) -> bool:
    return rank.outcome() == "error" and bool(_PEER_LOST.search(_transport.read(rank.path("error"))[0]))


def _death(code: int | None) -> str:
    if code is None or code >= 0:
        return f"left with exit code {code} before it returned (os._exit?)"
    name = next((known.name for known in signal.Signals if known == -code), f"signal {-code}")
    hint = ", likely because the machine ran out of memory" if name == "SIGKILL" else ""
    return f"died by {name}{hint}"


def _cell(filename: str) -> str:
    """A short name for a source file: cell In[3], a path inside site-packages, or the path itself."""
    shell = notebook_shell()
    named = shell.compile.format_code_name(filename) if shell is not None else None
    if named:
        return " ".join(named).lower().replace("in[", "In[")
    return re.split(r"(?:site|dist)-packages[/\\]", filename)[-1]


def _readable(text: str) -> str:
    """A traceback with short file names and no lines of carets, which differ between Python versions."""
    text = re.sub(r"^ +[~^]+ *\n", "", text, flags=re.M)
    return re.sub(r'File "([^"]+)"', lambda found: f'File "{_cell(found[1])}"', text)


def _frames(stack: str) -> list[tuple[str, int, str]]:
    """File, line and function of each frame of a dumped stack inside the user's function, innermost first."""
    found = re.findall(r'File "([^"]+)", line (\d+) in (\S+)', stack)
    inside = itertools.takewhile(lambda frame: "_worker.py" not in frame[0], found)
    return [(file, int(line), function) for file, line, function in inside]


def _source(file: str, line: int) -> str:
    return linecache.getline(file, line).strip()


def _user_stack(stack: str) -> str:
    """The stack of a rank that crashed, as a traceback of the user's own lines."""
    lines = [
        f'  File "{_cell(file)}", line {line}, in {function}\n    {_source(file, line)}\n'
        for file, line, function in reversed(_frames(stack))
        if not _LIBRARY.search(file)
    ]
    return "".join(["Traceback (most recent call last):\n", *lines]) if lines else ""


def _place(stack: str) -> str:
    """One line from a stack: the user's line, and the collective it waits in."""
    frames = _frames(stack)
    own = next((frame for frame in frames if not _LIBRARY.search(frame[0])), None)
    waits = next((name for file, _, name in frames if "distributed" in file and name != "wrapper"), None)
    if own is None:
        return "before its first line" if stack else "no line known (stopped, or busy outside Python)"
    file, line, function = own
    place = f"{_cell(file)}, line {line}, in {function}: {_source(file, line)}".rstrip(": ")
    return place + (f"  (waits in {waits})" if waits else "")
