"""Every lesson keeps to the frame (frame.py), and every local link leads somewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from frame import RULES
from lesson import Lesson, broken_links

from helpers._notebooks import LESSONS

ROOT = Path(__file__).parents[1]
PATHS = sorted((ROOT / "notebooks").glob(LESSONS))
PAGES = sorted(ROOT.glob("*.md"))


def test_there_are_lessons() -> None:
    assert PATHS, f"no lesson {LESSONS} in notebooks/"


def test_there_are_pages() -> None:
    assert {"README.md", "CONTRIBUTING.md"} <= {path.name for path in PAGES}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_lesson(path: Path, rule: str) -> None:
    problems = list(RULES[rule](Lesson.read(path)))
    if problems:
        pytest.fail("\n".join([path.name, *problems]), pytrace=False)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_of_page(path: Path) -> None:
    assert broken_links(path, path.read_text(encoding="utf-8")) == []
