"""Names of runs and of their reports, and which run is a copy of another."""

import re
import shutil
from pathlib import Path

import pytest

from bench.report.reading.folders import labels, report_folder, report_name
from bench.report.reading.load import load
from bench.spec.errors import UsageError
from tests.report import fleet
from tests.report.builders import RunBuilder


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["/x/here/run", "/x/there/run"], ["here/run", "there/run"]),
        (["/1/results/a", "/2/results/a", "/2/results/b"], ["1/results/a", "2/results/a", "b"]),
        (["/results/run", "/a/results/run"], ["/results/run", "a/results/run"]),  # one path is the end of the other
    ],
)
def test_runs_are_told_apart_by_as_much_of_their_path_as_is_needed(paths: list[str], names: list[str]) -> None:
    assert labels([Path(path) for path in paths]) == names


def test_the_report_is_named_after_its_runs_in_less_than_200_characters() -> None:
    def named(*nodes: str) -> str:
        return report_name([Path(f"/{node}/results/resnet20") for node in nodes])

    assert named("node1") == "resnet20"
    assert named("node1", "node2") == "node1-results-resnet20+node2-results-resnet20"
    many = [named(*(f"node{number}" for number in range(first, first + 30))) for first in (0, 1)]
    assert many[0] != many[1]
    assert max(map(len, many)) < 200


def test_a_report_is_named_after_the_runs_or_the_folder_of_runs_that_were_given(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    for number in range(9):
        RunBuilder(folder / f"resnet50-nvidia-a100-2026-01-0{number}")
    reports = tmp_path / "reports"
    a, b = (RunBuilder(tmp_path / name).folder for name in "ab")
    assert report_folder([folder], reports) == reports / "results"
    assert report_folder([folder, a], reports) == reports / "results+a"
    assert report_folder([a, b], reports) == reports / "a+b"


def test_a_reports_folder_is_refused_with_the_one_of_its_run(tmp_path: Path) -> None:
    RunBuilder(tmp_path / "results" / "mine").speed()
    for name, wanted in (("mine", tmp_path / "results" / "mine"), ("a+b", "results/NAME")):
        (tmp_path / "reports" / name).mkdir(parents=True)
        (tmp_path / "reports" / name / "report.html").touch()
        with pytest.raises(
            UsageError, match=re.escape(f"holds a report, not a run. Give the run's own folder, such as {wanted}.")
        ):
            load([tmp_path / "reports" / name])
    with pytest.raises(UsageError, match="holds a report, not a run"):
        load([tmp_path / "reports"])


def started(run: RunBuilder, when: str = "2026-01-01T00:00:00+00:00") -> Path:
    fleet.edit_run(run.folder, lambda info: info.update(started=when))
    return run.folder


def test_a_copy_of_a_run_counts_once_with_a_remark_and_the_fuller_one_stays(tmp_path: Path) -> None:
    first = started(RunBuilder(tmp_path / "first").speed())
    second = tmp_path / "second"
    shutil.copytree(first, second)
    read = load([first, second])
    assert [run.label for run in read.runs] == ["first"]
    assert len(read.trials) == 6
    assert read.runs[0].remarks[0] == f"{second} is a copy of it, and is left out."
    with (second / "trials.csv").open("a") as file:
        file.write((first / "trials.csv").read_text().splitlines()[1].replace("-speed-", "-speed-x") + "\n")
    assert [run.label for run in load([first, second]).runs] == ["second"]


def test_runs_that_only_share_a_name_or_a_start_are_no_copies(tmp_path: Path) -> None:
    folders = [started(RunBuilder(tmp_path / name / "run").speed()) for name in "abcd"]
    started(RunBuilder(folders[1]), "2026-01-01T00:00:01+00:00")
    fleet.edit_run(folders[2], lambda info: info["environment"].update(host="another"))
    fleet.edit_run(folders[3], lambda info: info["environment"]["devices"][0].update(uuid="GPU-2"))
    assert len(load(folders).runs) == 4
