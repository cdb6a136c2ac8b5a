"""Becomes a command that ends with the process which started it.

`python -m flytune.caches.launch COMMAND...`; 127 where it cannot be run, as in a shell.
"""

import os
import sys

from flytune.caches.child import PARENT, die_with_parent


def main() -> None:
    """Become the command, which keeps what the kernel was told of its parent."""
    command = sys.argv[1:]
    die_with_parent()
    os.environ.pop(PARENT, None)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"cannot run: {command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    main()
