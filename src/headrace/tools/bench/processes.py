"""The processes of a benchmark: started, with the hub open, waiting for commands."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from headrace.testing.children import Child

STREAM = "bench"


def start_child(
    stack: ExitStack, module: str, directory: Path, *more: str, stream: str = STREAM
) -> Child:
    """Start a module of this package as a process that ends with the stack."""
    arguments = ["-m", f"headrace.tools.bench.{module}", str(directory), stream, *more]
    return stack.enter_context(Child(arguments))


def ready_members(stack: ExitStack, directory: Path, count: int) -> list[Child]:
    starting = [start_child(stack, "member", directory) for _ in range(count)]
    for member in starting:
        answer = member.line()
        assert answer == "ready", answer
    return starting
