"""Without any one of the optional folders all else works: runs, the help and every module that is
left, and reports.
"""

import shutil
import subprocess
import sys

import pytest

from tests.optional import OPTIONAL, ROOT

FILES = ("bench", "suites", "results/published", "run_bench.py", "pyproject.toml")
RUN = "run_bench.py --suite mlp --set width=64 --quick --gpus cpu --out run"
IMPORT_ALL = """
import importlib, pkgutil, bench

for module in pkgutil.walk_packages(bench.__path__, "bench."):
    importlib.import_module(module.name)
"""


@pytest.mark.slow
@pytest.mark.parametrize("folder", OPTIONAL, ids=lambda folder: folder.name)
def test_without_an_optional_folder_all_else_works(folder, tmp_path):
    subprocess.run(["cp", "-r", "--parents", *FILES, tmp_path], cwd=ROOT, check=True)
    shutil.rmtree(tmp_path / folder.relative_to(ROOT))

    def python(*words, code=0):
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    usage = python("run_bench.py", "--help")
    assert f"run_bench.py {folder.name} " not in usage
    python("-c", IMPORT_ALL)
    python(*RUN.split())
    python("run_bench.py", "report", "run", "--out", "report")
    report = (tmp_path / "report" / "report.md").read_text()
    assert "mlp" in report
    if (folder / "command.py").exists():
        refusal = python("run_bench.py", folder.name, code=2)
        assert f"no command '{folder.name}'" in refusal
