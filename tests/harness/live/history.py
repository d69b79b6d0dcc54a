"""The history of a live run, put together from evidence: grants, effects, commits, harm."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import inf

from tests.harness.live.evidence import EvidenceLine

Under = tuple[int, int]
"""A shard, and the epoch of a grant."""


@dataclass
class RecordEffect:
    """A handler ran for a record."""

    by: str
    shard: int
    epoch: int
    offset: int
    value: str
    start_s: float
    left_s: float
    """How much of the lease was left when the handler began."""
    waited_s: float
    """How long the member had waited for this record."""
    done_s: float = inf


@dataclass
class Tenure:
    """A grant, from the time at which its member learnt of it."""

    by: str
    shard: int
    epoch: int
    member: str
    incarnation: int
    checkpoint: int
    """Where the member began: 0 if no checkpoint was stored."""
    since_s: float
    told_end_s: float = inf
    released_s: float = inf
    lost_s: float = inf
    left_s: float = inf
    """When the member left the group with the shard still held."""


@dataclass
class Storing:
    """A checkpoint on its way into the store."""

    by: str
    shard: int
    epoch: int
    start: int
    end: int
    asked_s: float
    answered_s: float = inf
    outcome: str = "unknown"
    """``unknown``, ``stored``, ``fenced`` or ``unstored``."""


@dataclass
class Sent:
    """One append, over all its tries."""

    producer: str
    seq: int
    rows: int
    tries: int = 0
    outcomes: list[str] = field(default_factory=list)
    places: list[list[tuple[int, int]]] = field(default_factory=list)
    """The offsets of the records, by acknowledgement."""
    acked_s: float = inf

    def names(self) -> list[str]:
        return [f"{self.producer} {self.seq} {row}" for row in range(self.rows)]

    @property
    def surely_failed(self) -> bool:
        return self.outcomes.count("fail") == self.tries


@dataclass
class Harm:
    """The harm done to one process."""

    stops: list[tuple[float, float]] = field(default_factory=list)
    killed_s: float = inf
    twin_s: float = inf
    replaced: bool = False

    def between(self, begin_s: float, end_s: float) -> bool:
        """Whether harm in that time excuses work that the process did not finish."""
        stopped = any(stop <= end_s and cont >= begin_s for stop, cont in self.stops)
        return stopped or self.killed_s <= end_s or self.twin_s <= end_s


@dataclass
class Final:
    """A shard at the end of the run."""

    start: int
    end: int
    checkpoint: int
    values: list[str]


class History:
    def __init__(self, lines: Iterable[EvidenceLine]) -> None:
        self.lines = sorted(lines, key=lambda line: float(line["t"]))
        self.session_s = 1.0
        self.heartbeat_s = 0.25
        self.effects: dict[Under, list[RecordEffect]] = defaultdict(list)
        self.tenures: dict[Under, list[Tenure]] = defaultdict(list)
        self.storings: list[Storing] = []
        self.sent: dict[tuple[str, int], Sent] = {}
        self.harms: dict[str, Harm] = defaultdict(Harm)
        self.final: dict[int, Final] = {}
        self.at: dict[str, float] = {}
        """When the run reached each of its stages."""
        self.shares: dict[str, int] = {}
        """How many shards each member held at the end."""
        self._storing: dict[tuple[str, int], Storing] = {}
        self._last_s: dict[str, float] = {}
        for line in self.lines:
            self._take(line)
        self.by_shard: dict[int, list[Storing]] = defaultdict(list)
        for storing in self.storings:
            self.by_shard[storing.shard].append(storing)
        self.at_offset: dict[tuple[int, int], list[RecordEffect]] = defaultdict(list)
        """All effects of a record, by shard and offset."""
        for effects in self.effects.values():
            for effect in effects:
                self.at_offset[effect.shard, effect.offset].append(effect)
        epochs: dict[int, set[int]] = defaultdict(set)
        for shard, epoch in (*self.effects, *self.tenures):
            epochs[shard].add(epoch)
        self._epochs = {shard: sorted(found) for shard, found in epochs.items()}

    def all_effects(self) -> Iterator[RecordEffect]:
        for effects in self.effects.values():
            yield from effects

    def all_tenures(self) -> Iterator[Tenure]:
        for tenures in list(self.tenures.values()):
            yield from tenures

    def shards(self) -> list[int]:
        return sorted(self._epochs.keys() | self.final.keys())

    def epochs(self, shard: int) -> list[int]:
        """The epochs under which the shard was granted or worked on, ascending."""
        return self._epochs.get(shard, [])

    def next_tenure(self, tenure: Tenure) -> Tenure | None:
        """The next grant of the same shard."""
        epochs = self.epochs(tenure.shard)
        for epoch in epochs[bisect_right(epochs, tenure.epoch) :]:
            if self.tenures[tenure.shard, epoch]:
                return self.tenures[tenure.shard, epoch][0]
        return None

    def counted(self, *whats: str) -> int:
        return sum(1 for line in self.lines if line["what"] in whats)

    def _take(self, line: EvidenceLine) -> None:
        t, by, what = float(line["t"]), str(line["by"]), str(line["what"])
        self._last_s[by] = t
        match what:
            case "run":
                self.session_s, self.heartbeat_s = line["session"], line["heartbeat"]
            case "intent" | "ack" | "fail" | "unknown":
                self._take_sent(line, what, t)
            case "grant" | "end" | "release" | "lost" | "leave":
                self._take_tenure(line, what, t, by)
            case "start":
                under = line["shard"], line["epoch"]
                self.effects[under].append(
                    RecordEffect(
                        by, *under, line["offset"], line["value"], t, line["left"], line["waited"]
                    )
                )
            case "done":
                for effect in reversed(self.effects[line["shard"], line["epoch"]]):
                    if (effect.by, effect.offset) == (by, line["offset"]):
                        effect.done_s = t
                        break
            case "storing":
                under = line["shard"], line["epoch"]
                storing = Storing(by, *under, line["from"], line["to"], t)
                self._storing[by, line["id"]] = storing
                self.storings.append(storing)
            case "stored" | "fenced" | "unstored":
                storing = self._storing[by, line["id"]]
                storing.outcome, storing.answered_s = what, t
            case "final":
                self.final[line["shard"]] = Final(
                    line["start"], line["end"], line["checkpoint"], line["values"]
                )
            case "shares":
                self.shares = line["members"]
            case "replaced":
                self.harms[by].replaced = True
            case "kill" | "stop" | "cont" | "twin" | "exit":
                self._take_harm(line, what, t)
            case "begin" | "quiet" | "healed" | "produced" | "consumed" | "over":
                self.at[what] = t
            case _:
                pass

    def _take_sent(self, line: EvidenceLine, what: str, t: float) -> None:
        key = line["producer"], line["seq"]
        if what == "intent":
            sent = self.sent.setdefault(key, Sent(*key, line["rows"]))
            sent.tries += 1
            return
        self.sent[key].outcomes.append(what)
        if what == "ack":
            self.sent[key].places.append([(shard, offset) for shard, offset in line["at"]])
            self.sent[key].acked_s = min(t, self.sent[key].acked_s)

    def _take_tenure(self, line: EvidenceLine, what: str, t: float, by: str) -> None:
        if what == "leave":
            for shard, epoch in line["held"]:
                for tenure in self._tenures_of(by, shard, epoch):
                    tenure.left_s = min(t, tenure.left_s)
            return
        under = line["shard"], line["epoch"]
        if what == "grant":
            who = line.get("member", "?"), line.get("inc", 0)
            self.tenures[under].append(Tenure(by, *under, *who, line["checkpoint"] or 0, t))
            return
        for tenure in self._tenures_of(by, *under):
            match what:
                case "end":
                    tenure.told_end_s = t
                case "release":
                    tenure.released_s = t
                case _:
                    tenure.lost_s = t

    def _tenures_of(self, by: str, shard: int, epoch: int) -> list[Tenure]:
        return [tenure for tenure in self.tenures[shard, epoch] if tenure.by == by]

    def _take_harm(self, line: EvidenceLine, what: str, t: float) -> None:
        harm = self.harms[line["who"]]
        match what:
            case "kill":
                harm.killed_s = min(t, harm.killed_s)
            case "exit":
                if line["code"] < 0:  # killed at a fail point, perhaps long before it was seen
                    harm.killed_s = min(self._last_s.get(line["who"], t), harm.killed_s)
            case "twin":
                harm.twin_s = t
            case "stop":
                harm.stops.append((t, inf))
            case _:
                if harm.stops:
                    harm.stops[-1] = (harm.stops[-1][0], t)
