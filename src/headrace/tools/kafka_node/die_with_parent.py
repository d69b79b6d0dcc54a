"""Runs a command that the kernel kills when whoever holds the other end of its standard input has
gone, however it went. Started as a script, by its path: it needs nothing of this package.

The owner of a file and the signal it sends are kept when another program takes over the process.
Unlike the death signal of a parent, this does not depend on the thread that started it.
"""

import fcntl
import os
import select
import signal
import sys

HELD = 0


def main() -> None:
    fcntl.fcntl(HELD, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(HELD, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(HELD, fcntl.F_SETFL, fcntl.fcntl(HELD, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([HELD], [], [], 0)[0]:
        sys.exit("let go before it began")
    os.execv(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
