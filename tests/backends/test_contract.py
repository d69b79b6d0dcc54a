"""The contract of backends, on each of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.backends.copy_by_producer import CopyByProducer
from headrace.backends.lmdb.backend import LmdbBackend
from headrace.backends.memory import MemoryBackend
from headrace.backends.opening import in_one_place
from headrace.core.capabilities import Capabilities
from headrace.core.model import StreamInfo
from headrace.core.ports import Append, Backend, Place, Producer
from headrace.groups.elsewhere import with_groups_in
from headrace.testing.contracts.backend import BackendContract, Opening
from headrace.testing.contracts.commits import CommitContract
from headrace.testing.contracts.consumers import ConsumerContract
from headrace.testing.contracts.hub import HubContract
from headrace.testing.contracts.liveness import LivenessContract
from headrace.testing.contracts.streams import StreamsContract


class TestMemory(BackendContract):
    @pytest.fixture
    def opening(self) -> Opening:
        return lambda: in_one_place(MemoryBackend())


class TestLmdb(BackendContract):
    @pytest.fixture
    def opening(self, tmp_path: Path) -> Opening:
        return lambda: in_one_place(LmdbBackend(tmp_path / "hub"))


class TestGroupsElsewhere(
    StreamsContract, HubContract, CommitContract, LivenessContract, ConsumerContract
):
    """Records in one directory, groups in another."""

    @pytest.fixture
    def opening(self, tmp_path: Path) -> Opening:
        return lambda: with_groups_in(
            in_one_place(LmdbBackend(tmp_path / "hub")),
            in_one_place(LmdbBackend(tmp_path / "elsewhere")),
        )


class RecordsOnly(MemoryBackend):
    """A log that keeps records and nothing else, and says so."""

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

    def copying(self, stream: StreamInfo, shard: int, origin: str) -> CopyByProducer:
        self.capabilities.require("copying")
        return super().copying(stream, shard, origin)


class TestABackendThatLacksMuch(BackendContract):
    """What is missing must be refused with its reason, and the rest must hold all the same."""

    @pytest.fixture
    def opening(self) -> Opening:
        return lambda: Backend(RecordsOnly())
