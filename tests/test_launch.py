"""`launch` from a plain process: what comes back, what goes wrong, and that nothing is left of it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from kernels import ROOT, children, left_of, script, until

import helpers._launch
from helpers import LaunchTimeout, RankError, cores, launch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc")

BOTH_STARTS = pytest.mark.parametrize("start", ["fork server", "spawn"])
QUICK = 10  # seconds, generous: what ends at once is asserted to end within these


def server() -> int:
    """The pid of this process's fork server."""
    return helpers._launch._fork_server().process.pid


def files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(autouse=True)
def nothing_left(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """After every test: no process, no folder, no open file and no thread of its launches."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    mine = {server(), *children(os.getpid())}
    before = files(), threading.active_count()
    yield folder
    assert children(server()) == []
    assert set(children(os.getpid())) - mine - {server()} == set()
    assert list(folder.iterdir()) == []
    assert (files(), threading.active_count()) == before


def failure(fn: Callable[..., Any], *args: Any, **options: Any) -> RankError:
    """How a launch fails that must fail, and soon."""
    began = time.monotonic()
    with pytest.raises(RankError) as caught:
        launch(fn, args, **{"nprocs": 2, "timeout": 60} | options)
    assert time.monotonic() - began < QUICK
    return caught.value


# What travels


class Point:
    def __init__(self, x: int) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.x == self.x

    __hash__ = None


@BOTH_STARTS
def test_functions_lambdas_closures_and_local_classes_travel(
    start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HELPERS_START", start)
    factor = 10

    class Pair:
        def __init__(self, rank: int, twice: Callable[[int], int]) -> None:
            self.values = rank, twice(rank)

    def closure(rank: int, twice: Callable[[int], int]) -> tuple[Pair, Callable[[], int]]:
        return Pair(rank + factor, twice), lambda: rank

    (pair, zero), (_, one) = launch(closure, (lambda n: 2 * n,))
    assert type(pair) is Pair
    assert (pair.values, zero(), one()) == ((10, 20), 0, 1)


VALUES = {
    "none": None,
    "nested": {"a": [1, (2.5, None)], "b": {"c": {3, 4}}},
    "numpy": np.arange(6.0).reshape(2, 3).T,
    "float": torch.arange(6.0).reshape(2, 3).T,
    "one number": torch.tensor(2.5),
    "no numbers": torch.empty(0, 3),
    "bfloat16": torch.ones(3, dtype=torch.bfloat16),
    "bool": torch.tensor([True, False]),
    "complex": torch.tensor([1 + 2j]).conj(),
    "negative view": torch.tensor([1 + 2j]).conj().imag,
    "sparse": torch.eye(3).to_sparse(),
    "object": Point(3),
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
def test_a_value_comes_back_equal(value: Any) -> None:
    there_and_back = launch(lambda rank, value: value, (value,), nprocs=1)[0]
    assert type(there_and_back) is type(value)
    if isinstance(value, torch.Tensor):
        assert there_and_back.dtype == value.dtype
        torch.testing.assert_close(there_and_back, value, rtol=0, atol=0)
    else:
        assert np.array_equal(there_and_back, value)


def test_tensors_come_back_detached_and_writable() -> None:
    def with_graph(rank: int) -> dict[str, torch.Tensor]:
        weight = torch.ones(2, requires_grad=True)
        return {"leaf": weight, "product": weight * 2, "array": np.zeros(2)}

    result = launch(with_graph, nprocs=1)[0]
    assert not result["leaf"].requires_grad
    assert not result["product"].requires_grad
    result["product"] += 1
    result["array"] += 1
    assert result["product"].tolist() == [3, 3]


def test_200_megabytes_come_back() -> None:
    result = launch(lambda rank: torch.full((50_000_000,), float(rank)), nprocs=2)
    assert [int(values.sum()) for values in result] == [0, 50_000_000]


def test_a_module_keeps_its_parameters_and_tied_weights() -> None:
    net = torch.nn.ModuleList([torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False)])
    net[1].weight = net[0].weight
    back = launch(lambda rank, net: net, (net,), nprocs=1)[0]
    assert back[0].weight is back[1].weight
    assert back[0].weight.requires_grad
    assert torch.equal(back[0].weight, net[0].weight)


def _uses_a_lock() -> Callable[..., Any]:
    lock = threading.Lock()

    def user(rank: int) -> Any:
        return lock

    return user


def _uses_a_user() -> Callable[..., Any]:
    user = _uses_a_lock()
    return lambda rank: user(rank)


@pytest.mark.parametrize(
    ("fn", "args", "said"),
    [
        (print, (1, threading.Lock()), "argument 2 of args (args[1]) is a lock, which cannot travel"),
        (print, ((n for n in "abc"),), "argument 1 of args (args[0]) is a generator, which cannot travel"),
        (
            print,
            (1, 2, sys.__stdin__),
            "argument 3 of args (args[2]) is a TextIOWrapper, which cannot travel",
        ),
        (print, ({"a": threading.Lock()},), "argument 1 of args (args[0]) is a dict, which cannot travel"),
        (_uses_a_lock(), (), "fn uses 'lock', a lock, which cannot travel"),
        (_uses_a_user(), (), "fn uses 'user', which uses 'lock', a lock, which cannot travel"),
    ],
    ids=["lock", "generator", "file", "inside a dict", "closure", "closure of a closure"],
)
def test_what_cannot_travel_to_a_rank_is_named(
    fn: Callable[..., Any], args: tuple[Any, ...], said: str
) -> None:
    with pytest.raises(TypeError, match="cannot pickle") as caught:
        launch(fn, args)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def test_what_cannot_come_back_is_named() -> None:
    error = failure(lambda rank: threading.Lock() if rank else None)
    assert str(error).startswith(
        "rank 1 returned a lock, which cannot travel to another process: cannot pickle"
    )


class OpensOnlyIn:
    """Pickles anywhere; to unpickle it, `action` is called."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self.action = action

    def __reduce__(self) -> Any:
        return self.action, ()


def test_work_that_a_rank_cannot_unpickle_fails_with_its_message() -> None:
    def missing() -> None:
        raise ModuleNotFoundError("No module named 'somewhere'")

    error = failure(lambda rank, value: None, OpensOnlyIn(missing))
    assert "rank 0 raised ModuleNotFoundError: No module named 'somewhere'" in str(error)
    assert "exit code 1" in str(failure(lambda rank, value: None, OpensOnlyIn(lambda: os._exit(1))))


def test_a_result_that_the_notebook_cannot_unpickle_names_its_rank() -> None:
    mine = os.getpid()

    def refuses_here() -> None:
        if os.getpid() == mine:
            raise ValueError("not here")

    error = failure(lambda rank: OpensOnlyIn(refuses_here) if rank else None)
    assert str(error) == "rank 1 returned what this process cannot read: ValueError: not here"


def test_an_exception_that_cannot_be_rebuilt_still_tells_its_story() -> None:
    class Odd(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__("odd")

    def fn(rank: int) -> None:
        raise Odd(1, 2)

    error = failure(fn)
    assert error.exception is None
    assert "raise Odd(1, 2)" in error.traceback


# What is given


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ({"nprocs": 0}, ValueError, "nprocs must be a whole number of ranks, 1 or more, not 0"),
        ({"nprocs": -1}, ValueError, "not -1"),
        ({"nprocs": 1.5}, ValueError, "not 1.5"),
        ({"nprocs": "2"}, ValueError, "not '2'"),
        ({"nprocs": True}, ValueError, "not True"),
        ({"timeout": 0}, ValueError, "timeout must be a number of seconds above 0, not 0"),
        ({"timeout": float("nan")}, ValueError, "not nan"),
        ({"timeout": "9"}, ValueError, "not '9'"),
        ({"backend": "ncll"}, ValueError, "backend must be 'auto', 'gloo', 'nccl' or None, not 'ncll'"),
        ({"backend": "nccl", "nprocs": 99}, ValueError, "backend 'nccl' needs a GPU per rank: 99 ranks"),
        ({"fn": 3}, TypeError, "fn must be a function of (rank, *args), not 3"),
        ({"args": 3}, TypeError, "args must be a tuple, such as args=(3,), not int"),
    ],
)
def test_a_wrong_argument_gets_one_line(given: dict[str, Any], kind: type[Exception], said: str) -> None:
    with pytest.raises(kind) as caught:
        launch(**{"fn": print} | given)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value._render_traceback_() == [f"{kind.__name__}: {caught.value}"]


