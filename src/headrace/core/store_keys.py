"""Keys of the store. Their layouts are fixed and hold no user text: a name is stored as its
digest."""

from __future__ import annotations

import hashlib
import struct

KEY_BYTES_MAX = 64
DIGEST_BYTES = 16

GROUPS = b"g"
"""The prefix of the keys that hold groups."""

_SHARD = struct.Struct(">II")
_GROUP_AT = 1 + _SHARD.size


def digest(text: str | bytes) -> bytes:
    """16 bytes that stand for a name or for a key of a user."""
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def group_key(group: str) -> bytes:
    return GROUPS + digest(group)


def journal_prefix(group: str) -> bytes:
    """The prefix of the keys that hold the journal entries of a group."""
    return b"j" + digest(group) + b"e"


def journal_key(group: str, slot: int) -> bytes:
    return journal_prefix(group) + slot.to_bytes(2, "big")


def snapshot_prefix(group: str) -> bytes:
    return b"j" + digest(group) + b"s"


def snapshot_key(group: str, slot: int) -> bytes:
    return snapshot_prefix(group) + slot.to_bytes(1, "big")


def epoch_token(epoch: int) -> bytes:
    """The token of a grant under this epoch. A commit is checked by it."""
    return epoch.to_bytes(8, "big")


def epoch_of(token: bytes) -> int:
    """The epoch of a token that `epoch_token` made."""
    return int.from_bytes(token, "big")


def epoch_key(group: str, stream_id: int, shard: int) -> bytes:
    """The key that holds the token of the present grant. A commit is checked against it."""
    return b"e" + _place(group, stream_id, shard)


def checkpoint_key(group: str, stream_id: int, shard: int) -> bytes:
    return b"c" + _place(group, stream_id, shard)


def checkpoint_prefix(stream_id: int | None = None, shard: int | None = None) -> bytes:
    """What the keys of all checkpoints begin with, or of those in one shard."""
    if stream_id is None or shard is None:
        return b"c"
    return b"c" + _SHARD.pack(stream_id, shard)


def attempts_key(group: str, stream_id: int, shard: int) -> bytes:
    return b"a" + _place(group, stream_id, shard)


def state_prefix(group: str, stream_id: int, shard: int) -> bytes:
    return b"k" + _place(group, stream_id, shard)


def state_key(group: str, stream_id: int, shard: int, name: bytes) -> bytes:
    return state_prefix(group, stream_id, shard) + digest(name)


def story_prefix(group: str, stream_id: int, shard: int) -> bytes:
    return b"s" + _place(group, stream_id, shard)


def story_key(group: str, stream_id: int, shard: int, slot: int) -> bytes:
    return story_prefix(group, stream_id, shard) + slot.to_bytes(2, "big")


def of_log(identity: str) -> bytes:
    """The prefix of all keys of a log whose groups live in the store of another place."""
    return b"l" + digest(identity)


def story_prefix_beside(checkpoint_key: bytes) -> bytes:
    """What the keys of the stories begin with that led to this checkpoint."""
    return b"s" + checkpoint_key[1:]


def story_slot(key: bytes) -> int:
    """The slot at the end of a story's key."""
    return int.from_bytes(key[-2:], "big")


def shard_of(key: bytes) -> tuple[int, int]:
    """The stream id and the shard in a key that a group keeps for a shard."""
    stream_id, shard = _SHARD.unpack_from(key, 1)
    return stream_id, shard


def group_key_of(key: bytes) -> bytes:
    """The key of the group that keeps this key for a shard."""
    return b"g" + key[_GROUP_AT : _GROUP_AT + DIGEST_BYTES]


def producer_prefix(stream_id: int) -> bytes:
    return b"p" + stream_id.to_bytes(4, "big")


def producer_key(stream_id: int, producer: str) -> bytes:
    return producer_prefix(stream_id) + digest(producer)


def stream_prefixes(stream_id: int) -> list[bytes]:
    """The prefixes of all keys that belong to a stream and are deleted with it."""
    return [kind + stream_id.to_bytes(4, "big") for kind in (b"a", b"e", b"c", b"k", b"s", b"p")]


def shard_keys_of(stream_id: int) -> list[bytes]:
    """The prefixes of the keys that groups keep for the shards of a stream."""
    return [kind + stream_id.to_bytes(4, "big") for kind in (b"a", b"e", b"c", b"k", b"s")]


def is_of(key: bytes, group: str) -> bool:
    """Whether a key for a shard belongs to this group."""
    return key[_GROUP_AT:].startswith(digest(group))


def _place(group: str, stream_id: int, shard: int) -> bytes:
    return _SHARD.pack(stream_id, shard) + digest(group)
