"""Promises about stored values: a transaction writes all of them if its checks hold, or none."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headrace.core.errors import BadSetting
from headrace.core.ports import ABSENT, GroupStore, Log, Store
from headrace.core.store_keys import KEY_BYTES_MAX
from headrace.core.transaction import VALUE_BYTES_MAX
from headrace.groups.home import home_of
from headrace.testing.contracts.backend_under_test import WAIT_S, BackendUnderTest, Opening, lacks


def _version(store: Store, key: bytes) -> int:
    found = store.get(key)
    return ABSENT if found is None else found.version


class StoreContract(BackendUnderTest):
    def test_a_value_is_found_until_it_is_removed(self, store: GroupStore | None) -> None:
        if store is None:
            return
        assert store.get(b"k") is None
        assert store.transact({}, {b"k": b"v", b"empty": b"", b"\x00\xff": bytes(range(256))})
        found = {key: found.value for key, found in store.scan(b"")}
        assert found == {b"\x00\xff": bytes(range(256)), b"empty": b"", b"k": b"v"}
        got = store.get(b"k")
        assert got is not None
        assert got.value == b"v"
        assert store.transact({}, {b"k": None, b"never": None})
        assert store.get(b"k") is None

    def test_of_two_writes_that_check_one_version_the_second_is_refused(
        self, store: GroupStore | None
    ) -> None:
        if store is None:
            return
        assert store.transact({b"k": ABSENT}, {b"k": b"0"})
        seen = _version(store, b"k")
        assert seen != ABSENT
        assert store.transact({b"k": seen}, {b"k": b"1", b"of the first": b""})
        assert not store.transact({b"k": seen}, {b"k": b"2", b"of the second": b""})
        values = {key: found.value for key, found in store.scan(b"")}
        assert values == {b"k": b"1", b"of the first": b""}

    def test_a_key_that_must_not_exist_is_created_once(self, store: GroupStore | None) -> None:
        if store is None:
            return
        assert store.transact({b"k": ABSENT}, {b"k": b"first"})
        assert not store.transact({b"k": ABSENT}, {b"k": b"second"})
        assert [found.value for _, found in store.scan(b"k")] == [b"first"]

    def test_one_failed_check_among_many_refuses_all(self, store: GroupStore | None) -> None:
        if store is None:
            return
        store.transact({}, {b"a": b"", b"b": b""})
        checks = {key: _version(store, key) for key in (b"a", b"b")}
        before = list(store.scan(b""))
        assert not store.transact({**checks, b"c": 1}, {b"a": b"x", b"b": None, b"d": b"x"})
        assert list(store.scan(b"")) == before
        assert store.transact({**checks, b"c": ABSENT}, {b"a": b"x", b"b": None, b"d": b"x"})
        assert [key for key, _ in store.scan(b"")] == [b"a", b"d"]

    def test_a_transaction_without_puts_says_whether_its_checks_hold(
        self, store: GroupStore | None
    ) -> None:
        if store is None:
            return
        store.transact({}, {b"a": b""})
        assert store.transact({b"a": _version(store, b"a")}, {})
        assert not store.transact({b"a": ABSENT}, {})

    def test_the_version_can_be_read_without_the_value(self, store: GroupStore | None) -> None:
        if store is None:
            return
        assert store.version(b"k") == ABSENT
        for value in (b"a", b"", b"a"):
            store.transact({}, {b"k": value})
            assert store.version(b"k") == _version(store, b"k")
        store.transact({}, {b"k": None})
        assert store.version(b"k") == ABSENT

    def test_versions_are_never_reused(self, store: GroupStore | None) -> None:
        if store is None:
            return
        seen: list[int] = []
        for value in (b"a", b"a", None, b"a", b"b", None, None, b"a"):
            store.transact({}, {b"k": value})
            if value is not None:
                seen.append(_version(store, b"k"))
        assert ABSENT not in seen
        assert len(set(seen)) == len(seen)

    def test_versions_are_never_reused_after_a_restart(self, opening: Opening) -> None:
        backend = opening()
        if lacks(backend, "durable", lambda: backend.capabilities.require("durable")) or lacks(
            backend, "store", lambda: home_of(backend)
        ):
            backend.close()
            return
        seen: list[int] = []
        for value in (b"a", None, b"a"):
            assert backend.store is not None
            backend.store.transact({}, {b"k": value})
            seen.append(_version(backend.store, b"k"))
            backend.close()
            backend = opening()
            assert backend.store is not None
            assert _version(backend.store, b"k") == seen[-1]
        backend.close()
        assert seen[1] == ABSENT
        assert len(set(seen)) == 3

    def test_a_scan_finds_a_prefix_in_order(self, store: GroupStore | None) -> None:
        if store is None:
            return
        keys = [b"a", b"a\x00", b"a\xff", b"a\xff\xff", b"b", b"\xff\xff"]
        store.transact({}, {key: key for key in reversed(keys)})
        for prefix in (b"", b"a", b"a\xff", b"\xff", b"c"):
            found = [(key, versioned.value) for key, versioned in store.scan(prefix)]
            assert found == [(key, key) for key in sorted(keys) if key.startswith(prefix)]

    def test_a_scan_is_a_snapshot(self, store: GroupStore | None) -> None:
        if store is None:
            return
        store.transact({}, {b"a": b"1", b"b": b"1"})
        scanning = store.scan(b"")
        store.transact({}, {b"a": b"2", b"b": b"2"})
        assert [found.value for _, found in scanning] == [b"1", b"1"]

    def test_no_update_is_lost_between_threads(self, store: GroupStore | None) -> None:
        if store is None:
            return
        shared = store

        def count(_: int) -> None:
            done = 0
            while done < 10:
                found = shared.get(b"k")
                value, version = (0, ABSENT) if found is None else (int(found.value), found.version)
                done += shared.transact({b"k": version}, {b"k": b"%d" % (value + 1)})

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(count, range(4), timeout=WAIT_S))
        assert [found.value for _, found in shared.scan(b"k")] == [b"40"]

    def test_keys_and_values_have_limits(self, store: GroupStore | None) -> None:
        if store is None:
            return
        longest, largest = b"k" * KEY_BYTES_MAX, b"v" * VALUE_BYTES_MAX
        assert store.transact({longest: ABSENT}, {longest: largest})
        before = list(store.scan(b""))
        assert [found.value for _, found in before] == [largest]
        key_refused = r"a store key of (0|65) bytes: 1 to 64 bytes"
        for key in (b"", longest + b"k"):
            with pytest.raises(BadSetting, match=key_refused):
                store.transact({}, {b"a": b"", key: b""})
            with pytest.raises(BadSetting, match=key_refused):
                store.transact({key: ABSENT}, {b"a": b""})
            assert store.get(key) is None
        with pytest.raises(
            BadSetting, match="a stored value of 1048577 bytes: at most 1048576 bytes"
        ):
            store.transact({}, {b"a": b"", b"b": largest + b"v"})
        bad: list[Any] = [{"k": b""}, {5: None}, {b"k": "text"}, {b"k": 5}]
        for puts in bad:
            with pytest.raises(BadSetting, match=r"of (str|int): "):
                store.transact({}, {b"a": b"", **puts})
        assert list(store.scan(b"")) == before

    def test_writing_a_value_wakes_waiting_readers(
        self, log: Log, store: GroupStore | None
    ) -> None:
        one_place: object = log
        if store is not one_place or store is None:
            return
        seen = log.changes()
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(log.wait, seen, 2 * WAIT_S)
            store.transact({}, {b"k": b"v"})
            assert waiting.result(WAIT_S) != seen
