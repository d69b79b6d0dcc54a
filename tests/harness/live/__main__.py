"""``python -m tests.harness.live``: makes one live run; prints its counts and violations."""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from headrace.testing.children import SEED_VARIABLE
from tests.harness.live.run import SABOTAGE, LiveRun


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.harness.live", description=__doc__)
    parser.add_argument("--seed", default="", help="the seed of the faults [a new one]")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the faults last")
    parser.add_argument("--plan", default="chaos", choices=["chaos", "zombies", "impatience"])
    parser.add_argument("--sabotage", default="", choices=["", *SABOTAGE])
    parser.add_argument("--keep", action="store_true", help="keep the evidence of a clean run too")
    given = parser.parse_args()
    seed = given.seed or os.environ.get(SEED_VARIABLE) or secrets.token_hex(4)
    place = Path(tempfile.mkdtemp(prefix="headrace-live-"))
    say = sys.stdout.write
    say(f"seed {seed}, {given.seconds:g} s, evidence in {place / 'evidence'}\n")
    sys.stdout.flush()
    run = LiveRun(place, seed, given.seconds, plan=given.plan, sabotage=given.sabotage)
    verdict = run.run()
    say(f"{verdict}\n")
    if verdict.violations:
        again = f"--seed {seed} --seconds {given.seconds:g} --plan {given.plan}"
        say(f"VIOLATED {', '.join(sorted(verdict.broken))}: {again}\n")
        return 1
    if not given.keep:
        shutil.rmtree(place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
