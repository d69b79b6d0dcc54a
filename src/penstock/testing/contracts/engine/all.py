"""The whole contract of engines."""

from __future__ import annotations

from penstock.testing.contracts.engine.exactly_once import ExactlyOnceContract


class EngineContract(ExactlyOnceContract):
    """All of it."""
