"""The attempts at a record that makes trouble. They are stored with the checkpoint of the shard, so
that they are not forgotten when another replica takes over.

Most shards have only the note that a lane works there. A replica that is granted a shard and finds
the note knows that the process which wrote it died. If that happens again and again at one
checkpoint, work goes on in small steps, in the end record by record, and each step is noted before
it is taken. So the record that kills its process is found.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from headrace.core.byte_fields import Fields, text_field
from headrace.core.errors import BadStored, NewerFormat

VERSION = 1
REASON_CHARS_MAX = 2_000
CAREFUL_AFTER = 2
"""After this many deaths at one checkpoint work goes on in small steps, each noted beforehand."""
CAREFUL_STEP = 64
"""How many records are a small step. After one more death within such a step work goes on record by
record."""

NO_RECORD = 2**63 - 1
"""The offset of attempts at a call without a record: ``init``, ``on_timer``."""

_HEAD = struct.Struct(">BBQIIQ")
_WORKING, _NAMED, _STOPPED = 1, 2, 4
_FLAGS = _WORKING | _NAMED | _STOPPED


class Attempts(NamedTuple):
    offset: int = 0
    """The record that makes trouble; while nothing has failed, the checkpoint when work began."""
    failed: int = 0
    """How many attempts at the record have failed."""
    deaths: int = 0
    """How many processes have died at the record."""
    working: bool = False
    """A replica works on the shard, and has not noted that it has ended."""
    named: bool = False
    """This record is being handled, and none behind it."""
    stopped: bool = False
    """The shard was stopped because of the record."""
    at_ms: int = 0
    """When the last attempt failed."""
    code: str = ""
    """Which code has failed."""
    reason: str = ""

    def step(self, deaths_max: int) -> int:
        """How many records are one step, which is noted before it is taken; 0: a slice is as long
        as usual, and nothing is noted."""
        if self.deaths >= _single_after(deaths_max):
            return 1
        return CAREFUL_STEP if self.deaths >= _careful_after(deaths_max) else 0

    def begun(self, checkpoint: int) -> Attempts:
        """A replica begins to work at this checkpoint."""
        ahead = self.offset > checkpoint and (self.failed > 0 or self.deaths > 0)
        here = self if ahead or self.offset == checkpoint else Attempts(checkpoint)
        deaths = here.deaths + self.working
        if not here.named:  # only suspected: another record in the same process may be to blame
            deaths = min(deaths, CAREFUL_AFTER + 1)
        return here._replace(deaths=deaths, working=True)

    def ended(self) -> Attempts:
        """The replica has ended its work there, and no process died: mere suspicion is dropped."""
        deaths = self.deaths if self.named and self.deaths > CAREFUL_AFTER + 1 else 0
        return self._replace(working=False, deaths=deaths)

    def failed_again(self, offset: int, at_ms: int, code: str, reason: str) -> Attempts:
        """One more attempt at the record at this offset has failed."""
        failed = self.failed if offset == self.offset else 0
        deaths = self.deaths if offset == self.offset else 0
        return Attempts(
            offset, failed + 1, deaths, self.working, False, False, at_ms, code,
            _storable(reason)[:REASON_CHARS_MAX],
        )  # fmt: skip

    def named_next(self, offset: int, deaths_max: int = CAREFUL_AFTER + 1) -> Attempts:
        """The record at this offset is handled next, and none behind it. Of the deaths before it
        was named it keeps as many as keep the work careful, which is always fewer than give it
        up."""
        same = self if offset == self.offset else Attempts(offset, working=self.working)
        if same.named:
            return same
        deaths = min(self.deaths, _single_after(deaths_max))
        return same._replace(deaths=deaths, named=True)

    def stepped(self, offset: int, deaths_max: int = CAREFUL_AFTER + 1) -> Attempts:
        """A step begins at this offset: of several records, or of one that is not named yet."""
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
            raise BadStored(f"attempts that cannot be read: {why}") from None
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
    """After how many deaths work goes on record by record: small steps come first, where enough
    deaths are allowed for both."""
    return _careful_after(deaths_max) + (deaths_max > CAREFUL_AFTER + 1)


def _storable(text: str) -> str:
    """The text as it can be stored: errors may hold what cannot be encoded, such as half of a
    surrogate pair."""
    return text.encode(errors="backslashreplace").decode()
