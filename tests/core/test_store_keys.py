from __future__ import annotations

from headrace.core import store_keys


def test_keys_of_the_store_have_fixed_layouts_and_no_user_text() -> None:
    group = "billing " * 50
    made = {
        "epoch": store_keys.epoch_key(group, 1, 2),
        "checkpoint": store_keys.checkpoint_key(group, 1, 2),
        "state": store_keys.state_key(group, 1, 2, b"ann"),
        "story": store_keys.story_key(group, 1, 2, 513),
        "producer": store_keys.producer_key(1, "p" * 500),
        "journal": store_keys.journal_key(group, 255),
        "snapshot": store_keys.snapshot_key(group, 2),
    }
    assert {name: (key[:1], len(key)) for name, key in made.items()} == {
        "epoch": (b"e", 25),
        "checkpoint": (b"c", 25),
        "state": (b"k", 41),
        "story": (b"s", 27),
        "producer": (b"p", 21),
        "journal": (b"j", 20),
        "snapshot": (b"j", 19),
    }
    assert all(len(key) <= store_keys.KEY_BYTES_MAX for key in made.values())


def test_keys_are_what_is_on_disk() -> None:
    billing = bytes.fromhex("82885a0c29db7bad98201c40b8006d8c")
    shard = b"\0\0\0\7\0\0\1\0"
    assert store_keys.digest("billing") == billing
    assert store_keys.epoch_key("billing", 7, 256) == b"e" + shard + billing
    assert store_keys.checkpoint_key("billing", 7, 256) == b"c" + shard + billing
    assert store_keys.state_prefix("billing", 7, 256) == b"k" + shard + billing
    assert store_keys.state_key("billing", 7, 256, b"billing") == b"k" + shard + billing + billing
    assert store_keys.story_key("billing", 7, 256, 513) == b"s" + shard + billing + b"\2\1"
    assert store_keys.producer_key(7, "billing") == b"p\0\0\0\7" + billing
    assert store_keys.journal_key("billing", 255) == b"j" + billing + b"e\0\xff"
    assert store_keys.snapshot_key("billing", 2) == b"j" + billing + b"s\2"


def test_text_and_its_bytes_have_one_digest_and_other_text_another() -> None:
    assert store_keys.digest("é") == store_keys.digest("é".encode())
    assert store_keys.digest("\udcff") == store_keys.digest(b"\xff")
    assert len({store_keys.digest(text) for text in ("", "a", "A", "a/b", "ab")}) == 5


def test_the_keys_of_a_shard_are_found_by_its_prefix() -> None:
    assert store_keys.state_key("g", 1, 2, b"ann").startswith(store_keys.state_prefix("g", 1, 2))
    assert store_keys.story_key("g", 1, 2, 3).startswith(store_keys.story_prefix("g", 1, 2))
    other = store_keys.state_key("g", 1, 3, b"ann")
    assert not other.startswith(store_keys.state_prefix("g", 1, 2))


def test_all_that_belongs_to_a_stream_is_found_by_its_prefixes() -> None:
    prefixes = tuple(store_keys.stream_prefixes(7))
    for stream_id, belongs in ((7, True), (8, False)):
        for key in (
            store_keys.epoch_key("g", stream_id, 1),
            store_keys.checkpoint_key("g", stream_id, 1),
            store_keys.state_key("g", stream_id, 1, b"ann"),
            store_keys.story_key("g", stream_id, 1, 3),
            store_keys.producer_key(stream_id, "p"),
        ):
            assert key.startswith(prefixes) is belongs


def test_stories_are_ordered_by_their_slot() -> None:
    slots = [0, 1, 255, 256, 1023]
    made = [store_keys.story_key("g", 1, 2, slot) for slot in slots]
    assert made == sorted(made)


def test_a_checkpoint_leads_to_its_group_its_shard_and_its_stories() -> None:
    checkpoint = store_keys.checkpoint_key("g", 7, 256)
    assert checkpoint.startswith(store_keys.checkpoint_prefix())
    assert checkpoint.startswith(store_keys.checkpoint_prefix(7, 256))
    assert not checkpoint.startswith(store_keys.checkpoint_prefix(7, 2))
    assert store_keys.shard_of(checkpoint) == (7, 256)
    assert store_keys.group_key_of(checkpoint) == store_keys.group_key("g")
    assert store_keys.story_prefix_beside(checkpoint) == store_keys.story_prefix("g", 7, 256)
    assert store_keys.story_slot(store_keys.story_key("g", 7, 256, 513)) == 513
