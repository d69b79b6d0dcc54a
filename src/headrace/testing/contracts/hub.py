"""Promises of a hub about its streams, on every backend."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from headrace.core.errors import (
    BadName,
    BadSetting,
    HeadraceError,
    StreamExists,
    UnknownCodec,
    UnknownStream,
    Unsupported,
)
from headrace.hub.hub import Hub
from headrace.testing.contracts.backend_under_test import BackendUnderTest


class HubContract(BackendUnderTest):
    def test_a_missing_split_or_merge_is_refused_with_the_reason(self, hub: Hub) -> None:
        stream = hub.create_stream("a", shards=2)
        missing = hub.capabilities.missing
        with pytest.raises(Unsupported) as split:
            stream.split(0)
        with pytest.raises(Unsupported) as merge:
            stream.merge(0, 1)
        assert missing["split"] in str(split.value)
        assert missing["merge"] in str(merge.value)
        with pytest.raises(HeadraceError, match="2"):
            stream.split(2)

    def test_exist_ok_keeps_the_shards_of_an_existing_stream_and_logs_it(
        self, hub: Hub, caplog: pytest.LogCaptureFixture
    ) -> None:
        first = hub.create_stream("a", shards=4, codec="json")
        with caplog.at_level(logging.WARNING, "headrace"):
            again = hub.create_stream("a", shards=12, codec="json", exist_ok=True)
        assert again.info == first.info
        assert caplog.messages == [
            "stream=a: exists with 4 shards and keeps them; 12 were asked for"
        ]

    def test_exist_ok_refuses_a_stream_with_another_codec_or_routing(self, hub: Hub) -> None:
        hub.create_stream("a", codec="json")
        with pytest.raises(StreamExists, match="'a'"):
            hub.create_stream("a", codec="json")
        for codec, routing in (("text", "md5-range"), ("json", "murmur2")):
            with pytest.raises(StreamExists, match="exists with codec 'json'"):
                hub.create_stream("a", codec=codec, routing=routing, exist_ok=True)
        assert [info.codec for info in hub.streams()] == ["json"]

    def test_a_stream_is_found_listed_and_deleted_by_its_name(self, hub: Hub) -> None:
        made = hub.create_stream("shop/orders", retention="7d", retention_bytes="1GiB")
        assert hub.stream("shop/orders").info == made.info
        assert hub.streams() == [made.info]
        assert (made.info.retention_s, made.info.retention_bytes) == (604_800.0, 2**30)
        made.append(b"x")
        hub.delete_stream("shop/orders")
        assert hub.streams() == []
        for call in (
            lambda: hub.stream("shop/orders"),
            lambda: hub.delete_stream("shop/orders"),
            lambda: made.append(b"x"),
            lambda: made.append_many([(b"x", None)]),
            lambda: made.bounds(0),
            lambda: made.read(0),
        ):
            with pytest.raises(UnknownStream, match="'shop/orders'"):
                call()

    @pytest.mark.parametrize(
        ("settings", "error"),
        [
            ({"name": "a b"}, BadName),
            ({"name": None}, BadName),
            ({"codec": "no-such"}, UnknownCodec),
            ({"codec": None}, UnknownCodec),
            ({"routing": "random"}, BadSetting),
            ({"shards": 0}, BadSetting),
            ({"shards": True}, BadSetting),
            ({"shards": 2.0}, BadSetting),
            ({"retention": "0s"}, BadSetting),
            ({"retention": "soon"}, HeadraceError),
            ({"retention_bytes": -1}, HeadraceError),
        ],
        ids=str,
    )
    def test_bad_stream_settings_are_refused(
        self, hub: Hub, settings: dict[str, Any], error: type[Exception]
    ) -> None:
        with pytest.raises(error):
            hub.create_stream(**{"name": "a", **settings})
        assert hub.streams() == []
