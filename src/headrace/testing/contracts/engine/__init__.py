"""What every engine promises to those who write computations, as test classes to subclass.

``from headrace.testing.contracts.engine.all import EngineContract`` in a test module, subclass it
with fixtures that open a backend and start a topology, and pytest runs every promise.
"""

from __future__ import annotations

import pytest

_PARTS = (
    "all", "at_work", "batches", "context", "counters", "dying", "exactly_once", "failing",
    "giving_up", "handing_over", "handling", "lanes", "life", "rewinding", "state", "stopping",
    "timers",
)  # fmt: skip

# Without this a failed promise would show no values.
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _PARTS))
