"""A computation: a named function from input to output streams, and how a user declares one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from headrace.core.computations.policy import Policy
from headrace.core.errors import BadSetting, BadTopology
from headrace.core.names import checked_name
from headrace.core.quantities import Duration, seconds

Kind = Literal["record", "batch"]
ComputationStart = Literal["earliest", "latest"]

CAPACITY_MAX = 100_000
CONCURRENCY_MAX = 1_000
VERSION_CHARS_MAX = 100
DEAD_LETTERS = ".dead-letters"

_HANDED = ("out", "ctx", "state")
_GATHERING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_NAMED_ONLY = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
_METHODS = {
    "process": ("record",),
    "init": (),
    "on_timer": ("key",),
    "on_retry": ("record", "failure"),
    "on_failure": ("record", "failure"),
    "close": (),
}
"""The parameters of each method of a class, before those of `_HANDED` that it names."""


@dataclass(frozen=True, kw_only=True)
class Computation:
    """Made by `computation`. A call of it calls the function or class that it was made of."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    handler: Callable[..., Any]
    kind: Kind = "record"
    policy: Policy | None = None
    concurrency: int | None = None
    """How many lanes of a replica may work for it at once; None means all."""
    capacity: int = 1
    """How many records a batch computation is called with at most."""
    threshold_s: float = 0.0
    """How long a batch computation waits for `capacity` records."""
    version: str | None = None
    """The version of its code; None if its source tells it."""
    start: ComputationStart = "earliest"
    """Where the computation begins in a shard without a checkpoint."""

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self.handler(*args, **named)

    def __repr__(self) -> str:
        return f"<Computation {self.name}: {_list(self.inputs)} -> {_list(self.outputs)}>"

    @property
    def is_class(self) -> bool:
        return isinstance(self.handler, type)

    @property
    def dead_letters(self) -> str:
        """The stream of the records that the computation has given up."""
        return self.name + DEAD_LETTERS

    def with_policy(self, policy: Policy) -> Computation:
        """The same computation with another policy, for instance in a test."""
        return replace(self, policy=policy)


class _Declaring:
    """The type of `computation`: a decorator, and another one for batches."""

    def __call__(
        self,
        *bare: object,
        inputs: str | Sequence[str] = (),
        outputs: str | Sequence[str] = (),
        name: str | None = None,
        policy: Policy | None = None,
        concurrency: int | None = None,
        version: str | None = None,
        start: ComputationStart = "earliest",
    ) -> Callable[[Callable[..., Any]], Computation]:
        """Declare a function that is called with one record at a time, or a class whose method
        ``process`` is.

        The function gets the record, and those of ``out``, ``ctx`` and ``state`` that are among its
        parameters.

        >>> from headrace import computation
        >>> @computation(inputs="shop/orders", outputs="shop/invoices")
        ... def bill(record, out):
        ...     out.append("shop/invoices", {"total": record.value["amount"]}, key=record.key)
        >>> bill
        <Computation bill: shop/orders -> shop/invoices>
        """

        _check_called(bare)

        def declared(handler: Callable[..., Any]) -> Computation:
            return _checked(
                Computation(
                    name=_name(name, handler),
                    inputs=_streams("inputs", inputs),
                    outputs=_streams("outputs", outputs),
                    handler=handler,
                    policy=policy,
                    concurrency=concurrency,
                    version=version,
                    start=start,
                )
            )

        return declared

    def batch(
        self,
        *bare: object,
        inputs: str | Sequence[str] = (),
        outputs: str | Sequence[str] = (),
        capacity: int = 1_000,
        threshold: Duration = "1s",
        name: str | None = None,
        policy: Policy | None = None,
        concurrency: int | None = None,
        version: str | None = None,
        start: ComputationStart = "earliest",
    ) -> Callable[[Callable[..., Any]], Computation]:
        """Declare a function that is called with a list of records of one shard: as soon as there
        are ``capacity`` of them, or ``threshold`` after the first of them was seen. A function
        whose first parameter is annotated as ``pyarrow.RecordBatch`` gets such a batch.

        If the function fails, the whole list has failed: its records are tried again, skipped or
        dead-lettered together."""

        _check_called(bare)

        def declared(handler: Callable[..., Any]) -> Computation:
            return _checked(
                Computation(
                    name=_name(name, handler),
                    inputs=_streams("inputs", inputs),
                    outputs=_streams("outputs", outputs),
                    handler=handler,
                    kind="batch",
                    policy=policy,
                    concurrency=concurrency,
                    capacity=_count("capacity", capacity, CAPACITY_MAX),
                    threshold_s=seconds(threshold, what="threshold"),
                    version=version,
                    start=start,
                )
            )

        return declared


def _check_called(bare: tuple[object, ...]) -> None:
    if bare:
        raise BadTopology("write it with parentheses: @computation(inputs=…, outputs=…)")


