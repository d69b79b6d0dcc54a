"""What every engine promises to computations, as test classes to subclass.

Import `EngineContract` from ``headrace.testing.contracts.engine.all`` in a test module, and
subclass it with fixtures that open a backend and start a topology. pytest then runs every promise.
"""

from __future__ import annotations

import pytest

_PARTS = (
    "batches", "context", "counters", "dying", "effects", "engine_under_test", "exactly_once",
    "failing", "giving_up", "handing_over", "handling", "lanes", "life", "rewinding", "state",
    "stopping", "timers",
)  # fmt: skip

# Without the rewrite a failed assertion would show no values.
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _PARTS))
