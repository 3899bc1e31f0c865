"""Real notebooks for tests: a kernel of its own, driven as a front end drives it; and a look at processes."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty
from typing import Any

from jupyter_client.manager import KernelManager

ROOT = Path(__file__).parent.parent


@dataclass
class Cell:
    """What a cell has put out so far."""

    stdout: str = ""
    stderr: str = ""
    displays: list[str] = field(default_factory=list)
    error: str = ""  # the exception's name
    shown: str = ""  # the error as the notebook shows it
    done: bool = False

    def take(self, kind: str, content: dict[str, Any]) -> None:
        if kind == "stream":
            setattr(self, content["name"], getattr(self, content["name"]) + content["text"])
        elif kind in ("display_data", "update_display_data", "execute_result"):
            self.displays.append(content["data"]["text/plain"])
        elif kind == "error":
            self.error, self.shown = content["ename"], "\n".join(content["traceback"])
        elif kind == "status":
            self.done = content["execution_state"] == "idle"


class Notebook:
    """A running kernel. `env` changes its environment, which is a reader's and not pytest's."""

    def __init__(self, folder: Path, **env: str) -> None:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        self.manager = KernelManager()
        env = kept | {"PYTHONPATH": str(ROOT)} | env
        self.manager.start_kernel(cwd=str(folder), env=env, extra_arguments=["--log-level=ERROR"])
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    @property
    def pid(self) -> int:
        return self.manager.provisioner.pid

    def start(self, code: str) -> str:
        """Begin a cell; its id is for `finish`."""
        return self.client.execute(code)

    def finish(self, request: str, timeout: float = 60) -> Cell:
        """What the cell has put out, once it is done."""
        cell, until = Cell(), time.monotonic() + timeout
        while not cell.done:
            assert time.monotonic() < until, f"the cell is still running after {timeout} s: {cell}"
            try:
                message = self.client.get_iopub_msg(timeout=1)
            except Empty:
                continue
            if message["parent_header"].get("msg_id") == request:
                cell.take(message["msg_type"], message["content"])
        while self.client.get_shell_msg(timeout=timeout)["parent_header"]["msg_id"] != request:
            pass  # a kernel that gets its next request before it has replied can miss it (ipykernel 7.3)
        return cell

    def run(self, code: str, timeout: float = 60) -> Cell:
        return self.finish(self.start(code), timeout)

    def output(self, code: str) -> str:
        """The standard output of a cell that must succeed."""
        cell = self.run(code)
        assert not cell.error, cell.shown
        return cell.stdout

    def interrupt(self) -> None:
        self.manager.interrupt_kernel()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()


def until(true: Callable[[], Any], what: str, seconds: float = 10) -> None:
    """Wait until `true()`; fails with `what` was waited for."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.01)


def _stat(pid: str) -> list[str]:
    """State, parent, group and session of a process, and more (man 5 proc)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def processes() -> dict[int, tuple[str, int, int]]:
    """State, parent and session of every process of this machine, zombies included."""
    stats = {int(pid): _stat(pid) for pid in os.listdir("/proc") if pid.isdigit()}
    return {pid: (stat[0], int(stat[1]), int(stat[3])) for pid, stat in stats.items() if stat}


def children(parent: int) -> list[int]:
    return [pid for pid, (_, of, _) in processes().items() if of == parent]


def left_of(sessions: list[int]) -> list[int]:
    """Processes, zombies too, of these sessions: a rank leads one, and what it starts inherits it."""
    return [pid for pid, (_, _, session) in processes().items() if pid in sessions or session in sessions]


def script(folder: Path, text: str, *flags: str) -> list[str]:
    """The command that runs `text` as a script of its own."""
    path = folder / "script.py"
    path.write_text(text)
    return [sys.executable, *flags, str(path)]
