"""What imports what: planning and reporting never wait for torch, and nothing needs an optional
folder.
"""

import ast
import subprocess
import sys
import tomllib

import pytest

from tests.optional import OF_PHASES, OPTIONAL, ROOT

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
    "bench.spec",
    "bench.stats",
    "bench.results",
    "bench.planning",
    "bench.report",
    "bench.launch",
    "bench.cli",
    "bench.run",
    "bench.compare",
    "bench.doctor.command",
    "bench.doctor.doctor",
    "bench.ray",
    "bench.script",
    "suites",
    "run_bench",
)
REPORTS = [
    f"bench.phases.{path.parent.name}.report" for path in ROOT.glob("bench/phases/*/report.py")
]


def test_no_module_of_a_package_that_never_computes_imports_torch():
    command = [sys.executable, "-c", IMPORT_ALL, *WITHOUT_TORCH, *REPORTS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def imports(source):
    """Yield the modules and names that a file imports, also inside of functions."""
    tree = ast.parse(source.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield f"{node.module}.{alias.name}."
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield f"{alias.name}."


def test_every_package_has_a_layer_or_is_optional():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = settings["tool"]["importlinter"]["contracts"]
    placed = {folder.name for folder in OPTIONAL}
    for layer in contract["layers"]:
        placed.update(layer.split(" | "))
    packages = {path.parent.name for path in ROOT.glob("bench/*/__init__.py")}
    assert packages <= placed


USES = {"explain": ROOT / "bench/script"}
"""An optional folder that another uses, where it is there: script explains the steps that its hook
observed."""


@pytest.mark.parametrize("folder", OPTIONAL, ids=lambda folder: folder.name)
def test_nothing_outside_of_an_optional_folder_imports_it(folder):
    package = ".".join(folder.relative_to(ROOT).parts)
    for path in [ROOT / "run_bench.py", *ROOT.glob("suites/*.py"), *ROOT.glob("bench/**/*.py")]:
        may_import = {folder, USES.get(folder.name)} & {*path.parents}
        if not may_import:
            for name in imports(path):
                assert not name.startswith(f"{package}."), path


@pytest.mark.parametrize("folder", OF_PHASES, ids=lambda folder: folder.name)
def test_no_report_names_an_optional_phase(folder):
    for path in ROOT.glob("bench/report/**/*.py"):
        assert f'"{folder.name}"' not in path.read_text(), path
