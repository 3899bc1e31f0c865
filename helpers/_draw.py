"""One look for every figure, and the drawings that several lessons share.

Colours are Okabe and Ito's (2008), told apart by colour-blind readers; hatches carry them into grey print.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ._measure import _quartiles

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#0072B2", "#D55E00", "#999999")
HATCHES = ("", "//", "..", "\\\\", "xx", "--", "++", "oo")
_STYLE = {
    "figure.dpi": 100,
    "savefig.dpi": 100,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "hatch.linewidth": 0.5,
}


def figure(width: float = 7.0, height: float = 3.2, **kwargs: Any) -> tuple[Any, Any]:
    """A figure of `width` by `height` inches and its axes, in the course's style; kwargs go to subplots."""
    import matplotlib.pyplot as plt

    plt.rcParams.update(_STYLE)
    return plt.subplots(figsize=(width, height), layout="constrained", **kwargs)


def show() -> None:
    """Show the current figure and forget it."""
    import matplotlib.pyplot as plt

    plt.show()
    plt.close("all")


def _sources(value: float) -> list[int]:
    """The ranks in a sum, where rank r contributes to the r-th decimal digit: 101 comes from 0 and 2."""
    return [rank for rank, digit in enumerate(reversed(str(int(value)))) if digit != "0"]


def _cell(axes: Axes, row: int, column: int, value: float, ranks: int) -> None:
    """One chunk: its source's colour, or grey and hatched where several ranks are summed in it."""
    from matplotlib.patches import Rectangle

    sources = _sources(value)
    summed = len(sources) > 1
    shade = str(1 - 0.35 * len(sources) / ranks)
    face = shade if summed else COLOURS[sources[0]] if sources else "white"
    box = Rectangle((column, row), 0.94, 0.8, facecolor=face, edgecolor="black", linewidth=0.8)
    box.set_hatch("////" if summed and len(sources) < ranks else "")
    axes.add_patch(box)
    weight = "bold" if len(sources) == ranks else "normal"
    axes.text(
        column + 0.47, row + 0.4, f"{int(value)}", ha="center", va="center", weight=weight,
        bbox={"facecolor": face, "edgecolor": "none", "pad": 1} if summed else None,
    )  # fmt: skip


