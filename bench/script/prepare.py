"""The plan of a training script's run: its arms are profiled, then timed in rounds."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

from bench.devices.processes import busy
from bench.launch import Launcher
from bench.planning.abilities import require_comparable
from bench.planning.plan import Plan
from bench.run.prepare import PreparedRun, warn_of_environment
from bench.spec.data_source import DataSource
from bench.spec.errors import UsageError
from bench.spec.placement import Placement
from bench.spec.request import Request, Script
from bench.spec.techniques import ArmSpec
from bench.spec.text import print_plain
from bench.spec.trial import SILENCE_S, Cell, SuiteRef, Trial


def prepare_script(request: Request, script: Script, launcher: Launcher) -> PreparedRun:
    """Look at the devices; plan a profiled process of each arm, then rounds of timed ones.

    Raises:
        UsageError: there is no such script, or no such device.
    """
    _check(script)
    print_plain("Looking at the devices.")
    environment = launcher.survey(request.gpus)
    if request.gpus is None:
        environment = replace(environment, devices=environment.devices[:1])
    require_comparable(tuple(dict(script.arms)), environment.devices)
    main = Path(script.main)
    text = main.read_bytes() if main.is_file() else b""
    digest = hashlib.blake2b(repr((script, text)).encode(), digest_size=6)
    ref = SuiteRef(name=script.name, digest=digest.hexdigest())
    arms = tuple(ArmSpec(precision=name) for name, _ in script.arms)
    trials = []
    for device in environment.devices:
        cell = Cell(
            suite=ref,
            placement=Placement(name=device.placement),
            batch_size=1,
            data=DataSource(kind="script"),
            reference=arms[0].precision,
        )
        silence_s = request.trial_timeout_s or SILENCE_S
        common = Trial(
            cell=cell, phase="speed", arms=arms, protocol=request.protocol, silence_s=silence_s
        )
        trials += [replace(common, phase="memory", arms=(arm,)) for arm in arms]
        for number in range(request.protocol.replicates):
            trials.append(replace(common, replicate=number))
        if script.explain:
            trials.append(replace(common, phase="explain"))
    return PreparedRun(
        request=request,
        suites=(ref,),
        environment=environment,
        plan=Plan(trials=tuple(trials)),
        warnings=(*warn_of_environment(environment), *busy(environment)),
    )


def _check(script: Script) -> None:
    """Refuse a command that cannot be started."""
    main = Path(script.main)
    starter = script.command[0]
    if main.suffix == ".py" and not main.is_file():
        raise UsageError(f"There is no script '{main.resolve()}'.")
    if not starter.endswith(".py") and starter != "-m" and shutil.which(starter) is None:
        raise UsageError(
            f"There is no program '{starter}'. Give a script that ends in .py, or torchrun and the "
            "like."
        )
