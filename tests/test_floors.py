"""A module imports only from its own floor's allowance: the ground floor from nothing, and so on up."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FLOORS = [
    {"spec", "findings", "stats", "host_memory", "exit_cause"},
    {"precision_names", "technique_names", "records", "nodes"},
    {"trial"},
    {"options", "option_values", "rungs", "fit", "request"},
    {"estimate", "standing"},
    {"catalog", "plan", "store", "cli"},
    {"precision", "joined", "out_of_memory", "chance"},
    {"data", "measure"},
    {"master", "step_count", "techniques", "recompute", "graphs", "synced_norm"},
    {"train", "environment", "neighbours", "weights", "error_report"},
    {"checkpoint", "evaluation", "lightning_loop", "ranks", "inventory"},
    {"phases", "flops"},
    {"worker", "checks"},
    {"launch", "report"},
    {"display", "cautions", "listing"},
    {"gather", "execute"},
    {"session"},
    {"doctor"},
]
WITHOUT_TORCH = (
    "run_bench",
    "bench.run.session",
    "bench.doctor.doctor",
    "bench.run.prepare",
    "bench.launch.local",
    "bench.report",
    "suites.resnet50",
)


def modules():
    return sorted(path for path in (ROOT / "bench").rglob("*.py") if path != ROOT / "bench" / "__init__.py")


def room(path):
    return path.relative_to(ROOT / "bench").parts[0].removesuffix(".py")


def floor(path):
    return next(number for number, rooms in enumerate(FLOORS) if room(path) in rooms)


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_from_below(path):
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "bench" or len(parts) < 2:
            continue
        used = next(
            (candidate for size in (3, 2) if (candidate := ROOT.joinpath(*parts[:size]).with_suffix(".py")).exists()),
            ROOT.joinpath(*parts[:2], "__init__.py"),
        )
        if room(used) != room(path):
            assert floor(used) < floor(path), f"{path.name} imports {name}, which is no lower"


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_what_plans_stores_and_reports_never_imports_torch(name):
    code = f"import sys, {name}; sys.exit('torch' in sys.modules or 'pynvml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_only_one_module_imports_pynvml():
    users = {path.name for path in modules() if any(name.split(".")[0] == "pynvml" for name in imports(path))}
    assert users == {"nvml.py"}


@pytest.mark.parametrize("path", sorted((ROOT / "suites").glob("*.py")), ids=lambda path: path.name)
def test_a_suite_imports_torch_only_when_it_builds(path):
    top = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {(getattr(node, "module", None) or node.names[0].name).split(".")[0] for node in top}
    assert not names & {"torch", "torchvision"}


@pytest.mark.parametrize("package", ["data", "measure", "phases", "checks", "launch", "report"])
def test_the_modules_of_a_package_are_in_the_architecture(package):
    page = (ROOT / "docs" / "architecture.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith(f"| `{package}/` | ")]
    there = {path.stem for path in (ROOT / "bench" / package).glob("*.py")} - {"__init__"}
    assert set(re.findall(r"`(\w+)`", row)) == there


def test_files_are_small_enough_to_read():
    sizes = {path.name: len(path.read_text().splitlines()) for path in modules()}
    assert {name for name, size in sizes.items() if size > 260} == set()
