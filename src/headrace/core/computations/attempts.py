"""The attempts at a record that fails: stored beside its shard's checkpoint, so that they are not
forgotten when another replica takes over.

For most shards there is only a note that a lane works there. A lane that begins and finds this note
knows that its writer has died. If that happens again and again at one checkpoint, work goes on in
small steps, in the end record by record, and each step is noted first. So the record that kills its
process is found.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from headrace.core.byte_fields import Fields, text_field
from headrace.core.errors import BadStored, NewerFormat

VERSION = 1
REASON_CHARS_MAX = 2_000
CAREFUL_AFTER = 2
"""How many deaths at one checkpoint make work go on in small steps, each noted beforehand."""
CAREFUL_STEP = 64
"""How many records such a step has. After one more death within a step, each has one record."""

NO_RECORD = 2**63 - 1
"""The offset of attempts at a call that is about no record: ``init``, ``on_timer``."""

_HEAD = struct.Struct(">BBQIIQ")
_WORKING, _NAMED, _STOPPED = 1, 2, 4
_FLAGS = _WORKING | _NAMED | _STOPPED


class Attempts(NamedTuple):
    """The attempts at one record of a shard."""

    offset: int = 0
    """The offset of the record; while no attempt has failed, the checkpoint at which work began."""
    failed: int = 0
    """How many attempts at the record have failed."""
    deaths: int = 0
    """How many processes have died at this offset."""
    working: bool = False
    """Whether a lane works on the shard and has not yet noted that it has ended."""
    named: bool = False
    """Whether exactly this record is being handled, and none behind it."""
    stopped: bool = False
    """Whether the shard was stopped because of this record."""
    at_ms: int = 0
    """When the last attempt failed."""
    code: str = ""
    """Which version of the code failed."""
    reason: str = ""

    def step(self, deaths_max: int) -> int:
        """How many records a step has, each step being noted where it begins. 0 means as many as
        fit, and no notes."""
        if self.deaths >= _single_after(deaths_max):
            return 1
        return CAREFUL_STEP if self.deaths >= _careful_after(deaths_max) else 0

    def begun(self, checkpoint: int) -> Attempts:
        """After a lane has begun to work at ``checkpoint``."""
        ahead = self.offset > checkpoint and (self.failed > 0 or self.deaths > 0)
        here = self if ahead or self.offset == checkpoint else Attempts(checkpoint)
        deaths = here.deaths + self.working
        if not here.named:  # only suspected: another record in the same process may have killed it
            deaths = min(deaths, CAREFUL_AFTER + 1)
        return here._replace(deaths=deaths, working=True)

    def ended(self) -> Attempts:
        """After the work has ended without a death: deaths that were only suspected are dropped."""
        deaths = self.deaths if self.named and self.deaths > CAREFUL_AFTER + 1 else 0
        return self._replace(working=False, deaths=deaths)

    def failed_again(self, offset: int, at_ms: int, code: str, reason: str) -> Attempts:
        """After one more attempt at the record at ``offset`` has failed."""
        failed = self.failed if offset == self.offset else 0
        deaths = self.deaths if offset == self.offset else 0
        return Attempts(
            offset, failed + 1, deaths, self.working, False, False, at_ms, code,
            _storable(reason)[:REASON_CHARS_MAX],
        )  # fmt: skip

    def named_next(self, offset: int, deaths_max: int = CAREFUL_AFTER + 1) -> Attempts:
        """Before the record at ``offset`` is handled, with no record behind it. Of the deaths while
        the record was not named, as many count as keep the work careful: always fewer than the
        deaths that the record itself may cause."""
        same = self if offset == self.offset else Attempts(offset, working=self.working)
        if same.named:
            return same
        deaths = min(self.deaths, _single_after(deaths_max))
        return same._replace(deaths=deaths, named=True)

    def stepped(self, offset: int, deaths_max: int = CAREFUL_AFTER + 1) -> Attempts:
        """Before a step begins at ``offset``, of several records or of one that is not named
        yet."""
        same = self if offset == self.offset else Attempts(offset, working=self.working)
        return same._replace(deaths=min(self.deaths, _single_after(deaths_max)), named=False)

    def encoded(self) -> bytes:
        flags = _WORKING * self.working | _NAMED * self.named | _STOPPED * self.stopped
        head = _HEAD.pack(VERSION, flags, self.offset, self.failed, self.deaths, self.at_ms)
        return head + text_field(self.code) + text_field(self.reason)

    @classmethod
    def decoded(cls, value: bytes) -> Attempts:
        if value[:1] > bytes([VERSION]):
            raise NewerFormat("attempts written by a newer Headrace: update this one")
        try:
            fields = Fields(value)
            version, flags, offset, failed, deaths, at_ms = fields.take(_HEAD)
            if version != VERSION or flags & ~_FLAGS:
                raise ValueError(f"version {version}, flags {flags}")
            code, reason = fields.text(), fields.text()
            fields.end()
        except (struct.error, ValueError) as why:
            raise BadStored(f"damaged attempts: {why}") from None
        return cls(
            offset,
            failed,
            deaths,
            bool(flags & _WORKING),
            bool(flags & _NAMED),
            bool(flags & _STOPPED),
            at_ms,
            code,
            reason,
        )


def _careful_after(deaths_max: int) -> int:
    return min(CAREFUL_AFTER, deaths_max - 1)


def _single_after(deaths_max: int) -> int:
    """After how many deaths a step has one record. If enough deaths are allowed, a step of
    `CAREFUL_STEP` comes first."""
    return _careful_after(deaths_max) + (deaths_max > CAREFUL_AFTER + 1)


def _storable(text: str) -> str:
    """The text as UTF-8 can hold it: messages of errors may hold half of a surrogate pair."""
    return text.encode(errors="backslashreplace").decode()
