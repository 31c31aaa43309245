"""The instrument's self-tests on this machine: run them, and print their outcomes."""

from __future__ import annotations

from bench.doctor.checks import CHECKS, Check
from bench.launch.local import LocalLauncher
from bench.measure.disturbance import CpuWatch
from bench.results.records import Device
from bench.spec.errors import UsageError
from bench.spec.text import print_plain


def examine(gpus: tuple[str, ...] | None, launcher: LocalLauncher) -> bool:
    """Run every self-test, and print its outcome.

    Args:
        gpus: the devices to test; None is every GPU, or else the CPU.
        launcher: runs the probes.

    Returns:
        Whether none failed; what cannot be done here has not failed.

    Raises:
        UsageError: there is no such device.
    """
    environment = launcher.survey(gpus)
    for note in environment.left_out:
        print_plain(f"Warning: {note}")
    failed = 0
    watch = CpuWatch()
    for device in environment.devices:
        where = f"GPU {device.placement}" if device.is_gpu else device.placement
        for name in CHECKS:
            check = _run(name, device, launcher)
            expected = f" (expected: {check.expected})" if check.expected else ""
            print_plain(f"{where}, {name}: {check.result}: {check.measured}{expected}")
            if check.passed is False:
                failed += 1
                print_plain(f"  This means: {check.meaning}.")
    if (load_pct := watch.foreign_load_pct()) is not None:
        print_plain(f"Other programs took {load_pct:.0f} % of the cores meanwhile.")
    count = len(CHECKS) * len(environment.devices)
    print_plain(f"{failed} of {count} checks failed." if failed else "No check failed.")
    return not failed


def _run(name: str, device: Device, launcher: LocalLauncher) -> Check:
    """Run a check; one whose process fails has failed."""

    def probe(function: str, *arguments: object) -> object:
        return launcher.call(f"bench.doctor.probes:{function}", device, *arguments)

    try:
        return CHECKS[name](probe)
    except UsageError as error:
        meaning = "what this tests is unknown here, and trials may fail in the same way"
        return Check(expected="runs to its end", measured=str(error), passed=False, meaning=meaning)
