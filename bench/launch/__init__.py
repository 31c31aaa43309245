"""Launchers: trials run on this machine, on the ranks of torchrun or srun, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence

from bench.launch.launcher import Launcher


def open_launcher(suites: Sequence[str], on: str | None, accelerators: Sequence[str] | None) -> Launcher:
    """Return the launcher of this machine, or with ``--on ray`` that of a cluster.

    Args:
        suites: as the command line named them; suite files are sent to the nodes of a cluster.
        on: ``ray`` or ``ray://HOST:PORT``; None is this machine.
        accelerators: types of a cluster's accelerators; None is one of each.

    Raises:
        UsageError: no cluster answers, or it lacks these accelerators.
    """
    if on is None:
        from bench.launch.local import LocalLauncher

        return LocalLauncher()
    from bench.launch.ray.launcher import RayLauncher

    files = [word for word in suites if word.endswith(".py")]
    return RayLauncher(on.partition("://")[2] or None, accelerators, files)
