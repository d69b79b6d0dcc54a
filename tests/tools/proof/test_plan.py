"""The plan and the load of a proof come from its seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace import Topology, computation
from headrace.codec.registry import find_codec
from headrace.core.errors import BadSetting
from headrace.hub.settings_file import read_settings
from headrace.tools.proof.plan import STOPS, drawn
from headrace.tools.proof.sample import KEYS, Example, made_up, read_sample
from headrace.tools.proof.scratch import Scratch


def test_the_same_seed_is_the_same_plan() -> None:
    assert drawn("7", 40, 3, 1.0) == drawn("7", 40, 3, 1.0)
    assert drawn("7", 40, 3, 1.0) != drawn("8", 40, 3, 1.0)


def test_a_plan_kills_and_stops_shorter_and_longer_than_a_session() -> None:
    plan = drawn("7", 200, 3, 2.0)
    assert len(plan) == 200
    assert {deed.slot for deed in plan} == {0, 1, 2}
    assert {deed.kind for deed in plan} == {"kill", "stop"}
    assert {deed.for_s for deed in plan if deed.kind == "stop"} == {2 * stop for stop in STOPS}
    assert [deed.at_s for deed in plan] == sorted(deed.at_s for deed in plan)


@pytest.mark.parametrize(("codec", "kind"), [("json", dict), ("text", str), ("bytes", bytes)])
def test_there_is_a_default_for_each_codec(codec: str, kind: type) -> None:
    source = made_up("orders", find_codec(codec), (), "7")
    again = made_up("orders", find_codec(codec), (), "7")
    made = [source(n) for n in range(300)]
    assert made == [again(n) for n in range(300)]
    assert all(isinstance(value, kind) for value, _ in made)
    assert len({key for _, key in made}) == KEYS
    values = [value if codec == "json" else json.loads(value) for value, _ in made]
    assert [value["id"] for value in values] == list(range(300))


def test_a_sample_is_repeated_with_other_ids(tmp_path: Path) -> None:
    path = tmp_path / "orders.jsonl"
    path.write_text(
        '{"key": "ann", "value": {"id": 5, "city": "Rome"}}\n\n{"id": "x"}\n"plain"\n[1]\n'
    )
    sample = read_sample(str(path))
    assert sample == [Example({"id": 5, "city": "Rome"}, "ann"), Example({"id": "x"}),
                      Example("plain"), Example([1])]  # fmt: skip
    source = made_up("orders", find_codec("json"), sample, "7")
    made = [source(n) for n in range(6)]
    assert [value for value, _ in made] == [
        {"id": 0, "city": "Rome"}, {"id": "x-1"}, "plain", [1],
        {"id": 4, "city": "Rome"}, {"id": "x-5"},
    ]  # fmt: skip
    assert made[0][1] == made[4][1] == "ann"


def test_a_sample_is_put_into_the_form_that_the_codec_takes(tmp_path: Path) -> None:
    value = {"city": "Rome"}
    (made, _) = made_up("orders", find_codec("bytes"), [Example(value)], "7")(0)
    assert json.loads(made) == value
    (made, _) = made_up("orders", find_codec("text"), [Example("Rome")], "7")(0)
    assert made == "Rome"


def test_a_sample_that_is_no_json_is_refused_for_a_stream_of_json(tmp_path: Path) -> None:
    path = tmp_path / "orders.txt"
    path.write_text("{bad\n")
    sample = read_sample(str(path))
    with pytest.raises(BadSetting, match=r"has codec json, and '\{bad' is no JSON"):
        made_up("orders", find_codec("json"), sample, "7")
    assert made_up("orders", find_codec("text"), sample, "7")(0)[0] == "{bad"


def test_a_sample_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="cannot be read"):
        read_sample(str(tmp_path / "none"))
    empty = tmp_path / "empty"
    empty.write_text("\n")
    with pytest.raises(BadSetting, match="empty"):
        read_sample(str(empty))


def test_the_scratch_settings_are_those_of_the_user_with_a_short_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @computation(inputs="shop/orders")
    def bill(record: Any) -> None: ...

    own = tmp_path / "own"
    own.mkdir()
    (own / "prices.csv").write_text("1")
    (own / "headrace.toml").write_text(
        '[run]\nlanes = 2\n[policies.bill]\nthen = "skip"\nretries = 1\n[policies.default]\n'
        'timeout = "9s"\n[computations.bill]\nconcurrency = 1\n'
        '[options]\n"a b" = "x\\ny"\ndeep = {list = [1, true, "é"], day = 2026-11-16}\n'
    )
    monkeypatch.chdir(own)
    before = read_settings("headrace.toml")
    place = tmp_path / "scratch"
    place.mkdir()
    Scratch(place, Topology(bill), before)
    after = read_settings(place / "headrace.toml")
    assert after.session_s == 1.0
    assert (after.lanes, after.options, after.computations) == (
        2, before.options, before.computations,
    )  # fmt: skip
    policy = after.policy(bill)
    assert (policy.then, policy.retries, policy.delay_s) == ("skip", 1, 0.05)
    assert (place / "prices.csv").read_text() == "1"
