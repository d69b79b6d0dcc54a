"""The entry of ``headrace`` and ``python -m headrace``: loads the command, and ends without a trace
if Ctrl-C comes meanwhile."""

import sys

INTERRUPTED = 130


def main() -> None:
    try:
        from headrace.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