def draw_ranks(panels: dict[str, Sequence[Sequence[float]]], columns: int = 4) -> None:
    """Draw what each rank holds, a panel a moment: rows are ranks, cells are chunks of their tensor.

    Args:
        panels: title to rows; a row is a sequence of numbers, where rank r's own data stand in the
            decimal digit r, so that a cell's colour can show where it came from.
        columns: panels side by side before a new row of panels begins.
    """
    across = min(columns, len(panels))
    down = -(-len(panels) // across)
    ranks = max(len(rows) for rows in panels.values())
    _, grid = figure(7.2, down * (0.4 * ranks + 0.45), nrows=down, ncols=across, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, (title, rows) in zip(grid.flat, panels.items(), strict=False):
        _panel(axes, title, rows, ranks)
    show()


def _panel(axes: Axes, title: str, rows: Sequence[Sequence[float]], ranks: int) -> None:
    wide = max(len(row) for row in rows)
    axes.set_title(title)
    axes.set_xlim(-1.3, max(wide, 2))
    axes.set_ylim(len(rows), -0.1)
    for rank, row in enumerate(rows):
        axes.text(-0.15, rank + 0.4, f"rank {rank}", ha="right", va="center")
        for column, value in enumerate(row):
            _cell(axes, rank, column, value, ranks)


def draw_steps(steps: dict[str, dict[str, float]], title: str = "") -> None:
    """Draw one stacked bar a variant: how a step's time divides, in milliseconds.

    Args:
        steps: variant to parts; a part is a name, such as "compute", and its seconds.
    """
    _, axes = figure(7.2, 0.5 * len(steps) + 1.1)
    names = list(next(iter(steps.values())))
    left = [0.0] * len(steps)
    for index, part in enumerate(names):
        widths = [1e3 * parts[part] for parts in steps.values()]
        axes.barh(
            list(steps), widths, left=left, label=part, height=0.62,
            color=COLOURS[index], hatch=HATCHES[index], edgecolor="black", linewidth=0.8,
        )  # fmt: skip
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set(xlabel="milliseconds a step", title=title)
    axes.legend(ncols=len(names), loc="lower right", bbox_to_anchor=(1, 1.0))
    show()


def draw_spread(
    results: dict[str, dict[str, Sequence[float]]], xlabel: str, mark: float | None = None
) -> None:
    """Draw one bar a variant and a panel a result: the median, a line from first to third quartile.

    Args:
        results: title of a panel to variants; a variant is a name and its samples, all in one unit.
        xlabel: what the samples are, with the unit.
        mark: where a dashed line stands to compare with.
    """
    rows = sum(map(len, results.values()))
    _, panels = figure(7.2, 0.3 * rows + 0.9 * len(results), nrows=len(results), squeeze=False, sharex=True)
    for axes, (title, variants) in zip(panels.flat, results.items(), strict=True):
        for row, samples in enumerate(variants.values()):
            low, middle, high = _quartiles(samples)
            axes.barh(row, middle, height=0.62, color=COLOURS[0], edgecolor="black", linewidth=0.8)
            axes.plot([low, high], [row, row], "k|-", markersize=9)
        if mark is not None:
            axes.axvline(mark, color="black", linestyle="--", linewidth=1)
        axes.set(yticks=range(len(variants)), yticklabels=[*variants], title=title)
        axes.invert_yaxis()
    axes.set(xlabel=xlabel)
    show()


def draw_curves(
    panels: dict[str, dict[str, dict[float, float]]],
    xlabel: str,
    ylabel: str,
    *,
    ideal: dict[float, float] | None = None,
) -> None:
    """Draw panels side by side, in each a line with marks for every curve; x is logarithmic to base 2.

    Args:
        panels: title to curves; a curve is a name and its points, x to y.
        ideal: points of a dashed line to compare with, in every panel.
    """
    _, row = figure(7.4, 3.3, ncols=len(panels), squeeze=False, sharey=True)
    for axes, (title, curves) in zip(row.flat, panels.items(), strict=True):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        if ideal:
            axes.plot([*ideal], [*ideal.values()], "k--", linewidth=1, label="ideal")
        for at, (name, points) in enumerate(curves.items()):
            style = {"color": COLOURS[(5, 6, 2, 3, 1, 7)[at % 6]], "marker": "os^Dv<>phX"[at % 10]}
            axes.plot(sorted(points), [points[x] for x in sorted(points)], label=name, **style)
        axes.set(title=title, xlabel=xlabel, ylim=(0, 1.05 * axes.get_ylim()[1]))
    row[0, 0].set(ylabel=ylabel)
    if ideal or len(curves) > 1:
        axes.legend(fontsize=8)
    show()


def _bits(axes: Axes, row: int, parts: tuple[int, int, int]) -> None:
    """The bits of one format, a box a bit: sign, exponent, fraction."""
    from matplotlib.patches import Rectangle

    start = 0
    for part, (bits, colour) in enumerate(zip(parts, COLOURS, strict=False)):
        for bit in range(start, start + bits):
            box = Rectangle((bit, row - 0.3), 1, 0.6, facecolor=colour, edgecolor="black", linewidth=0.6)
            box.set_hatch(("xx", "///", "")[part])
            axes.add_patch(box)
        start += bits
    axes.text(start + 0.5, row, f"{sum(parts)}", va="center")


def _range(axes: Axes, row: int, exponent: int, fraction: int) -> None:
    """From the smallest number to the largest, in powers of two; hatched where digits are lost on the way."""
    most = 2 ** (exponent - 1)
    bars = {"full precision": (2 - most, most, ""), "fewer digits": (2 - most - fraction, 2 - most, "....")}
    for index, (name, (low, high, hatch)) in enumerate(bars.items()):
        axes.barh(
            row, high - low, left=low, height=0.6, label=name if row == 0 else None,
            color=("#DDDDDD", "white")[index], hatch=hatch, edgecolor="black", linewidth=0.8,
        )  # fmt: skip


def draw_formats(formats: dict[str, tuple[int, int]]) -> None:
    """Draw floating-point formats: their bits on the left, the range of their magnitudes on the right.

    Args:
        formats: name to the number of exponent bits and of fraction bits (IEEE 754; one sign bit besides).
    """
    _, (left, right) = figure(7.4, 0.36 * len(formats) + 1.0, ncols=2, sharey=True)
    for row, (exponent, fraction) in enumerate(formats.values()):
        _bits(left, row, (1, exponent, fraction))
        _range(right, row, exponent, fraction)
    left.set(xlim=(0, 36), xticks=[], title="bits: sign, exponent, fraction")
    left.set_yticks(range(len(formats)), list(formats))
    left.invert_yaxis()
    left.spines["bottom"].set_visible(False)
    right.set(xlabel="magnitude, as a power of two", title="range")
    right.axvline(0, color="black", linewidth=0.8)
    right.legend(loc="lower left", bbox_to_anchor=(0, -0.02), fontsize=9)
    show()


def draw_underflow(values: Any, scale: float) -> None:
    """Draw a histogram of the magnitudes of `values` (a tensor), of those times `scale`, and fp16's range."""
    import math

    _, axes = figure(7.2, 2.8)
    axes.axvspan(-24, 16, color="0.88", label="what fp16 can hold")
    powers, shift = values[values != 0].abs().log2().cpu().numpy(), math.log2(scale)
    look = {"histtype": "step", "color": "black"}
    axes.hist(powers, 60, hatch="////", label="as they are", linewidth=0.8, **look)
    axes.hist(powers + shift, 60, label=f"times {scale:,.0f}", linewidth=2, **look)
    axes.set(xlabel="magnitude, as a power of two", ylabel="how many", xlim=(-50, 18))
    axes.legend(ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
    show()


def draw_scales(scales: Sequence[float]) -> None:
    """Draw a GradScaler's scale before each step, and mark the steps that it skipped."""
    import math

    powers = [math.log2(scale) for scale in scales]
    skipped = [step for step in range(len(powers) - 1) if powers[step + 1] < powers[step]]
    _, axes = figure(7.2, 2.4)
    axes.step(range(len(powers)), powers, "k-", where="post", label="scale")
    axes.plot(skipped, [powers[step] for step in skipped], "X", color=COLOURS[6], label="skipped step")
    axes.set(xlabel="step", ylabel="scale, as a power of two")
    axes.legend()
    show()
