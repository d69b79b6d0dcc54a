"""Tells the story of one record: what was found both ways, and what cannot be told."""

from __future__ import annotations

from collections.abc import Collection

from headrace.core.computations.attempts import Attempts
from headrace.core.errors import BadSetting, OffsetOutOfRange
from headrace.core.model import Record, RecordId, StreamInfo
from headrace.core.names import checked_name
from headrace.core.ports import Backend
from headrace.core.records.limits import check_shard
from headrace.core.transaction import STORIES_KEPT
from headrace.groups.stored_stories import ShardStories
from headrace.hub.story.downstream import Downstream, Followed
from headrace.hub.story.lineage import letter_origin, lineage_of, source_of
from headrace.hub.story.lookup import Lookup, alone
from headrace.hub.story.record_story import CommitStory, RecordStory, Unread, Untold
from headrace.hub.story.upstream import Upstream

DEPTH_DEFAULT = 8


def story_of(backend: Backend, record_id: RecordId | str, depth: int) -> RecordStory:
    """What `Hub.story` returns."""
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
        raise BadSetting(f"depth {depth!r}: a whole number from 1")
    wanted = record_id if isinstance(record_id, RecordId) else RecordId.parse(record_id)
    records, store = backend.log, backend.store
    if store is None:
        raise backend.capabilities.refusal("store")
    info = records.stream(checked_name(wanted.stream))
    check_shard(info, wanted.shard)
    bounds = records.bounds(info, wanted.shard)
    if not 0 <= wanted.offset < bounds.end:
        raise OffsetOutOfRange(*wanted, *bounds)
    lookup = Lookup(records, store)
    upstream, downstream = Upstream(lookup, depth), Downstream(lookup, depth)
    record = lookup.record(wanted)
    made_by = upstream.made_by(alone(wanted), record)
    read_by = downstream.read_by(Followed.of_record(wanted, record))
    unread, untold = _others(lookup, info, wanted, {commit.group for commit in read_by})
    notes = [] if made_by else [_no_maker(record)]
    if record is None:
        notes.append("the record itself cannot be read any more: only stories tell of it")
    if any(_is_vague(commit) for commit in (*made_by, *read_by)):
        notes.append(
            "a story names slices: which of their records made which output is known only where "
            "lanes run with HEADRACE_ORIGINS=1"
        )
    notes += [note for way in (upstream, downstream) for note in way.notes()]
    return RecordStory(
        record=wanted,
        origin=None if any(commit.together for commit in made_by) else source_of(record),
        made_by=made_by,
        read_by=read_by,
        unread=unread,
        untold=untold,
        notes=tuple(dict.fromkeys(notes)),
    )


# Groups that no story tells of


def _others(
    lookup: Lookup, info: StreamInfo, wanted: RecordId, told: Collection[str]
) -> tuple[tuple[Unread, ...], tuple[Untold, ...]]:
    unread, untold = [], []
    for stories in lookup.stories.of_shard(info.id, wanted.shard):
        group, checkpoint = stories.group, stories.checkpoint
        if checkpoint.next <= wanted.offset:
            known = lookup.attempts(group, info, wanted.shard)
            about = known if known.offset == wanted.offset else Attempts()
            failed = max(about.failed, about.deaths if about.named else 0)
            unread.append(
                Unread(
                    group=group,
                    checkpoint=checkpoint.next,
                    again=group in told,
                    failed=failed,
                    reason=about.reason if failed else "",
                    stopped=about.stopped,
                )
            )
        elif group not in told:
            untold.append(Untold(group=group, checkpoint=checkpoint.next, why=_why(stories)))
    return tuple(unread), tuple(untold)


def _why(stories: ShardStories) -> str:
    if next(stories.newest_first(), None) is None:
        return "no story kept: its commits carry none, as those of a consumer"
    if stories.checkpoint.commits > STORIES_KEPT:
        return (
            f"no story kept: only the last {STORIES_KEPT:,} commits of a group and shard are told "
            "of, and none of those read it"
        )
    return "no story kept: no commit passed it, its checkpoint was moved"


def _no_maker(record: Record | None) -> str:
    if record is not None and (lineage_of(record) or letter_origin(record)):
        return (
            "no story kept: its commit is not among the last "
            f"{STORIES_KEPT:,} of its group and shard, or the group or its input is deleted"
        )
    return (
        "no story kept of how it was made: a producer appended it, or its commit is not among "
        f"the last {STORIES_KEPT:,} of its group and shard"
    )


def _is_vague(commit: CommitStory) -> bool:
    """Whether more than one record of the slice may be meant, here or further on."""
    known = commit.inputs is not None and commit.outputs is not None
    vague = len(commit.read) > 1 and not commit.together and not known
    return vague or any(_is_vague(further) for further in commit.further)
