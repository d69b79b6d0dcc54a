from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.backends.lmdb import files
from headrace.process import failpoints

Arm = Callable[[str], None]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that looks wrong is looked at again, in case it is being made: here it is not."""
    monkeypatch.setattr(files, "_LOOK_AGAIN_S", 0.001)


@pytest.fixture
def arm(monkeypatch: pytest.MonkeyPatch) -> Arm:
    """Arms a fail point of this process, as the environment would."""

    def armed(text: str) -> None:
        monkeypatch.setattr(failpoints, "_armed", failpoints.armed(text))

    return armed
