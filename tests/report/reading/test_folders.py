"""Names of runs and of their reports."""

from pathlib import Path

import pytest

from bench.report.reading.folders import name_runs, report_name
from tests.report.builders import RunBuilder


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (
            ["/1/results/a", "/2/results/a", "/2/results/b"],
            ["1/results/a", "2/results/a", "b"],
        ),
        # One path is the end of the other.
        (
            ["/results/run", "/a/results/run"],
            ["/results/run", "a/results/run"],
        ),
    ],
)
def test_runs_are_told_apart_by_as_much_of_their_path_as_is_needed(paths, names):
    assert name_runs([Path(path) for path in paths]) == names


def test_a_report_is_named_after_the_runs_or_the_folder_of_runs_that_were_given(tmp_path):
    folder = tmp_path / "results"
    RunBuilder(folder / "resnet50")
    run = tmp_path / "run"
    RunBuilder(run)
    assert report_name([folder]) == "results"
    assert report_name([folder, run, run]) == "results+run"
    many = [tmp_path / f"{number:099}" for number in range(30)]
    assert report_name(many) == f"{0:099}+29-more"
