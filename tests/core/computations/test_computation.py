from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from headrace.core.computations.computation import (
    CAPACITY_MAX,
    CONCURRENCY_MAX,
    Computation,
    computation,
    handed,
)
from headrace.core.computations.policy import Policy
from headrace.core.errors import BadName, BadQuantity, BadSetting, BadTopology, Invalid


def _one(record: Any) -> str:
    return f"did {record}"


def _made(handler: Callable[..., Any] = _one, **settings: Any) -> Computation:
    return computation(**{"inputs": "orders", "name": "bill", **settings})(handler)


def test_a_function_becomes_a_computation_and_can_still_be_called() -> None:
    @computation(inputs="shop/orders", outputs=["shop/invoices", "shop/totals"])
    def bill(record: Any, out: Any) -> Any:
        return (record, out)

    assert isinstance(bill, Computation)
    assert (bill.name, bill.kind, bill.is_class) == ("bill", "record", False)
    assert (bill.inputs, bill.outputs) == (("shop/orders",), ("shop/invoices", "shop/totals"))
    assert (bill.policy, bill.concurrency, bill.version, bill.start) == (
        None, None, None, "earliest",
    )  # fmt: skip
    assert bill("a", out="b") == ("a", "b")
    assert repr(bill) == "<Computation bill: shop/orders -> shop/invoices, shop/totals>"
    assert bill.dead_letters == "bill.dead-letters"


def test_a_computation_may_write_nothing() -> None:
    assert repr(_made()) == "<Computation bill: orders -> nothing>"


def test_everything_that_can_be_said_is_kept() -> None:
    policy = Policy(retries=1)
    made = _made(policy=policy, concurrency=2, version="7", start="latest", name="shop/billing")
    assert (made.policy, made.concurrency, made.version, made.start, made.name) == (
        policy, 2, "7", "latest", "shop/billing",
    )  # fmt: skip
    other = Policy(retries=2)
    assert made.with_policy(other).policy == other
    assert made.policy == policy


def test_a_batch_computation_has_a_capacity_and_a_threshold() -> None:
    @computation.batch(inputs="orders", capacity=50, threshold="200ms")
    def index(records: Any) -> None: ...

    assert (index.kind, index.capacity, index.threshold_s) == ("batch", 50, 0.2)
    usual = computation.batch(inputs="orders")(_one)
    assert (usual.name, usual.capacity, usual.threshold_s) == ("_one", 1_000, 1.0)


def test_a_class_becomes_a_computation() -> None:
    class Bill:
        def __init__(self, rate: float = 0.2) -> None:
            self.rate = rate

        def init(self, ctx: Any) -> None: ...
        def process(self, record: Any, out: Any, state: Any) -> None: ...
        def on_timer(self, key: Any, out: Any) -> None: ...
        def on_retry(self, record: Any, failure: Any) -> None: ...
        def on_failure(self, record: Any, failure: Any, ctx: Any) -> None: ...
        def close(self) -> None: ...

    made = computation(inputs="orders")(Bill)
    assert (made.is_class, made.name) == (True, "Bill")
    assert made().rate == 0.2


def test_a_method_of_a_class_need_not_have_a_self() -> None:
    class Bill:
        @staticmethod
        def process(record: Any, out: Any) -> None: ...

        @classmethod
        def init(cls, ctx: Any) -> None: ...

    assert _made(Bill).is_class


class _WithoutProcess:
    pass


class _WithArguments:
    def __init__(self, rate: float) -> None: ...
    def process(self, record: Any) -> None: ...


class _WithoutRecord:
    def process(self) -> None: ...


class _WithoutFailure:
    def process(self, record: Any) -> None: ...
    def on_retry(self, record: Any) -> None: ...


class _WithoutKey:
    def process(self, record: Any) -> None: ...
    def on_timer(self, out: Any) -> None: ...


class _WithStrangeInit:
    def process(self, record: Any) -> None: ...
    def init(self, options: Any) -> None: ...


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (_WithoutProcess, r"class _WithoutProcess: it needs process\(self, record, out\)"),
        (_WithArguments, "takes 'rate': it is made without arguments"),
        (_WithoutRecord, "class _WithoutRecord: process takes no record"),
        (_WithoutFailure, "class _WithoutFailure: on_retry takes no failure"),
        (_WithoutKey, "class _WithoutKey: on_timer takes no key"),
        (_WithStrangeInit, "init takes 'options': it is given what it names of out, ctx, state"),
    ],
)
def test_a_class_that_cannot_be_called_as_it_will_be_is_refused(kind: type, says: str) -> None:
    with pytest.raises(BadTopology, match=says):
        _made(kind)


def test_a_function_gets_its_parameters_in_its_own_order() -> None:
    def every(record: Any, state: Any, out: Any, ctx: Any) -> None: ...
    def with_more(record: Any, out: Any, limit: int = 5) -> None: ...
    def none(record: Any) -> None: ...
    def gathering(*records: Any) -> None: ...

    assert handed(every, 1) == ("state", "out", "ctx")
    assert handed(with_more, 1) == ("out",)
    assert handed(none, 1) == ()
    assert _made(gathering).name == "bill"


