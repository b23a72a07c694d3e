"""Becomes the Redis server, after asking the kernel to end it together with its parent.

Run by path as `python -I -S embedded_launcher.py PARENT_PID BINARY ARGUMENTS...`: a program of its own, because code
between fork and exec of a process with threads may hang, and so without any import of ours.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    # The parent may have died before the kernel was asked; then nobody would ever end this process.
    if os.getppid() != parent:
        sys.exit(f"the parent {parent} is gone")
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
