from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import BadSetting
from headrace.core.model import HASH_END, ROUTINGS, Shard, even_shards
from headrace.core.records.routing import java_hash, md5_hash, murmur2, router


@pytest.mark.parametrize(
    ("key", "value", "of_5", "of_12"),
    [
        ("", 0, 0, 0),
        ("foo", 101_574, 4, 6),
        ("bar", 97_299, 4, 3),
        ("key", 106_079, 4, 11),
        ("key1", 3_288_498, 3, 6),
        ("é", 233, 3, 5),
        ("polygenelubricants", -2_147_483_648, 0, 0),
    ],
)
def test_java_hash_is_that_of_java_strings(key: str, value: int, of_5: int, of_12: int) -> None:
    assert java_hash(key.encode()) == value
    assert router("java-hash", even_shards(5))(key.encode()) == of_5
    assert router("java-hash", even_shards(12))(key.encode()) == of_12


def test_java_hash_sees_utf_16_and_any_bytes() -> None:
    pair = 31 * 0xD83D + 0xDE00  # the two units of one character beyond 16 bits
    assert java_hash("\U0001f600".encode()) == pair
    assert java_hash(b"\xff") == 0xDCFF


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("21", -973_932_308),
        ("foobar", -790_332_482),
        ("a-little-bit-long-string", -985_981_536),
        ("a-little-bit-longer-string", -1_486_304_829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
        ("abc", 479_470_107),
    ],
)
def test_murmur2_is_that_of_kafkas_java_client(key: str, value: int) -> None:
    assert murmur2(key.encode()) == value
    for count in (1, 5, 12):
        chosen = router("murmur2", even_shards(count))(key.encode())
        assert chosen == (value & 0x7FFFFFFF) % count


def test_md5_hash_is_the_digest_as_a_number() -> None:
    assert md5_hash(b"") == 0xD41D8CD98F00B204E9800998ECF8427E
    assert md5_hash(b"ann") == int(hashlib.md5(b"ann").hexdigest(), 16)


@given(st.binary(), st.integers(1, 64))
def test_md5_range_chooses_the_shard_whose_range_holds_the_hash(key: bytes, count: int) -> None:
    shards = even_shards(count)
    chosen = router("md5-range", shards)(key)
    assert shards[chosen].begin <= md5_hash(key) < shards[chosen].end


@given(st.binary())
def test_md5_range_is_exact_at_the_edge_of_a_range(key: bytes) -> None:
    value = md5_hash(key)
    for edge, chosen in ((value, 1), (value + 1, 0)):
        shards = (Shard(0, 0, edge), Shard(1, edge, HASH_END))
        assert router("md5-range", shards)(key) == chosen


@pytest.mark.parametrize("count", range(1, 65))
def test_every_hash_has_exactly_one_shard(count: int) -> None:
    shards = even_shards(count)
    edges = {edge for shard in shards for edge in (shard.begin, shard.end - 1)}
    for value in edges | {0, HASH_END - 1, HASH_END // 3}:
        assert len([s for s in shards if s.begin <= value < s.end]) == 1


@pytest.mark.parametrize("routing", ROUTINGS)
def test_closed_shards_are_not_chosen(routing: str) -> None:
    # Shard 1 of 0..2 was split in two.
    first, split, last = even_shards(3)
    middle = (split.begin + split.end) // 2
    shards = (
        first,
        replace(split, open=False),
        last,
        Shard(3, middle, split.end, parents=(1,)),
        Shard(4, split.begin, middle, parents=(1,)),
    )
    route = router(routing, shards)
    keys = [b"key %d" % i for i in range(400)]
    assert {route(key) for key in keys} == {0, 2, 3, 4}
    if routing == "md5-range":
        for key in keys:
            chosen = shards[route(key)]
            assert chosen.begin <= md5_hash(key) < chosen.end


def test_modulo_routings_count_the_open_shards_only() -> None:
    shards = tuple(replace(shard, open=shard.index != 0) for shard in even_shards(4))
    assert router("java-hash", shards)(b"foo") == [1, 2, 3][101_574 % 3]
    assert router("murmur2", shards)(b"abc") == [1, 2, 3][479_470_107 % 3]


def test_an_unknown_routing_is_refused() -> None:
    with pytest.raises(BadSetting, match="one of md5-range, java-hash, murmur2"):
        router("random", even_shards(1))
