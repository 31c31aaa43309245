"""The workflow in the document: its steps are shell commands that do what the page says, here with
a tiny suite.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import TINY

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "continuous-integration.md"


def steps():
    """Return the commands of the workflow's steps, by name."""
    (workflow,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    job = yaml.safe_load(workflow)["jobs"]["speed"]
    return {step.get("name"): step.get("run") for step in job["steps"]}


@pytest.fixture
def bash(tmp_path):
    """Runs a step as a runner would, with the command `ampmeter` on its path."""
    work = tmp_path / "work"
    tools = tmp_path / "bin"
    work.mkdir()
    tools.mkdir()
    command = tools / "ampmeter"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ROOT / "run_bench.py"}" "$@"\n')
    command.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "RUNNER_TEMP": str(tmp_path / "temp"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "page"),
    }

    def run(script, **variables):
        words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
        given = environment | variables
        return subprocess.check_output(words, cwd=work, env=given, text=True)

    return run


@pytest.mark.slow
def test_the_steps_measure_both_sides_and_compare_them(bash, tmp_path):
    suite = TINY.replace("batch_sizes=(4, 8)", "batch_sizes=(4,)")
    for name in ("base", "head"):
        (tmp_path / "work" / "model.py").write_text(f"{suite}\n# {name}\n")
        git = "git init -q . && git add -A && git -c user.name=a -c user.email=a@b.c commit -qm"
        bash(f"{git} {name}")
    base = bash("git rev-parse HEAD~1").strip()
    script = steps()
    for _job in range(2):  # the first one's checkout is still there
        bash(script["Check out the base"], BASE=base)
    quick = script["Measure both by turns and compare"].replace("3%", "100% --pairs 2")
    quick = quick.replace("--target-ci 1%", "--time-budget 1s --gpus cpu --precisions fp32")
    bash(quick)
    page = (tmp_path / "page").read_text()
    assert "NEW against OLD: 1 row compared" in page
