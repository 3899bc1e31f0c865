"""What ranks print: whole lines, each with its rank, grouped at the end or live."""

from __future__ import annotations

import io
import os
import sys
import tempfile
from typing import Any

_SPOOL = 1 << 20  # bytes of a rank's output held in memory before they go to an unnamed file
_BATCH = 1 << 16  # bytes that are written to the cell at once
_LONGEST = 1 << 23  # bytes after which a live line without an end is shown all the same
_SHOW_AFTER, _SHOW_EVERY = 2.0, 0.5  # seconds before a silent cell says that it is running, and between
_TAIL, _TAIL_BYTES = 10, 1 << 12  # lines of each rank shown while it runs, and the bytes they are sought in


def _state(raw: bytes) -> bytes:
    """Of text overwritten with \\r, as a progress bar is, what stands there at the end."""
    return raw.rstrip(b"\r\n").rpartition(b"\r")[2]


def _line(rank: int, raw: bytes) -> str:
    return f"[rank {rank}] {_state(raw).decode('utf-8', 'replace')}\n"


def notebook_shell() -> Any:
    """The IPython shell of the notebook that this process runs, or None."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell if type(shell).__name__ == "ZMQInteractiveShell" else None


class Output:
    """Takes bytes from every rank; writes them to this process's standard output as lines."""

    def __init__(self, nprocs: int, grouped: bool) -> None:
        self.spools = [tempfile.SpooledTemporaryFile(_SPOOL) for _ in range(nprocs if grouped else 0)]
        self.unfinished = [bytearray() for _ in range(nprocs)]  # what a rank's live line holds so far
        self.bar = ""  # rank 0's progress bar, as it stands on the last line of a live cell
        self.display: Any = None
        self.next_display = _SHOW_AFTER

    def take(self, rank: int, data: bytes) -> None:
        """Accept the next bytes of `rank`."""
        if self.spools:
            self.spools[rank].write(data)
        else:
            self._live(rank, data)

    def _live(self, rank: int, data: bytes) -> None:
        """Print the lines that `data` ends. Of those it doesn't, only a progress bar of rank 0 is shown."""
        held = self.unfinished[rank]
        held += data
        end = len(held) if len(held) > _LONGEST else held.rfind(b"\n") + 1
        whole = "".join(_line(rank, raw) for raw in io.BytesIO(held[:end]))
        del held[:end]
        if b"\r" in held:
            held[:] = b"\r" + _state(held)
        shown = (_line(0, held)[:-1] if b"\r" in held else "") if rank == 0 else self.bar
        self._write(whole, shown)

    def _write(self, whole: str, bar: str) -> None:
        """Write lines where the progress bar stood, and the bar again below them."""
        if whole or bar != self.bar:
            erased = f"\r{' ' * len(self.bar)}\r" if self.bar else ""
            sys.stdout.write(erased + whole + bar)
            sys.stdout.flush()
            self.bar = bar

    def show(self, seconds: float) -> None:
        """While a long grouped launch runs in a notebook: its last lines and for how long, in a display."""
        if not self.spools or seconds < self.next_display or notebook_shell() is None:
            return
        if os.environ.get("HELPERS_LIVE") != "0":
            self.next_display = seconds + _SHOW_EVERY
            said = [line for rank in range(len(self.spools)) for line in self._tail(rank)]
            self._display("".join([*said, f"running for {seconds:.0f} s\n"]))

    def _tail(self, rank: int) -> list[str]:
        spool = self.spools[rank]
        start = max(0, spool.tell() - _TAIL_BYTES)
        spool.seek(start)
        found = [_line(rank, raw) for raw in spool]  # which leaves the spool at its end
        return found[-_TAIL:] if start == 0 or len(found) == 1 else found[1:][-_TAIL:]

    def _display(self, text: str) -> None:
        from IPython.display import display

        data = {"text/plain": text}
        if self.display is None:
            self.display = display(data, raw=True, display_id=True)
        else:
            self.display.update(data, raw=True)

    def finish(self) -> None:
        """Write what is held, in rank order; the display is emptied."""
        if self.display is not None:
            self._display("")
        rests = [_line(rank, held) for rank, held in enumerate(self.unfinished) if held]
        self._write("".join(rests), "")
        for rank, spool in enumerate(self.spools):
            with spool:
                spool.seek(0)
                while batch := spool.readlines(_BATCH):
                    sys.stdout.write("".join(_line(rank, raw) for raw in batch))
        sys.stdout.flush()
