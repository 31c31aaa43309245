"""What plans, stores and reports never waits for torch to be imported; suite files import it when they build."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
IMPORT_ALL = """
import importlib, pkgutil, sys

package = importlib.import_module(sys.argv[1])
modules = pkgutil.walk_packages(getattr(package, "__path__", []), f"{sys.argv[1]}.")
for name in [sys.argv[1], *(module.name for module in modules)]:
    importlib.import_module(name)
    if heavy := {"torch", "pynvml"} & sys.modules.keys():
        sys.exit(f"{name} imports {', '.join(sorted(heavy))} when it is imported")
"""
WITHOUT_TORCH = (
    "run_bench",
    "suites",
    "bench.run",
    "bench.cli",
    "bench.launch",
    "bench.planning",
    "bench.report",
    "bench.results",
    "bench.spec",
    "bench.stats",
    "bench.doctor.doctor",
)


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_no_module_of_a_package_that_never_computes_imports_torch(name):
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, name], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
