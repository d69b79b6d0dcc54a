"""The embedded backends that tests of views run on: those of groups."""

from __future__ import annotations

from tests.groups.conftest import backend

__all__ = ["backend"]
