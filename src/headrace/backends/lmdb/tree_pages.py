"""The pages of LMDB's trees, checked at open before LMDB walks them.

LMDB trusts its pages. One flipped bit in a page's header, a node or a page number can kill the
process, serve an old root whose records are gone, or use a page twice. Batches have a checksum, but
these pages do not. So every page of the trees is read as plain bytes at open and checked: nodes
fill their page exactly, keys are in order, every page has one use, and the counts agree.

A page costs some 40 microseconds. The pages inside large batches, most of a hub, cost nothing.
`PAGES_CHECKED_MAX` limits the time to a fraction of a second: in a larger store that many pages are
checked, the upper levels first, and the rest is trusted.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from headrace.backends.lmdb.meta_pages import (
    FREE_FLAGS,
    HEAD_BYTES,
    PAGE_HEADER,
    Meta,
    Table,
    metas,
)

PAGES_CHECKED_MAX = 4_096

_NO_PAGE = 2**64 - 1
_DEPTH_MAX = 32
_FIRST_PAGE = 2
_NODE_HEADER = 8

_PAGE = struct.Struct("<QHHHH")
_OVERFLOW = struct.Struct("<QHHI")
_NODE = struct.Struct("<HHHH")

_BRANCH, _LEAF, _OVERFLOWING = 0x01, 0x02, 0x04
_BIG, _TABLE = 0x01, 0x02


class Unsound(Exception):
    """What is wrong with the pages."""


class _TooMany(Exception):
    """There are more pages than `PAGES_CHECKED_MAX`."""


class _Node(NamedTuple):
    key: bytes
    flags: int
    nbytes: int
    """The size of the value, which may lie in another page."""
    at: int
    """Where in the page the value lies, or the number of the value's first page."""


class _Big(NamedTuple):
    """A value that has pages of its own."""

    page: int
    pages: int


def check(data: Path, transaction: int) -> bool:
    """Check the trees of a transaction. Raises `Unsound` if they are damaged. Returns False if the
    index page of that transaction was overwritten by later ones.

    The caller holds a read transaction of that number, so that none of its pages changes
    meanwhile."""
    file = os.open(data, os.O_RDONLY | os.O_CLOEXEC)
    try:
        both = metas(os.pread(file, HEAD_BYTES, 0))
        try:
            for meta in both:
                if meta is not None:
                    _check_number(file, meta)
        except Unsound:
            if (
                metas(os.pread(file, HEAD_BYTES, 0)) != both
            ):  # another process has committed meanwhile
                return False
            raise
        for meta in both:
            if meta is not None and meta.transaction == transaction:
                _Walk(file, meta).run()
                return True
        return False
    finally:
        os.close(file)


def _check_number(file: int, meta: Meta) -> None:
    """Check the number in an index page. Every commit but the first frees pages, and lists them
    last, under its own number.

    An index page with a wrong number would hide the newest commit, or be taken for it."""
    number, page = meta.free.root, b""
    nodes: list[_Node] = []
    for depth in range(min(meta.free.depth, _DEPTH_MAX)):
        if depth:
            number = nodes[-1].nbytes | nodes[-1].flags << 32
        page = os.pread(file, meta.page_bytes, min(number, meta.last_page) * meta.page_bytes)
        nodes = _nodes(page, number, depth == meta.free.depth - 1)
    last = int.from_bytes(nodes[-1].key, "little") if nodes else 0
    if last != meta.transaction and meta.transaction > 1:
        raise Unsound(f"the index page of transaction {meta.transaction} belongs to {last}")


