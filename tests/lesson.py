"""Reads a notebook, and Markdown, for the rules of frame.py."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode

from helpers._notebooks import first_line, has_tag

FENCE = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"(`+).*?\1", re.DOTALL)
FORMULA = re.compile(r"\$\$.*?\$\$|\$[^$\n]+\$", re.DOTALL)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(<?([^)\s>]*)>?(?:\s+\"[^\"]*\")?\)")
REFERENCE = re.compile(r"^\[[^\]]+\]:\s+(\S+)", re.MULTILINE)
HTML = re.compile(r"<[/!a-zA-Z][^>]*>")
TARGET = re.compile(r"<(?:img|a)\b[^>]*?(?:src|href)=[\"']([^\"']+)")
HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*$", re.MULTILINE)
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Cell:
    """One cell and its place among all cells, counted from 0."""

    number: int
    node: NotebookNode

    @property
    def is_code(self) -> bool:
        return self.node.cell_type == "code"

    @property
    def source(self) -> str:
        return self.node.source

    @property
    def lines(self) -> list[str]:
        return [line for line in self.source.splitlines() if line.strip()]

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree of the cell, or of the script that it writes."""
        head, _, body = self.source.partition("\n")
        if re.match(r"%%writefile .*\.py\s*$", head):
            return ast.parse(body)
        return ast.parse(TransformerManager().transform_cell(self.source))

    @property
    def calls(self) -> set[str]:
        """Names of what the code calls: `f` for f(x), `check.ring` for check.ring(x)."""
        return {ast.unparse(node.func) for node in ast.walk(self.tree) if isinstance(node, ast.Call)}

    @property
    def draws(self) -> bool:
        """Whether the stored output holds a picture."""
        kinds = {kind for output in self.node.get("outputs", []) for kind in output.get("data", {})}
        return any(kind.startswith("image/") for kind in kinds)

    def has(self, tag: str) -> bool:
        return has_tag(self.node, tag)

    def texts(self) -> Iterator[str]:
        """Every text that a reader can see: the source, and all textual outputs without their colours."""
        yield self.source
        for output in self.node.get("outputs", []):
            shown = [output.get("text", ""), output.get("evalue", ""), *output.get("traceback", [])]
            data = output.get("data", {})
            shown += [data[kind] for kind in data if kind.startswith("text/") or kind == "image/svg+xml"]
            yield from (COLOUR.sub("", text) for text in shown)

    def problem(self, text: str) -> str:
        return f"cell {self.number} (`{first_line(self.node)}`): {text}"


@dataclass(frozen=True)
class Lesson:
    """A notebook, asked by the rules for its cells of one kind and its headings."""

    path: Path
    nb: NotebookNode

    @classmethod
    def read(cls, path: Path) -> Lesson:
        return cls(path, nbformat.read(path, 4))

    @cached_property
    def cells(self) -> list[Cell]:
        return [Cell(number, node) for number, node in enumerate(self.nb.cells)]

    @cached_property
    def code(self) -> list[Cell]:
        return [cell for cell in self.cells if cell.is_code]

    @cached_property
    def prose(self) -> list[Cell]:
        return [cell for cell in self.cells if cell.node.cell_type == "markdown"]

    @cached_property
    def headings(self) -> list[tuple[int, str, Cell]]:
        """Level, text and cell of each heading in reading order."""
        return [(level, text, cell) for cell in self.prose for level, text in headings(cell.source)]

    def titles(self, level: int) -> list[str]:
        return [text for depth, text, _ in self.headings if depth == level]


def unfenced(markdown: str) -> str:
    """Markdown without its fenced blocks of code."""
    return FENCE.sub("", markdown)


def plain(markdown: str) -> str:
    """The words as a reader sees them: no marks of code, no link targets, no tags, one kind of apostrophe."""
    return HTML.sub("", LINK.sub(r"\2", markdown.replace("`", ""))).replace("’", "'")


def prose_of(markdown: str) -> str:
    """What stands outside code, formulas, links and tags."""
    text = unfenced(markdown)
    for pattern in (CODE, FORMULA, LINK, HTML):
        text = pattern.sub("", text)
    return text


def words(markdown: str) -> int:
    """How many words a reader reads; marks of headings, lists and tables are none."""
    return len(re.findall(r"\w[\w'.,-]*", plain(unfenced(markdown))))


def headings(markdown: str) -> list[tuple[int, str]]:
    """Level and text of each heading."""
    return [(len(m[1]), plain(m[2])) for m in HEADING.finditer(unfenced(markdown))]


def broken_links(path: Path, markdown: str) -> list[str]:
    """The local links of `markdown`, read as part of the file `path`, that lead nowhere."""
    text = CODE.sub("", unfenced(markdown))
    targets = [*link_targets(text), *REFERENCE.findall(text), *TARGET.findall(text)]
    local = [target for target in targets if not re.match(r"[a-z][a-z0-9+.-]+:", target)]
    return [f"the link `{target}` leads nowhere: {why}" for target in local if (why := broken(path, target))]


def link_targets(text: str) -> Iterator[str]:
    """What the links lead to, and the pictures that stand as their text."""
    for m in LINK.finditer(text):
        yield m[3]
        yield from link_targets(m[2])


def broken(path: Path, target: str) -> str:
    """Why a link from the file `path` leads nowhere; empty if it leads somewhere."""
    name, _, anchor = target.partition("#")
    to = path.parent / name if name else path
    if not target or not to.exists():
        return f"there is no {name}" if name else "it is empty"
    if anchor and to.suffix in (".md", ".ipynb") and anchor not in anchors(to):
        return f"{to.name} has no heading for #{anchor}"
    return ""


def anchors(path: Path) -> set[str]:
    """What a link into the file can name: Jupyter's anchors for a notebook, GitHub's for Markdown."""
    if path.suffix == ".ipynb":
        return {text.replace(" ", "-") for _, text, _ in Lesson.read(path).headings}
    found = headings(path.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for _, text in found}
