"""The settings of a hub on Kafka: brokers, prefix and properties, from a URL and a mapping."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from headrace.core.errors import BadHub, BadSetting
from headrace.core.quantities import seconds, size_bytes
from headrace.core.redaction import is_secret

Property = str | int | float | bool

SCHEME = "kafka://"
PORT_DEFAULT = 9092
_PREFIX = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", re.ASCII)
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+)(:[0-9]{1,5})?", re.ASCII)

_BROKERS = "write the brokers into the URL, as in kafka://host:9092,host2:9092"
_READING = "Headrace decides where a read begins, and reads what is committed"
_CHECKPOINTS = "Headrace stores checkpoints itself"
_CODE = "a call cannot be given as a setting"
_WRITING = "an append is acknowledged by all replicas and never doubled"
_WAITING = "use write_timeout"
OURS = {
    "bootstrap.servers": _BROKERS,
    "metadata.broker.list": _BROKERS,
    "auto.offset.reset": _READING,
    "isolation.level": _READING,
    "enable.partition.eof": _READING,
    "enable.auto.commit": _CHECKPOINTS,
    "auto.commit.enable": _CHECKPOINTS,
    "auto.commit.interval.ms": _CHECKPOINTS,
    "enable.auto.offset.store": _CHECKPOINTS,
    "group.id": _CHECKPOINTS,
    "group.instance.id": _CHECKPOINTS,
    "acks": _WRITING,
    "request.required.acks": _WRITING,
    "enable.idempotence": _WRITING,
    "enable.gapless.guarantee": _WRITING,
    "transactional.id": _WRITING,
    "delivery.report.only.error": _WRITING,
    "message.timeout.ms": _WAITING,
    "delivery.timeout.ms": _WAITING,
    "plugin.library.paths": "code is not loaded by a setting",
    "ssl.engine.location": "code is not loaded by a setting",
    "ssl.providers": "code is not loaded by a setting",
    **dict.fromkeys(
        (
            "error_cb", "stats_cb", "throttle_cb", "oauth_cb", "on_commit", "on_delivery", "logger",
            "partitioner", "partitioner_cb",
        ),
        _CODE,
    ),
}  # fmt: skip
"""Properties that Headrace sets itself, and why the caller cannot."""
OWN = ("fetch_max", "native", "write_timeout")
"""Settings of Headrace among the properties."""


@dataclass(frozen=True, repr=False)
class KafkaSettings:
    """The settings that a hub on Kafka is opened with. Their text form holds no secret."""

    brokers: tuple[str, ...]
    prefix: str = ""
    """What the topics of this hub begin with, its last dot included."""
    properties: Mapping[str, Property] = field(default_factory=dict)
    fetch_max: int = 0
    """The largest record that a read takes; 0: any."""
    write_timeout_s: float | None = None
    """How long a call waits for brokers that do not answer; None: the default of the backend."""
    native: bool = True
    """Whether records move without a Python object for each, where ``columns.c`` was built."""

    @classmethod
    def of(cls, url: str, more: Mapping[str, object] | None = None) -> KafkaSettings:
        """The settings in a URL, and in a mapping of properties given beside it."""
        rest, _, query = url[len(SCHEME) :].partition("?")
        if "@" in rest:
            # Checked first: another refusal could show a part of the password.
            raise BadHub(
                "a user in a kafka URL: write ?security.protocol=SASL_SSL&sasl.mechanism=PLAIN"
                "&sasl.username=…&sasl.password=… behind the brokers"
            )
        hosts, _, prefix = rest.partition("/")
        given: dict[str, object] = {}
        if not isinstance(more, Mapping | None):
            raise BadSetting(f"settings {type(more).__name__}: a mapping from names to values")
        for name, value in (*_pairs(query), *(more or {}).items()):
            if not isinstance(name, str):
                raise BadSetting(f"kafka setting {name!r}: a name is text, as in 'linger.ms'")
            if name in given:
                raise BadSetting(f"kafka setting {name!r} is given twice: leave one out")
            given[name] = value
        fetch_max = given.pop("fetch_max", 0)
        timeout = given.pop("write_timeout", None)
        native = str(given.pop("native", True)).lower()
        if native not in ("true", "false"):
            raise BadSetting(f"native {native!r}: true or false")
        timeout_s = None if timeout is None else seconds(timeout, what="write_timeout")  # type: ignore[arg-type]
        if timeout_s == 0:
            raise BadSetting("write_timeout 0: a call takes some time, as in '30s'")
        return cls(
            brokers=tuple(_broker(host) for host in hosts.split(",")),
            prefix=_prefix(prefix),
            properties={name: _checked(name, value) for name, value in given.items()},
            fetch_max=size_bytes(fetch_max, what="fetch_max"),  # type: ignore[arg-type]
            write_timeout_s=timeout_s,
            native=native == "true",
        )

    @property
    def bootstrap(self) -> str:
        return ",".join(self.brokers)

    def __str__(self) -> str:
        where = SCHEME + self.bootstrap
        return f"{where}/{self.prefix.removesuffix('.')}" if self.prefix else where

    def __repr__(self) -> str:
        return f"<KafkaSettings {self}>"

    def without_secrets(self, text: str) -> str:
        """A text of the client in which secrets are replaced by …."""
        secrets = {str(value) for name, value in self.properties.items() if is_secret(name)}
        # The longest first: one secret may be a part of another.
        for secret in sorted(secrets - {""}, key=len, reverse=True):
            text = text.replace(secret, "…")
        return text


_LIKE_A_NAME = re.compile(
    r"[a-z]+(\.[a-z]+)+|acks|debug|fetch_max|native|partitioner|retries|write_timeout"
)
"""What looks like the name of a setting. Other text behind a password may be the rest of it."""


def _pairs(query: str) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for part in query.split("&") if query else []:
        name, equals, value = part.partition("=")
        behind_secret = bool(pairs) and is_secret(pairs[-1][0])
        if not name or not equals or (behind_secret and not _LIKE_A_NAME.fullmatch(unquote(name))):
            # The message does not show the part: it may be half of a password.
            raise BadSetting(
                "kafka settings in a URL are written name=value&name=value, with %26 for & and "
                "%23 for #"
            )
        # A plus stays a plus, unlike in forms: passwords hold some.
        try:
            pairs.append((unquote(name), unquote(value, errors="strict")))
        except UnicodeDecodeError:
            raise BadSetting(f"kafka setting {unquote(name)!r} in a URL is no UTF-8") from None
    return pairs


def _broker(host: str) -> str:
    found = _HOST.fullmatch(host)
    if found is None or int((found[2] or ":1")[1:]) not in range(1, 65536):
        # What stands where a port should be may be a password.
        shown = re.sub(r":[^:]*[^:0-9][^:]*$", ":…", host)
        hint = "; a # is written %23" if "#" in host else ""
        raise BadHub(
            f"bad broker {shown!r}: write host:port, as in kafka://host:9092,host2:9092{hint}"
        )
    return host if found[2] else f"{host}:{PORT_DEFAULT}"


def _prefix(text: str) -> str:
    text = unquote(text).removesuffix("/")
    if not text:
        return ""
    if "=" in text:
        raise BadHub(
            "settings behind the slash: write ? before them, as in kafka://host:9092?name=value"
        )
    if not _PREFIX.fullmatch(text) or "--" in text or text.startswith("__") or len(text) > 100:
        raise BadHub(
            f"bad prefix {text!r} behind the brokers: letters, digits, '.', '_' and '-', not "
            "'__' first, as in kafka://host:9092/team-a"
        )
    return text.removesuffix(".") + "."


def _checked(name: str, value: object) -> Property:
    if name in OURS:
        raise BadSetting(f"kafka setting {name!r} cannot be set: {OURS[name]}")
    if not isinstance(value, str | int | float | bool):
        raise BadSetting(
            f"kafka setting {name!r} is a {type(value).__name__}: text, a number or a truth value"
        )
    if "\0" in str(value):
        raise BadSetting(f"kafka setting {name!r} holds a zero byte, where the client would end it")
    return value
