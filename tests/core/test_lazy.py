"""Properties that are worked out once, whatever other threads work out."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from headrace.core.lazy import lazy
from headrace.core.records.batch import Batch
from headrace.core.records.build import keyed_batch
from headrace.core.records.row import Row


class Sum:
    """Counts how often it is worked out."""

    worked_out = 0

    @lazy
    def total(self) -> int:
        """Of it all."""
        self.worked_out += 1
        return 42


def test_a_lazy_property_is_worked_out_once() -> None:
    found = Sum()
    assert (found.total, found.total, found.worked_out) == (42, 42, 1)
    assert Sum.total.__doc__ == "Of it all."


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless")
def test_two_that_ask_for_each_other_do_not_stop_two_threads() -> None:
    """`rows` of a batch made of Arrow asks for `flags`, `flags` of one made of rows for `rows`."""
    columns = keyed_batch([b"key"] * 50, [b"data"] * 50, 1).columns
    rows = [Row(b"key", b"data", 1)] * 5

    def repeated(work: Callable[[], object]) -> threading.Thread:
        def loop() -> None:
            for _ in range(4_000):
                work()

        return threading.Thread(target=loop, daemon=True)

    threads = [
        repeated(lambda: Batch.of_arrow(columns).rows),
        repeated(lambda: Batch.of_rows(rows).flags),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
