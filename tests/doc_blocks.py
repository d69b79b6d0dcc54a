"""The blocks of code in pages of documentation: tests run them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

_BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    language: str
    code: str


def blocks(page: Path, heading: str | None = None) -> list[Block]:
    """Those of a page in order; with a heading of the second level, those of that section."""
    text = page.read_text()
    if heading is not None:
        _, found, rest = text.partition(f"\n## {heading}\n")
        assert found, f"{page.name} has no section {heading!r}"
        text = rest.partition("\n## ")[0]
    return [Block(*found) for found in _BLOCK.findall(text)]


def python_blocks(page: Path, heading: str | None = None) -> list[str]:
    return [block.code for block in blocks(page, heading) if block.language == "python"]
