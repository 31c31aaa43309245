"""Launchers: trials run on this machine or on a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping

from bench.launch.launcher import Launcher
from bench.spec.errors import UsageError
from bench.spec.trial import Request


def open_launcher(request: Request) -> Launcher:
    """Return the launcher of this machine, or with ``--on ray`` that of a cluster.

    Raises:
        UsageError: torchrun or srun started several tasks; no cluster answers, or it lacks the accelerators.
    """
    if request.on is None:
        require_one_task()
        from bench.launch.local import LocalLauncher

        return LocalLauncher()
    from bench.launch.ray.launcher import RayLauncher

    files = [word for word in request.suites if word.endswith(".py")]
    return RayLauncher(request.on.partition("://")[2] or None, request.accelerators, files)


def require_one_task(environment: Mapping[str, str] = os.environ) -> None:
    """Refuse to measure on this machine as one of several tasks, which would disturb each other.

    Raises:
        UsageError: torchrun or srun started several tasks.
    """
    ranks = {
        "torchrun": environment.get("WORLD_SIZE", "1") if "RANK" in environment else "1",
        "srun": environment.get("SLURM_STEP_NUM_TASKS", "1"),  # SLURM_NTASKS is set in a batch script, too
    }
    for starter, count in ranks.items():
        if count.isdecimal() and int(count) > 1:
            raise UsageError(
                f"{starter} started {count} tasks of a program that is to be started once: it starts a process for "
                "each device itself. Measure several machines as nodes of a Ray cluster (run_bench.py --suite NAME "
                "--on ray --accelerators V100,V100+V100), or start one run on each and write one report of them "
                "(run_bench.py report results/A results/B). docs/clusters.md shows both under Slurm."
            )
