"""What every backend, codec and engine promises, as test classes to subclass.

``from headrace.testing.contracts.backend import BackendContract`` in a test module and subclass it
with a fixture that opens your backend: pytest runs every promise against it. The contract of codecs
is in ``headrace.testing.contracts.codec``, the one of engines in
``headrace.testing.contracts.engine``. ``pip install 'headrace[testing]'`` brings what they need.
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
