"""Shards that a consumer reads alone, by its own choice: no group, no sharing, no checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from headrace.core.errors import BadSetting, HeadraceError
from headrace.core.ports import Begin, Commit, Grant, GrantNews, Lease


class FixedShards:
    """A `Membership` without a group: its shards are granted for ever."""

    def __init__(self, grants: Sequence[Grant]) -> None:
        self.lease = Lease(inf)
        self._news: list[GrantNews] = [Begin(grant, None) for grant in grants]

    def join(self) -> None:
        pass

    def changes(self) -> list[GrantNews]:
        news, self._news = self._news, []
        return news

    def release(self, grants: Sequence[Grant]) -> None:
        pass

    def commit(self, commits: Sequence[Commit]) -> list[HeadraceError | None]:
        return [None] * len(commits)  # without a group nothing is stored: done is done

    def move(self, grant: Grant, to: int) -> None:
        self._news.append(Begin(grant, to))

    def fence(self, grant: Grant) -> None:
        raise BadSetting("there is nobody to fence without a group: give one, group=…")

    def stop(self, grant: Grant) -> None:
        raise BadSetting("there is nothing to stop without a group: give one, group=…")

    def finished(self, grant: Grant) -> None:
        pass

    def leave(self) -> None:
        pass