def test_a_launch_within_a_rank_gets_one_line() -> None:
    said = "rank 0 raised RuntimeError: launch was called inside rank 0: call it from the notebook"
    assert str(failure(lambda rank: launch(print), nprocs=1)) == said


# What a rank sees


def test_a_rank_has_its_share_of_the_cores() -> None:
    share = lambda rank: (torch.get_num_threads(), os.environ["OMP_NUM_THREADS"])  # noqa: E731
    for nprocs in (1, 2):
        threads = max(1, cores() // nprocs)
        assert launch(share, nprocs=nprocs) == [(threads, str(threads))] * nprocs


def test_a_rank_sees_the_environment_and_the_folder_of_now(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SET_A_MOMENT_AGO", "yes")
    monkeypatch.delenv("HOME")
    monkeypatch.chdir(tmp_path)
    seen = lambda rank: (os.environ.get("SET_A_MOMENT_AGO"), os.environ.get("HOME"), os.getcwd())  # noqa: E731
    assert launch(seen, nprocs=1) == [("yes", None, str(tmp_path))]


def test_forked_ranks_draw_different_numpy_numbers() -> None:
    one, two = launch(lambda rank: np.random.random(), nprocs=2)
    assert one != two


@pytest.mark.parametrize(("nprocs", "start"), [(1, "fork server"), (2, "spawn"), (3, "fork server")])
def test_without_a_backend_a_rank_initialises_as_under_torchrun(
    nprocs: int, start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HELPERS_START", start)

    def fn(rank: int) -> list[int]:
        assert not dist.is_initialized()
        dist.init_process_group("gloo")
        total = torch.tensor(rank)
        dist.all_reduce(total)
        return [dist.get_rank(), dist.get_world_size(), int(os.environ["LOCAL_RANK"]), int(total)]

    assert launch(fn, nprocs=nprocs, backend=None) == [
        [rank, nprocs, rank, sum(range(nprocs))] for rank in range(nprocs)
    ]


def test_nothing_listens_beyond_this_machine_and_the_folder_is_private(nothing_left: Path) -> None:
    def listening(rank: int) -> tuple[set[str], list[int]]:
        mine, addresses = set(), set()
        for fd in range(3, 100):
            with contextlib.suppress(OSError):
                mine.add(os.readlink(f"/proc/self/fd/{fd}"))
        for table in ("tcp", "tcp6", "udp", "udp6"):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                local, _, state = line.split()[1:4]
                if f"socket:[{line.split()[9]}]" in mine and state in ("0A", "07"):
                    addresses.add(local.partition(":")[0])
        folders = list(nothing_left.iterdir())
        return addresses, [folder.stat().st_mode & 0o777 for folder in folders]

    for addresses, modes in launch(listening, nprocs=2):
        assert addresses == {"0100007F"}
        assert modes == [0o700]


# How ranks end


def in_collective(rank: int) -> None:
    dist.all_reduce(torch.ones(1))


def _lingering(rank: int, pids: str) -> None:
    """Leave behind a process that has a session of its own, whose parent has ended, and a child of it."""
    if os.fork() == 0:
        os.setsid()
        os.fork()
        Path(pids, f"{os.getpid()}").touch()
        time.sleep(600)
    until(lambda: len(os.listdir(pids)) >= 2, "the lingering processes")
    raise ValueError("left a process")


FAULTS: dict[str, tuple[Callable[[int, str], Any], str]] = {
    "raise": (lambda rank, _: 1 / 0, "raised ZeroDivisionError: division by zero"),
    "sys.exit": (lambda rank, _: sys.exit(3), "called sys.exit(3) before it returned"),
    "os._exit": (lambda rank, _: os._exit(0), "left with exit code 0 before it returned"),
    "SIGKILL": (
        lambda rank, _: os.kill(os.getpid(), 9),
        "died by SIGKILL, likely because the machine ran out",
    ),
    "segfault": (lambda rank, _: ctypes.string_at(0), "died by SIGSEGV"),
    "abort": (lambda rank, _: os.abort(), "died by SIGABRT"),
    "unpicklable": (lambda rank, _: threading.Lock(), "returned a lock, which cannot travel"),
    "lingering": (_lingering, "raised ValueError: left a process"),
}


@pytest.mark.parametrize("who", [0, 2])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_failing_rank_is_named_with_its_own_cause(fault: str, who: int, tmp_path: Path) -> None:
    act, said = FAULTS[fault]

    def fn(rank: int, pids: str) -> Any:
        return act(rank, pids) if rank == who else in_collective(rank)

    error = failure(fn, str(tmp_path), nprocs=3)
    assert str(error).startswith(f"rank {who} {said}")
    assert error.rank == who
    assert left_of([int(name) for name in os.listdir(tmp_path)]) == []


@pytest.mark.parametrize("fault", ["SIGKILL", "lingering"])
def test_a_spawned_rank_fails_alike(fault: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HELPERS_START", "spawn")
    act, said = FAULTS[fault if fault != "lingering" else "raise"]

    def fn(rank: int, pids: str) -> Any:
        if rank == 1 and fault == "lingering":
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        return act(rank, pids) if rank == 1 else in_collective(rank)

    assert str(failure(fn, str(tmp_path))).startswith(f"rank 1 {said}")


@pytest.mark.parametrize("who", [0, 1])
def test_an_endless_rank_is_stopped_and_its_line_named(who: int) -> None:
    def fn(rank: int) -> None:
        while rank == who:
            time.sleep(0.01)  # the line

    with pytest.raises(LaunchTimeout) as caught:
        launch(fn, nprocs=2, timeout=1)
    assert str(caught.value).startswith("1 of 2 ranks still running after 1 s\n")
    assert list(caught.value.where) == [who]
    assert (
        "time.sleep(0.01)  # the line" in caught.value.where[who] or "while rank" in caught.value.where[who]
    )


def test_two_ranks_in_different_collectives_are_named_with_both() -> None:
    def fn(rank: int) -> None:
        if rank == 0:
            dist.barrier()
        else:
            dist.all_reduce(torch.ones(1))

    with pytest.raises(LaunchTimeout) as caught:
        launch(fn, nprocs=2, timeout=1)
    where = caught.value.where
    assert where[0].endswith("in fn: dist.barrier()  (waits in barrier)")
    assert where[1].endswith("in fn: dist.all_reduce(torch.ones(1))  (waits in all_reduce)")


def test_unequal_steps_name_the_rank_that_waits() -> None:
    def fn(rank: int) -> None:
        for _ in range(5 + rank):
            dist.all_reduce(torch.ones(1))

    with pytest.raises(LaunchTimeout) as caught:
        launch(fn, nprocs=2, timeout=1)
    assert list(caught.value.where) == [1]
    assert caught.value.where[1].endswith("dist.all_reduce(torch.ones(1))  (waits in all_reduce)")


def test_a_stopped_rank_is_ended_too() -> None:
    with pytest.raises(LaunchTimeout, match="rank 1: no line known"):
        launch(lambda rank: os.kill(os.getpid(), signal.SIGSTOP) if rank else None, nprocs=2, timeout=1)


def test_a_rank_that_ignores_sigterm_and_its_children_are_ended(tmp_path: Path) -> None:
    def fn(rank: int, pids: str) -> None:
        if rank == 1:
            until(lambda: os.listdir(pids), "the child")
            raise ValueError("cause")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.fork()
        Path(pids, str(os.getpid())).touch()
        time.sleep(600)

    assert str(failure(fn, str(tmp_path))).startswith("rank 1 raised ValueError: cause")
    assert left_of([int(name) for name in os.listdir(tmp_path)]) == []


def test_the_cause_comes_before_its_peers_lost_connection() -> None:
    """Rank 0 has heard of the lost connection, and has said so, before rank 1's death is known."""

    def fn(rank: int) -> None:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            dist.all_reduce(torch.ones(1))

    assert str(failure(fn)).startswith("rank 1 died by SIGKILL")


def test_a_rank_that_left_its_group_and_raised_comes_before_the_peers_it_let_down() -> None:
    def fn(rank: int) -> None:
        if rank == 1:
            dist.destroy_process_group()
            raise ValueError("cause")
        in_collective(rank)

    assert str(failure(fn)).startswith("rank 1 raised ValueError: cause")


def test_of_ranks_that_fail_alike_the_lowest_is_reported() -> None:
    def fn(rank: int) -> None:
        time.sleep((3 - rank) * 0.005)
        raise ValueError("all of us")

    assert failure(fn, nprocs=3).rank == 0


def test_a_crash_shows_the_users_own_lines() -> None:
    def inner() -> None:
        ctypes.string_at(0)  # crashes here

    def fn(rank: int) -> None:
        inner()

    lines = failure(fn, nprocs=1).traceback.splitlines()
    assert [line.strip() for line in lines[2::2]] == ["inner()", "ctypes.string_at(0)  # crashes here"]
    assert all(__file__ in line for line in lines[1::2])


def test_an_exception_comes_back_itself_with_the_users_frames_only() -> None:
    class Mine(Exception):
        pass

    def fn(rank: int) -> None:
        raise Mine("own")

    error = failure(fn, nprocs=1)
    assert type(error.exception) is Mine
    assert "_worker.py" not in error.traceback
    assert 'raise Mine("own")' in error.traceback


def test_streams_that_fn_has_closed_do_no_harm() -> None:
    def fn(rank: int) -> int:
        sys.stdout.close()
        os.close(1)
        os.close(2)
        return rank

    assert launch(fn, nprocs=2) == [0, 1]


def test_a_rank_that_returned_may_leave_slowly_but_not_for_ever() -> None:
    def fn(rank: int) -> int:
        import atexit

        atexit.register(time.sleep, 600)
        return rank

    began = time.monotonic()
    assert launch(fn, nprocs=2) == [0, 1]
    assert time.monotonic() - began < QUICK


def test_exit_handlers_of_fn_run(tmp_path: Path) -> None:
    def fn(rank: int, path: str) -> None:
        import atexit

        atexit.register(Path(path, str(rank)).touch)

    launch(fn, (str(tmp_path),), nprocs=2)
    assert sorted(os.listdir(tmp_path)) == ["0", "1"]


# One launch after another, and at once


def test_failing_launches_leave_room_for_more() -> None:
    before = files()
    for turn in range(10):
        assert failure(lambda rank: 1 / 0).rank == 0
        assert launch(lambda rank, turn: rank + turn, (turn,), nprocs=2) == [turn, turn + 1]
        assert files() == before


def test_launches_from_threads_at_once() -> None:
    def fn(rank: int, number: int) -> float:
        total = torch.tensor(float(number))
        dist.all_reduce(total)
        return total.item()

    results: dict[int, list[float]] = {}
    work = lambda number: results.update({number: launch(fn, (number,), nprocs=2)})  # noqa: E731
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {number: [2.0 * number] * 2 for number in range(4)}


def test_a_fork_server_that_died_is_replaced() -> None:
    old = server()
    os.kill(old, signal.SIGKILL)
    until(lambda: not helpers._launch._server.alive(), "the server's end")
    assert launch(lambda rank: rank, nprocs=2) == [0, 1]
    assert server() != old


def test_a_fork_server_that_dies_during_a_launch_is_named_and_its_ranks_end(tmp_path: Path) -> None:
    def fn(rank: int, folder: str) -> None:
        Path(folder, str(os.getpid())).touch()
        if rank == 1:
            until(lambda: len(os.listdir(folder)) == 2, "both ranks")
            os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)

    error = failure(fn, str(tmp_path))
    assert str(error).startswith("rank 0 was lost: the process that starts ranks died by SIGKILL")
    pids = [int(name) for name in os.listdir(tmp_path)]
    until(lambda: left_of(pids) == [], "the end of the ranks")
    assert launch(lambda rank: rank, nprocs=2) == [0, 1]


def test_a_fork_server_that_does_not_answer_is_ended_and_replaced() -> None:
    os.kill(server(), signal.SIGSTOP)
    with pytest.raises(LaunchTimeout):
        launch(lambda rank: rank, nprocs=2, timeout=0.5)
    until(lambda: not helpers._launch._server.alive(), "the server's end")
    assert launch(lambda rank: rank, nprocs=2) == [0, 1]


def test_a_launch_waits_for_a_fork_server_that_is_busy() -> None:
    os.kill(server(), signal.SIGSTOP)
    waker = threading.Timer(0.5, os.kill, (server(), signal.SIGCONT))
    waker.start()
    assert launch(lambda rank: rank, nprocs=2) == [0, 1]
    waker.join()


# Programs of their own


def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        **options,
    )


QUIET = """
import os
import torch
import torch.distributed as dist
from helpers import RankError, launch

def add(rank):
    total = torch.tensor(rank)
    dist.all_reduce(total)
    return int(total)

def fail(rank):
    add(rank)
    if rank:
        raise ValueError("end")

print("joined", launch(add, nprocs=2), flush=True)
try:
    launch(fail)
except RankError as error:
    print("failed", error.rank, flush=True)
if (child := os.fork()) == 0:
    print("forked", launch(add, nprocs=2))
    raise SystemExit
os.waitpid(child, 0)
print("again", launch(add, nprocs=2))
"""


@BOTH_STARTS
def test_a_script_and_a_process_it_forks_launch_without_a_word_of_warning(
    start: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HELPERS_START", start)
    ended = run(
        script(tmp_path, QUIET if start == "fork server" else QUIET.partition("if (child")[0], "-W", "error")
    )
    said = ["joined [1, 1]", "failed 1", "forked [1, 1]", "again [1, 1]"]
    assert ended.stdout.splitlines() == (said if start == "fork server" else said[:2])
    assert ended.stderr == ""


LONG = """
import os, sys, time
from pathlib import Path
from helpers import launch

def fn(rank):
    Path(sys.argv[1], str(os.getpid())).touch()
    time.sleep(600)

launch(fn, nprocs=2, timeout=600)
"""


def test_a_spawned_rank_and_its_folder_end_with_its_notebook(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nothing_left: Path
) -> None:
    monkeypatch.setenv("HELPERS_START", "spawn")
    monkeypatch.setenv("TMPDIR", str(nothing_left))  # which must be empty in the end
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with subprocess.Popen([*script(tmp_path.parent, LONG), str(tmp_path)]) as notebook:
        until(lambda: len(os.listdir(tmp_path)) == 2, "the ranks", 60)
        notebook.kill()
    until(lambda: left_of([int(name) for name in os.listdir(tmp_path)]) == [], "the end of the ranks")


NO_TORCH = """
import sys, torch
from helpers import launch
sys.path.insert(0, sys.argv[1])
launch(print, backend="gloo")
"""


def test_a_fork_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch is broken')")
    ended = run([*script(tmp_path.parent, NO_TORCH), str(tmp_path)])
    said = "RankError: rank 0 was lost: the process that starts ranks said ImportError: libtorch is broken"
    assert ended.stderr.strip().splitlines()[-1].endswith(said)


UNRESOLVABLE = """
import ctypes, os, socket
own_names = 0x04000000 | (0x10000000 if os.getuid() else 0)  # CLONE_NEWUTS, and CLONE_NEWUSER for it
assert ctypes.CDLL(None).unshare(own_names) == 0
socket.sethostname("no-such-host.invalid")
try:
    print(socket.gethostbyname(socket.gethostname()))
except OSError:
    print("unresolvable")
import torch, torch.distributed as dist
from helpers import launch

def add(rank):
    if os.environ.get("own"):
        dist.init_process_group("gloo")
    total = torch.tensor(rank)
    dist.all_reduce(total)
    return int(total)

print(launch(add, nprocs=2))
os.environ["own"] = "1"
print(launch(add, nprocs=2, backend=None))
"""


def test_ranks_join_where_the_hostname_does_not_resolve(tmp_path: Path) -> None:
    ended = run(script(tmp_path, UNRESOLVABLE))
    if "assert ctypes" in ended.stderr:
        pytest.skip("this machine lets nobody change a host name, even one's own")
    of_torch = ("[Gloo]", "[c10d]")  # where torch tells of connections, or of names that it cannot look up
    said = [line for line in ended.stdout.splitlines() if not any(mark in line for mark in of_torch)]
    assert said == ["unresolvable", "[1, 1]", "[1, 1]"], ended.stderr


PRELOAD = """
import gc, torch
from helpers import _worker

touched = []
for name in ("_cuda_init", "_cuda_getDeviceCount", "_cuda_getDevice", "_cuda_setDevice"):
    setattr(torch._C, name, lambda *_, name=name: touched.append(name) or 0)
assert torch.cuda.device_count() == 0 and touched, "the trap does not work"
touched.clear()
_worker._preload("torch.distributed", "numpy", *_worker._LATER)
print(touched, torch.cuda.is_initialized())
"""


def test_what_the_fork_server_imports_leaves_cuda_alone(tmp_path: Path) -> None:
    ended = run(script(tmp_path, PRELOAD))
    assert ended.stdout == "[] False\n", ended.stderr


MISSED = """
import importlib, sys
from helpers import launch

def has(rank):
    return "torch._dynamo" in sys.modules

assert launch(has, nprocs=1) == [False]
if "use" in sys.argv:
    launch(lambda rank: importlib.import_module("torch._dynamo").__name__, nprocs=1)
print(any(launch(has, nprocs=1)[0] for _ in range(5)))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only the fork server imports ahead")
@pytest.mark.parametrize("use", ["use", "do without"])
def test_what_a_rank_had_to_import_is_there_for_the_next_without_a_pause(use: str, tmp_path: Path) -> None:
    """DDP imports it, in 1 s, and launches that follow each other leave the server no idle time."""
    ended = run([*script(tmp_path, MISSED), use])
    assert ended.stdout == f"{use == 'use'}\n", ended.stderr
