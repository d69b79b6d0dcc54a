"""The settings of a run: which policy, concurrency and stream settings apply, and the checks of the
sections of ``headrace.toml``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from headrace.core.computations.computation import CONCURRENCY_MAX, Computation
from headrace.core.computations.policy import Policy
from headrace.core.computations.topology import Topology
from headrace.core.errors import BadSetting, Invalid
from headrace.core.model import ROUTINGS, SHARDS_MAX
from headrace.core.names import checked_name
from headrace.core.nearest import did_you_mean
from headrace.core.quantities import seconds, size_bytes
from headrace.core.session import HEARTBEAT_S_MIN, SESSION_S_MIN, check_heartbeat

LANES_MAX = 1_000
DEFAULT = "default"
_SECTIONS = ("hub", "run", "streams", "computations", "policies", "options", "spark")

Allocation = Literal["pool", "static"]
"""How shards are shared among lanes: any lane takes any shard, or each shard has its lane."""
Section = Mapping[str, Any]
Sections = Mapping[str, Section]


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The settings of a run, made by `headrace.read_settings`."""

    file: str = ""
    """The file that they were read from; empty if there is none."""
    hub: str | None = None
    lanes: int = 4
    allocation: Allocation = "pool"
    session_s: float = 10.0
    heartbeat_s: float = 3.0
    handler_s_max: float = 5.0
    """How long a hand-over waits for a handler; ``max_wait_handler`` in the file."""
    options: Mapping[str, Any] = field(default_factory=dict)
    streams: Sections = field(default_factory=dict)
    computations: Sections = field(default_factory=dict)
    policies: Sections = field(default_factory=dict)
    spark: Section = field(default_factory=dict)
    """The settings ``master``, ``remote``, ``ui`` and ``conf``."""

    @classmethod
    def of_sections(cls, told: Mapping[str, Any], file: str) -> RunSettings:
        """The settings that the sections of a file give; `BadSetting` names the file."""
        _check_keys(file, "", told, _SECTIONS)
        if not isinstance(told.get("hub"), str | None):
            raise BadSetting(f"{file}: hub = {told['hub']!r}: write it as text")
        return cls(
            file=file,
            hub=told.get("hub"),
            options=_section(file, "options", told.get("options", {})),
            streams=_named(file, "streams", told, _STREAM),
            computations=_named(file, "computations", told, _COMPUTATION),
            policies=_policies(file, told),
            spark=_spark(file, _section(file, "spark", told.get("spark", {}))),
            **_run(file, _section(file, "run", told.get("run", {}))),
        )

    def with_options(self, given: Mapping[str, Any]) -> RunSettings:
        """The settings with options of the command line, which win over those of the file."""
        return replace(self, options={**self.options, **given})

    def policy(self, computation: Computation) -> Policy:
        """The policy that applies to a computation: the section of its name wins over the policy in
        the code. Without one in the code, it wins over ``default``, and that over ``Policy()``."""
        base = computation.policy
        if base is None:
            base = Policy(**self.policies.get(DEFAULT, {}))
        return replace(base, **_of(self.policies, computation.name))

    def concurrency(self, computation: Computation) -> int | None:
        """How many lanes may work for a computation at once; None means all."""
        named = _of(self.computations, computation.name)
        usual = computation.concurrency
        if usual is None:
            usual = self.computations.get(DEFAULT, {}).get("concurrency")
        found: int | None = named.get("concurrency", usual)
        return found

    def stream(self, name: str, topology: Topology) -> dict[str, Any]:
        """The settings of a stream that does not exist yet, as `Hub.create_stream` takes them."""
        usual = self.streams.get(DEFAULT, {})
        return {**usual, **topology.declared.get(name, {}), **_of(self.streams, name)}

    def applied(self, topology: Topology) -> Topology:
        """The topology as it runs: with the policies, concurrencies and stream settings that
        apply."""
        made = {name: self.stream(name, topology) for name in _streams(topology)}
        return Topology(
            *(
                replace(each, policy=self.policy(each), concurrency=self.concurrency(each))
                for each in topology.computations
            ),
            streams={name: settings for name, settings in made.items() if settings},
            name=topology.name,
        )

    def unknown_names(self, topology: Topology) -> list[str]:
        """A line for each name in the file that the topology does not have. The name may belong to
        another topology; often it is a typing error."""
        known = [each.name for each in topology.computations]
        found = []
        for part, names, there in (
            ("streams", self.streams, _streams(topology)),
            ("computations", self.computations, known),
            ("policies", self.policies, known),
        ):
            for name in names:
                if name != DEFAULT and name not in there:
                    found.append(
                        f"{self.file}: [{part}.{_quoted(name)}]: topology={topology.name} has none "
                        f"of that name{did_you_mean(name, there)}"
                    )
        return found


def _check_keys(file: str, section: str, told: Iterable[str], known: Collection[str]) -> None:
    where = f"{file}: [{section}]" if section else file
    for key in told:
        if key not in known:
            raise BadSetting(
                f"{where}: unknown key {key!r}; known are {', '.join(known)}"
                f"{did_you_mean(key, known)}"
            )


def _section(file: str, name: str, told: object) -> dict[str, Any]:
    if not isinstance(told, dict):
        raise BadSetting(f"{file}: {name} = {told!r}: it is a section, [{name}]")
    return told


