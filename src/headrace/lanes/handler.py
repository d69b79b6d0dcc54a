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


class EventLoop:
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
        """Cancel the tasks that a handler has started and not awaited: later they would append to
        the outputs of other records."""
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
        loop: EventLoop,
        timeout_s: float | None,
    ) -> None:
        self._by_parameter = {"out": out, "ctx": ctx, "state": ctx.state}
        self._loop = loop
        self._timeout_s = timeout_s
        self._computation = computation
        self._object: Any = None
        self.wants_arrow = False

    def init(self) -> None:
        """Call this before anything else: it makes the user's object, anew each time, and calls
        the object's ``init``."""
        handler, self._object = self._computation.handler, None
        if isinstance(handler, type):
            self._object = handler()
        process = handler if self._object is None else self._object.process
        self._call = self._bound(process, 1)
        self.wants_arrow = self._computation.kind == "batch" and _wants_arrow(process)
        self._process = process
        self._extra = self._extra_of(process, 1)
        self._is_async = inspect.iscoroutinefunction(process)
        self._call_optional("init", 0)

    def close(self) -> None:
        self._call_optional("close", 0)

    def on_timer(self, key: str) -> None:
        self._call_optional("on_timer", 1, key)

    def on_retry(self, record: Record | Sequence[Record], failure: str) -> None:
        """An error of the hook is logged, and the attempt goes on."""
        self._call_hook("on_retry", record, failure)

    def on_failure(self, record: Record | Sequence[Record], failure: str) -> None:
        """An error of the hook is logged."""
        self._call_hook("on_failure", record, failure)

    def each(self, records: Iterator[Record]) -> None:
        """Call the user's function once for each record."""
        process, extra = self._process, self._extra
        if self._is_async:
            call = self._call
            for record in records:
                call(record)
        elif len(extra) == 1:
            only = extra[0]
            for record in records:
                process(record, only)
        else:
            for record in records:
                process(record, *extra)

    def together(self, records: Sequence[Record] | pa.RecordBatch) -> None:
        """Call the user's function once for all records."""
        self._call(records)

    # Below

    def _extra_of(self, method: Callable[..., Any], first: int) -> list[Any]:
        """What the method takes behind its first parameters, of ``out``, ``ctx`` and ``state``."""
        return [self._by_parameter[name] for name in handed(method, first)]

    def _bound(self, method: Callable[..., Any], first: int) -> Callable[..., None]:
        extra = self._extra_of(method, first)
        if inspect.iscoroutinefunction(method):
            return lambda *args: self._loop.run(method(*args, *extra), self._timeout_s)
        return lambda *args: method(*args, *extra)

    def _call_optional(self, name: str, first: int, *args: Any) -> None:
        method = getattr(self._object, name, None)
        if method is not None:
            self._bound(method, first)(*args)

    def _call_hook(self, name: str, record: Any, failure: str) -> None:
        try:
            self._call_optional(name, 2, record, failure)
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
