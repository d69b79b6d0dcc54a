"""``python -m tests.harness.proof --records N [--seed S]``: kills a replica at every fail point of
lanes and replicas, while N records come each time."""

from __future__ import annotations

import argparse
import secrets
import signal
import sys
import tempfile
from pathlib import Path

from tests.harness.proof.points import HURT, PointsVerdict, kill_at_points

RECORDS = 100_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.harness.proof")
    parser.add_argument("--records", type=int, default=RECORDS, help="for each fail point")
    parser.add_argument("--seed", default=None)
    given = parser.parse_args()
    seed = given.seed or secrets.token_hex(4)
    sys.stdout.write(f"seed {seed}\n")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the replicas end too
    with tempfile.TemporaryDirectory(prefix="headrace-prove-") as place:
        found = kill_at_points(Path(place), HURT, given.records, seed=seed, tell=_say)
    return _show(found, seed)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _show(found: PointsVerdict, seed: str) -> int:
    missed = sorted(set(HURT) - set(found.died))
    for name, each in found.streams.items():
        _say(
            f"{name}: {each.expected} expected, {each.found} found, lost {each.lost}, "
            f"doubled {each.doubled}, out of order {each.out_of_order}, "
            f"unexpected {each.unexpected}"
        )
    for name, equal in found.state.items():
        _say(f"state of {name}: {'equal to' if equal else 'NOT'} a fold over the input")
    for said in (*found.ended, *(f"never reached: {point}" for point in missed)):
        _say(said)
    clean = found.clean and not missed
    _say(
        f"{'clean' if clean else 'NOT CLEAN'}: {found.deaths} kills at {len(found.died)} points, "
        f"{found.records} records through three stages, {found.seconds:.0f} s, seed {seed}"
    )
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
