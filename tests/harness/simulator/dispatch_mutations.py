"""Deliberate bugs of the dispatch machine, by name: each replaces one piece of its source."""

from __future__ import annotations

from tests.harness.simulator.mutations import Change, Mutation

DISPATCH = "headrace.core.computations.dispatch"


def _one(name: str, seeds: int, old: str, new: str) -> Mutation:
    return Mutation(name, seeds, (Change(DISPATCH, old, new),))


MUTATIONS = [
    _one(
        "a shard is given again while a slice of it is in flight", 10,
        "hold.ending_s is not None or hold.given is not None\n", "hold.ending_s is not None\n",
    ),
    _one(
        "a shard is given while a lane works on it under a grant that is over", 60,
        "return {self.in_hand[lane].duty for lane in self.leaving}", "return set()",
    ),
    _one(
        "a revoked shard is given out", 20,
        "hold.stopped or hold.ending_s is not None or hold.given",
        "hold.stopped or hold.given",
    ),
    _one(
        "a shard is let go while its slice is in flight", 20,
        "if h.ending_s is not None and h.given is None]", "if h.ending_s is not None]",
    ),
    _one(
        "a lane at work on a revoked shard is waited for without end", 60,
        "hold.given is not None and now_s >= hold.ending_s", "False",
    ),
    _one(
        "a lane at work on a lost shard is waited for without end", 60,
        "for lane, until_s in self.leaving.items() if now_s >= until_s", "for lane in ()",
    ),
    _one(
        "a lane is given up before the deadline", 60,
        "hold.given is not None and now_s >= hold.ending_s",
        "hold.given is not None and now_s >= hold.ending_s - 1",
    ),
    _one(
        "of two deadlines the later one stands", 200,
        "else min(until_s, hold.ending_s)", "else max(until_s, hold.ending_s)",
    ),
    _one(
        "a grant that is lost while it ends gets more time", 100,
        "= min(until_s, ending_s)", "= until_s",
    ),
    _one(
        "no wake-up comes for a deadline", 60,
        "if hold.ending_s is not None and hold.given is not None:\n", "if False:\n",
    ),
    _one(
        "no wake-up comes for a lane under a lost grant", 60,
        "times = [inf, *self.leaving.values()]", "times = [inf]",
    ),
    _one(
        "no wake-up comes for a retry, a timer or a batch", 20,
        "times.append(hold.ready_s)", "pass",
    ),
    _one(
        "a shard that waits for a lane wakes the dispatcher again and again", 20,
        "elif hold.ready_s > self._dealt_s and hold.", "elif hold.",
    ),
    _one(
        "a parked shard is given at once", 20,
        "return max(hold.parked_s, hold.since_s)", "return hold.since_s",
    ),
    _one(
        "a parked shard waits for its batch again", 40,
        "        if hold.parked_s is not None:\n", "        if False:\n",
    ),
    _one(
        "a parked shard keeps its lane", 20,
        "        hold.parked_s = until_s\n",
        "        hold.parked_s = until_s\n        self.in_hand[lane] = Assigned(\n"
        "            lane, number, hold.duty, hold.token, next, next, False\n        )\n",
    ),
    _one(
        "a shard lost with its lane goes on under the same grant", 40,
        "worked_on.doubtful = True", "pass",
    ),
    _one(
        "a slice in doubt goes on", 40,
        "        hold.doubtful = True\n        return", "        return",
    ),
    _one(
        "a shard that was stopped goes on", 40, "        hold.stopped = True\n", "",
    ),
    _one(
        "a computation that was stopped goes on", 20,
        "closed = self.stopped | self._full()", "closed = self._full()",
    ),
    _one(
        "a computation that was started again stays stopped", 20,
        "self.stopped.discard(computation)", "pass",
    ),
    _one(
        "more lanes than allowed work for a computation", 20,
        "busy[name] >= rules.concurrency", "busy[name] > rules.concurrency",
    ),
    _one(
        "the report of an older slice counts", 40,
        "if given is None or given.number != number:", "if given is None:",
    ),
    _one(
        "an order about an older grant counts", 40,
        "if hold is not None and hold.token == token else None", "if hold is not None else None",
    ),
    _one(
        "a slice begins where the last one was to end", 20,
        "            hold.at = next\n",
        "            hold.at = given.end\n",
    ),
    _one(
        "a static lane takes any shard", 20,
        'places = self.lanes if self.allocation == "static" else 1', "places = 1",
    ),
    _one(
        "a new lane counts as warm for the shards of the lost one", 100,
        "hold.last_lane = None  # a later lane", "pass  # a later lane",
    ),
    _one(
        "the lane that had a shard is not asked first", 20,
        "taker, since_s = hold.last_lane, since_s - WARM_S", "since_s = since_s - WARM_S",
    ),
    _one(
        "a lane stays with its shard while others wait", 40, "WARM_S = 0.1", "WARM_S = 10.0",
    ),
    _one(
        "the shard that waits longest is served last", 20,
        "if taker is None or since_s >= best_s:", "if taker is None or best is not None:",
    ),
    _one(
        "a timer wakes a shard only if it has a record", 40,
        "at_s = max(hold.timer_s, hold.since_s)", "at_s = inf",
    ),
    _one(
        "a timer that is not due is forgotten with the next slice", 60,
        "hold.parked_s, hold.called = None, hold.timer_s <= now_s",
        "hold.parked_s, hold.called = None, True",
    ),
    _one(
        "a batch is given before it is full", 20,
        "hold.since_s if full else hold.since_s + rules.threshold_s", "hold.since_s",
    ),
    _one(
        "a batch that does not fill up waits without end", 20,
        "hold.since_s if full else hold.since_s + rules.threshold_s",
        "hold.since_s if full else inf",
    ),
    _one(
        "a slice is larger than a batch", 20,
        "if most is None:\n            fitting", "if True:\n            fitting",
    ),
    _one(
        "a slice is not limited to one record", 20,
        "most = min(hold.most or fitting, fitting)", "most = fitting",
    ),
    _one(
        "records that come while a shard is idle are not seen", 20,
        "if hold is not None and end > hold.end:", "if False:",
    ),
    _one(
        "a lane that withdrew is given a slice", 40,
        "self.waiting.pop(lane, None)", "pass",
    ),
]  # fmt: skip
