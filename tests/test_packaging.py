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
    folders = {path.parent.relative_to(ROOT) for path in ROOT.glob("*/**/*.py")} | {
        FOLDER.relative_to(ROOT)
    }
    names = {".".join(folder.parts) for folder in folders}
    patterns = SETUP["packages"]["find"]["include"]
    installed = {name for name in names if any(fnmatch(name, pattern) for pattern in patterns)}
    assert installed == {
        name for name in names if name.split(".")[0] in ("bench", "suites", "results")
    }
    assert {"bench.report.tables", "suites", "results.published"} < installed


@pytest.mark.parametrize("folder", [FOLDER, ROOT / "bench" / "report"])
def test_files_that_are_read_at_run_time_are_installed_with_their_package(folder):
    patterns = SETUP["package-data"][".".join(folder.relative_to(ROOT).parts)]
    installed = {path for pattern in patterns for path in folder.glob(pattern)}
    inside = [
        folder,
        *(
            path
            for path in folder.iterdir()
            if path.is_dir() and not (path / "__init__.py").exists()
        ),
    ]
    files = (path for subfolder in inside for path in subfolder.iterdir() if path.is_file())
    others = {path for path in files if path.suffix not in (".py", ".pyc")}
    assert others == installed != set()


def test_an_extra_installs_the_least_versions_that_precisions_ask_for():
    least = {
        requirement.name: str(requirement.specifier)
        for requirement in map(Requirement, EXTRAS["fp8"])
    }
    assert least == {"torchao": f">={TORCHAO}", "torch": f">={TORCH_OF_TORCHAO}"}
    said = f"float8 precisions take torch {TORCH_OF_TORCHAO} and torchao {TORCHAO}"
    assert said in (ROOT / "docs" / "devices.md").read_text()


def test_the_citation_names_the_version():
    assert f"version: {bench.__version__}\n" in (ROOT / "CITATION.cff").read_text()