class _Walk:
    """A walk over all pages of one transaction."""

    def __init__(self, file: int, meta: Meta) -> None:
        self._file = file
        self._meta = meta
        self._page_bytes = meta.page_bytes
        self._pages = meta.last_page + 1
        self._left = PAGES_CHECKED_MAX
        self._used = bytearray(self._pages)
        self._big: list[_Big] = []

    def run(self) -> None:
        try:
            self._trees()
            for big in self._big:
                self._check_big(big)
        except _TooMany:
            return
        if self._used.count(0, _FIRST_PAGE):
            raise Unsound("a page is neither in use nor free")

    def _trees(self) -> None:
        meta = self._meta
        for node, page in self._leaves("main", meta.main, 0):
            if node.flags & _TABLE:
                if node.nbytes != 48:
                    raise Unsound(f"table {node.key!r} has no index")
                table = Table.of(page[node.at : node.at + 48])
                for _ in self._leaves(repr(node.key), table, 0):
                    pass
        for node, page in self._leaves("free pages", meta.free, FREE_FLAGS):
            self._claim_free(node, page)

    def _leaves(self, name: str, table: Table, flags: int) -> Iterator[tuple[_Node, bytes]]:
        """Every entry of a table. The walk goes level by level; at its end it checks the counts."""
        if table.flags != flags or table.depth > _DEPTH_MAX:
            raise Unsound(f"{name}: flags {table.flags:#x}, depth {table.depth}")
        numbers = flags == FREE_FLAGS
        level: list[tuple[int, bytes | None, bytes | None]] = []
        if table.root != _NO_PAGE:
            level.append((table.root, None, None))
        depth = branch_pages = leaf_pages = entries = 0
        big_before = sum(big.pages for big in self._big)
        while level:
            depth += 1
            below: list[tuple[int, bytes | None, bytes | None]] = []
            is_leaf = depth == table.depth
            for number, low, high in level:
                page = self._read(number)
                self._claim(number, 1)
                nodes = _nodes(page, number, is_leaf)
                _check_order(number, nodes, low, high, is_leaf, numbers)
                if is_leaf:
                    leaf_pages += 1
                    entries += len(nodes)
                    for node in nodes:
                        self._check_value(node, page, number)
                        yield node, page
                else:
                    branch_pages += 1
                    below += _children(nodes, low, high)
            level = below
        big = sum(big.pages for big in self._big) - big_before
        found = (depth, branch_pages, leaf_pages, big, entries)
        expected = table.counts
        if found != expected:
            raise Unsound(f"{name}: the index tells of {expected}, the pages of {found}")

    def _check_value(self, node: _Node, page: bytes, number: int) -> None:
        if node.flags not in (0, _BIG, _TABLE):
            raise Unsound(f"page {number}: node flags {node.flags:#x}")
        if node.flags == _BIG:
            first = int.from_bytes(page[node.at : node.at + 8], "little")
            count = (PAGE_HEADER - 1 + node.nbytes) // self._page_bytes + 1
            self._claim(first, count)
            self._big.append(_Big(first, count))

    def _check_big(self, big: _Big) -> None:
        # That many pages are freed with the value. A wrong count frees pages of other records.
        number, _, flags, count = _OVERFLOW.unpack_from(self._read(big.page, PAGE_HEADER))
        if (number, flags, count) != (big.page, _OVERFLOWING, big.pages):
            raise Unsound(f"page {big.page}: not the head of {big.pages} pages")

    def _claim_free(self, node: _Node, page: bytes) -> None:
        if node.flags & _BIG:
            first = int.from_bytes(page[node.at : node.at + 8], "little")
            at = first * self._page_bytes + PAGE_HEADER
            value = os.pread(self._file, node.nbytes, at)
        else:
            value = page[node.at : node.at + node.nbytes]
        if len(value) != node.nbytes or len(value) < 8 or len(value) % 8:
            raise Unsound("a list of free pages is cut short")
        numbers = array("Q", value)
        if numbers[0] != len(numbers) - 1:
            raise Unsound("a list of free pages has a wrong length")
        self._left -= len(numbers) // 64
        before = self._pages
        for number in numbers[1:]:
            if not _FIRST_PAGE <= number < before or self._used[number]:
                raise Unsound(f"page {number}: free, and in use or out of range")
            self._used[number] = 1
            before = number

    def _claim(self, first: int, count: int) -> None:
        if first < _FIRST_PAGE or first + count > self._pages:
            raise Unsound(f"pages {first} to {first + count - 1} of {self._pages}")
        if self._used.count(0, first, first + count) != count:
            raise Unsound(f"page {first} is used twice")
        self._used[first : first + count] = b"\1" * count

    def _read(self, number: int, nbytes: int = 0) -> bytes:
        if self._left <= 0:
            raise _TooMany
        self._left -= 1
        if number >= self._pages:
            raise Unsound(f"page {number} of {self._pages}")
        wanted = nbytes or self._page_bytes
        page = os.pread(self._file, wanted, number * self._page_bytes)
        if len(page) != wanted:
            raise Unsound(f"page {number} lies behind the end of the file")
        return page


