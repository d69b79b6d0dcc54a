"""The thread that gives the signs of life of a member. It touches nothing that could make it
wait."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from headrace.core.errors import HeadraceError
from headrace.core.groups.seat import Seat
from headrace.core.ports import Lease, Liveness

log = logging.getLogger("headrace")

SIGNS_PER_HEARTBEAT = 3


class SignsOfLife:
    """Beats for one seat until it is stopped, or the lease of the seat is in doubt: then a sign
    would come too late."""

    def __init__(
        self,
        liveness: Liveness,
        group: str,
        seat: Seat,
        lease: Lease,
        heartbeat_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._liveness = liveness
        self._group = group
        self._seat = seat
        self._lease = lease
        self._heartbeat_s = heartbeat_s
        self._clock = clock
        self._lock = threading.RLock()
        self._beat = 0
        self._stopped = threading.Event()
        lease.until_s = seat.lease_s
        self._thread = threading.Thread(
            target=self._run, name=f"headrace-signs-{seat.member}", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    @property
    def heartbeat_s(self) -> float:
        """How often the group is told: as the settings say, but often enough for its session."""
        return min(self._heartbeat_s, self._seat.timeout_s / 3)

    def sign(self) -> bool:
        """Give a sign of life; False if it is too late for one."""
        with self._lock:
            began_s = self._clock()
            if self._seat.in_doubt(began_s):
                self._lease.until_s = self._seat.lease_s
                return False
            if self._gave_sign():
                self._seat.signed(began_s)
                self._lease.until_s = self._seat.lease_s
            return True

    def _run(self) -> None:
        while not self._stopped.wait(self.heartbeat_s / SIGNS_PER_HEARTBEAT):
            if not self.sign():
                return

    def _gave_sign(self) -> bool:
        self._beat += 1
        seat = self._seat
        try:
            self._liveness.beat(self._group, seat.member, seat.incarnation, self._beat)
        except HeadraceError as why:
            log.warning("group=%s member=%s: no sign of life: %s", self._group, seat.member, why)
            return False
        return True
