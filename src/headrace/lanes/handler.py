"""A user's function or class at work on one shard: every form of it behind the same few calls."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_type_hints

import pyarrow as pa

from headrace.core.computations.computation import Computation, handed
from headrace.core.model import Record
from headrace.lanes.context import Context
from headrace.lanes.outputs import Outputs

log = logging.getLogger("headrace")

OnRecords = Callable[[Iterator[Record]], None]


class Loop:
    """The event loop of a lane, made when a handler first needs it."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, awaited: Any, timeout_s: float | None = None) -> Any:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        if timeout_s is not None:
            awaited = asyncio.wait_for(awaited, timeout_s)
        try:
            return self._loop.run_until_complete(awaited)
        finally:
            self._end_rest(self._loop)

    def _end_rest(self, loop: asyncio.AbstractEventLoop) -> None:
        """What a handler has started and not awaited ends with it: later it would append to what
        belongs to other records."""
        while left := asyncio.all_tasks(loop):
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))

    def close(self) -> None:
        if self._loop is not None:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()


class Handler:
    """Made once for each lane and grant of a shard."""

    def __init__(
        self,
        computation: Computation,
        out: Outputs,
        ctx: Context,
        loop: Loop,
        timeout_s: float | None,
    ) -> None:
        self._things = {"out": out, "ctx": ctx, "state": ctx.state}
        self._loop = loop
        self._timeout_s = timeout_s
        self._computation = computation
        self._object: Any = None
        self.wants_arrow = False

    def init(self) -> None:
        """Before anything else: make the object, anew each time, and call its ``init``."""
        made, self._object = self._computation.handler, None
        if isinstance(made, type):
            self._object = made()
        process = made if self._object is None else self._object.process
        self._process = self._bound(process, 1)
        self.wants_arrow = self._computation.kind == "batch" and _wants_arrow(process)
        self._rest = self._extra(process, 1)
        self._plain = process
        self._is_async = inspect.iscoroutinefunction(process)
        self._optional("init", 0)

    def close(self) -> None:
        self._optional("close", 0)

    def on_timer(self, key: str) -> None:
        self._optional("on_timer", 1, key)

    def on_retry(self, record: Record | Sequence[Record], failure: str) -> None:
        """What it raises is logged, and the attempt goes on."""
        self._hook("on_retry", record, failure)

    def on_failure(self, record: Record | Sequence[Record], failure: str) -> None:
        self._hook("on_failure", record, failure)

    @property
    def has_timers(self) -> bool:
        return self._object is not None and hasattr(self._object, "on_timer")

    def each(self, records: Iterator[Record]) -> None:
        """One call for each record, as long as there are."""
        process, rest = self._plain, self._rest
        if self._is_async:
            call = self._process
            for record in records:
                call(record)
        elif len(rest) == 1:
            only = rest[0]
            for record in records:
                process(record, only)
        else:
            for record in records:
                process(record, *rest)

    def together(self, records: Sequence[Record] | pa.RecordBatch) -> None:
        """One call for all of them."""
        self._process(records)

    # Below

    def _extra(self, method: Callable[..., Any], first: int) -> list[Any]:
        return [self._things[name] for name in handed(method, first)]

    def _bound(self, method: Callable[..., Any], first: int) -> Callable[..., None]:
        rest = self._extra(method, first)
        if inspect.iscoroutinefunction(method):
            return lambda *args: self._loop.run(method(*args, *rest), self._timeout_s)
        return lambda *args: method(*args, *rest)

    def _optional(self, name: str, first: int, *args: Any) -> None:
        method = getattr(self._object, name, None)
        if method is not None:
            self._bound(method, first)(*args)

    def _hook(self, name: str, record: Any, failure: str) -> None:
        try:
            self._optional(name, 2, record, failure)
        except Exception:
            log.exception("%s of %s failed itself", name, type(self._object).__name__)


def _wants_arrow(process: Callable[..., Any]) -> bool:
    parameters = list(inspect.signature(process).parameters.values())
    annotation: Any = parameters[0].annotation
    if isinstance(annotation, str):
        try:
            annotation = get_type_hints(process).get(parameters[0].name)
        except (NameError, TypeError):
            return str(annotation).rpartition(".")[2] == "RecordBatch"
    return bool(annotation is pa.RecordBatch)
