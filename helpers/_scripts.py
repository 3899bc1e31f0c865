"""Run programs of their own from a lesson, and hear what child processes say when they fail."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator


def _without_gloo(text: str) -> list[str]:
    """Lines without those, run into each other, in which gloo of torch 2.9 says that ranks are connected."""
    lines = text.splitlines(keepends=True)
    kept = [line for line in lines if "[Gloo]" not in line and "peer ranks" not in line]
    return kept if kept == lines else [line for line in kept if line.strip()]


def run_script(path: str, *args: str, timeout: float = 60.0) -> None:
    """Run the Python script at `path` as a program of its own and print what it printed.

    Raises:
        RuntimeError: it failed, with the last lines that it wrote to standard error.
        subprocess.TimeoutExpired: it ran for more than `timeout` seconds and was stopped.
    """
    ended = subprocess.run([sys.executable, path, *args], capture_output=True, text=True, timeout=timeout)
    print("".join(_without_gloo(ended.stdout)), end="")
    if ended.returncode:
        last = "\n".join(ended.stderr.strip().splitlines()[-12:])
        raise RuntimeError(f"{path} ended with exit code {ended.returncode}:\n{last}")


@contextlib.contextmanager
def child_errors() -> Iterator[list[str]]:
    """Collect what child processes write to standard error; the list fills when the block ends."""
    heard: list[str] = []
    kept = os.dup(2)
    with tempfile.TemporaryFile("w+", errors="replace") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield heard
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            heard += file.read().splitlines()
