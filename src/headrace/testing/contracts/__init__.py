"""What every backend and every codec promises, as test classes to subclass.

Import `BackendContract` from ``headrace.testing.contracts.backend`` in a test module, and subclass
it with a fixture that opens your backend. pytest then runs every promise against the backend. For a
codec subclass `CodecContract` from ``headrace.testing.contracts.codec``. The contracts need pytest,
and the contract of codecs needs Hypothesis.
"""

from __future__ import annotations

import pytest

_PARTS = (
    "appending", "backend_under_test", "codec", "commits", "consumer_tools", "copying",
    "group_reading", "hand_over", "hub", "liveness", "marks", "reading", "records", "sharing",
    "store", "streams",
)  # fmt: skip

# Without the rewrite a failed assertion would show no values.
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _PARTS))
