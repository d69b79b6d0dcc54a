"""The embedded backends that tests of groups run on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.backends.lmdb.backend import LmdbBackend
from headrace.backends.memory import MemoryBackend
from headrace.backends.opening import LogAndStore


@pytest.fixture(params=["memory", "lmdb"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LogAndStore]:
    memory = request.param == "memory"
    opened: LogAndStore = MemoryBackend() if memory else LmdbBackend(tmp_path / "hub")
    yield opened
    opened.close()
