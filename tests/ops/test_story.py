"""The story of a record as programs get it."""

from __future__ import annotations

import json

from headrace.core.model import RecordId, Slice
from headrace.hub.story.record_story import CommitStory, RecordStory, Unread, Untold
from headrace.ops.story import story_view

ORDER, INVOICE = RecordId("shop/orders", 0, 3), RecordId("shop/invoices", 1, 7)


def _commit(*further: CommitStory) -> CommitStory:
    return CommitStory(
        group="bill",
        read=Slice("shop/orders", 0, 0, 5),
        inputs=(ORDER,),
        appended=(Slice("shop/invoices", 1, 4, 9),),
        dead_letters=(),
        outputs=None,
        outcome="done",
        attempts=2,
        together=False,
        replica="till",
        lane=1,
        epoch=4,
        at_ms=1_769_846_400_120,
        spent_ms=1.5,
        further=further,
    )


COMMIT_VIEW = {
    "group": "bill",
    "slice": "shop/orders:0+0..5",
    "inputs": ["shop/orders:0+3"],
    "appended": ["shop/invoices:1+4..9"],
    "dead_letters": [],
    "outputs": None,
    "outcome": "done",
    "attempts": 2,
    "together": False,
    "replica": "till",
    "lane": 1,
    "epoch": 4,
    "time": "2026-01-31T08:00:00.120Z",
    "spent_ms": 1.5,
    "repeated": False,
}


def test_the_view_has_every_field_and_is_json() -> None:
    story = RecordStory(
        record=INVOICE,
        origin=ORDER,
        made_by=(_commit(_commit()),),
        read_by=(_commit(),),
        unread=(Unread(group="audit", checkpoint=3, failed=2, reason="ValueError: no"),),
        untold=(Untold(group="old", checkpoint=99, why="no story kept: dropped"),),
        notes=("a note",),
    )
    view = story_view(story)
    assert view == {
        "record": "shop/invoices:1+7",
        "origin": "shop/orders:0+3",
        "made_by": [{**COMMIT_VIEW, "made_by": [{**COMMIT_VIEW, "made_by": []}]}],
        "read_by": [{**COMMIT_VIEW, "read_by": []}],
        "unread": [
            {
                "group": "audit",
                "checkpoint": 3,
                "again": False,
                "failed": 2,
                "reason": "ValueError: no",
                "stopped": False,
            }
        ],
        "untold": [{"group": "old", "checkpoint": 99, "why": "no story kept: dropped"}],
        "notes": ["a note"],
    }
    assert json.loads(json.dumps(view)) == view


def test_what_is_not_known_is_null() -> None:
    story = RecordStory(
        record=ORDER,
        origin=None,
        made_by=(),
        read_by=(),
        unread=(Unread(group="audit", checkpoint=3),),
        untold=(),
        notes=(),
    )
    view = story_view(story)
    assert (view["origin"], view["made_by"], view["unread"][0]["reason"]) == (None, [], None)