def _no_record() -> None: ...
def _only_out(out: Any) -> None: ...
def _named_record(*, record: Any) -> None: ...
def _stranger(record: Any, total: Any) -> None: ...
def _gathers(record: Any, *rest: Any) -> None: ...
def _named_out(record: Any, *, out: Any) -> None: ...
def _late_out(record: Any, limit: int = 5, out: Any = None) -> None: ...


@pytest.mark.parametrize(
    ("handler", "says"),
    [
        (_no_record, "computation 'bill': its function takes no record"),
        (_only_out, "its function takes no record"),
        (_named_record, "its function takes no record"),
        (_stranger, "_stranger takes 'total': it is given what it names of out, ctx, state"),
        (_gathers, "_gathers takes 'rest'"),
        (_named_out, "_named_out: 'out' comes too late"),
        (_late_out, "_late_out: 'out' comes too late"),
        (max, "max: it does not tell what it takes; wrap it in a function"),
        (5, "5 cannot be called"),
    ],
)
def test_a_function_that_cannot_be_called_as_it_will_be_is_refused(handler: Any, says: str) -> None:
    with pytest.raises(BadTopology, match=says):
        _made(handler)


@pytest.mark.parametrize("handler", [lambda record: None, partial(_one)])
def test_a_function_without_a_name_needs_one(handler: Any) -> None:
    with pytest.raises(BadTopology, match=r"needs a name=…"):
        computation(inputs="orders")(handler)
    assert _made(handler).name == "bill"


@pytest.mark.parametrize(
    ("setting", "value", "error", "says"),
    [
        ("inputs", (), BadTopology, "computation 'bill' reads nothing: give it inputs="),
        ("inputs", "", BadName, "empty"),
        ("inputs", None, BadTopology, "inputs None: a stream's name, or a list of them"),
        ("inputs", 5, BadTopology, "inputs 5"),
        ("inputs", [5], BadName, "a name is text"),
        ("inputs", ["a", "b", "a"], BadTopology, "inputs a, b, a: one of them comes twice"),
        ("outputs", None, BadTopology, "outputs None: a stream's name"),
        ("outputs", ["a", "a"], BadTopology, "outputs a, a: one of them comes twice"),
        ("outputs", "a b", BadName, "only letters"),
        ("name", "", BadName, "empty"),
        ("name", 5, BadTopology, "needs a name="),
        ("name", "x" * 240, BadName, "longer than"),
        ("policy", "stop", BadTopology, r"policy 'stop' is no Policy\("),
        ("concurrency", 0, BadSetting, "concurrency 0: a whole number, 1 to 1000"),
        ("concurrency", CONCURRENCY_MAX + 1, BadSetting, "concurrency 1001"),
        ("concurrency", True, BadSetting, "concurrency True"),
        ("version", 5, BadTopology, "version 5: 1 to 100 printable characters"),
        ("version", "", BadTopology, "version '': 1 to 100"),
        ("version", "a\nb", BadTopology, "printable"),
        ("version", "x" * 101, BadTopology, "printable"),
        ("start", "error", BadTopology, "start 'error': earliest or latest"),
    ],
)
def test_a_bad_setting_is_refused(
    setting: str, value: Any, error: type[Invalid], says: str
) -> None:
    with pytest.raises(error, match=says):
        _made(**{setting: value})


@pytest.mark.parametrize(
    ("setting", "value", "error", "says"),
    [
        ("capacity", 0, BadSetting, "capacity 0: a whole number, 1 to 100000"),
        ("capacity", CAPACITY_MAX + 1, BadSetting, "capacity 100001"),
        ("capacity", 1.5, BadSetting, "capacity 1.5"),
        ("threshold", "soon", BadQuantity, "bad threshold"),
        ("threshold", -1, BadQuantity, "bad threshold"),
    ],
)
def test_a_bad_setting_of_a_batch_is_refused(
    setting: str, value: Any, error: type[Invalid], says: str
) -> None:
    with pytest.raises(error, match=says):
        computation.batch(**{"inputs": "orders", setting: value})(_one)


def test_a_generator_is_refused_because_calling_it_would_do_nothing() -> None:
    def gathers(record: Any, out: Any) -> Any:
        yield record

    async def awaits(record: Any) -> Any:
        yield record

    for handler in (gathers, awaits):
        with pytest.raises(BadTopology, match="has a yield in it"):
            computation(inputs="orders")(handler)


def test_without_parentheses_it_says_how_to_write_it() -> None:
    def bill(record: Any) -> None: ...

    for decorator in (computation, computation.batch):
        with pytest.raises(BadTopology, match=r"write it with parentheses"):
            decorator(bill)
