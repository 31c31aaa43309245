"""``python -m tests.simgpu COMMAND...`` runs a command on simulated GPUs, built before if need be.

Where they cannot be built, it says why and exits with 1; with ``--if-possible`` before the command,
with 0.
"""

import os
import sys

from tests.simgpu.build import UnavailableError
from tests.simgpu.machine import environment


def main(words: list[str]) -> None:
    """Run a command in place of this process."""
    if_possible = words[:1] == ["--if-possible"]
    command = words[if_possible:]
    try:
        variables = environment()
    except UnavailableError as reason:
        print(f"Skipped: {reason}.", file=sys.stderr)
        sys.exit(0 if if_possible else 1)
    os.execvpe(command[0], command, variables)


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit(__doc__)
    main(sys.argv[1:])
