"""A shell for each test of a command."""

from __future__ import annotations

from tests.cli.shell import shell

__all__ = ["shell"]
