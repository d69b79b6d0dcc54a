"""Commits whose outcome is told for sure: what could not be heard at first is looked up."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core import keys
from penstock.core.checkpoint import Checkpoint
from penstock.core.errors import Contended, Fenced, PenstockError, Retryable, UnknownOutcome
from penstock.core.model import StreamInfo
from penstock.core.ports import Backend, Commit


def committed_each(backend: Backend, commits: Sequence[Commit]) -> list[PenstockError | None]:
    """What was wrong with each: None if it is stored, `Fenced` if it never will be."""
    try:
        errors = backend.commit_each(commits)
    except Retryable as why:
        errors = [why] * len(commits)
    return [
        _looked_up(backend, commit, error) if isinstance(error, Fenced | UnknownOutcome) else error
        for commit, error in zip(commits, errors, strict=True)
    ]


def checkpoint_of(backend: Backend, group: str, info: StreamInfo, shard: int) -> Checkpoint | None:
    found = backend.get(keys.checkpoint_key(group, info.id, shard))
    return None if found is None else Checkpoint.decoded(found.value)


def _looked_up(backend: Backend, commit: Commit, error: PenstockError) -> PenstockError | None:
    """Whether it was stored after all: under one epoch nobody else commits."""
    grant = commit.grant
    epoch = backend.get(keys.epoch_key(grant.group, grant.stream.id, grant.shard))
    stored = checkpoint_of(backend, grant.group, grant.stream, grant.shard)
    if epoch is None or epoch.value != grant.token:
        return Fenced(grant.group, grant.stream.name, grant.shard)
    if stored is not None and stored.next >= commit.done.end:
        return None
    return Contended(grant.group, 1) if isinstance(error, Fenced) else error
