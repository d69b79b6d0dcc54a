"""``headrace run``, once for each line of arguments, in one process: Java is started once."""

from __future__ import annotations

import json
import sys

from headrace.cli.main import main


def run(arguments: list[str]) -> object:
    """Its exit code."""
    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit as ended:
        return ended.code
    return None


if __name__ == "__main__":
    for line in sys.stdin:
        code = run(json.loads(line))
        sys.stdout.write(f"ended {code}\n")
        sys.stdout.flush()
