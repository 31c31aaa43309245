"""Planning, storing and reporting never wait for torch to be imported; suite files import it when they build."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMPORT_ALL = """
import importlib, pkgutil, sys

for name in sys.argv[1:]:
    package = importlib.import_module(name)
    modules = pkgutil.walk_packages(getattr(package, "__path__", []), f"{name}.")
    for name in [name, *(module.name for module in modules)]:
        importlib.import_module(name)
        if heavy := {"torch", "pynvml"} & sys.modules.keys():
            sys.exit(f"{name} imports {', '.join(sorted(heavy))} when it is imported")
"""
WITHOUT_TORCH = (
    *("bench.spec", "bench.stats", "bench.results", "bench.planning", "bench.report", "bench.launch", "bench.cli"),
    *("bench.run", "bench.doctor.doctor", "suites", "run_bench"),
)


def test_no_module_of_a_package_that_never_computes_imports_torch():
    command = [sys.executable, "-c", IMPORT_ALL, *WITHOUT_TORCH]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
