"""What is installed: every package, and every file that is read at run time."""

import tomllib
from pathlib import Path

import pytest

from bench.report.tables.published import FOLDER

ROOT = Path(__file__).resolve().parents[1]
SETUP = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def test_every_package_is_installed():
    found = {".".join(path.parent.relative_to(ROOT).parts) for path in ROOT.glob("bench/**/__init__.py")}
    assert found | {"suites", "results.published"} == set(SETUP["packages"])


@pytest.mark.parametrize("folder", [FOLDER, ROOT / "bench" / "report"])
def test_files_that_are_read_at_run_time_are_installed_with_their_package(folder):
    patterns = SETUP["package-data"][".".join(folder.relative_to(ROOT).parts)]
    there = {path for pattern in patterns for path in folder.glob(pattern)}
    others = {path for path in folder.iterdir() if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert others == there != set()
