"""Whether a commit was stored: an outcome that the store could not tell is looked up."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.core.errors import Contended, Fenced, HeadraceError, Retryable, UnknownOutcome
from headrace.core.groups.checkpoint import Checkpoint
from headrace.core.ports import Commit, GroupStore
from headrace.groups.stored import checkpoint_of, is_granted


def committed_each(store: GroupStore, commits: Sequence[Commit]) -> list[HeadraceError | None]:
    """The error of each commit: None if it is stored, `Fenced` if it never will be."""
    try:
        errors = store.commit_each(commits)
    except Retryable as why:
        errors = [why] * len(commits)
    return [
        _looked_up(store, commit, error) if isinstance(error, Fenced | UnknownOutcome) else error
        for commit, error in zip(commits, errors, strict=True)
    ]


def commit_once(store: GroupStore, commit: Commit) -> None:
    """Store a commit, once. `Fenced` if it was not stored, or if that cannot be told: then its
    grant must end before the work is done again, so that a commit still under way comes too
    late."""
    before = _checkpoint(store, commit) if not len(commit.done) else Checkpoint()
    try:
        store.commit(commit)
    except UnknownOutcome as why:
        if why.withdrawn:
            raise
        now = _checkpoint(store, commit)
        moved = (
            now.commits > before.commits if not len(commit.done) else now.next >= commit.done.end
        )
        if not (moved and is_granted(store, commit.grant)):
            grant = commit.grant
            raise Fenced(
                grant.group, grant.stream.name, grant.shard, "whether it was stored is not known"
            ) from why


def _looked_up(store: GroupStore, commit: Commit, error: HeadraceError) -> HeadraceError | None:
    """The error of a commit, None if it was stored after all."""
    grant = commit.grant
    stored = checkpoint_of(store, grant.group, grant.stream.id, grant.shard)
    if not is_granted(store, grant):
        return Fenced(grant.group, grant.stream.name, grant.shard)
    if stored is not None and stored.next >= commit.done.end:
        return None
    return Contended(grant.group, 1) if isinstance(error, Fenced) else error


def _checkpoint(store: GroupStore, commit: Commit) -> Checkpoint:
    grant = commit.grant
    return checkpoint_of(store, grant.group, grant.stream.id, grant.shard) or Checkpoint()
