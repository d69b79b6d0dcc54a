"""What a client complains about that concerns the records it was asked for."""

from __future__ import annotations

import re

from confluent_kafka import KafkaError

from headrace.backends.kafka.clients import Hear

RECEIVED_MAX = "receive.message.max.bytes"
_OVERSIZED = re.compile(rf"Invalid response size (\d+) \(0\.\.(\d+)\): increase {RECEIVED_MAX}")


class Complaints:
    """Those of one client, which tells them apart from records; all are handed on."""

    def __init__(self, hand_on: Hear) -> None:
        self._hand_on = hand_on
        self.oversized: tuple[int, int] | None = None
        """The size of an answer that it does not take, and the size that it would take."""

    def hear(self, error: KafkaError) -> None:
        found = _OVERSIZED.search(error.str())
        if found is not None:
            self.oversized = int(found[1]), int(found[2])
        self._hand_on(error)
