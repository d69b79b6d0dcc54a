"""A member of a live run: a consumer that writes its grants, commits and effects as evidence."""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import headrace
from headrace.consumers.consumer import Consumer
from headrace.core.errors import Fenced, HeadraceError
from headrace.core.model import Record
from headrace.core.ports import Begin, Commit, End, Grant, GrantNews, Lost
from headrace.groups import membership
from headrace.groups.membership import GroupMembership
from tests.harness.live import sabotage
from tests.harness.live.evidence import Evidence, send_errors_to
from tests.harness.live.load import GROUP, STREAM, name_of

COMMIT_EVERY_S = 0.3
AGAIN_S = 0.05
REPLACED, FAILED = 3, 4

_HANDLERS_S = (0.001, 0.001, 0.001, 0.001, 0.02)


class RecordedMembership(GroupMembership):
    """The real membership; everything that passes through it becomes evidence."""

    evidence: ClassVar[Evidence]
    _numbers = itertools.count()

    def changes(self) -> list[GrantNews]:
        news = super().changes()
        for each in news:
            facts = _facts(each.grant)
            match each:
                case Begin():
                    seat = self._seat
                    inc = 0 if seat is None else seat.incarnation
                    who = {"member": self._settings.name, "inc": inc}
                    self.evidence.tell("grant", None, **facts, **who, checkpoint=each.checkpoint)
                case End():
                    self.evidence.tell("end", **facts)
                case Lost():
                    self.evidence.tell("lost", **facts)
        return news

    def release(self, grants: Sequence[Grant]) -> None:
        for grant in grants:
            self.evidence.tell("release", **_facts(grant))
        super().release(grants)

    def commit(self, commits: Sequence[Commit]) -> list[HeadraceError | None]:
        numbers = [next(self._numbers) for _ in commits]
        for number, commit in zip(numbers, commits, strict=True):
            done = {"from": commit.done.start, "to": commit.done.end}
            self.evidence.tell("storing", id=number, **_facts(commit.grant), **done)
        errors = super().commit(commits)
        for number, error in zip(numbers, errors, strict=True):
            if error is None:
                self.evidence.tell("stored", id=number)
            elif isinstance(error, Fenced):
                self.evidence.tell("fenced", id=number)
            else:
                self.evidence.tell("unstored", id=number, why=type(error).__name__)
        return errors

    def leave(self) -> None:
        held = [[shard.index, epoch] for shard, (epoch, _) in self._grants.items()]
        self.evidence.tell("leave", held=held)
        super().leave()


def _facts(grant: Grant) -> dict[str, int]:
    return {"shard": grant.shard, "epoch": int.from_bytes(grant.token, "big")}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("hub")
    parser.add_argument("evidence", type=Path)
    parser.add_argument("label")
    parser.add_argument("name")
    parser.add_argument("session", type=float)
    parser.add_argument("heartbeat", type=float)
    parser.add_argument("--sabotage", default="")
    given = parser.parse_args()
    send_errors_to(given.evidence, given.label)
    evidence = RecordedMembership.evidence = Evidence(given.evidence, given.label)
    setattr(membership, "GroupMembership", RecordedMembership)  # noqa: B010
    sabotage.do(given.sabotage)
    logging.basicConfig(level=logging.INFO, format="%(created).3f %(relativeCreated)d %(message)s")
    with headrace.open(given.hub) as hub:
        consumer = _consumer(hub, evidence, given)
        evidence.tell("ready")
        code = _consume(consumer, evidence)
        consumer.close()
    evidence.tell("bye")
    sys.stderr.flush()
    os._exit(code)


def _consumer(hub: headrace.Hub, evidence: Evidence, given: argparse.Namespace) -> Consumer:
    while True:
        try:
            return hub.consumer(
                STREAM,
                group=GROUP,
                name=given.name,
                session=given.session,
                heartbeat=given.heartbeat,
                commit_every=COMMIT_EVERY_S,
            )
        except headrace.Retryable as why:
            evidence.tell("not-yet", why=type(why).__name__)
            time.sleep(AGAIN_S)


def _consume(consumer: Consumer, evidence: Evidence) -> int:
    asked_s = time.monotonic()
    try:
        for record in consumer:
            _handle(consumer, evidence, record, asked_s)
            asked_s = time.monotonic()
    except headrace.Replaced:
        evidence.tell("replaced")
        return REPLACED
    except Exception as why:
        logging.exception("the consumer has failed")
        evidence.tell("failed", why=f"{type(why).__name__}: {why}")
        return FAILED
    return 0


def _handle(consumer: Consumer, evidence: Evidence, record: Record, asked_s: float) -> None:
    handout = consumer._shards.handout
    assert handout is not None, "a record is part of a handout"
    facts = {**_facts(handout.holding.grant), "offset": record.offset}
    now_s = time.monotonic()
    lease = {"left": consumer._lease.until_s - now_s, "waited": now_s - asked_s}
    evidence.tell("start", now_s, **facts, value=name_of(record.data), **lease)
    time.sleep(_HANDLERS_S[record.offset % len(_HANDLERS_S)])
    evidence.tell("done", **facts)


if __name__ == "__main__":
    main()
