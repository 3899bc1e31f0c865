"""Answers to the exercises of lesson 07, as learners give them: wrong ones are told so, right ones pass."""

# ruff: noqa: ANN001, ANN201, ANN204 (learners do not annotate)
from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from test_check import RIGHT, WRONG, try_answers
from torch.utils.data import DataLoader, IterableDataset, Subset

NAMES = {"input": "input", "compute": "compute", "exposed communication": "communication"}


def by_the_book(ranks, busy=("input", "compute"), limit=1.3, names=NAMES, of=sum):
    work = [sum(parts[part] for part in busy) for parts in ranks.values()]
    if max(work) > limit * min(work):
        return "straggler"
    total = {name: of([parts[part] for parts in ranks.values()]) for part, name in names.items()}
    return max(total, key=total.get)


def in_a_loop(ranks):
    work = sorted(parts["input"] + parts["compute"] for parts in ranks.values())
    if work[-1] / work[0] > 1.3:
        return "straggler"
    best, most = "", -1.0
    for part in NAMES:
        seconds = sum(parts[part] for parts in ranks.values())
        if seconds > most:
            best, most = NAMES[part], seconds
    return best


def first_two_ranks(ranks):
    return by_the_book(dict([*ranks.items()][:2]))


def rank_0_is_late(ranks):
    one, *others = [parts["input"] + parts["compute"] for parts in ranks.values()]
    late = others and one > 1.3 * max(others)
    return "straggler" if late else by_the_book(ranks, limit=1e9)


def input_first(ranks):
    share = max(parts["input"] for parts in ranks.values())
    return "input" if share > 0.05 else by_the_book(ranks)


RIGHT["cause"] |= {"by the book": by_the_book, "in a loop": in_a_loop}
WRONG["cause"] |= {
    "twice is a straggler": partial(by_the_book, limit=2.0),
    "1.5 times is a straggler": partial(by_the_book, limit=1.5),
    "no straggler": partial(by_the_book, limit=1e9),
    "any difference is a straggler": partial(by_the_book, limit=1.0),
    "only three times is a straggler": partial(by_the_book, limit=3.0),
    "idle is a part": partial(by_the_book, names=NAMES | {"idle": "compute"}),
    "communication counts as work": partial(by_the_book, busy=("exposed communication",)),
    "compute alone": partial(by_the_book, busy=("compute",)),
    "names of the parts": partial(by_the_book, names={part: part for part in NAMES}),
    "first two ranks": first_two_ranks,
    "rank 0 is late": rank_0_is_late,
    "input first": input_first,
    "always communication": lambda ranks: "communication",
    "nothing": lambda ranks: None,
}


class Stream(IterableDataset):
    """Each worker reads all: samples come as often as there are workers."""

    def __init__(self, data):
        self.data = data

    def __iter__(self):
        return iter([self.data[at] for at in range(len(self.data))])


def by_a_thread(data):
    with ThreadPoolExecutor(1) as reader:
        rows = [range(first, first + 32) for first in range(0, len(data), 32)]
        ahead = deque(maxlen=3)
        for row in rows:
            ahead.append(reader.submit(lambda row=row: torch.tensor([data[at] for at in row])))
            if len(ahead) == 3:
                yield ahead.popleft().result()
        yield from (batch.result() for batch in ahead)


RIGHT["loader"] |= {
    "a thread": by_a_thread,
    "two workers": lambda data: DataLoader(data, 32, num_workers=2, prefetch_factor=4),
    "two workers, the default prefetching": lambda data: DataLoader(data, batch_size=32, num_workers=2),
}
WRONG["loader"] |= {
    "as it was": lambda data: DataLoader(data, batch_size=32),
    "pinned only": lambda data: DataLoader(data, batch_size=32, pin_memory=True),
    "larger batches": lambda data: DataLoader(data, batch_size=64, num_workers=2),
    "shuffled": lambda data: DataLoader(data, batch_size=32, shuffle=True, num_workers=2),
    "half of the data": lambda data: DataLoader(Subset(data, range(192)), batch_size=32, num_workers=2),
    "every worker reads all": lambda data: DataLoader(Stream(data), batch_size=32, num_workers=2),
    "no batches": lambda data: DataLoader(data, batch_size=None, num_workers=2),
    "prefetching without workers": lambda data: DataLoader(data, batch_size=32, prefetch_factor=4),
    "all at once": lambda data: [
        [data[at] for at in range(first, first + 32)] for first in range(0, 384, 32)
    ],
    "all at once, in a DataLoader": lambda data: DataLoader([data[at] for at in range(384)], batch_size=32),
    "a number": lambda data: 3,
    "nothing": lambda data: None,
}


test_a_right_answer_passes, test_a_wrong_answer_is_told_what_is_wrong = try_answers("cause", "loader")
