"""The home of our own groups: any log, with a store and signs of life beside it or elsewhere."""

from __future__ import annotations

from headrace.core.groups.member_settings import MemberSettings
from headrace.core.groups.subscription import Subscription
from headrace.core.model import StreamInfo
from headrace.core.ports import Backend, Commit, GroupStore, Log, Membership
from headrace.groups.commit_outcome import commit_once
from headrace.groups.stored import ShardState, attempts_of, checkpoint_of


class OwnGroups:
    """The `GroupHome` of groups that the machine of `headrace.core.groups` decides about."""

    def __init__(self, records: Log, store: GroupStore) -> None:
        self._records = records
        self._store = store

    def membership(self, subscription: Subscription, settings: MemberSettings) -> Membership:
        # Not at the top: lanes commit, and never join a group.
        from headrace.groups.membership import GroupMembership

        return GroupMembership(self._records, self._store, subscription, settings)

    def commit(self, commit: Commit) -> None:
        commit_once(self._store, commit)

    def checkpoint(self, group: str, stream: StreamInfo, shard: int) -> int | None:
        found = checkpoint_of(self._store, group, stream.id, shard)
        return None if found is None else found.next

    def attempts(self, group: str, stream: StreamInfo, shard: int) -> bytes | None:
        found = attempts_of(self._store, group, stream.id, shard)
        return None if found is None else found.value

    def state(self, group: str, stream: StreamInfo, shard: int) -> ShardState:
        return ShardState(self._store, group, stream.id, shard)


def home_of(backend: Backend) -> OwnGroups:
    """Where the groups of a hub live; `Unsupported` with the reason if they cannot live there."""
    if backend.store is None:
        raise backend.capabilities.refusal("store")
    return OwnGroups(backend.log, backend.store)
