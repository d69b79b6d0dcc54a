"""Codecs by name: the built-in ones, those of the entry point ``headrace.codecs``, and those that a
program registers."""

from __future__ import annotations

from importlib.metadata import entry_points

from headrace.codec.plain import BytesCodec, JsonCodec, TextCodec
from headrace.core.errors import BadSetting, UnknownCodec
from headrace.core.names import checked_name
from headrace.core.ports import Codec

_codecs: dict[str, Codec] = {
    codec.name: codec for codec in (BytesCodec(), TextCodec(), JsonCodec())
}


def register_codec(codec: Codec) -> None:
    """Make a codec known to this process under its name. It replaces a codec of the same name.

    >>> import headrace
    >>> class Rot13:
    ...     name = "rot13"
    ...     def encode(self, value): return value.translate(_ROT13).encode()
    ...     def decode(self, data): return data.decode().translate(_ROT13)
    >>> _ROT13 = str.maketrans("abcdefghijklmnopqrstuvwxyz", "nopqrstuvwxyzabcdefghijklm")
    >>> headrace.register_codec(Rot13())
    """
    name = getattr(codec, "name", None)
    works = all(callable(getattr(codec, verb, None)) for verb in ("encode", "decode"))
    if not isinstance(name, str) or not works or isinstance(codec, type):
        raise BadSetting(
            f"{codec!r} is no codec: give an object with a name, encode(value) and decode(data)"
        )
    _codecs[checked_name(name)] = codec


def find_codec(name: str) -> Codec:
    """The codec called ``name``; else `UnknownCodec`."""
    if not isinstance(name, str):
        raise UnknownCodec(name, codec_names())
    if name not in _codecs:
        for entry in entry_points(group="headrace.codecs", name=name):
            made = entry.load()
            register_codec(made() if isinstance(made, type) else made)
    if name not in _codecs:
        raise UnknownCodec(name, codec_names())
    return _codecs[name]


def codec_names() -> list[str]:
    return sorted({*_codecs, *(entry.name for entry in entry_points(group="headrace.codecs"))})
