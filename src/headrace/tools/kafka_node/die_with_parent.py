"""Runs a command that the kernel kills when the process at the other end of its standard input
ends, even by a kill.

This is a script, started by its path: it needs nothing of this package. The kernel keeps the owner
of a file and the signal to send when another program takes over the process. The death signal of a
parent would depend on the thread that started the command; this does not.
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
        sys.exit("the parent ended before the command began")
    os.execv(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
