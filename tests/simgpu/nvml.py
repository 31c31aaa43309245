"""``python -m tests.simgpu.nvml [WORDS...]`` runs tests with each of NVML's features off in turn, as older drivers are.

The words are pytest's, as in ``-n 2 --dist loadgroup -m 'gpu or simgpu' tests/gpu tests/simgpu``. All tests run first
with every feature, and which features each of them asks for is taken from the simulated NVML; then, for each feature,
those that asked for it run without it. A test that needs that very feature has the mark ``needs_nvml`` and is skipped.

Options, before the words: ``--asked FILE`` keeps what was asked for there, or takes it from there if it exists;
``--features A,B`` takes only these. Prints a table; exits with 1 if any test failed.

It is also the plugin of pytest that does this, with the options ``--record-nvml`` and ``--asked-nvml``.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.simgpu.machine import NVML_FEATURES, Machine, environment

ROOT = Path(__file__).resolve().parents[2]
MACHINES: list[Machine] = []
"""Those of this process's tests, in addition to its own."""
PROPERTY = "nvml"


def main() -> int:
    """Run the tests with every feature, then without each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--asked", type=Path)
    parser.add_argument("--features", default=",".join(NVML_FEATURES))
    options, words = parser.parse_known_args()
    failed = False
    print(f"{'without':<20} {'passed':>7} {'skipped':>8} {'failed':>7} {'time':>7}", flush=True)
    with tempfile.TemporaryDirectory(prefix="simgpu-nvml-") as folder:
        asked = (options.asked or Path(folder) / "asked.json").resolve()
        if not asked.exists():
            failed |= _run("nothing", [f"--record-nvml={asked}", *words], Path(folder))
        for feature in options.features.split(","):
            failed |= _run(feature, [f"--asked-nvml={asked}", *words], Path(folder), SIM_NVML_OFF=feature)
    return int(failed)


def _run(name: str, words: Sequence[str], folder: Path, **variables: str) -> bool:
    """Run pytest, print the line of the table and what failed; return whether anything did."""
    result, begun = folder / "result.xml", time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "-p", __spec__.name, "--junitxml", str(result), *words]
    done = subprocess.run(command, cwd=ROOT, env=environment(**variables), capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        sys.exit(f"pytest did not run:\n{done.stdout}{done.stderr}")
    (suite,) = ElementTree.parse(result).getroot().iter("testsuite")
    tests, skipped, failures = (int(suite.get(key, 0)) for key in ("tests", "skipped", "failures"))
    failures += int(suite.get("errors", 0))
    took_s = time.monotonic() - begun
    print(f"{name:<20} {tests - skipped - failures:>7} {skipped:>8} {failures:>7} {took_s:>5.0f} s", flush=True)
    if failures:
        print(done.stdout, flush=True)
    return failures > 0


def missing() -> frozenset[str]:
    """Return the features that are off for all tests of this process."""
    return frozenset(filter(None, os.environ.get("SIM_NVML_OFF", "").split(",")))


class Asked:
    """The part of the plugin that runs where all reports come together: what was asked for, by test.

    Tests that look at the same run asked together.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.by_unit = path, dict[str, set[str]]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take what a test's report tells."""
        for name, value in report.user_properties:
            if name == PROPERTY:
                unit, features = value
                self.by_unit.setdefault(unit, set()).update(features)

    def pytest_sessionfinish(self) -> None:
        """Write it."""
        asked = {unit: sorted(features) for unit, features in sorted(self.by_unit.items())}
        self.path.write_text(json.dumps(asked, indent=1))


def unit_of(item: pytest.Item) -> str:
    """Return the name of a test together with those that look at the same run."""
    group = item.get_closest_marker("xdist_group")
    return group.args[0] if group else item.nodeid.partition("@")[0]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    parser.addoption("--record-nvml", metavar="FILE", help="write which of NVML's features each test asks for")
    parser.addoption("--asked-nvml", metavar="FILE", help="run only what asked for the features that are off")


def pytest_configure(config: pytest.Config) -> None:
    """Keep what tests ask for."""
    if (path := config.getoption("--record-nvml")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Asked(Path(path)))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that ask for nothing that is off, and skip those that need it."""
    off = missing()
    if path := config.getoption("--asked-nvml"):
        asked = json.loads(Path(path).read_text())
        left_out = [item for item in items if not off.intersection(asked.get(unit_of(item), ()))]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    for item in items:
        if lacking := off & {name for mark in item.iter_markers("needs_nvml") for name in mark.args}:
            item.add_marker(pytest.mark.skip(reason=f"needs NVML's {' and '.join(sorted(lacking))}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Begin anew with each test."""
    _take()
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Tell what a test asked for."""
    item.user_properties.append((PROPERTY, (unit_of(item), sorted(_take()))))


def _take() -> set[str]:
    return {feature for machine in (Machine(), *MACHINES) for feature in machine.take_nvml_asked()}


if __name__ == "__main__":
    sys.exit(main())
