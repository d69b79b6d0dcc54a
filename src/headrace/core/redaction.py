"""Addresses of hubs as they may be shown: without their secrets."""

from __future__ import annotations

import re

HIDDEN = "***"

_SECRET = re.compile(
    r"password|passphrase|secret|token|jaas|key\.pem|oauthbearer\.config", re.IGNORECASE
)
_HEX = re.compile(r"%([0-9a-fA-F]{2})")


def is_secret(name: str) -> bool:
    """Whether the value of the setting called ``name`` must not be shown."""
    return _SECRET.search(name) is not None


def shown_place(text: str) -> str:
    """The address with every secret setting and every password before a host hidden.

    >>> shown_place("kafka://broker:9092?sasl.username=ann&sasl.password=pw")
    'kafka://broker:9092?sasl.username=ann&sasl.password=***'
    """
    address, question, query = text.partition("?")
    shown: list[str] = []
    for setting in query.split("&"):
        # A setting without a name is the rest of a value that an unescaped & has cut.
        cut_off = "=" not in setting and shown and shown[-1].endswith(HIDDEN)
        if not cut_off:
            shown.append(_shown(setting))
    return _without_password(address) + question + "&".join(shown)


def _shown(setting: str) -> str:
    name, equals, _ = setting.partition("=")
    plain = _HEX.sub(lambda found: chr(int(found[1], 16)), name)
    return f"{name}={HIDDEN}" if equals and is_secret(plain) else setting


def _without_password(address: str) -> str:
    scheme, slashes, rest = address.partition("://")
    user, at, hosts = rest.rpartition("@")
    if not slashes or not at:
        return address
    name, colon, _ = user.partition(":")
    return f"{scheme}://{name}{colon}{HIDDEN if colon else ''}@{hosts}"
