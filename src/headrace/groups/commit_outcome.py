"""Commits whose outcome is told for sure: what could not be heard at first is looked up."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.core import store_keys
from headrace.core.errors import Contended, Fenced, HeadraceError, Retryable, UnknownOutcome
from headrace.core.groups.checkpoint import Checkpoint
from headrace.core.model import StreamInfo
from headrace.core.ports import Backend, Commit, Grant


def committed_each(backend: Backend, commits: Sequence[Commit]) -> list[HeadraceError | None]:
    """What was wrong with each: None if it is stored, `Fenced` if it never will be."""
    try:
        errors = backend.commit_each(commits)
    except Retryable as why:
        errors = [why] * len(commits)
    return [
        _looked_up(backend, commit, error) if isinstance(error, Fenced | UnknownOutcome) else error
        for commit, error in zip(commits, errors, strict=True)
    ]


def commit_once(backend: Backend, commit: Commit) -> None:
    """Stored once on return. `Fenced` if it was not, or if that cannot be told: then its grant must
    end before the work is done again, so that what may still be on its way comes too late."""
    before = _checkpoint(backend, commit) if not len(commit.done) else Checkpoint()
    try:
        backend.commit(commit)
    except UnknownOutcome as why:
        if why.withdrawn:
            raise
        now = _checkpoint(backend, commit)
        moved = (
            now.commits > before.commits if not len(commit.done) else now.next >= commit.done.end
        )
        if not (moved and _is_granted(backend, commit.grant)):
            grant = commit.grant
            raise Fenced(
                grant.group, grant.stream.name, grant.shard, "whether it was stored is not known"
            ) from why


def checkpoint_of(backend: Backend, group: str, info: StreamInfo, shard: int) -> Checkpoint | None:
    found = backend.get(store_keys.checkpoint_key(group, info.id, shard))
    return None if found is None else Checkpoint.decoded(found.value)


def _looked_up(backend: Backend, commit: Commit, error: HeadraceError) -> HeadraceError | None:
    """Whether it was stored after all."""
    grant = commit.grant
    stored = checkpoint_of(backend, grant.group, grant.stream, grant.shard)
    if not _is_granted(backend, grant):
        return Fenced(grant.group, grant.stream.name, grant.shard)
    if stored is not None and stored.next >= commit.done.end:
        return None
    return Contended(grant.group, 1) if isinstance(error, Fenced) else error


def _checkpoint(backend: Backend, commit: Commit) -> Checkpoint:
    grant = commit.grant
    return checkpoint_of(backend, grant.group, grant.stream, grant.shard) or Checkpoint()


def _is_granted(backend: Backend, grant: Grant) -> bool:
    """Whether nobody else has come meanwhile: under one epoch nobody else commits."""
    epoch = backend.get(store_keys.epoch_key(grant.group, grant.stream.id, grant.shard))
    return epoch is not None and epoch.value == grant.token
