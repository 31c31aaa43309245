"""``python -m tests.simgpu COMMAND...`` runs a command on simulated GPUs, built before if need be.

Where they cannot be built, it says why and exits with 1; with ``--if-possible`` before the command, with 0.
``python -m tests.simgpu poke FIELD GPU VALUE`` sets a fault; the fields are those of ``machine.Shared``.
"""

import os
import sys

from tests.simgpu.build import UnavailableError
from tests.simgpu.machine import Machine, environment


def main(words: list[str]) -> None:
    """Set a fault, or run a command in place of this process."""
    if words[:1] == ["poke"]:
        _, what, gpu, value = words
        Machine().poke(what, int(gpu), int(value, 0))
        return
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
