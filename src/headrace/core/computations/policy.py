"""What to do about a record whose handling failed: how often and when to try it again, and what to
do after that."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from headrace.core.errors import BadSetting
from headrace.core.nearest import did_you_mean
from headrace.core.quantities import Duration, seconds

Then = Literal["stop", "skip", "dead-letter"]

RETRIES_MAX = 1_000_000
FLOOD_RECORDS = 1_000
"""How many records of a computation are looked at when its dead letters are counted."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What to do about a record whose handler fails.

    >>> from headrace import Policy
    >>> Policy(retries=3, then="dead-letter").times_s(3)
    [1.0, 3.0, 7.0]
    """

    retries: int = 20
    """How often a record is tried again."""
    delay: Duration = field(default="1s", compare=False)
    """How long the first retry waits. Each further retry waits twice as long as the one before."""
    delay_max: Duration = field(default="60s", compare=False)
    """How long a retry waits at most."""
    then: Then = "stop"
    """What to do when all retries have failed: stop the shard until a person resumes it or new code
    comes; skip the record; or append the record and the reason to the computation's dead letters
    and go on."""
    timeout: Duration | None = field(default=None, compare=False)
    """How long one record may take. After that its lane is given up and the attempt has failed."""
    no_retry: tuple[type[BaseException], ...] = ()
    """Errors for which no record is tried again, besides `NoRetry`."""
    deaths: int = 5
    """How many processes a record may kill before it is given up."""
    dead_letters_max: int = 100
    """How many of the last 1,000 records may be dead letters. One more stops the shard instead."""

    delay_s: float = field(init=False, repr=False)
    delay_s_max: float = field(init=False, repr=False)
    timeout_s: float | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _check_count("retries", self.retries, 0)
        _check_count("deaths", self.deaths, 1)
        _check_count("dead_letters_max", self.dead_letters_max, 0)
        if self.then not in get_args(Then):
            known = get_args(Then)
            raise BadSetting(
                f"then {self.then!r}: one of {', '.join(known)}{did_you_mean(self.then, known)}"
            )
        if not isinstance(self.no_retry, tuple) or not all(map(_is_error, self.no_retry)):
            raise BadSetting(f"no_retry {self.no_retry!r}: a tuple of exception classes")
        timeout_s = None if self.timeout is None else seconds(self.timeout, what="timeout")
        if timeout_s == 0:
            raise BadSetting("timeout 0: leave it out if a record may take as long as it does")
        object.__setattr__(self, "delay_s", seconds(self.delay, what="delay"))
        object.__setattr__(self, "delay_s_max", seconds(self.delay_max, what="delay_max"))
        object.__setattr__(self, "timeout_s", timeout_s)

    def wait_s(self, failed: int) -> float:
        """How long the next attempt waits after ``failed`` attempts have failed."""
        doublings = min(max(failed - 1, 0), 64)
        return min(self.delay_s * 2.0**doublings, self.delay_s_max)

    def tries_again(self, failed: int) -> bool:
        """Whether there is another attempt after ``failed`` attempts have failed."""
        return failed <= self.retries

    def times_s(self, retries: int) -> list[float]:
        """When the first ``retries`` retries come, in seconds after the first failure of a record
        that always fails at once."""
        times, at = [], 0.0
        for failed in range(1, min(retries, self.retries) + 1):
            at += self.wait_s(failed)
            times.append(at)
        return times


def _is_error(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)


def _check_count(what: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= RETRIES_MAX:
        raise BadSetting(f"{what} {value!r}: a whole number, {least} to {RETRIES_MAX}")
