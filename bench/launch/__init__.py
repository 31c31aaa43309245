"""Launchers: trials run on this machine, on the ranks of torchrun or srun, or on a Ray cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.spec.errors import UsageError

if TYPE_CHECKING:
    from bench.launch.launcher import Launcher
    from bench.launch.torchrun import Job
    from bench.spec.trial import Request


def open_launcher(request: Request, job: Job | None) -> Launcher:
    """Return the launcher of this machine, of the ranks that torchrun started, or with ``--on ray`` of a cluster.

    Args:
        request: the command line's options.
        job: this rank's place among those that torchrun or srun started; None if there are no others.

    Raises:
        UsageError: a rank does not come, no cluster answers, or it lacks the accelerators.
    """
    if job is not None:
        if request.on is not None:
            raise UsageError("--on ray starts its own processes: leave out torchrun and srun, or --on.")
        from bench.launch.torchrun import TorchrunLauncher

        return TorchrunLauncher(job, request)
    if request.on is None:
        from bench.launch.local import LocalLauncher

        return LocalLauncher()
    from bench.launch.ray.launcher import RayLauncher

    files = [word for word in request.suites if word.endswith(".py")]
    return RayLauncher(request.on.partition("://")[2] or None, request.accelerators, files)
