"""The rooms and the file map of docs/architecture.md, generated from the docstrings of the source.

``python -m tests.file_map`` rewrites both. A test in ``tests/test_docs.py`` fails while the page
differs.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/headrace"
PAGE = ROOT / "docs/architecture.md"

ROOMS = "rooms"
FILES = "file map"

_SENTENCE = re.compile(r".*?[.?!](?=\s|$)")
_COMMENT = re.compile(r"/\*\s*(.*?)\*/", re.DOTALL)


def rooms() -> list[Path]:
    """Every folder of the source, each behind the one it lies in; the lowest layer comes first."""
    order = {name: place for place, name in enumerate(_layers())}
    folders = {path.parent for path in _sources()} - {SOURCE}
    return sorted(folders, key=lambda f: (order[f.relative_to(SOURCE).parts[0]], f))


def files(room: Path) -> list[Path]:
    """The modules of a room, and its sources in C; without ``__init__.py``."""
    return [p for p in _sources() if p.parent == room and p.name != "__init__.py"]


def paragraph(path: Path) -> str:
    """The first paragraph that a file says about itself, on one line; empty if there is none."""
    text = path.read_text()
    if path.suffix == ".py":
        told = ast.get_docstring(ast.parse(text)) or ""
    else:
        found = _COMMENT.match(text)
        told = found[1] if found is not None else ""
    return " ".join(told.partition("\n\n")[0].split())


def sentences(text: str) -> list[str]:
    """The sentences of a paragraph; the last one may lack its full stop."""
    found = _SENTENCE.findall(text)
    rest = text[sum(map(len, found)) :]
    return [each.strip() for each in (*found, rest) if each.strip()]


def section(page: str, name: str) -> str:
    """What stands between the two comments of a generated part."""
    begin, end = _marks(name)
    return page.partition(begin)[2].partition(end)[0].strip("\n")


def room_table() -> str:
    rows = [f"| `{_place(room)}/` | {_first(room / '__init__.py')} |" for room in rooms()]
    return "\n".join(["| room | what happens there |", "|---|---|", *rows])


def file_tables() -> str:
    """A table for each room that has files of its own."""
    tables = []
    for room in (SOURCE, *rooms()):
        rows = [f"| `{path.name}` | {_first(path)} |" for path in files(room)]
        if rows:
            title = f"**`{_place(room)}/`**" if room != SOURCE else "**`headrace/`**"
            tables.append("\n".join([f"{title}\n", "| file | what it holds |", "|---|---|", *rows]))
    return "\n\n".join(tables)


def rewritten(page: str) -> str:
    """The page with both tables as they should be."""
    for name, table in ((ROOMS, room_table()), (FILES, file_tables())):
        begin, end = _marks(name)
        before, found, rest = page.partition(begin)
        assert found, f"{PAGE.name} has no comment {begin}"
        _, found, after = rest.partition(end)
        assert found, f"{PAGE.name} has no comment {end}"
        page = f"{before}{begin}\n\n{table}\n\n{end}{after}"
    return page


def _sources() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*") if path.suffix in (".py", ".c"))


def _layers() -> Iterator[str]:
    """The rooms of import-linter's layers, from the lowest to the highest."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = (
        each
        for each in settings["tool"]["importlinter"]["contracts"]
        if each["type"] == "layers" and each["containers"] == ["headrace"]
    )
    for layer in reversed(contract["layers"]):
        yield from (name.strip(" ()") for name in layer.split("|"))


def _place(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def _first(path: Path) -> str:
    found = sentences(paragraph(path))
    return found[0].replace("``", "`").replace("|", r"\|") if found else ""


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- {name}: written by python -m tests.file_map -->", f"<!-- end of {name} -->"


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
