"""Files that are installed: every package of the program and every file that it reads at run time,
and nothing else.
"""

import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

import bench
from bench.report.published import FOLDER
from bench.spec.precisions import TORCH_OF_TORCHAO, TORCHAO

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = ROOT / "pyproject.toml"
PROJECT = tomllib.loads(PYPROJECT.read_text())
SETUP = PROJECT["tool"]["setuptools"]


def package_of(folder):
    return ".".join(folder.relative_to(ROOT).parts)


def test_the_program_its_suites_and_published_figures_are_installed_and_no_tests_or_scripts():
    names = {"results.published"}
    for path in ROOT.glob("*/**/*.py"):
        names.add(package_of(path.parent))
    assert "bench.report.tables" in names
    patterns = SETUP["packages"]["find"]["include"]
    for name in names:
        root, _, _ = name.partition(".")
        is_installed = any(fnmatch(name, pattern) for pattern in patterns)
        assert is_installed == (root in ("bench", "suites", "results")), name


@pytest.mark.parametrize("folder", [FOLDER, ROOT / "bench/report"])
def test_files_that_are_read_at_run_time_are_installed_with_their_package(folder):
    installed = set()
    for pattern in SETUP["package-data"][package_of(folder)]:
        installed.update(folder.glob(pattern))
    assert installed
    read = set()
    for path in [*folder.glob("*"), *folder.glob("templates/*")]:
        if path.is_file() and path.suffix != ".py":
            read.add(path)
    assert installed == read


def test_an_extra_installs_the_least_versions_that_precisions_ask_for():
    extras = PROJECT["project"]["optional-dependencies"]
    assert sorted(extras["fp8"]) == [f"torch>={TORCH_OF_TORCHAO}", f"torchao>={TORCHAO}"]
    page = ROOT / "docs" / "devices.md"
    sentence = f"float8 precisions take torch {TORCH_OF_TORCHAO} and torchao {TORCHAO}"
    assert sentence in page.read_text()


def test_the_citation_names_the_version():
    citation = ROOT / "CITATION.cff"
    assert f"version: {bench.__version__}\n" in citation.read_text()
