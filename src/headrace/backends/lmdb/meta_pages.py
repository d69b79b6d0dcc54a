"""The two index pages at the head of LMDB's data file, read as plain bytes: LMDB trusts them.

A commit writes the page that the last bit of its number names. So the two pages hold neighbouring
numbers, the even one first. If a flipped bit breaks that, the older page could win, and the newest
commit would silently be gone. Damage that does not break it is found by `tree_pages`.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

MAGIC = 0xBEEFC0DE
PAGE_HEADER = 16
HEAD_BYTES = 65536 + 256
"""Enough bytes to hold both pages, whatever the page size is."""

FREE_FLAGS = 0x08
"""The flags of the table of free pages: its keys are numbers. LMDB would obey any other flag."""

_VERSION = 1
_META = struct.Struct("<IIQQ48s48sQQ")
_TABLE = struct.Struct("<IHHQQQQQ")
_PAGE_BYTES_MIN, _PAGE_BYTES_MAX = 512, 32768


class Table(NamedTuple):
    """What the index says about one table."""

    pad: int
    flags: int
    depth: int
    branch_pages: int
    leaf_pages: int
    overflow_pages: int
    entries: int
    root: int

    @classmethod
    def of(cls, stored: bytes) -> Table:
        return cls._make(_TABLE.unpack(stored))

    @property
    def counts(self) -> tuple[int, int, int, int, int]:
        """The depth, and the numbers of branch pages, leaf pages, overflow pages and entries."""
        pages = self.branch_pages, self.leaf_pages, self.overflow_pages
        return self.depth, *pages, self.entries


class Meta(NamedTuple):
    map_bytes: int
    free: Table
    main: Table
    last_page: int
    transaction: int

    @property
    def page_bytes(self) -> int:
        return self.free.pad

    @property
    def needed_bytes(self) -> int:
        return (self.last_page + 1) * self.page_bytes


def metas(head: bytes) -> tuple[Meta | None, Meta | None]:
    """Both index pages, from the first bytes of the file; None for a page that is no index page."""
    first = _meta(head, 0)
    page_bytes = first.page_bytes if first else 4096
    return first, _meta(head, page_bytes)


def newest(found: tuple[Meta | None, Meta | None]) -> Meta | None:
    present = [meta for meta in found if meta]
    return max(present, key=lambda meta: meta.transaction, default=None)


def disagreement(first: Meta, second: Meta) -> str | None:
    """Why LMDB cannot have written both pages; None if it can."""
    if first.page_bytes != second.page_bytes:
        return "they name different page sizes"
    if any(meta.free.flags != FREE_FLAGS or meta.main.flags for meta in (first, second)):
        return "they carry unknown flags"
    numbers = first.transaction, second.transaction
    neighbours = abs(numbers[0] - numbers[1]) == 1 and numbers[0] % 2 == 0
    if not neighbours and numbers != (0, 0):
        return f"transactions {numbers[0]} and {numbers[1]} are no neighbours"
    return None


def _meta(head: bytes, at: int) -> Meta | None:
    if len(head) < at + PAGE_HEADER + _META.size:
        return None
    magic, version, _, map_bytes, free, main, last_page, transaction = _META.unpack_from(
        head, at + PAGE_HEADER
    )
    meta = Meta(map_bytes, Table.of(free), Table.of(main), last_page, transaction)
    size = meta.page_bytes
    plausible = _PAGE_BYTES_MIN <= size <= _PAGE_BYTES_MAX and size & (size - 1) == 0
    if magic != MAGIC or version != _VERSION or not plausible:
        return None
    return meta
