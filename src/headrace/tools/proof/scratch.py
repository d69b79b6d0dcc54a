"""The directory of a proof: a hub with streams like the real ones, and a short session."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import headrace
from headrace.core.computations.settings import RunSettings
from headrace.core.computations.topology import Topology
from headrace.core.model import StreamInfo
from headrace.hub.hub import Hub
from headrace.hub.settings_file import SETTINGS_FILE

SESSION_S = 1.0
HEARTBEATS = 4
"""How many heartbeats a session has."""
JAVA_MEMORY = {"spark.driver.memory": "512m"}
"""Small, because several replicas run on one machine."""
RETRIES_MAX = 3
"""Fewer than usual: a handler that refuses generated records would be tried for 15 minutes."""
SOURCE = {"codec": "json"}
"""How a source is made if neither the hub nor the settings say it."""

_KEPT = ("shards", "codec", "routing")


class Scratch:
    """The directory in which replicas run. It links to the files of the current directory, so that
    handlers find the files that they read."""

    def __init__(
        self,
        place: Path,
        topology: Topology,
        settings: RunSettings,
        session_s: float = SESSION_S,
    ) -> None:
        self.place = place
        self.own = place / "headrace-prove"
        self.own.mkdir()
        self.hub = self.own / "hub"
        self.logs = self.own / "logs"
        self.logs.mkdir()
        self._topology = topology
        self._settings = settings
        self._session_s = session_s
        here = Path.cwd()
        for entry in here.iterdir():
            if entry.name not in (SETTINGS_FILE, self.own.name) and entry != place:
                (place / entry.name).symlink_to(entry)
        (place / SETTINGS_FILE).write_text(self._written())

    def environment(self) -> dict[str, str]:
        paths = [os.getcwd(), os.environ.get("PYTHONPATH", "")]
        return {
            **{k: v for k, v in os.environ.items() if k not in ("HEADRACE_HUB", "HEADRACE_FAIL")},
            "HEADRACE_ORIGINS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        }

    def make_streams(self, hub: Hub, real: Mapping[str, StreamInfo]) -> list[str]:
        """Make the streams as they are in the real hub, else as the settings say. Returns notes
        about sources that were made by default."""
        notes = []
        for name in self._topology.streams:
            made = self._made(name, real.get(name))
            if not made and name in self._topology.sources:
                made = SOURCE
                notes.append(f"{name}: its settings are unknown; made with codec json and 4 shards")
            hub.create_stream(name, **made)
        return notes

    def _made(self, name: str, real: StreamInfo | None) -> dict[str, Any]:
        if real is not None:
            shards = sum(shard.open for shard in real.shards)
            return {"shards": shards, "codec": real.codec, "routing": real.routing}
        settings = self._settings.stream(name, self._topology)
        return {key: value for key, value in settings.items() if key in _KEPT}

    def _written(self) -> str:
        settings = self._settings
        policies = {
            each.name: {
                **dict(settings.policies.get(each.name, {})),
                "retries": min(settings.policy(each).retries, RETRIES_MAX),
                "delay": "50ms",
                "delay_max": "200ms",
            }
            for each in self._topology.computations
        }
        run = {
            "lanes": settings.lanes,
            "allocation": settings.allocation,
            "session": f"{self._session_s * 1000:g}ms",
            "heartbeat": f"{self._session_s / HEARTBEATS * 1000:g}ms",
            "max_wait_handler": f"{settings.handler_s_max * 1000:g}ms",
        }
        usual = settings.policies.get("default")
        sections: dict[str, Any] = {
            "run": run,
            "options": settings.options,
            "computations": settings.computations,
            "policies": {**({"default": usual} if usual else {}), **policies},
            "spark": {"conf": {**JAVA_MEMORY, **self._spark_conf()}},
        }
        return "".join(_section(name, section) for name, section in sections.items())

    def _spark_conf(self) -> dict[str, str]:
        """The configuration without the cluster: the scratch hub is only on this machine."""
        conf = dict(self._settings.spark.get("conf", {}))
        conf.pop("spark.master", None)
        return conf


def real_streams(hub: str) -> dict[str, StreamInfo]:
    """The streams of the user's own hub, if it exists."""
    if not (Path(hub) / "data.mdb").exists():
        return {}
    with headrace.open(hub, create=False) as opened:
        return {info.name: info for info in opened.streams()}


def _section(name: str, values: Mapping[str, Any]) -> str:
    plain = {k: v for k, v in values.items() if not isinstance(v, Mapping)}
    lines = [f"[{name}]\n", *(f"{_text(k)} = {_toml(v)}\n" for k, v in plain.items())]
    for key, value in values.items():
        if isinstance(value, Mapping):
            lines.append(_section(f"{name}.{_text(key)}", value))
    return "".join(lines)


def _toml(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_text(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    return str(value)  # numbers, times


def _text(text: str) -> str:
    return json.dumps(text)  # escapes as TOML does
