"""The story of a record for programs: one JSON value with the commits inside each other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.core.model import RecordId, Slice
from headrace.hub.story.record_story import CommitStory, RecordStory
from headrace.ops.times import utc


def story_view(story: RecordStory) -> dict[str, Any]:
    """Record ids and slices are texts: ``shop/orders:2+17`` and ``shop/orders:2+0..50``."""
    return {
        "record": str(story.record),
        "origin": None if story.origin is None else str(story.origin),
        "made_by": [_commit_view(commit, "made_by") for commit in story.made_by],
        "read_by": [_commit_view(commit, "read_by") for commit in story.read_by],
        "unread": [
            {
                "group": group.group,
                "checkpoint": group.checkpoint,
                "again": group.again,
                "failed": group.failed,
                "reason": group.reason or None,
                "stopped": group.stopped,
            }
            for group in story.unread
        ],
        "untold": [
            {"group": group.group, "checkpoint": group.checkpoint, "why": group.why}
            for group in story.untold
        ],
        "notes": list(story.notes),
    }


def _commit_view(commit: CommitStory, way: str) -> dict[str, Any]:
    return {
        "group": commit.group,
        "slice": str(commit.read),
        "inputs": _texts(commit.inputs),
        "appended": _texts(commit.appended),
        "dead_letters": _texts(commit.dead_letters),
        "outputs": _texts(commit.outputs),
        "outcome": commit.outcome,
        "attempts": commit.attempts,
        "together": commit.together,
        "replica": commit.replica,
        "lane": commit.lane,
        "epoch": commit.epoch,
        "time": utc(commit.at_ms),
        "spent_ms": commit.spent_ms,
        way: [_commit_view(further, way) for further in commit.further],
        "repeated": commit.repeated,
    }


def _texts(several: Iterable[RecordId | Slice] | None) -> list[str] | None:
    return None if several is None else [str(each) for each in several]
