"""The journal of a group: written with each change, and bounded."""

from __future__ import annotations

from headrace.backends.opening import LogAndStore
from headrace.core import store_keys
from headrace.core.groups import journal
from headrace.core.groups.events import (
    Leave,
)
from tests.groups.building import (
    GROUP,
    coordinator_on,
    groups_in,
    heartbeat_of,
    join_event,
    new_stream,
    story_of,
)


def test_a_change_and_its_journal_entry_are_one_write_and_a_heartbeat_is_none(
    backend: LogAndStore,
) -> None:
    stream = new_stream(backend)
    coordinator = coordinator_on(backend)
    before = backend.changes()
    coordinator.apply(GROUP, join_event(stream, "A"))
    assert backend.changes() == before + 1
    group = backend.get(store_keys.group_key(GROUP))
    entry = backend.get(store_keys.journal_key(GROUP, 1))
    assert group is not None
    assert entry is not None
    assert entry.version == group.version
    coordinator.apply(GROUP, heartbeat_of(coordinator.load(GROUP), "A"))
    assert [key for key, _ in backend.scan(b"j")] == [store_keys.journal_key(GROUP, 1)]


def test_the_journal_of_a_busy_group_stays_small_and_replayable(backend: LogAndStore) -> None:
    stream = new_stream(backend, 1)
    coordinator = coordinator_on(backend)
    for turn in range(1, 200):
        coordinator.apply(GROUP, join_event(stream, "A", turn))
        coordinator.apply(GROUP, Leave("A", turn))
    groups = groups_in(backend)
    assert len(groups.history(GROUP)) == journal.ENTRIES_KEPT
    assert len(list(backend.scan(b"j"))) == journal.ENTRIES_KEPT + journal.SNAPSHOTS_KEPT
    story = story_of(groups)
    assert (story.begin, story.note) == (256, "")
    assert set(story.causes) == set(range(257, 399))
