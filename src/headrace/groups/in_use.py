"""Who is in a group that is to be changed by hand: the dead hinder nobody, the living do."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from headrace.core.errors import GroupInUse
from headrace.core.groups.events import Evict
from headrace.core.ports import Liveness
from headrace.groups.coordinator import Coordinator


class GroupUse:
    """Of the groups of one hub."""

    def __init__(self, liveness: Liveness, coordinator: Coordinator) -> None:
        self._liveness = liveness
        self._coordinator = coordinator

    def evict_dead(self, name: str) -> None:
        for member, known in self._coordinator.load(name).members.items():
            who = member, known.incarnation
            if self._is_dead(name, *who):
                still = partial(self._is_dead, name, *who)
                self._coordinator.apply(name, Evict(*who, "dead"), still)
                if member not in self._coordinator.load(name).members:
                    self._liveness.leave(name, *who)

    def check_unused(self, name: str, force: bool) -> None:
        """`GroupInUse` while there are members, unless it is forced."""
        members = self._coordinator.load(name).members
        if members and not force:
            raise GroupInUse(name, sorted(members))

    def still_unused(self, name: str, force: bool) -> Callable[[], bool]:
        """Asked right before writing: whoever joined meanwhile is not fenced unasked."""

        def still() -> bool:
            self.check_unused(name, force)
            return True

        return still

    def _is_dead(self, name: str, member: str, incarnation: int) -> bool:
        """For sure: who never gave a sign may still be on its way."""
        sign = self._liveness.sign(name, member, incarnation)
        return sign is not None and not sign.alive
