"""The checks of lesson 00."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ._exercise import attempt, exercise, same, unlike, wrong
from ._launch import launch


@exercise
def my_share(share: Callable[[int, int, list[Any]], Sequence[Any]]) -> str:
    """Lesson 00: every item to exactly one rank, shares equal to within one item."""
    for ranks, word in (
        (2, "ABCDEFGHIJ"),
        (3, "ABCDEFGHIJ"),
        (4, "BALALAIKA"),
        (1, "ABCDE"),
        (3, "AB"),
        (2, ""),
    ):
        tried, parts = f"items = list({word!r}), world_size = {ranks}", []
        for rank in range(ranks):
            part = attempt(f"{tried}, rank = {rank}", share, rank, ranks, list(word))
            if isinstance(part, (str, dict)) or not isinstance(part, Iterable):
                hint = unlike(part, [])
                raise wrong(f"{tried}, rank = {rank}", repr(part), "a list of items", hint)
            parts.append(list(part))
        if sorted(map(str, itertools.chain(*parts))) != sorted(word):
            hint = "one is missing, taken twice or not an item: look at both ends of each rank's part"
            raise wrong(tried, f"the parts {parts}", "every item in exactly one part", hint)
        if max(map(len, parts)) - min(map(len, parts)) > 1:
            hint = "count the items of each rank: who gets what is left over?"
            raise wrong(tried, f"the parts {parts}", "sizes that differ by 1 at most", hint)
    return "every item to one rank, shares equal to within one, for 1 to 4 ranks and 0 to 10 items"


@exercise
def prediction(predict: Callable[[], tuple[list[list[int]], list[int]]]) -> str:
    """Lesson 00: what two launches in a row leave in a list, compared with two real launches."""
    seen: list[int] = []

    def look(rank: int) -> list[int]:
        seen.append(rank)
        return seen

    answer = attempt("your prediction", predict)
    if not isinstance(answer, (list, tuple)) or len(answer) != 2:
        raise wrong("your prediction", answer, "two lists", "return second_launch, seen_in_the_notebook")
    launch(look, nprocs=2)
    real = {"second_launch": launch(look, nprocs=2), "seen_in_the_notebook": seen}
    hint = "each launch starts fresh processes, with copies of what the notebook holds"
    for said, (name, came) in zip(answer, real.items(), strict=True):
        if not same(said, came):
            right = "a prediction that holds; the right one is not shown"
            raise wrong("two real launches", f"{name} is not {said!r}", right, hint)
    return "two real launches came out as you predicted"
