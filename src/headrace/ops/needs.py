"""What is missing on this machine for which part, in one line each: ``make setup`` ends with it."""

from __future__ import annotations

import sys

from headrace.ops.doctor import machine_findings


def needs() -> list[str]:
    """One line per missing thing that this machine, and not pip, must bring."""
    return [
        f"{finding['what']}: {finding['found']}; {finding['advice']}"
        for finding in machine_findings()
        if finding["what"] == "java" and finding["ok"] is not True
    ]


if __name__ == "__main__":
    sys.stdout.write("\n".join(needs() or ["ready: nothing is missing"]) + "\n")
