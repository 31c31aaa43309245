"""The fork server's preparation, before its first fork.

The fork server of multiprocessing runs no code but the import of named modules. So this module,
unlike any other, does its work when it is imported. multiprocessing ignores an ImportError of such
a module; a process that imports torch again then fails with another error. So the first
error is kept, and every process reports it. Whatever ends the launcher, nothing that it started
stays:

- While the fork server imports torch, the kernel kills it with its launcher.
- Afterwards it sees that nobody holds the launcher's end of its pipe; workers let go of it
  (``bench.launch.local``). It then kills all that descends from it and ends.
- When it is killed itself, the kernel kills the workers, and with them what they forked.
"""

import atexit
import os
import tempfile

from bench.results.endings import Ending
from bench.spec import lifetime
from bench.spec.own_modules import SAFE_PATH

os.environ.pop(SAFE_PATH, None)  # it was for the start of this process
lifetime.end_with(int(os.environ.get(lifetime.LAUNCHER, os.getppid())))
_PID = os.getpid()


@atexit.register
def _end() -> None:
    """Kill all that descends from the fork server.

    The interpreter's clean-up is skipped, because it takes seconds.
    What torch registers when it is imported runs before: torch up to 2.6 removes a temporary
    folder.
    """
    if os.getpid() == _PID:
        lifetime.end_children()
        os._exit(0)


from bench.worker.failures import import_failure  # noqa: E402

# Why torch or another library cannot be imported; None if all of them can.
import_error: Ending | None = None
try:
    # torch makes the folder of its compiler's cache when it is imported; each trial has one of its
    # own.
    with tempfile.TemporaryDirectory(prefix="ampmeter-") as folder:
        before = os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", folder)
        import bench.worker.worker  # noqa: F401 - this takes seconds

        if before == folder:
            del os.environ["TORCHINDUCTOR_CACHE_DIR"]
except Exception as error:  # a library that cannot be loaded raises OSError, too
    import_error = import_failure(error)

lifetime.outlive()
lifetime.tie_forks()