computation = _Declaring()


def handed(method: Callable[..., Any], first: int) -> tuple[str, ...]:
    """Which of ``out``, ``ctx`` and ``state`` a method takes behind its first parameters, in its
    order, so that they can be given by position."""
    found: list[str] = []
    parameters = _parameters(method)[first:]
    for at, parameter in enumerate(parameters):
        if parameter.name not in _HANDED and parameter.default is parameter.empty:
            raise BadTopology(
                f"{_called(method)} takes {parameter.name!r}: it is given what it names of "
                f"{', '.join(_HANDED)}, and nothing else"
            )
        if parameter.name not in _HANDED:
            continue
        if parameter.kind is parameter.KEYWORD_ONLY or at > len(found):
            raise BadTopology(
                f"{_called(method)}: {parameter.name!r} comes too late: put it before parameters "
                "that are not given, and without a *"
            )
        found.append(parameter.name)
    return tuple(found)


def _checked(made: Computation) -> Computation:
    if not made.inputs:
        raise BadTopology(f"computation {made.name!r} reads nothing: give it inputs=…")
    if made.concurrency is not None:
        _count("concurrency", made.concurrency, CONCURRENCY_MAX)
    if not isinstance(made.policy, Policy | None):
        raise BadTopology(f"computation {made.name!r}: policy {made.policy!r} is no Policy(…)")
    if made.version is not None and not _is_version(made.version):
        raise BadTopology(
            f"computation {made.name!r}: version {made.version!r}: "
            f"1 to {VERSION_CHARS_MAX} printable characters"
        )
    if made.start not in ("earliest", "latest"):
        raise BadTopology(f"computation {made.name!r}: start {made.start!r}: earliest or latest")
    if not callable(made.handler):
        raise BadTopology(f"computation {made.name!r}: {made.handler!r} cannot be called")
    _check_handler(made)
    return made


def _check_handler(made: Computation) -> None:
    handler = made.handler
    if not isinstance(handler, type):
        _check_takes(f"computation {made.name!r}: its function", handler, ("record",), 0)
        return
    if not callable(getattr(handler, "process", None)):
        raise BadTopology(f"class {handler.__name__}: it needs process(self, record, out)")
    for name, given in _METHODS.items():
        method = getattr(handler, name, None)
        if method is not None:
            static = inspect.getattr_static(handler, name)
            own = 0 if isinstance(static, staticmethod | classmethod) else 1
            _check_takes(f"class {handler.__name__}: {name}", method, given, own)
    for parameter in _parameters(handler):
        if parameter.default is parameter.empty and parameter.kind not in _GATHERING:
            raise BadTopology(
                f"class {handler.__name__} takes {parameter.name!r}: it is made without "
                "arguments; use init(self, ctx) and ctx.options"
            )


def _check_takes(what: str, method: Callable[..., Any], given: tuple[str, ...], own: int) -> None:
    if inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method):
        raise BadTopology(f"{what} has a yield in it: append to out what it makes, one by one")
    parameters = _parameters(method)[own:]
    taken = [parameter for parameter in parameters if parameter.kind not in _NAMED_ONLY]
    for at, name in enumerate(given):
        if at >= len(taken) or taken[at].name in _HANDED:
            raise BadTopology(f"{what} takes no {name}")
    handed(method, own + len(given))


def _parameters(method: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(method).parameters.values())
    except (TypeError, ValueError):  # some built-in functions have no signature
        raise BadTopology(
            f"{_called(method)}: it does not tell what it takes; wrap it in a function"
        ) from None


def _called(method: Callable[..., Any]) -> str:
    return str(getattr(method, "__qualname__", method))


def _is_version(version: object) -> bool:
    return (
        isinstance(version, str) and 0 < len(version) <= VERSION_CHARS_MAX and version.isprintable()
    )


def _name(name: str | None, handler: Callable[..., Any]) -> str:
    chosen = getattr(handler, "__name__", None) if name is None else name
    if not isinstance(chosen, str) or chosen == "<lambda>":
        raise BadTopology(f"a computation of {handler!r} needs a name=…")
    checked_name(chosen)
    checked_name(chosen + DEAD_LETTERS)  # this is the longer name
    return chosen


def _streams(what: str, names: str | Sequence[str]) -> tuple[str, ...]:
    if not isinstance(names, Sequence):
        raise BadTopology(f"{what} {names!r}: a stream's name, or a list of them")
    listed = (names,) if isinstance(names, str) else tuple(names)
    for name in listed:
        checked_name(name)
    if len(set(listed)) != len(listed):
        raise BadTopology(f"{what} {_list(listed)}: one of them comes twice")
    return listed


def _count(what: str, value: object, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise BadSetting(f"{what} {value!r}: a whole number, 1 to {most}")
    return value


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"
