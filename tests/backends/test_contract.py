"""The contract of backends, on each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from headrace.backends.copy_by_producer import CopyByProducer
from headrace.backends.lmdb.backend import LmdbBackend
from headrace.backends.memory import MemoryBackend
from headrace.core.model import StreamInfo
from headrace.core.ports import ABSENT, Append, Capabilities, Commit, Place, Producer, Versioned
from headrace.testing.contracts.backend import BackendContract, Opening


class TestMemory(BackendContract):
    @pytest.fixture
    def opening(self) -> Opening:
        return MemoryBackend


class TestLmdb(BackendContract):
    @pytest.fixture
    def opening(self, tmp_path: Path) -> Opening:
        return lambda: LmdbBackend(tmp_path / "hub")


class RecordsOnly(MemoryBackend):
    """A backend that keeps records and nothing else, and says so."""

    capabilities = Capabilities(
        "records-only",
        {
            **MemoryBackend.capabilities.missing,
            "commit": "it knows no checkpoints",
            "copying": "it knows no positions of others",
            "producer_seq": "it knows no producers",
            "store": "it keeps no small values",
            "trim": "it keeps everything",
        },
    )

    def append(self, parts: Sequence[Append], producer: Producer | None = None) -> list[Place]:
        if producer is not None:
            self.capabilities.require("producer_seq")
        return super().append(parts)

    def trim(self, stream: StreamInfo, shard: int, before: int) -> None:
        self.capabilities.require("trim")

    def get(self, key: bytes) -> Versioned | None:
        self.capabilities.require("store")
        return None

    def version(self, key: bytes) -> int:
        self.capabilities.require("store")
        return ABSENT

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, Versioned]]:
        self.capabilities.require("store")
        return iter(())

    def transact(self, checks: Mapping[bytes, int], puts: Mapping[bytes, bytes | None]) -> bool:
        self.capabilities.require("store")
        return False

    def copying(self, stream: StreamInfo, shard: int, origin: str) -> CopyByProducer:
        self.capabilities.require("copying")
        return super().copying(stream, shard, origin)

    def commit(self, commit: Commit) -> list[Place]:
        self.capabilities.require("commit")
        return []


class TestABackendThatLacksMuch(BackendContract):
    """What is missing must be refused with its reason, and the rest must hold all the same."""

    @pytest.fixture
    def opening(self) -> Opening:
        return RecordsOnly
