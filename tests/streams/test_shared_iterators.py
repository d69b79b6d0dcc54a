"""One iterator asked by several threads: an error in those that come too early, never a crash."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SHARE = """
import sys, threading, time
import headrace
with headrace.open(sys.argv[1]) as hub:
    stream = hub.create_stream("a", shards=1)
    stream.append_many([(b"x" * 50, None)] * 30_000)
    for turn in range(8):
        if sys.argv[2] == "stream":
            shared, end = iter(stream.read(0)), lambda: None
        else:
            consumer = hub.consumer("a", group=f"g{turn}", max_records=100)
            shared, end = iter(consumer), consumer.close
        told = []
        seen = []

        def ask():
            try:
                for record in shared:
                    seen.append(record.offset)
                    if record.offset == 29_999:
                        return
            except ValueError as busy:
                told.append(str(busy))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        while 29_999 not in seen[-8:] and any(thread.is_alive() for thread in threads):
            time.sleep(0.01)
        end()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert sorted(seen) == sorted(set(seen))
        assert set(told) <= {"generator already executing"}, told
print("went on")
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", ["stream", "consumer"])
def test_threads_that_share_an_iterator_do_not_crash(tmp_path: Path, what: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", SHARE, str(tmp_path / "hub"), what],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "went on\n"), done.stderr
