"""A property that is worked out when it is first asked for, and kept.

`functools.cached_property` would not do: before Python 3.12 it holds one lock for all objects of a
class while it works a value out, and two such properties that ask for each other stop two threads
for good. Here two threads may work out the same value at once. The values are equal, and one is
kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class lazy(Generic[T]):  # used like `property`
    def __init__(self, worked_out: Callable[[Any], T]) -> None:
        self._worked_out = worked_out
        self.__doc__ = worked_out.__doc__

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self._name = name

    @overload
    def __get__(self, asked: None, owner: type[Any]) -> lazy[T]: ...
    @overload
    def __get__(self, asked: Any, owner: type[Any]) -> T: ...
    def __get__(self, asked: Any, owner: type[Any]) -> lazy[T] | T:
        if asked is None:
            return self
        value = asked.__dict__[self._name] = self._worked_out(asked)
        return value
