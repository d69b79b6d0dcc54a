"""A producer of a live run: it writes each intent to append, and the outcome, as evidence."""

from __future__ import annotations

import argparse
import signal
import time
from pathlib import Path

import headrace
from tests.harness.live import sabotage
from tests.harness.live.evidence import Evidence, lines_of, send_errors_to
from tests.harness.live.load import STREAM, rows_of, skips

PACE_S = 0.008
TRIES = 20
AGAIN_S = 0.03
WRITE_TIMEOUT_S = 1.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("hub")
    parser.add_argument("evidence", type=Path)
    parser.add_argument("label")
    parser.add_argument("name")
    parser.add_argument("--sabotage", default="")
    given = parser.parse_args()
    send_errors_to(given.evidence, given.label)
    ending = _Ending()
    sabotage.do(given.sabotage)
    seq = _next_seq(given.evidence, given.name)
    evidence = Evidence(given.evidence, given.label)
    with headrace.open(given.hub, write_timeout=WRITE_TIMEOUT_S) as hub:
        stream = hub.stream(STREAM)
        evidence.tell("ready")
        while not ending.asked:
            _append(evidence, stream, given.name, seq, ending)
            seq += 1
            time.sleep(PACE_S)


class _Ending:
    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, *_: object) -> None:
        self.asked = True


def _append(
    evidence: Evidence, stream: headrace.Stream, name: str, seq: int, ending: _Ending
) -> None:
    rows = rows_of(name, seq)
    for _ in range(TRIES):
        evidence.tell("intent", producer=name, seq=seq, rows=len(rows))
        try:
            ids = stream.append_many(rows, producer=name, producer_seq=seq)
        except headrace.UnknownOutcome as why:
            evidence.tell("fail" if why.withdrawn else "unknown", producer=name, seq=seq)
        except headrace.DiskFull:
            evidence.tell("fail", producer=name, seq=seq)
        except headrace.Retryable:
            evidence.tell("unknown", producer=name, seq=seq)
        else:
            places = [[one.shard, one.offset] for one in ids]
            evidence.tell("ack", producer=name, seq=seq, at=places)
            return
        if skips(seq) or ending.asked:
            return
        time.sleep(AGAIN_S)


def _next_seq(evidence: Path, name: str) -> int:
    """Where this producer goes on: it repeats the append at which it was killed, or skips it."""
    lines = [line for line in lines_of(evidence, f"{name}.") if "seq" in line]
    if not lines:
        return 0
    last = max(int(line["seq"]) for line in lines)
    acked = any(line["what"] == "ack" and line["seq"] == last for line in lines)
    return last + 1 if acked or skips(last) else last


if __name__ == "__main__":
    main()
