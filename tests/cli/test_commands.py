"""The command line as a person and a script use it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

import headrace
from tests.cli.shell import Shell


@pytest.fixture
def orders(shell: Shell) -> Shell:
    """With a stream of JSON records in it."""
    shell("stream", "create", "shop/orders", "--shards", "2", "--codec", "json")
    return shell


def test_a_stream_is_created_listed_shown_and_deleted(shell: Shell) -> None:
    out, _ = shell("stream", "create", "shop/orders", "--shards", "3", "--retention", "7d")
    assert "3 shards" in out
    listed, _ = shell("stream", "list")
    assert [line.split() for line in listed.splitlines()][1][:6] == [
        "shop/orders", "3", "0", "bytes", "md5-range", "7d",
    ]  # fmt: skip
    shown = json.loads(shell("stream", "show", "shop/orders", "--json")[0])
    assert shown["stream"] == "shop/orders"
    assert [shard["shard"] for shard in shown["shards"]] == [0, 1, 2]
    assert shown["shards"][2]["hash_end"] == "f" * 32
    assert "say --yes" in shell.fails("stream", "delete", "shop/orders")
    shell("stream", "delete", "shop/orders", "--yes")
    assert json.loads(shell("stream", "list", "--json")[0]) == []


def test_hash_ranges_are_shown_for_the_routing_that_uses_them(shell: Shell) -> None:
    shell("stream", "create", "a", "--shards", "2", "--routing", "murmur2")
    shards = json.loads(shell("stream", "show", "a", "--json")[0])["shards"]
    assert [(shard["hash_begin"], shard["hash_end"]) for shard in shards] == [(None, None)] * 2


def test_ctrl_c_while_modules_are_loaded_shows_no_trace(shell: Shell) -> None:
    code = """
import builtins, runpy
real = builtins.__import__
def interrupted(name, *how, **more):
    if name == "pyarrow":
        raise KeyboardInterrupt
    return real(name, *how, **more)
builtins.__import__ = interrupted
runpy.run_module("headrace", run_name="__main__")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=shell.environment, capture_output=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_one_record_is_counted_in_the_singular(orders: Shell) -> None:
    assert orders("append", "shop/orders", given=b"{}\n")[1].endswith(": 1 record appended\n")


def test_a_stream_that_is_there_keeps_its_shards_and_says_so(orders: Shell) -> None:
    told = orders.fails("stream", "create", "shop/orders", "--codec", "json")
    assert "exists already: take it as it is with exist_ok=True (--exist-ok)" in told
    out, _ = orders(
        "stream", "create", "shop/orders", "--codec", "json", "--shards", "12", "--exist-ok"
    )
    assert "2 shards (it was there, 12 were asked for)" in out
    message = orders.fails("stream", "create", "shop/orders", "--codec", "text", "--exist-ok")
    assert "'json'" in message
    assert "'text'" in message


def test_json_lines_are_appended_with_their_keys_and_read_back(orders: Shell) -> None:
    lines = b'{"id": 1, "city": "Paris"}\n\n{"id": 2, "city": "\xc3\x84rnes"}\n'
    _, err = orders("append", "shop/orders", "--key-field", "id", given=lines)
    assert "2 records appended" in err
    out, _ = orders("tail", "shop/orders", "--from", "earliest", "--json")
    records = [json.loads(line) for line in out.splitlines()]
    assert {r["key"]: r["value"] for r in records} == {
        "1": {"id": 1, "city": "Paris"},
        "2": {"id": 2, "city": "Ärnes"},
    }


def test_a_file_of_raw_lines_is_appended_as_it_is(shell: Shell) -> None:
    shell("stream", "create", "raw", "--shards", "1")
    (shell.cwd / "lines").write_bytes(b"one\n\n\xff\x00three")
    out, _ = shell("append", "raw", "lines", "--key", "k", "--json")
    assert json.loads(out) == {"stream": "raw", "appended": 3}
    with headrace.open(shell.cwd / "headrace-data") as hub:
        assert [r.data for r in hub.stream("raw").read(0)] == [b"one", b"", b"\xff\x00three"]
        assert {r.key for r in hub.stream("raw").read(0)} == {"k"}


def test_a_bad_line_is_named_and_the_lines_before_it_are_kept(orders: Shell) -> None:
    message = orders.fails(
        "append", "shop/orders", given=b'{"id": 1}\n{"id": 2}\n{broken\n{"id": 3}\n'
    )
    assert "line 3" in message
    assert "the 2 lines before were appended" in message
    out, _ = orders("tail", "shop/orders", "--from", "earliest", "--json")
    assert len(out.splitlines()) == 2


def test_a_line_without_the_key_field_is_refused(orders: Shell) -> None:
    assert "no text or number in its field 'id'" in orders.fails(
        "append", "shop/orders", "--key-field", "id", given=b'{"name": "ann"}\n'
    )


def test_tail_shows_the_last_records_or_those_from_an_offset(orders: Shell) -> None:
    lines = b"".join(b'{"id": %d}\n' % i for i in range(25))
    orders("append", "shop/orders", "--shard", "1", given=lines)
    last, _ = orders("tail", "shop/orders")
    assert [line.split()[0] for line in last.splitlines()] == [
        f"shop/orders:1+{i}" for i in range(15, 25)
    ]
    assert len(orders("tail", "shop/orders", "-n", "3")[0].splitlines()) == 3
    some, _ = orders("tail", "shop/orders", "--shard", "1", "--from", "20")
    assert len(some.splitlines()) == 5
    assert orders("tail", "shop/orders", "--from", "latest")[0] == ""
    assert "beyond the end, the next offset is 25" in orders.fails(
        "tail", "shop/orders", "--shard", "1", "--from", "99"
    )


