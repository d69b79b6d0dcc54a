"""headrace.toml: the settings of a run, their precedence, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.core.computations.computation import Computation, computation
from headrace.core.computations.policy import Policy
from headrace.core.computations.settings import RunSettings
from headrace.core.computations.topology import STREAM_SETTINGS, Topology
from headrace.core.errors import BadSetting
from headrace.hub.settings_file import read_settings

WHOLE = """
hub = "./data"
[run]
lanes = 8
allocation = "static"
session = "6s"
heartbeat = 2
max_wait_handler = "1m"
[streams.default]
shards = 2
codec = "json"
[streams."shop/orders"]
shards = 8
routing = "murmur2"
retention = "7d"
retention_bytes = "10GiB"
[computations.default]
concurrency = 3
[computations.bill]
concurrency = 1
[policies.default]
retries = 5
delay = "2s"
[policies.bill]
retries = 7
delay_max = "9s"
then = "dead-letter"
timeout = "30s"
deaths = 2
dead_letters_max = 1
[options]
currency = "EUR"
rates = [1, 2]
"""


def _handler(record: Any) -> None: ...


def _made(name: str, **settings: Any) -> Computation:
    return computation(**{"inputs": "shop/orders", "name": name, **settings})(_handler)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "headrace.toml"


def _read(file: Path, text: str) -> RunSettings:
    file.write_text(text, encoding="utf-8")
    return read_settings(file)


def test_without_a_file_the_defaults_hold() -> None:
    usual = read_settings(None)
    assert usual == RunSettings()
    assert (usual.hub, usual.lanes, usual.allocation) == (None, 4, "pool")
    assert (usual.session_s, usual.heartbeat_s, usual.handler_s_max) == (10.0, 3.0, 5.0)
    bill = _made("bill")
    assert usual.policy(bill) == Policy()
    assert usual.concurrency(bill) is None
    assert usual.stream("shop/orders", Topology(bill)) == {}
    assert usual.options == {}


def test_an_empty_file_gives_the_defaults(file: Path) -> None:
    read = _read(file, "")
    assert read == RunSettings(file=str(file))


def test_the_settings_of_a_run_are_read(file: Path) -> None:
    read = _read(file, WHOLE)
    assert (read.hub, read.lanes, read.allocation) == ("./data", 8, "static")
    assert (read.session_s, read.heartbeat_s, read.handler_s_max) == (6.0, 2.0, 60.0)
    assert read.options == {"currency": "EUR", "rates": [1, 2]}


def test_policies_go_by_name_then_code_then_default_then_built_in(
    file: Path,
) -> None:
    read = _read(file, WHOLE)
    named = {
        "retries": 7, "delay_max": "9s", "then": "dead-letter", "timeout": "30s",
        "deaths": 2, "dead_letters_max": 1,
    }  # fmt: skip
    in_code = Policy(retries=1, delay="4s", then="skip", no_retry=(KeyError,))
    assert read.policy(_made("other")) == Policy(retries=5, delay="2s")
    assert read.policy(_made("other", policy=in_code)) == in_code
    assert read.policy(_made("bill")) == Policy(**named, delay="2s")  # type: ignore[arg-type]
    assert read.policy(_made("bill", policy=in_code)) == Policy(
        **named,  # type: ignore[arg-type]
        delay="4s",
        no_retry=(KeyError,),
    )


def test_a_section_changes_only_the_fields_it_gives(file: Path) -> None:
    read = _read(file, "[policies.bill]\nretries = 3")
    in_code = Policy(retries=1, then="skip", timeout="5s")
    assert read.policy(_made("bill", policy=in_code)) == Policy(
        retries=3, then="skip", timeout="5s"
    )


def test_a_default_policy_holds_for_computations_without_one(file: Path) -> None:
    read = _read(file, "[policies.default]\nthen = 'skip'")
    assert read.policy(_made("bill")) == Policy(then="skip")
    assert read.policy(_made("bill", policy=Policy())) == Policy()


def test_a_computation_named_default_is_not_named_by_the_default_section(file: Path) -> None:
    read = _read(file, "[policies.default]\nretries = 3\n[computations.default]\nconcurrency = 2")
    made = _made("default", policy=Policy(retries=1), concurrency=5)
    assert read.policy(made).retries == 1
    assert read.concurrency(made) == 5


def test_concurrency_goes_by_name_then_code_then_default(file: Path) -> None:
    read = _read(file, WHOLE)
    assert read.concurrency(_made("bill", concurrency=9)) == 1
    assert read.concurrency(_made("other", concurrency=9)) == 9
    assert read.concurrency(_made("other")) == 3


def test_stream_settings_go_by_name_then_code_then_default(file: Path) -> None:
    read = _read(file, WHOLE)
    topology = Topology(
        _made("bill", outputs="shop/invoices"),
        streams={"shop/orders": {"shards": 4, "codec": "text"}, "shop/invoices": {"shards": 1}},
    )
    assert read.stream("shop/orders", topology) == {
        "shards": 8, "codec": "text", "routing": "murmur2", "retention": "7d",
        "retention_bytes": "10GiB",
    }  # fmt: skip
    assert read.stream("shop/invoices", topology) == {"shards": 1, "codec": "json"}
    assert read.stream("bill.dead-letters", topology) == {"shards": 2, "codec": "json"}


def test_the_settings_of_a_stream_create_it(file: Path) -> None:
    read = _read(file, WHOLE)
    assert set(STREAM_SETTINGS) == set(read.stream("shop/orders", Topology(_made("bill"))))
    with headrace.open("memory:") as hub:
        settings = read.stream("shop/orders", Topology(_made("bill")))
        made = hub.create_stream("shop/orders", **settings)
        assert (made.shards, made.info.retention_bytes) == (8, 10 * 2**30)


def test_all_settings_are_applied_to_a_topology(file: Path) -> None:
    topology = Topology(_made("bill", version="7"), _made("other", concurrency=9), name="shop")
    whole = _read(file, WHOLE).applied(topology)
    assert whole.name == "shop"
    assert whole["bill"].policy == _read(file, WHOLE).policy(topology["bill"])
    assert (whole["bill"].concurrency, whole["other"].concurrency) == (1, 9)
    assert whole["bill"].version == "7"
    assert whole.declared["shop/orders"]["shards"] == 8
    assert RunSettings().applied(topology).declared == {}


def test_options_of_the_command_line_win_over_the_file(file: Path) -> None:
    read = _read(file, WHOLE)
    given = read.with_options({"currency": "USD", "more": "x"})
    assert given.options == {"currency": "USD", "rates": [1, 2], "more": "x"}
    assert given.lanes == 8
    assert read.options["currency"] == "EUR"


def test_names_missing_in_the_topology_are_reported(file: Path) -> None:
    read = _read(
        file,
        "[policies.default]\n[policies.bil]\n[computations.bill]\n[computations.unlike]\n"
        '[streams."shop/order"]\n[streams."bill.dead-letters"]\n[streams."shop/orders"]\n',
    )
    assert read.unknown_names(Topology(_made("bill"), name="shop")) == [
        f'{file}: [streams."shop/order"]: topology=shop has none of that name; '
        "did you mean 'shop/orders'?",
        f"{file}: [computations.unlike]: topology=shop has none of that name",
        f"{file}: [policies.bil]: topology=shop has none of that name; did you mean 'bill'?",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hub = 5", ": hub = 5: write it as text"),
        ("lanes = 4", ": unknown key 'lanes'; known are hub, run, streams"),
        ("[runs]", ": unknown key 'runs'"),
        ("run = 4", ": run = 4: it is a section, [run]"),
        ("[run]\nlane = 4", ": [run]: unknown key 'lane'; known are lanes, allocation"),
        ("[run]\nlanes = 0", ": [run]: lanes = 0: a whole number, 1 to 1000"),
        ("[run]\nlanes = true", ": [run]: lanes = True: a whole number"),
        ("[run]\nlanes = '4'", ": [run]: lanes = '4': a whole number"),
        ("[run]\nallocation = 'free'", ": [run]: allocation = 'free': one of pool, static"),
        ("[run]\nallocation = []", ": [run]: allocation = []: one of pool, static"),
        ("[run]\nsession = 'long'", ": [run]: session = 'long': time: invalid duration"),
        ("[run]\nsession = '100ms'", ": [run]: session = '100ms': at least 0.5 s"),
        ("[run]\nsession = '4s'", ": [run]: heartbeat 3 s is more than half of the session 4 s"),
        ("[run]\nheartbeat = '6s'", ": [run]: heartbeat 6 s is more than half of the session 10 s"),
        ("[run]\nheartbeat = 0", ": [run]: heartbeat = 0: at least 0.05 s"),
        ("[run]\nmax_wait_handler = true", ": [run]: max_wait_handler = True: write '5s'"),
        ("streams = 4", ": streams = 4: it is a section, [streams]"),
        ("[streams]\norders = 4", ": streams.orders = 4: it is a section, [streams.orders]"),
        ("[streams]\nshards = 4", ": streams.shards = 4: it is a section"),
        (
            "[streams.orders]\nshard = 4",
            ": [streams.orders]: unknown key 'shard'; known are shards",
        ),
        ("[streams.orders]\nshards = 0", ": [streams.orders]: shards = 0: a whole number, 1 to"),
        ("[streams.orders]\ncodec = 5", ": [streams.orders]: codec = 5: write it as text"),
        ("[streams.orders]\ncodec = ''", ": [streams.orders]: codec = '': write it as text"),
        ("[streams.orders]\nrouting = 'x'", ": [streams.orders]: routing = 'x': one of md5-range"),
        ("[streams.orders]\nretention = 0", ": [streams.orders]: retention = 0: leave it out"),
        ("[streams.orders]\nretention = 'x'", ": [streams.orders]: retention = 'x': time: invalid"),
        ("[streams.a]\nretention_bytes = 0", ": [streams.a]: retention_bytes = 0: leave it out"),
        ("[streams.a]\nretention_bytes = 1.5", ": [streams.a]: retention_bytes = 1.5: write"),
        ('[streams."a b"]', ': [streams."a b"]: '),
        (
            "[computations.bill]\nlanes = 2",
            ": [computations.bill]: unknown key 'lanes'; known are c",
        ),
        ("[computations.bill]\nconcurrency = 0", ": [computations.bill]: concurrency = 0: a whole"),
        ("[policies.bill]\nretry = 2", ": [policies.bill]: unknown key 'retry'; known are retries"),
        ("[policies.bill]\nno_retry = []", ": [policies.bill]: unknown key 'no_retry'"),
        ("[policies.bill]\nretries = -1", ": [policies.bill]: retries = -1: a whole number, 0 to"),
        (
            "[policies.bill]\nthen = 'x'",
            ": [policies.bill]: then = 'x': one of stop, skip, dead-let",
        ),
        ("[policies.bill]\ndelay = 'x'", ": [policies.bill]: delay = 'x': time: invalid duration"),
        ("[policies.bill]\ndelay = -1", ": [policies.bill]: delay = -1: it must lie between"),
        ("[policies.bill]\ntimeout = 0", ": [policies.bill]: timeout = 0: leave it out"),
        ("[policies.bill]\ndelay_max = 2020-01-01", ": [policies.bill]: delay_max = datetime.date"),
        ("options = 5", ": options = 5: it is a section, [options]"),
        ("[run", " cannot be read: "),
        ("a = 1\na = 2", " cannot be read: "),
    ],
)
def test_a_bad_setting_is_refused_with_file_section_and_key(
    file: Path, text: str, says: str
) -> None:
    with pytest.raises(BadSetting) as refused:
        _read(file, text)
    assert str(refused.value).startswith(f"{file}{says}")
    assert "\n" not in str(refused.value)


def test_a_file_that_cannot_be_read_is_refused(file: Path) -> None:
    with pytest.raises(BadSetting, match="cannot be read: No such file"):
        read_settings(file)
    with pytest.raises(BadSetting, match="cannot be read: Is a directory"):
        read_settings(file.parent)
    file.write_bytes(b"hub = '\xff'")
    with pytest.raises(BadSetting, match="cannot be read"):
        read_settings(file)
