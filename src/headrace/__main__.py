"""``headrace`` and ``python -m headrace``: begun so that Ctrl-C while modules are loaded shows no
trace."""

import sys


def main() -> None:
    try:
        from headrace.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