def _named(file: str, part: str, told: Section, checks: Mapping[str, _Check]) -> Sections:
    """The checked sections of one kind, by name."""
    found = {}
    for name, section in _section(file, part, told.get(part, {})).items():
        where = f"{part}.{_quoted(name)}"
        settings = _section(file, where, section)
        _check_name(file, where, name)
        _check_keys(file, where, settings, checks)
        for key, value in settings.items():
            _said(file, where, key, value, checks[key])
        found[name] = settings
    return found


def _check_name(file: str, section: str, name: str) -> None:
    try:
        checked_name(name)
    except Invalid as wrong:
        raise BadSetting(f"{file}: [{section}]: {wrong}") from None


def _policies(file: str, told: Section) -> Sections:
    return _named(file, "policies", told, {key: _policy_check(key) for key in _POLICY})


def _run(file: str, told: Section) -> dict[str, Any]:
    _check_keys(file, "run", told, _RUN)
    found: dict[str, Any] = {}
    for key, value in told.items():
        name, check = _RUN[key]
        found[name] = _said(file, "run", key, value, check)
    usual = RunSettings()
    session_s = found.get("session_s", usual.session_s)
    heartbeat_s = found.get("heartbeat_s", usual.heartbeat_s)
    try:
        check_heartbeat(session_s, heartbeat_s)
    except BadSetting as wrong:
        raise BadSetting(f"{file}: [run]: {wrong}") from None
    return found


def _spark(file: str, told: Section) -> Section:
    _check_keys(file, "spark", told, _SPARK)
    return {key: _said(file, "spark", key, value, _SPARK[key]) for key, value in told.items()}


def _said(file: str, section: str, key: str, value: Any, check: _Check) -> Any:
    """The checked value. A refusal names file, section and key."""
    try:
        return check(value)
    except Invalid as wrong:
        why = str(wrong)
        for said in (f"bad {key} {value!r}: ", f"bad {key}: ", f"{key} {value!r}: "):
            why = why.removeprefix(said)
        raise BadSetting(f"{file}: [{section}]: {key} = {value!r}: {why}") from None


def _of(sections: Sections, name: str) -> Section:
    return sections.get(name, {}) if name != DEFAULT else {}


def _streams(topology: Topology) -> tuple[str, ...]:
    return (*topology.streams, *(each.dead_letters for each in topology.computations))


def _quoted(name: str) -> str:
    """The name as it is written in the file."""
    bare = name.replace("-", "").replace("_", "")
    return name if bare.isalnum() and name.isascii() else f'"{name}"'


_Check = Callable[[Any], Any]


def _count(most: int) -> _Check:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise BadSetting(f"a whole number, 1 to {most}")
        return value

    return check


def _one_of(known: Collection[str]) -> _Check:
    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in known:
            raise BadSetting(f"one of {', '.join(known)}{did_you_mean(value, known)}")
        return value

    return check


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise BadSetting("write it as text")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadSetting("true or false")
    return value


def _texts(value: Any) -> Section:
    """The values as texts, as Spark takes them; ``true`` becomes a text, too."""
    if not isinstance(value, dict):
        raise BadSetting("it is a section, [spark.conf]")
    for key, one in value.items():
        if not key.startswith("spark."):
            raise BadSetting(
                f"{key!r}: settings of Spark begin with spark., in quotes"
                f"{did_you_mean(key, spark_keys(key))}"
            )
        if not isinstance(one, str | int | float):
            raise BadSetting(f"{key}: write it as text")
    return {
        key: str(one).lower() if isinstance(one, bool) else str(one) for key, one in value.items()
    }


def spark_keys(key: str) -> list[str]:
    """Settings of Spark that may be meant by a key without ``spark.``, or with it misspelt."""
    return [f"spark.{key}", f"spark.{key.partition('.')[2]}"]


def _duration(key: str, least_s: float) -> _Check:
    def check(value: Any) -> float:
        given_s = seconds(value, what=key)
        if given_s < least_s:
            raise BadSetting(f"at least {least_s:g} s")
        return given_s

    return check


def _positive(value: Any) -> Any:
    if seconds(value, what="retention") == 0:
        raise BadSetting("leave it out to keep records for ever")
    return value


def _positive_bytes(value: Any) -> Any:
    if size_bytes(value, what="retention_bytes") == 0:
        raise BadSetting("leave it out to keep records for ever")
    return value


def _policy_check(key: str) -> _Check:
    return lambda value: Policy(**{key: value})


_RUN: dict[str, tuple[str, _Check]] = {
    "lanes": ("lanes", _count(LANES_MAX)),
    "allocation": ("allocation", _one_of(get_args(Allocation))),
    "session": ("session_s", _duration("session", SESSION_S_MIN)),
    "heartbeat": ("heartbeat_s", _duration("heartbeat", HEARTBEAT_S_MIN)),
    "max_wait_handler": ("handler_s_max", _duration("max_wait_handler", 0)),
}
_STREAM: dict[str, _Check] = {
    "shards": _count(SHARDS_MAX),
    "codec": _text,
    "routing": _one_of(ROUTINGS),
    "retention": _positive,
    "retention_bytes": _positive_bytes,
}
_SPARK: dict[str, _Check] = {"master": _text, "remote": _text, "ui": _flag, "conf": _texts}
_COMPUTATION: dict[str, _Check] = {"concurrency": _count(CONCURRENCY_MAX)}
_POLICY = tuple(f.name for f in fields(Policy) if f.init and f.name != "no_retry")
