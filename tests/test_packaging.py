"""What is installed: every package of the program and every file that it reads at run time, and nothing else."""

import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from bench.report.analysis.literature import FOLDER

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUP = PYPROJECT["tool"]["setuptools"]


def test_the_program_its_suites_and_published_figures_are_installed_and_no_tests_or_scripts():
    folders = {path.parent.relative_to(ROOT) for path in ROOT.glob("*/**/*.py")} | {FOLDER.relative_to(ROOT)}
    names = {".".join(folder.parts) for folder in folders}
    patterns = SETUP["packages"]["find"]["include"]
    installed = {name for name in names if any(fnmatch(name, pattern) for pattern in patterns)}
    assert installed == {name for name in names if name.split(".")[0] in ("bench", "suites", "results")}
    assert {"bench.report.tables", "suites", "results.published"} < installed


@pytest.mark.parametrize("folder", [FOLDER, ROOT / "bench" / "report", ROOT / "bench" / "report" / "exports"])
def test_files_that_are_read_at_run_time_are_installed_with_their_package(folder):
    patterns = SETUP["package-data"][".".join(folder.relative_to(ROOT).parts)]
    installed = {path for pattern in patterns for path in folder.glob(pattern)}
    inside = [folder, *(path for path in folder.iterdir() if path.is_dir() and not (path / "__init__.py").exists())]
    files = (path for one in inside for path in one.iterdir() if path.is_file())
    others = {path for path in files if path.suffix not in (".py", ".pyc")}
    assert others == installed != set()


def test_what_the_tests_share_with_an_extra_has_the_same_version_and_no_torch_is_replaced():
    extras = PYPROJECT["project"]["optional-dependencies"]
    tested = extras.pop("test")
    others = {word for name, words in extras.items() if name != "dev" for word in words}
    shared = {name: {word for word in others if word.startswith(f"{name}>")} for name in ("torchao", "transformers")}
    assert all(words and words < set(tested) for words in shared.values())
    assert not [word for word in tested if word.startswith("torch>") or word == "ampmeter[fp8]"]
