"""Views of a running topology: its counters as rows for people and programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.groups.admin import Groups
from headrace.hub.run import Running


class Rates:
    """Records per second of each computation, between two calls of ``look``."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}
        self._before_s: float | None = None
        self._rates: dict[str, float] = {}

    def look(self, processed: Mapping[str, int], now_s: float) -> Mapping[str, float]:
        since_s = 0.0 if self._before_s is None else now_s - self._before_s
        if since_s > 0:
            self._rates = {
                name: (count - self._before.get(name, 0)) / since_s
                for name, count in processed.items()
            }
        self._before, self._before_s = dict(processed), now_s
        return self._rates


def run_views(running: Running, rates: Mapping[str, float]) -> list[dict[str, Any]]:
    """One row for each computation of this replica, upstream first."""
    return [
        _view(running, each.name, rates.get(each.name)) for each in running.topology.computations
    ]


def summary(running: Running, seconds: float) -> dict[str, Any]:
    """The outcome of a run, for its end."""
    stopped = running.stopped()
    groups = running.hub.groups
    rates = {
        name: counters.processed / max(seconds, 1e-9) for name, counters in running.counters.items()
    }
    return {
        "replica": running.name,
        "seconds": round(seconds, 3),
        "computations": [
            {**view, "lag": _measure_lag(groups, view["computation"]), "lag_s": None}
            for view in run_views(running, rates)
        ],
        "stopped": stopped,
        "healthy": is_healthy(running, stopped),
    }


def _measure_lag(groups: Groups, name: str) -> int:
    """The lag of the whole group: at the end of a run this replica holds no shard."""
    return sum(position.lag for position in groups.positions(groups.load(name)).values())


def is_healthy(running: Running, stopped: Mapping[str, list[str]]) -> bool:
    """Whether no shard is stopped, and none was stopped by this replica."""
    return not stopped and not any(each.stopped for each in running.counters.values())


def _view(running: Running, name: str, rate: float | None) -> dict[str, Any]:
    counters = running.counters[name]
    lag, lag_s = running.replica.dispatcher.lag(name)
    duties = running.replica.dispatcher.duties()
    shards = [state for state, _ in duties if state.duty.computation == name]
    return {
        "computation": name,
        "shards": len(shards),
        "records_per_s": None if rate is None else round(rate, 1),
        "lag": lag,
        "lag_s": round(lag_s, 1),
        "processed": counters.processed,
        "outputs": counters.outputs,
        "failures": counters.failures,
        "retries": counters.retries,
        "skipped": counters.skipped,
        "dead_letters": counters.dead_letters,
        "stopped": counters.stopped,
        "latency_p50_ms": _ms(counters.latency_s(0.5)),
        "latency_p99_ms": _ms(counters.latency_s(0.99)),
        "last_failure": counters.last_failure or None,
    }


def _ms(value_s: float | None) -> float | None:
    return None if value_s is None else round(value_s * 1000, 1)