def test_tail_follows_until_it_is_interrupted(orders: Shell) -> None:
    orders("append", "shop/orders", given=b'{"id": 1}\n')
    following = orders.start("tail", "shop/orders", "--follow", "--from", "earliest", "--json")
    assert following.stdout is not None
    try:
        assert json.loads(following.stdout.readline())["value"] == {"id": 1}
        orders("append", "shop/orders", given=b'{"id": 2}\n')
        assert json.loads(following.stdout.readline())["value"] == {"id": 2}
        following.send_signal(signal.SIGINT)
        assert following.wait(timeout=20) == 130
    finally:
        following.kill()
        following.wait()
        following.stdout.close()


def test_records_cannot_drive_the_terminal(shell: Shell) -> None:
    shell("stream", "create", "raw", "--shards", "1")
    shell("append", "raw", "--key", "k\x1b]0;owned\x07", given=b"\x1b[31mred\x9b1m\r\x00\n")
    out, _ = shell("tail", "raw")
    assert "\x1b" not in out
    assert "\r" not in out
    assert "\\x1b[31mred" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["stream", "create", "bad name"], "only letters, digits"),
        (["stream", "create", "a", "--shards", "0"], "1 to 10000"),
        (["stream", "create", "a", "--codec", "yaml"], "unknown codec 'yaml': known are bytes"),
        (["stream", "create", "a", "--routing", "x"], "md5-range"),
        (["stream", "create", "a", "--retention", "soon"], "write '200ms'"),
        (["stream", "create", "a", "--retention-bytes", "much"], "16MiB"),
        (["stream", "show", "nope"], "no stream 'nope'"),
        (["tail", "shop/orders", "--from", "yesterday"], "earliest, latest or an offset"),
        (["tail", "shop/orders", "--shard", "7"], "it has 0 to 1"),
        (["append", "shop/orders", "missing-file"], "No such file"),
        (["append", "shop/orders", "--shard", "9"], "it has 0 to 1"),
        (["--hub", "ftp://x", "stream", "list"], "no hubs of kind 'ftp'"),
        (["--hub", "empty", "stream", "list"], "no hub at"),
        (["frobnicate"], "No such command"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    orders: Shell, arguments: list[str], says: str
) -> None:
    assert says in orders.fails(*arguments)


def test_the_hub_comes_from_option_environment_file_or_default(shell: Shell) -> None:
    (shell.cwd / "headrace.toml").write_text('hub = "from-file"\n')
    shell("stream", "create", "a")
    shell("stream", "create", "a", HEADRACE_HUB="from-environment")
    shell("--hub", "from-option", "stream", "create", "a", HEADRACE_HUB="from-environment")
    assert sorted(p.name for p in shell.cwd.iterdir() if p.is_dir()) == [
        "from-environment", "from-file", "from-option",
    ]  # fmt: skip
    (shell.cwd / "headrace.toml").write_text("hub = [")
    assert "headrace.toml cannot be read" in shell.fails("stream", "list")


def test_doctor_tells_versions_sizes_and_the_lock(orders: Shell) -> None:
    found = {f["what"]: f for f in json.loads(orders("doctor", "--json")[0])}
    assert found["python"]["found"].startswith("3.")
    assert found["lmdb"]["ok"] is True
    assert found["write_lock"]["found"] == "not held"
    assert found["bytes_free_disk"]["ok"] is True
    assert {"java", "bytes_used", "readers", "stale_readers_cleared", "streams"} <= set(found)


def test_doctor_works_where_there_is_no_hub(shell: Shell) -> None:
    found = {f["what"]: f for f in json.loads(shell("doctor", "--json")[0])}
    assert "no hub at" in found["hub"]["found"]
    assert not (shell.cwd / "headrace-data").exists()


def test_doctor_finds_a_damaged_batch_and_ends_with_1(orders: Shell) -> None:
    lines = b"".join(b'{"id": %d}\n' % i for i in range(3))
    orders("append", "shop/orders", "--shard", "0", given=lines)
    data = orders.cwd / "headrace-data" / "data.mdb"
    damaged = bytearray(data.read_bytes())
    damaged[damaged.rindex(b'{"id":1}') + 6] ^= 1
    data.write_bytes(damaged)
    assert json.loads(orders("doctor", "--json")[0])
    out, _ = orders("doctor", "--deep", code=1)
    assert "damaged batch shop/orders:0, offsets 0 to 2" in out


def test_a_terminal_gets_a_drawn_table(orders: Shell) -> None:
    shown = orders.on_terminal("stream", "list")
    assert "┃" in shown
    assert "shop/orders" in shown


def test_a_closed_pipe_ends_quietly(orders: Shell) -> None:
    lines = b"".join(b'{"id": %d}\n' % i for i in range(20_000))
    orders("append", "shop/orders", given=lines)
    tail = f"{sys.executable} -m headrace tail shop/orders --from earliest"
    done = subprocess.run(
        ["bash", "-c", f"{tail} | head -n 1"],
        cwd=orders.cwd,
        env=orders.environment,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == b""
    assert done.stdout.count(b"\n") == 1


@pytest.mark.slow
def test_a_heartbeat_that_changes_nothing_is_measured_to_write_nothing(shell: Shell) -> None:
    figures = json.loads(shell("bench", "groups", "--only", "machine", "--json")[0])
    assert figures["heartbeat_writes"] == 0
    assert figures["heartbeat_us"] > 0
    assert figures["rebalance_ms"] > 0
    assert (figures["shards"], figures["members"]) == (1_000, 50)


def test_a_benchmark_says_which_parts_it_has(shell: Shell) -> None:
    said = shell.fails("bench", "groups", "--only", "machine,nonsense")
    assert "'nonsense'" in said
    assert "handover" in said