def _nodes(page: bytes, number: int, is_leaf: bool) -> list[_Node]:
    """The nodes of a page. They must fill it from ``upper`` to its end, without gap or overlap."""
    own_number, _, flags, lower, upper = _PAGE.unpack_from(page)
    kind = _LEAF if is_leaf else _BRANCH
    if own_number != number or flags != kind:
        raise Unsound(f"page {number}: it says page {own_number}, flags {flags:#x}")
    count = (lower - PAGE_HEADER) // 2
    if lower < PAGE_HEADER or lower % 2 or not lower <= upper <= len(page) or not count:
        raise Unsound(f"page {number}: bounds {lower} and {upper}")
    nodes = []
    spans = []
    for at in struct.unpack_from(f"<{count}H", page, PAGE_HEADER):
        if not upper <= at <= len(page) - _NODE_HEADER:
            raise Unsound(f"page {number}: a node at {at}")
        low, high, node_flags, key_bytes = _NODE.unpack_from(page, at)
        value_at = at + _NODE_HEADER + key_bytes
        nbytes = low | high << 16
        inline = 0 if not is_leaf else 8 if node_flags & _BIG else nbytes
        end = value_at + inline
        if end > len(page):
            raise Unsound(f"page {number}: a node reaches over its end")
        spans.append((at, end + end % 2))
        nodes.append(_Node(page[at + _NODE_HEADER : value_at], node_flags, nbytes, value_at))
    spans.sort()
    edges = [upper, *(end for _, end in spans)]
    if edges[-1] != len(page) or any(
        start != before for (start, _), before in zip(spans, edges, strict=False)
    ):
        raise Unsound(f"page {number}: its nodes do not fill it")
    return nodes


def _check_order(
    number: int,
    nodes: list[_Node],
    low: bytes | None,
    high: bytes | None,
    is_leaf: bool,
    numbers: bool,
) -> None:
    """Check that the keys of a page rise, and lie between the keys that lead to the page. The first
    key of a branch is empty."""
    keys = [node.key for node in (nodes if is_leaf else nodes[1:])]
    if not is_leaf and nodes[0].key:
        keys.insert(0, nodes[0].key)
    bounded = [*([low] if low is not None else []), *keys, *([high] if high is not None else [])]
    if numbers:
        if any(len(key) != 8 for key in keys):
            raise Unsound(f"page {number}: a key is no number")
        bounded = [key[::-1] for key in bounded]
    elif is_leaf and any(not key for key in keys):
        raise Unsound(f"page {number}: an empty key")
    first_equal = low is not None and bool(keys) and bounded[0] == bounded[1]
    rising = all(
        a < b for a, b in zip(bounded[first_equal:], bounded[first_equal + 1 :], strict=False)
    )
    if not rising:
        raise Unsound(f"page {number}: its keys are out of order")


def _children(
    nodes: list[_Node], low: bytes | None, high: bytes | None
) -> Iterator[tuple[int, bytes | None, bytes | None]]:
    """The pages below a branch, each with the keys between which its keys lie."""
    ends = [*(node.key for node in nodes[1:]), high]
    for index, node in enumerate(nodes):
        begin = low if index == 0 else node.key
        yield node.nbytes | node.flags << 32, begin, ends[index]
