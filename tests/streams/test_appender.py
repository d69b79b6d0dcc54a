"""What a record that an appender has taken says about itself."""

from __future__ import annotations

import pytest

import headrace
from headrace.core.errors import UnknownStream

WAIT_S = 30


def test_a_record_that_is_durable_has_no_exception() -> None:
    with (
        headrace.open("memory:") as hub,
        hub.create_stream("a", shards=1).appender(linger="0s") as out,
    ):
        pending = out.append(b"x")
        assert pending.exception(WAIT_S) is None
        assert pending.done()
        assert pending.result(0) == headrace.RecordId("a", 0, 0)
        assert pending.exception() is None


def test_the_exception_of_a_record_is_the_error_that_its_result_raises() -> None:
    with headrace.open("memory:") as hub:
        out = hub.create_stream("a", shards=1).appender(linger="0s")
        hub.delete_stream("a")
        pending = out.append(b"x")
        error = pending.exception(WAIT_S)
        assert isinstance(error, UnknownStream)
        assert pending.done()
        with pytest.raises(UnknownStream) as raised:
            pending.result()
        assert raised.value is error
        with pytest.raises(UnknownStream):
            out.close()


def test_exception_and_result_give_up_after_the_time() -> None:
    with (
        headrace.open("memory:") as hub,
        hub.create_stream("a", shards=1).appender(linger="1h") as out,
    ):
        pending = out.append(b"x")
        for wait in (pending.exception, pending.result):
            with pytest.raises(TimeoutError, match="a record for a:0 is not written yet"):
                wait("1ms")
        assert not pending.done()
        out.flush()
        assert pending.exception() is None
