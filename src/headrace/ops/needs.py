"""Lists what is missing on this machine, one line each; ``make setup`` ends with it."""

from __future__ import annotations

import sys

from headrace.ops.doctor import examine_machine


def needs() -> list[str]:
    """One line for each missing program that pip cannot install."""
    return [
        f"{finding['what']}: {finding['found']}; {finding['advice']}"
        for finding in examine_machine()
        if finding["what"] == "java" and finding["ok"] is not True
    ]


if __name__ == "__main__":
    sys.stdout.write("\n".join(needs() or ["ready: nothing is missing"]) + "\n")
