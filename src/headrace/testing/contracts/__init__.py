"""What every backend and every codec promises, as test classes to subclass: yours too.

``from headrace.testing.contracts.backend import BackendContract`` in a test module, subclass it
with a fixture that opens your backend, and pytest runs every promise against it. Likewise
``headrace.testing.contracts.codec``. This needs pytest, and Hypothesis for codecs.
"""

from __future__ import annotations

import pytest

_PARTS = (
    "appending", "backend_under_test", "codec", "commits", "consumer_tools", "copying",
    "group_reading", "hand_over", "hub", "liveness", "marks", "reading", "records", "sharing",
    "store", "streams",
)  # fmt: skip

# Without this a failed promise would show no values.
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _PARTS))
