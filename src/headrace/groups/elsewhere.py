"""Groups in another place than the records: a store that keeps them apart from the groups of other
logs, and commits that this store can hold without the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NoReturn

from headrace.core import transaction
from headrace.core.errors import Contended, HeadraceError, Unsupported
from headrace.core.model import StreamInfo
from headrace.core.ports import (
    ABSENT,
    Backend,
    Commit,
    GroupStore,
    Liveness,
    Place,
    Sign,
    Versioned,
)
from headrace.core.store_keys import of_log
from headrace.core.transaction import Part

TRIES_MAX = 16


def with_groups_in(backend: Backend, other: Backend) -> Backend:
    """The records of one backend with the groups of another."""
    if other.store is None:
        raise other.capabilities.refusal("store")
    if other.log.identity == backend.log.identity:
        other.close()
        return backend  # one place after all: one commit holds records and checkpoints
    return Backend(backend.log, GroupsElsewhere(other.store, backend.log.identity))


class GroupsElsewhere:
    """A `GroupStore` for the groups of one log in the store of another place.

    Keys begin with the identity of the log: groups of two logs may have the same names there, and
    streams the same ids. A commit holds checkpoints, state, attempts and stories; outputs live in
    the log, so a commit with outputs is refused."""

    def __init__(self, store: GroupStore, identity: str) -> None:
        self.capabilities = store.capabilities
        self._store = store
        self._prefix = of_log(identity)
        self.liveness = _LivenessElsewhere(store.liveness, identity)

    def get(self, key: bytes) -> Versioned | None:
        return self._store.get(self._prefix + key)

    def version(self, key: bytes) -> int:
        return self._store.version(self._prefix + key)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, Versioned]]:
        found = self._store.scan(self._prefix + prefix)  # now: a scan is from one moment
        return ((key[len(self._prefix) :], value) for key, value in found)

    def transact(self, checks: Mapping[bytes, int], puts: Mapping[bytes, bytes | None]) -> bool:
        return self._store.transact(
            {self._prefix + key: version for key, version in checks.items()},
            {self._prefix + key: value for key, value in puts.items()},
        )

    def commit(self, commit: Commit) -> list[Place]:
        for _ in range(TRIES_MAX):
            tried = self._tried(commit)
            if self.transact(tried.checks, tried.puts):
                return []
        raise Contended(commit.grant.group, TRIES_MAX)

    def commit_each(self, commits: Sequence[Commit]) -> list[HeadraceError | None]:
        """In one transaction if nothing hinders it; else one by one."""
        errors: list[HeadraceError | None] = []
        checks: dict[bytes, int] = {}
        puts: dict[bytes, bytes | None] = {}
        for commit in commits:
            try:
                tried = self._tried(commit)
            except HeadraceError as why:
                errors.append(why)
                continue
            if puts.keys() & tried.puts.keys():
                break  # two commits of one shard: the second stands on the first
            errors.append(None)
            checks |= tried.checks
            puts |= tried.puts
        if len(errors) == len(commits) and (not puts or self.transact(checks, puts)):
            return errors
        return [self._error_of(commit) for commit in commits]

    def close(self) -> None:
        self._store.close()

    def _error_of(self, commit: Commit) -> HeadraceError | None:
        try:
            self.commit(commit)
        except HeadraceError as why:
            return why
        return None

    def _tried(self, commit: Commit) -> _Noted:
        """What the commit would check and write, by the rules that every backend shares."""
        if commit.outputs or commit.dead_letters:
            raise _two_places()
        tried = _Noted(self)
        transaction.commit(tried, commit, [])
        return tried


class _Noted:
    """A transaction that notes what is read and written, to be carried out by `transact`."""

    def __init__(self, store: GroupsElsewhere) -> None:
        self._store = store
        self.checks: dict[bytes, int] = {}
        self.puts: dict[bytes, bytes | None] = {}

    def get(self, key: bytes) -> Versioned | None:
        found = self._store.get(key)
        self.checks[key] = ABSENT if found is None else found.version
        return found

    def put(self, key: bytes, value: bytes | None) -> None:
        self.puts[key] = value

    def end(self, stream: StreamInfo, shard: int) -> NoReturn:
        raise _two_places()

    def add(self, part: Part, base: int) -> NoReturn:
        raise _two_places()


class _LivenessElsewhere:
    """Signs of life of the members of one log's groups."""

    def __init__(self, liveness: Liveness, identity: str) -> None:
        self._liveness = liveness
        self._identity = identity

    def beat(self, group: str, member: str, incarnation: int, beat: int) -> None:
        self._liveness.beat(self._name(group), member, incarnation, beat)

    def sign(self, group: str, member: str, incarnation: int) -> Sign | None:
        return self._liveness.sign(self._name(group), member, incarnation)

    def leave(self, group: str, member: str, incarnation: int) -> None:
        self._liveness.leave(self._name(group), member, incarnation)

    def _name(self, group: str) -> str:
        return f"{self._identity}/{group}"


def _two_places() -> Unsupported:
    return Unsupported(
        "groups elsewhere",
        "commit outputs",
        "records and groups live in two places, and no commit can hold both",
    )
