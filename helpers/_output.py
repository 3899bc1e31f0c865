"""What ranks print: whole lines, each with its rank, grouped at the end or live."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

_SPOOL = 1 << 20  # bytes of a rank's output held in memory before it goes to an unnamed file
_LONGEST = 1 << 23  # bytes after which a live line without an end is shown all the same
_SHOW_AFTER = 2.0  # seconds before a silent cell says that it is running
_TAIL = 20  # lines of it that are shown while it runs


def lines(rank: int, chunks: Iterable[bytes]) -> Iterator[str]:
    """Whole lines, prefixed with the rank; of a line that was overwritten with \\r, what was left."""
    for chunk in chunks:
        text = chunk.decode("utf-8", "replace").rstrip("\r\n")
        yield f"[rank {rank}] {text.rpartition(chr(13))[2]}\n"


def notebook_shell() -> Any:
    """The IPython shell of the notebook that this process runs, or None."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell if type(shell).__name__ == "ZMQInteractiveShell" else None


def _shows_live() -> bool:
    return notebook_shell() is not None and os.environ.get("HELPERS_LIVE") != "0"


class Output:
    """Takes bytes from every rank; writes them to this process's standard output as lines."""

    def __init__(self, nprocs: int, grouped: bool) -> None:
        self.grouped = grouped
        self.spools = [tempfile.SpooledTemporaryFile(_SPOOL) for _ in range(nprocs)]
        self.partial = [b""] * nprocs
        self.tail: list[str] = []
        self.handle: Any = None
        self.shown = 0.0

    def take(self, rank: int, data: bytes) -> None:
        """Accept the next bytes of `rank`; b"" says that there will be no more."""
        if self.grouped:
            self.spools[rank].write(data)
        whole = self._split(rank, data)
        if not self.grouped:
            sys.stdout.writelines(lines(rank, whole))
        self.tail = [*self.tail, *lines(rank, whole[-_TAIL:])][-_TAIL:]

    def _split(self, rank: int, data: bytes) -> list[bytes]:
        """The lines that `data` completes; a progress bar's \\r counts as an end, being live."""
        held = self.partial[rank] + data
        *whole, rest = held.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        if rest and (not data or len(rest) > _LONGEST):
            whole, rest = [*whole, rest], b""
        self.partial[rank] = rest
        return [line for line in whole if line or b"\r" not in held]

    def show(self, seconds: float) -> None:
        """While a long launch runs in a notebook: how long, and the last lines, in a display of its own."""
        if not self.grouped or seconds < self.shown + (0.5 if self.handle else _SHOW_AFTER) or not _shows_live():
            return
        self.shown = seconds
        text = "".join([*self.tail, f"running for {seconds:.0f} s\n"])
        self._display(text)

    def _display(self, text: str) -> None:
        from IPython.display import display

        data = {"text/plain": text}
        if self.handle is None:
            self.handle = display(data, raw=True, display_id=True)
        else:
            self.handle.update(data, raw=True)

    def finish(self) -> None:
        """Write what is held: in rank order when grouped; then the display is emptied."""
        if self.handle is not None:
            self._display("")
        for rank, spool in enumerate(self.spools):
            if not self.grouped and self.partial[rank]:
                sys.stdout.writelines(lines(rank, [self.partial[rank]]))
            spool.seek(0)
            sys.stdout.writelines(lines(rank, spool))
            spool.close()
        sys.stdout.flush()
