"""Tell which code a computation is: a version or a digest, the same in every process."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import blake2b
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from headrace.core.computations.computation import Computation

_DIGEST = "__headrace_digest__"
"""The name under which a module keeps the digest of the source it was run from."""


def fingerprint(computation: Computation) -> str:
    """The computation's version; without one, a digest of the file that its handler is defined
    in."""
    if computation.version is not None:
        return computation.version
    handler = computation.handler
    module = _globals(handler)
    if _DIGEST in module:  # of the file as it was when it was run; it may have changed since
        return str(module[_DIGEST])
    try:
        return digest(Path(module["__file__"]).read_bytes())
    except (KeyError, OSError):  # the handler was typed in at a prompt
        codes = [_code_text(function.__code__) for function in _functions(handler)]
        return digest("\n".join(codes or [repr(handler)]).encode())


def note_source(module: ModuleType, source: bytes) -> None:
    """Have `fingerprint` take the code of this module from ``source``, the text it is run from."""
    vars(module)[_DIGEST] = digest(source)


def digest(data: bytes) -> str:
    return blake2b(data, digest_size=8).hexdigest()


def _globals(handler: Callable[..., Any]) -> dict[str, Any]:
    """The names of the module that the handler is defined in; none if the module is not known."""
    plain = _plain(handler)
    if inspect.isfunction(plain):
        return plain.__globals__
    kind = plain if isinstance(plain, type) else type(plain)
    return vars(sys.modules[kind.__module__]) if kind.__module__ in sys.modules else {}


def _functions(handler: Callable[..., Any]) -> Iterator[FunctionType]:
    """The Python functions that the handler is made of."""
    plain = _plain(handler)
    if inspect.isfunction(plain):
        yield plain
        return
    for kind in inspect.getmro(plain if isinstance(plain, type) else type(plain)):
        for member in vars(kind).values():
            method = _plain(member)
            if inspect.isfunction(method):
                yield method


def _plain(handler: Any) -> Any:
    """The handler without what was wrapped around it."""
    while isinstance(handler, partial):
        handler = handler.func
    handler = inspect.unwrap(handler)
    return getattr(handler, "__func__", handler)


def _code_text(code: CodeType) -> str:
    """What the code does, without where it stands: the same text in every process."""
    constants = [
        _code_text(value)
        if isinstance(value, CodeType)
        else repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value)
        for value in code.co_consts
    ]
    return repr((code.co_code, code.co_names, code.co_varnames, constants))
