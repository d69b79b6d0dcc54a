"""Sabotage: deliberate bugs inside one process of a live run, which the checker must find."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from math import inf
from typing import Any

from headrace.backends.lmdb import writer
from headrace.core import store_keys, transaction
from headrace.core.groups.checkpoint import Checkpoint
from headrace.core.groups.seat import Seat
from headrace.core.model import Slice
from headrace.core.ports import Commit, Grant, Place, Versioned
from headrace.core.transaction import Part

KINDS = ("fencing", "early-ack")


def do(kind: str) -> None:
    match kind:
        case "fencing":
            _never_fence()
        case "early-ack":
            _acknowledge_early()
        case "":
            pass
        case _:
            raise ValueError(f"sabotage {kind!r}: one of {KINDS}")


class _Believing:
    """A transaction in which every grant seems in force and every commit the first."""

    def __init__(self, tx: Any, grant: Grant, done: Slice) -> None:
        self._tx = tx
        place = grant.group, grant.stream.id, grant.shard
        self._believed = {
            store_keys.epoch_key(*place): Versioned(grant.token, 1),
            store_keys.checkpoint_key(*place): Versioned(Checkpoint(done.start).encoded(), 1),
        }

    def get(self, key: bytes) -> Versioned | None:
        found: Versioned | None = self._believed.get(key) or self._tx.get(key)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)


def _never_fence() -> None:
    """Switch fencing off: commits are not checked, and no member ever doubts its lease."""
    checked = transaction.commit

    def commit(tx: Any, commit: Commit, parts: Sequence[Part]) -> list[Place]:
        return checked(_Believing(tx, commit.grant, commit.done), commit, parts)

    setattr(transaction, "commit", commit)  # noqa: B010
    setattr(Seat, "in_doubt", lambda self, now_s: False)  # noqa: B010
    setattr(Seat, "lease_s", property(lambda self: inf))  # noqa: B010


def _acknowledge_early() -> None:
    """Answer appends before their transaction commits."""
    applied, answer = writer._apply, writer._Request.answer

    def tolerant(request: Any) -> None:
        with contextlib.suppress(RuntimeError):  # answered already
            answer(request)

    def early(request: Any, txn: Any) -> None:
        applied(request, txn)
        tolerant(request)

    setattr(writer._Request, "answer", tolerant)  # noqa: B010
    setattr(writer, "_apply", early)  # noqa: B010
