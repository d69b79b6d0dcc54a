"""Computations that the engine contracts run. They are a module of their own and show what they do
through files and streams, because lanes may be other processes."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from typing import Any

import pyarrow as pa

from headrace.core.computations.computation import computation
from headrace.core.computations.policy import Policy
from headrace.core.computations.topology import Topology
from headrace.core.errors import BadOutput, NoRetry, Rewind
from headrace.core.model import Record
from headrace.lanes.context import Context
from headrace.lanes.outputs import Outputs
from headrace.lanes.state import State
from headrace.testing.contracts.engine.effects import effects_so_far, wait_at, write_effect

ORDERS, BILLS, LINES, COUNTED, TOTALS = (
    "shop/orders", "shop/bills", "shop/lines", "shop/counted", "shop/totals",
)  # fmt: skip
RETURNS, REFUNDS = "shop/returns", "shop/refunds"
BRANCHES = [f"shop/branch-{n}" for n in range(10)]


def _earlier_attempts(ctx: Context, record: Record) -> int:
    """How many attempts at the record have begun before this one."""
    begun = [
        e for e in effects_so_far(ctx) if e.what == "begin" and e.computation == ctx.computation
    ]
    return sum(1 for effect in begun if effect.record == str(record.id))


def _do_as_asked(record: Record, ctx: Context) -> None:
    """Do what the value of the record asks for: ``wait`` at a wait point, ``sleep`` for some
    seconds, ``fails`` for the first attempts with an ``error`` of a kind that ``says``
    something."""
    asked: dict[str, Any] = record.value or {}
    before = _earlier_attempts(ctx, record) if asked else 0
    write_effect(ctx, "begin", record, attempt=before + 1)
    if "wait" in asked and before < asked.get("waits", 1):
        wait_at(ctx, asked["wait"])
    if "sleep" in asked:
        time.sleep(asked["sleep"])
    if "kills" in asked:
        os.kill(os.getpid(), signal.SIGKILL)
    if before < asked.get("fails", 0):
        kind = {"NoRetry": NoRetry, "SystemExit": SystemExit}.get(asked.get("error", ""))
        if kind is None:
            kind = {"KeyError": KeyError, "LookupError": LookupError}.get(
                asked.get("error", ""), ValueError
            )
        says = str(asked.get("says", f"{record.id} is bad"))
        raise kind(says.replace("HALF", "\ud83d"))  # half of a surrogate pair, which is not text


@computation(inputs=ORDERS, outputs=BILLS)
def serve(record: Record, out: Outputs, ctx: Context, state: State) -> None:
    """Appends and changes state before it fails, so that a failed attempt has effects to take
    back."""
    state["count"] = state.get("count", 0) + 1
    state[f"seen {record.offset}"] = True
    out.append(BILLS, {"from": str(record.id), "count": state["count"]}, key=record.key)
    try:
        _do_as_asked(record, ctx)
    finally:
        write_effect(ctx, "end", record)


shop = Topology(serve)
choosy_shop = Topology(
    serve.with_policy(Policy(retries=2, delay=0, then="skip", no_retry=(LookupError,)))
)


@computation(inputs=ORDERS, outputs=BILLS, name="serve", version="mended")
def serve_all(record: Record, out: Outputs, ctx: Context) -> None:
    """The same computation with new code that never fails."""
    write_effect(ctx, "mended", record)
    out.append(BILLS, {"from": str(record.id)})


mended_shop = Topology(serve_all)


@computation(inputs=ORDERS, outputs=REFUNDS)
def refund(record: Record, out: Outputs, ctx: Context) -> None:
    _do_as_asked(record, ctx)
    out.append(REFUNDS, {"from": str(record.id)})
    write_effect(ctx, "end", record)


two_shops = Topology(serve, refund)


@computation(inputs=BILLS, outputs=TOTALS)
def book(record: Record, out: Outputs, ctx: Context) -> None:
    if ctx.options.get("book_waits") == ctx.replica:
        write_effect(ctx, "waits", record)
        wait_at(ctx, "book")
    out.append(TOTALS, record.value)
    write_effect(ctx, "booked", record)


shop_and_books = Topology(serve, book)


# Three stages, two of them with state


@computation(inputs=ORDERS, outputs=LINES)
def split(record: Record, out: Outputs) -> None:
    for part in range(2):
        out.append(LINES, {"n": record.value["n"], "part": part}, key=record.key)


@computation(inputs=LINES, outputs=COUNTED)
def count(record: Record, out: Outputs, state: State) -> None:
    key = record.key or ""
    state[key] = state.get(key, 0) + 1
    out.append(COUNTED, {**record.value, "nth": state[key]}, key=key)


@computation(inputs=COUNTED, outputs=TOTALS)
def total(record: Record, out: Outputs, state: State) -> None:
    key = record.key or ""
    state[key] = state.get(key, 0) + record.value["n"]
    out.append(TOTALS, {**record.value, "sum": state[key]}, key=key)


chain = Topology(split, count, total)


# Inputs and outputs of a handler


@computation(inputs=[ORDERS, RETURNS], outputs=[BILLS, REFUNDS])
def sort_out(record: Record, out: Outputs) -> None:
    target = BILLS if record.stream == ORDERS else REFUNDS
    out.append(target, {"from": str(record.id)}, key=record.key)


several = Topology(sort_out)


@computation(inputs=BRANCHES, outputs=BILLS)
def collect(record: Record, out: Outputs) -> None:
    out.append(BILLS, {"from": str(record.id)})


collecting = Topology(collect)


@computation(inputs=ORDERS, outputs=BILLS)
def copy(record: Record, out: Outputs) -> None:
    """Copies every field of the record."""
    out.append(
        BILLS,
        record.value,
        record.key_bytes,
        headers=record.headers,
        timestamp=record.timestamp,
        sequence=record.sequence,
        flags=record.flags,
        trace=record.trace,
        shard=record.shard,
    )


copying = Topology(copy)


@computation(inputs=ORDERS, outputs=BILLS)
def pass_on(record: Record, out: Outputs) -> None:
    """Copies only value and key."""
    out.append(BILLS, record.value, key=record.key_bytes)


passing = Topology(pass_on)


@computation(inputs=ORDERS, outputs=BILLS)
def pass_on_twice(record: Record, out: Outputs) -> None:
    for _ in range(2):
        out.append(BILLS, record.value, key=record.key_bytes)


doubling = Topology(pass_on_twice)


@computation(inputs=ORDERS, outputs=BILLS)
async def await_each(record: Record, out: Outputs, ctx: Context) -> None:
    write_effect(ctx, "begin", record)
    await asyncio.sleep((record.value or {}).get("sleep", 0))
    out.append(BILLS, {"from": str(record.id)})


awaiting = Topology(await_each)


@computation(inputs=ORDERS, outputs=BILLS)
async def gather_each(record: Record, out: Outputs, ctx: Context) -> None:
    """The first attempt fails while another task of the same handler still waits to append."""
    first = _earlier_attempts(ctx, record) == 0
    write_effect(ctx, "begin", record)

    async def append() -> None:
        await asyncio.sleep(0.02)
        out.append(BILLS, {"from": str(record.id)})

    async def fail() -> None:
        if first:
            raise ValueError("the first attempt fails")

    await asyncio.gather(append(), fail())


gathering = Topology(gather_each)


@computation(inputs=ORDERS, outputs=BILLS)
def append_by_a_thread(record: Record, out: Outputs, ctx: Context) -> None:
    def append() -> None:
        try:
            out.append(BILLS, {"from": str(record.id)})
        except BadOutput as why:
            write_effect(ctx, "refused", record, why=str(why))

    thread = threading.Thread(target=append)
    thread.start()
    thread.join()


threading_out = Topology(append_by_a_thread)


@computation(inputs=ORDERS, outputs=BILLS)
def show_context(record: Record, out: Outputs, ctx: Context) -> None:
    out.append(
        BILLS,
        {
            "options": {k: v for k, v in ctx.options.items() if k.startswith("my")},
            "computation": ctx.computation,
            "shard": str(ctx.shard),
            "replica": ctx.replica,
            "lane": ctx.lane,
        },
    )


showing = Topology(show_context)


@computation(inputs=ORDERS, outputs=BILLS)
def checkpoint_when_asked(record: Record, out: Outputs, ctx: Context) -> None:
    write_effect(ctx, "begin", record)
    out.append(BILLS, {"from": str(record.id)})
    asked = record.value or {}
    if "checkpoint" in asked:
        ctx.checkpoint()
    if "wait" in asked:
        wait_at(ctx, asked["wait"])


checkpointing = Topology(checkpoint_when_asked)


@computation(inputs=ORDERS, outputs=BILLS)
def append_elsewhere(record: Record, out: Outputs, ctx: Context) -> None:
    write_effect(ctx, "begin", record)
    out.append(BILLS, {"from": str(record.id)})
    out.append(TOTALS, {"from": str(record.id)})


straying = Topology(append_elsewhere)


@computation(inputs=ORDERS, outputs=BILLS)
def append_much(record: Record, out: Outputs) -> None:
    for part in range(record.value["parts"]):
        out.append(BILLS, {"n": record.value["n"], "part": part, "fill": "x" * 1_000})


much = Topology(append_much)


@computation(inputs=ORDERS, outputs=BILLS, start="latest")
def from_now_on(record: Record, out: Outputs) -> None:
    out.append(BILLS, record.value)


latest = Topology(from_now_on)


# Classes


@computation(inputs=ORDERS, outputs=BILLS)
class Live:
    """Writes an effect for each call of its life cycle."""

    def __init__(self) -> None:
        self.handled = 0

    def init(self, ctx: Context, state: State) -> None:
        write_effect(ctx, "init", instance=id(self), inits=state.get("inits", 0))
        state["inits"] = state.get("inits", 0) + 1

    def process(self, record: Record, out: Outputs, ctx: Context) -> None:
        self.handled += 1
        write_effect(ctx, "begin", record, instance=id(self), handled=self.handled)
        asked = record.value or {}
        if "wait" in asked:
            wait_at(ctx, asked["wait"])
        out.append(BILLS, {"from": str(record.id)})
        write_effect(ctx, "end", record, instance=id(self))

    def close(self, out: Outputs, ctx: Context, state: State) -> None:
        write_effect(ctx, "close", instance=id(self))
        if "close_waits" in ctx.options and ctx.replica == "a":
            wait_at(ctx, ctx.options["close_waits"])
        out.append(BILLS, {"closed": str(ctx.shard)})
        state["closes"] = state.get("closes", 0) + 1


living = Topology(Live)


@computation(inputs=ORDERS, outputs=BILLS)
class Hooked:
    """Its hooks write effects."""

    def process(self, record: Record, out: Outputs, ctx: Context) -> None:
        out.append(BILLS, {"from": str(record.id)})
        _do_as_asked(record, ctx)

    def on_retry(self, record: Record, failure: str, ctx: Context) -> None:
        write_effect(ctx, "retry", record, failure=failure)

    def on_failure(self, record: Record, failure: str, out: Outputs, ctx: Context) -> None:
        write_effect(ctx, "failure", record, failure=failure)
        out.append(BILLS, {"failed": str(record.id)})


hooked = Topology(Hooked)


@computation(inputs=ORDERS, outputs=BILLS)
class AppendingHook:
    """Its hook appends outputs and changes state."""

    def process(self, record: Record, out: Outputs, ctx: Context) -> None:
        _do_as_asked(record, ctx)
        out.append(BILLS, {"from": str(record.id)})

    def on_retry(self, record: Record, failure: str, out: Outputs, state: State) -> None:
        out.append(BILLS, {"retry": record.offset})
        state["retries"] = state.get("retries", 0) + 1


appending_hook = Topology(AppendingHook)


@computation(inputs=ORDERS, outputs=BILLS, name="Hooked")
class HookedBadly:
    """Its hooks fail."""

    def process(self, record: Record, out: Outputs, ctx: Context) -> None:
        _do_as_asked(record, ctx)
        out.append(BILLS, {"from": str(record.id)})

    def on_retry(self, record: Record, failure: str) -> None:
        raise KeyError("on_retry")

    def on_failure(self, record: Record, failure: str) -> None:
        raise KeyError("on_failure")


hooked_badly = Topology(HookedBadly)


@computation(inputs=ORDERS, outputs=BILLS)
class NeverMade:
    def __init__(self) -> None:
        raise SystemExit("never made")

    def process(self, record: Record, out: Outputs) -> None:
        out.append(BILLS, {"from": str(record.id)})


never_made = Topology(NeverMade)


@computation(inputs=ORDERS, outputs=BILLS)
class FailingInit:
    def init(self, ctx: Context, out: Outputs) -> None:
        begun = sum(1 for effect in effects_so_far(ctx) if effect.what == "init")
        write_effect(ctx, "init")
        out.append(BILLS, {"init": begun})
        if begun < ctx.options["init_fails"]:
            raise (SystemExit if ctx.options.get("init_exits") else ValueError)("not yet")

    def process(self, record: Record, out: Outputs) -> None:
        out.append(BILLS, {"from": str(record.id)})


failing_init = Topology(FailingInit)


# Timers


@computation(inputs=ORDERS, outputs=BILLS)
class Timed:
    """Sets and cancels the timers that a record asks for; writes an effect for each call."""

    def process(self, record: Record, out: Outputs, ctx: Context) -> None:
        write_effect(ctx, "begin", record)
        asked = record.value or {}
        for key, after in asked.get("timers", {}).items():
            ctx.set_timer(key, after)
        for key in asked.get("cancel", ()):
            ctx.cancel_timer(key)
        if _earlier_attempts(ctx, record) <= asked.get("fails", 0):
            raise ValueError("after the timers were set")

    def on_timer(self, key: str, out: Outputs, ctx: Context, state: State) -> None:
        before = sum(1 for e in effects_so_far(ctx) if e.what == "timer" and e.facts["key"] == key)
        write_effect(ctx, "timer", key=key)
        state[key] = state.get(key, 0) + 1
        fill = b"x" * 2_500_000 if key.startswith("large") else b""
        made = {"timer": key, "shard": ctx.shard.index, "nth": state[key]}
        out.append(BILLS, made, headers=[("fill", fill)])
        if key.startswith("never") or (key.startswith("bad") and before < len(key) - 2):
            raise ValueError("not yet")
        if key.startswith("again") and before < 2:
            ctx.set_timer(key, "10ms")


timed = Topology(Timed)


# Batches


def _write_batch_effect(ctx: Context, records: list[Record]) -> int:
    first = records[0]
    before = _earlier_attempts(ctx, first)
    write_effect(ctx, "begin", first, ids=[str(record.id) for record in records])
    return before


@computation.batch(inputs=ORDERS, outputs=BILLS, capacity=10, threshold="150ms")
def serve_many(records: list[Record], out: Outputs, ctx: Context, state: State) -> None:
    before = _write_batch_effect(ctx, records)
    state["count"] = state.get("count", 0) + len(records)
    for record in records:
        out.append(BILLS, {"from": str(record.id), "of": len(records)}, key=record.key)
    for record in records:
        asked = record.value or {}
        if before < asked.get("fails", 0):
            raise ValueError(f"{record.id} is bad")
        if "back_to" in asked and before < 1:
            raise Rewind(asked["back_to"])


many = Topology(serve_many)


@computation.batch(inputs=ORDERS, outputs=BILLS, capacity=10, threshold="50ms")
def serve_arrow(batch: pa.RecordBatch, out: Outputs) -> None:
    out.append(BILLS, {"keys": [k.decode() for k in batch.column("key").to_pylist()]})


many_as_arrow = Topology(serve_arrow)


# Rewinding


@computation(inputs=ORDERS, outputs=BILLS)
def go_back(record: Record, out: Outputs, ctx: Context, state: State) -> None:
    """Rewinds to the offset ``back_to`` for the first ``times`` attempts."""
    before = _earlier_attempts(ctx, record)
    write_effect(ctx, "begin", record)
    state["count"] = state.get("count", 0) + 1
    out.append(BILLS, {"from": str(record.id), "count": state["count"]})
    asked = record.value or {}
    if asked.get("checkpoint"):
        ctx.checkpoint()
    if "back_to" in asked and before < asked.get("times", 1):
        raise Rewind(asked["back_to"])


going_back = Topology(go_back)


# State


@computation(inputs=ORDERS, outputs=BILLS)
def keep(record: Record, out: Outputs, ctx: Context, state: State) -> None:
    """Applies the steps of the record to the state, and outputs the state afterwards."""
    asked: dict[str, Any] = record.value
    before = _earlier_attempts(ctx, record)
    write_effect(ctx, "begin", record)
    error = ""
    for step in asked["do"]:
        try:
            match step:
                case ["set", key, value]:
                    state[key] = value
                case ["fill", key, size]:
                    state[key] = "x" * size
                case ["object", key]:
                    state[key] = object()
                case ["del", key]:
                    del state[key]
                case ["pop", key]:
                    state.pop(key)
                case ["clear"]:
                    state.clear()
                case _:
                    raise AssertionError(step)
        except Exception as why:
            if asked.get("raises"):
                raise
            error = type(why).__name__
    whole = {key: state[key] for key in sorted(state)}
    shown = {key: v if not isinstance(v, str) else v[:5] for key, v in whole.items()}
    out.append(BILLS, {"state": shown, "len": len(state), "error": error})
    if before < asked.get("fails", 0):
        raise ValueError("taken back")


keeping = Topology(keep)
