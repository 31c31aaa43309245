"""Files that are installed: every package of the program and every file that it reads at run time,
and nothing else.
"""

import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import bench
from bench.report.published import FOLDER
from bench.spec.precisions import TORCH_OF_TORCHAO, TORCHAO

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUP = PROJECT["tool"]["setuptools"]
EXTRAS = PROJECT["project"]["optional-dependencies"]


def test_the_program_its_suites_and_published_figures_are_installed_and_no_tests_or_scripts():
    names = {"results.published"}
    for path in ROOT.glob("*/**/*.py"):
        names.add(".".join(path.parent.relative_to(ROOT).parts))
    patterns = SETUP["packages"]["find"]["include"]
    installed = {name for name in names if any(fnmatch(name, pattern) for pattern in patterns)}
    program = ("bench", "suites", "results")
    assert installed == {name for name in names if name.split(".")[0] in program}
    assert {"bench.report.tables", "suites", "results.published"} < installed


@pytest.mark.parametrize("folder", [FOLDER, ROOT / "bench" / "report"])
def test_files_that_are_read_at_run_time_are_installed_with_their_package(folder):
    patterns = SETUP["package-data"][".".join(folder.relative_to(ROOT).parts)]
    installed = {path for pattern in patterns for path in folder.glob(pattern)}
    others = set()
    for path in [*folder.glob("*"), *folder.glob("templates/*")]:
        if path.is_file() and path.suffix != ".py":
            others.add(path)
    assert others == installed != set()


def test_an_extra_installs_the_least_versions_that_precisions_ask_for():
    least = {}
    for requirement in map(Requirement, EXTRAS["fp8"]):
        least[requirement.name] = str(requirement.specifier)
    assert least == {"torchao": f">={TORCHAO}", "torch": f">={TORCH_OF_TORCHAO}"}
    said = f"float8 precisions take torch {TORCH_OF_TORCHAO} and torchao {TORCHAO}"
    assert said in (ROOT / "docs" / "devices.md").read_text()


def test_the_citation_names_the_version():
    assert f"version: {bench.__version__}\n" in (ROOT / "CITATION.cff").read_text()
