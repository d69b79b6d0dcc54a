"""``state`` of a handler: what a computation remembers of a shard, committed with the
checkpoint."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import msgspec

from headrace.core.errors import BadValue
from headrace.core.ports import StoredState
from headrace.core.transaction import VALUE_BYTES_MAX

FULL_BYTES = 1024 * 1024
"""A slice that has changed more than this ends behind the record in hand."""
CHANGED_BYTES_MAX = 3 * 1024 * 1024
"""The changes of one record must fit into this."""

_ABSENT = object()

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class Budget:
    """How much of their states the shards of one lane may keep in memory together."""

    def __init__(self, nbytes_max: int) -> None:
        self._nbytes_max = nbytes_max
        self._nbytes = 0
        self.sharing: weakref.WeakValueDictionary[int, State] = weakref.WeakValueDictionary()

    def spend(self, nbytes: int) -> None:
        self._nbytes += nbytes
        if self._nbytes > self._nbytes_max:
            self._nbytes = 0
            for state in list(self.sharing.values()):
                state.forget()


class State(MutableMapping[str, Any]):
    """A mapping from text to anything that MessagePack can hold. A change inside a value is kept
    only if the value is set again.

    One lane uses a state, under one grant."""

    def __init__(self, stored: StoredState, budget: Budget) -> None:
        self._stored = stored
        self._budget = budget
        budget.sharing[id(self)] = self
        self._known: dict[str, bytes | None] = {}
        """The committed values that were looked up."""
        self._changed: dict[str, bytes | None] = {}
        """The values that are not committed yet; None: removed."""
        self._undo: list[tuple[int, str, Any]] = []
        """Each change: the row that caused it, the key, and the value that stood there before."""
        self._row: Callable[[], int] = lambda: 0
        self._on_full: Callable[[], None] = lambda: None
        self._changed_bytes = 0

    def __getitem__(self, key: str) -> Any:
        found = self._found(key)
        if found is None:
            raise KeyError(key)
        return _decode(found)

    def __setitem__(self, key: str, value: Any) -> None:
        _check_key(key)
        try:
            data = _encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as why:
            raise BadValue(f"state[{key!r}] cannot hold {type(value).__name__}: {why}") from None
        if len(data) > VALUE_BYTES_MAX:
            raise BadValue(
                f"state[{key!r}] takes {len(data)} bytes, of at most {VALUE_BYTES_MAX}: "
                "spread it over several keys"
            )
        self._change(key, data)

    def __delitem__(self, key: str) -> None:
        if self._found(key) is None:
            raise KeyError(key)
        self._change(key, None)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._found(key) is not None

    def __iter__(self) -> Iterator[str]:
        names = (name.decode() for name, _ in self._stored.entries())
        stored = [name for name in names if name not in self._changed]
        return iter([*stored, *(key for key, data in self._changed.items() if data is not None)])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"<State: {len(self._changed)} changes not committed>"

    # For the lane

    def follow(self, row: Callable[[], int], on_full: Callable[[], None]) -> None:
        """Changes belong to the row that ``row`` tells from now on. ``on_full`` is called when
        enough is changed."""
        self._row = row
        self._on_full = on_full

    def take_back(self, row: int) -> None:
        """Undo what this row of the batch in hand and the rows behind it have changed."""
        while self._undo and self._undo[-1][0] >= row:
            _, key, before = self._undo.pop()
            self._changed_bytes -= _size(key, self._changed[key])
            if before is _ABSENT:
                del self._changed[key]
            else:
                self._changed[key] = before
                self._changed_bytes += _size(key, before)

    def seal(self) -> None:
        """The batch in hand is done."""
        self._undo.clear()

    def changes(self) -> dict[bytes, bytes | None]:
        return {key.encode(): data for key, data in self._changed.items()}

    def committed(self) -> None:
        """The changes are stored."""
        self._known |= self._changed
        self._budget.spend(self._changed_bytes)
        self.drop()

    def forget(self) -> None:
        """Forget the committed values: they can be looked up again."""
        self._known.clear()

    def drop(self) -> None:
        """Forget all changes that are not stored."""
        self._changed.clear()
        self._undo.clear()
        self._changed_bytes = 0

    # Below

    def _found(self, key: str) -> bytes | None:
        found = self._changed.get(key, _ABSENT)
        if found is _ABSENT:
            found = self._known.get(key, _ABSENT)
        if found is _ABSENT:
            found = self._look_up(key)
        return found  # type: ignore[return-value]

    def _look_up(self, key: str) -> bytes | None:
        _check_key(key)
        data = self._stored.get(key.encode())
        self._known[key] = data
        self._budget.spend(_size(key, data))
        return data

    def _change(self, key: str, data: bytes | None) -> None:
        before: Any = self._changed.get(key, _ABSENT)
        self._undo.append((self._row(), key, before))
        self._changed[key] = data
        self._changed_bytes += _size(key, data)
        if before is not _ABSENT:
            self._changed_bytes -= _size(key, before)
        if self._changed_bytes > FULL_BYTES:
            if self._changed_bytes > CHANGED_BYTES_MAX:
                raise BadValue(
                    f"one record changed more than {CHANGED_BYTES_MAX} bytes of state, and they "
                    "are stored in one commit: change less at once"
                )
            self._on_full()


def _size(key: str, data: bytes | None) -> int:
    return len(key) + len(data or b"")


def _check_key(key: object) -> None:
    if not isinstance(key, str):
        raise BadValue(f"state[{key!r}]: keys are text")
    try:
        key.encode()
    except UnicodeEncodeError as why:
        raise BadValue(f"state[{key!r}]: no text that can be stored: {why}") from None
