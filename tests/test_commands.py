"""Every command of the README and of docs/commands.md runs.

``READ`` has the commands that read results: this file runs each on made-up runs. ``ELSEWHERE`` has
the commands that only another test runs. This file plans each of the others on a faked machine with
two GPUs.
"""

import re
import shlex
from dataclasses import replace

import pytest

from bench.script.prepare import prepare_script
from tests.conftest import TINY, call
from tests.golden.cases import explain, of_builder
from tests.planning.test_plan import gpu
from tests.report import fleet
from tests.run.test_prepare import Reading
from tests.test_docs import COMMAND, ROOT

PAGES = ("README.md", "docs/commands.md")
READ = (
    "report results/A results/B",
    "explain results/A",
    "report --published results/A",
    "report --figures all results/A",
    "compare results/OLD results/NEW",
    "compare results/OLD results/NEW --fail-over 3%",
    "list",
    "list 'timm:resnet*'",
)
"""What reads results, or the registries."""
ELSEWHERE = {
    "--help": "tests/cli/test_parser.py",
    (
        "--suite resnet20 --phases train --precisions amp-fp16 --from "
        "results/A/checkpoints/TRIAL-e2.pt"
    ): "tests/simgpu/",
    "--resume results/NAME": "tests/run/test_folder.py",
    "--resume results/first-run": "tests/run/test_execute.py",
    "compare old.py new.py --interleave DIR -- --quick": "tests/compare/test_interleave.py",
    "compare env-a env-b --interleave DIR -- --suite model.py": "tests/compare/test_interleave.py",
    "list --gpus": "tests/cli/test_listing.py",
    "doctor": "tests/doctor/test_doctor.py",
}
"""What only a test of the file or the folder that is named runs."""


def documented():
    """The commands of the pages, without their comments."""
    commands = {}
    for page in PAGES:
        for text in COMMAND.findall((ROOT / page).read_text()):
            command, *_ = re.split(r"\s+#", text)
            commands[command.strip()] = page
    return commands.keys()


COMMANDS = documented()


def test_what_reads_results_and_what_other_tests_run_is_in_a_document():
    assert {*READ, *ELSEWHERE} <= COMMANDS


class TwoGpus(Reading):
    """A launcher of a machine with two GPUs, whose placements exist as they are named."""

    def survey(self, gpus):
        devices = []
        for name in gpus or ("all",):
            if name == "cpu":
                devices += self.environment.devices
            elif name == "all":
                devices += [replace(gpu(), placement="0"), replace(gpu(), placement="1")]
            else:
                devices.append(replace(gpu(), placement=name))
        return replace(self.environment, devices=tuple(devices))

    def prepare_script(self, request):
        return request.script and prepare_script(request, request.script, self)

    def close(self):
        """Nothing was started."""


@pytest.mark.parametrize("command", sorted(COMMANDS - {*READ, *ELSEWHERE}))
def test_a_measurement_is_planned(command, machine, tmp_path, monkeypatch):
    if "timm:" in command:
        pytest.importorskip("timm", reason="pip install 'ampmeter[timm]'")
    for name in ("my_model.py", "my_training.py"):
        (tmp_path / name).write_text(TINY)
    (tmp_path / "train.py").touch()
    (tmp_path / "FILE").write_text("text " * 10_000)
    (tmp_path / "IMAGES/train/class").mkdir(parents=True)
    monkeypatch.setattr("bench.launch.open_launcher", lambda request: TwoGpus(machine))
    options, mark, script = command.partition(" -- ")
    words = shlex.split(f"{options} --dry-run {mark}{script}")
    done = call(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "results").exists()


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A folder with the runs that the documents name."""
    folder = tmp_path_factory.mktemp("stored")
    results = folder / "results"
    of_builder(explain, results / "A")
    fleet.original(results / "B")
    for name in ("OLD/run-1", "NEW/run-2", "OLD/run-3", "NEW/run-4", "OLD/run-5", "NEW/run-6"):
        run = fleet.original(results / name)
        fleet.begin(run, f"2026-01-0{name[-1]}")
    return folder


@pytest.mark.parametrize("command", READ)
def test_what_reads_results_or_registries_runs(command, stored):
    if "timm:" in command:
        pytest.importorskip("timm", reason="pip install 'ampmeter[timm]'")
    done = call(*shlex.split(command), cwd=stored)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout
