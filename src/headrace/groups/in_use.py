"""Whether a group is in use: dead members are evicted, living ones forbid changes by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from headrace.core.errors import GroupInUse
from headrace.core.groups.events import Evict
from headrace.core.ports import Liveness
from headrace.groups.coordinator import Coordinator


class GroupUse:
    """The use of the groups of one hub."""

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
        """Refuse with `GroupInUse` while there are members, unless ``force`` is given."""
        members = self._coordinator.load(name).members
        if members and not force:
            raise GroupInUse(name, sorted(members))

    def still_unused(self, name: str, force: bool) -> Callable[[], bool]:
        """A check right before writing: a member that joined meanwhile is not fenced unasked."""

        def still() -> bool:
            self.check_unused(name, force)
            return True

        return still

    def _is_dead(self, name: str, member: str, incarnation: int) -> bool:
        """Whether the member is dead for sure: one without any sign may still be joining."""
        sign = self._liveness.sign(name, member, incarnation)
        return sign is not None and not sign.alive
