"""What ranks print: complete, in whole lines, each with its rank, in bounded memory."""

from __future__ import annotations

import ctypes
import os
import sys
import tracemalloc
from collections.abc import Callable

import pytest

from helpers import launch
from helpers._output import Output

Written = Callable[..., str]


@pytest.fixture
def written(capsys: pytest.CaptureFixture[str]) -> Written:
    """Call it with pieces of output by ranks 0 and 1: what they come to on standard output."""

    def write(grouped: bool, *pieces: tuple[int, bytes]) -> str:
        output = Output(2, grouped)
        for rank, data in pieces:
            output.take(rank, data)
        output.finish()
        return capsys.readouterr().out

    return write


GROUPED = pytest.mark.parametrize("grouped", [True, False])


@GROUPED
def test_half_lines_and_characters_are_put_together(grouped: bool, written: Written) -> None:
    pieces = "né".encode()
    said = written(grouped, (0, pieces[:2]), (1, b"one\n"), (0, pieces[2:] + b"\nlast, without an end"))
    first, last = "[rank 0] né\n", "[rank 0] last, without an end\n"
    assert said == (first + last + "[rank 1] one\n" if grouped else "[rank 1] one\n" + first + last)


@GROUPED
def test_blank_lines_stay(grouped: bool, written: Written) -> None:
    assert written(grouped, (0, b"\n\na\n\n")) == "[rank 0] \n[rank 0] \n[rank 0] a\n[rank 0] \n"


@GROUPED
def test_bytes_that_are_no_text_do_not_stop_it(grouped: bool, written: Written) -> None:
    assert written(grouped, (0, b"\xff\n")) == "[rank 0] \ufffd\n"


@GROUPED
def test_windows_line_ends_are_line_ends(grouped: bool, written: Written) -> None:
    assert written(grouped, (1, b"a\r"), (1, b"\nb\r\n")) == "[rank 1] a\n[rank 1] b\n"


def test_of_a_progress_bar_the_last_state_remains(written: Written) -> None:
    assert written(True, (0, b"\r  0%\r 50%"), (0, b"\r100%\nend\n")) == "[rank 0] 100%\n[rank 0] end\n"


def test_a_live_progress_bar_of_rank_0_makes_way_for_lines_and_stands_below_them(written: Written) -> None:
    said = written(False, (0, b"\r10%"), (1, b"\r10%"), (1, b"\r20%\n"), (0, b"\r30%"), (0, b"\nend\n"))
    erase = "\r" + " " * len("[rank 0] 10%") + "\r"
    assert said.split(erase) == [
        "[rank 0] 10%",
        "[rank 1] 20%\n[rank 0] 10%",
        "[rank 0] 30%",
        "[rank 0] 30%\n[rank 0] end\n",
    ]


@GROUPED
def test_memory_stays_bounded(grouped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", open(os.devnull, "w"))
    output = Output(2, grouped)
    data = b"x" * 99 + b"\n"
    tracemalloc.start()
    for turn in range(1000):
        output.take(turn % 2, data * 640)
    output.finish()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    sys.stdout.close()
    assert peak < 8_000_000  # of 64 MB


@GROUPED
def test_a_burst_of_10_megabytes_a_rank_is_complete(
    grouped: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    def burst(rank: int) -> None:
        for number in range(100_000):
            os.write(1, b"%06d " % number + b"x" * 92 + b"\n") if number % 1000 else print(f"{number:06} y")

    launch(burst, nprocs=2, grouped=grouped)
    lines = capsys.readouterr().out.splitlines()
    for rank in range(2):
        own = [line for line in lines if line.startswith(f"[rank {rank}] ")]
        tail = ["x" * 92 if number % 1000 else "y" for number in range(100_000)]
        assert own == [f"[rank {rank}] {number:06} {tail[number]}" for number in range(100_000)]
    assert len(lines) == 200_000


def test_what_a_rank_never_flushed_comes_too(capsys: pytest.CaptureFixture[str]) -> None:
    def talk(rank: int) -> None:
        libc, buffer = ctypes.CDLL(None), ctypes.create_string_buffer(4096)
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), buffer, 0, 4096)  # as C does for a pipe
        talk.buffer = buffer  # as long as the process
        libc.printf(b"from C\n")
        sys.stdout.buffer.write(b"bytes\n")
        print("no end", end="")

    launch(talk, nprocs=1)
    assert sorted(capsys.readouterr().out.splitlines()) == ["[rank 0] bytes", "[rank 0] no endfrom C"]


def test_output_of_a_rank_that_was_killed_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    def fn(rank: int) -> None:
        print("last words")
        os.kill(os.getpid(), 9)

    with pytest.raises(RuntimeError, match="SIGKILL"):
        launch(fn, nprocs=1)
    assert capsys.readouterr().out == "[rank 0] last words\n"
