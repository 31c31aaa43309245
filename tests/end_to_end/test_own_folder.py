"""A run that is started in a folder whose modules are called as this project's executes none of
them.
"""

import subprocess
import sys

import pytest

from bench.spec.own_modules import ROOT
from tests.conftest import TINY


@pytest.mark.slow
def test_suites_are_measured_in_a_folder_with_modules_called_as_ours(tmp_path):
    (tmp_path / "suites").mkdir()
    for name in ("bench.py", "results.py", "run_bench.py", "suites/__init__.py"):
        module = tmp_path / name
        module.write_text("raise SystemExit('a module of the user was executed')")
    (tmp_path / "neighbour.py").write_text("WIDTH = 24")
    (tmp_path / "mine.py").write_text(f"from neighbour import WIDTH\n{TINY}")
    words = "--suite mine.py,mlp --set width=8 --phases memory,speed --quick --gpus cpu --out run"
    command = [sys.executable, str(ROOT / "run_bench.py"), *words.split()]
    home = str(tmp_path)
    printed = subprocess.check_output(
        command,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=home,
        env={"PATH": "", "HOME": home, "PYTHONPATH": home},
    )
    assert "executed" not in printed
