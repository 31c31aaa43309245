"""Reports of known runs say what they said (see tests/golden): figures, words and the tables of
report.md.
"""

import json
import re

import pytest

from tests.golden.cases import CASES, COMMITTED, RESULTS, runs_of
from tests.golden.figures import FOLDER, PUBLISHED, figures, published, table_rows, write_report


def assert_as_kept(figures, file):
    kept = json.loads(file.read_text(encoding="utf-8"))
    assert {*figures} == {*kept}
    for name, row in kept.items():
        assert figures[name] == pytest.approx(row), name  # to 1e-6


@pytest.mark.parametrize("name", CASES)
def test_a_report_says_what_it_said(name, tmp_path):
    runs = runs_of(name, tmp_path)
    assert_as_kept(figures(runs, tmp_path), FOLDER / name / "figures.json")
    assert table_rows(write_report(runs, tmp_path)) == table_rows(FOLDER / name / "report.md")


def test_published_ratios_are_what_they_were():
    assert_as_kept(published(), PUBLISHED)


def test_every_golden_folder_is_of_a_case_and_every_committed_run_has_one():
    assert {path.parent.name for path in FOLDER.glob("*/figures.json")} == set(CASES)
    kept = re.findall(
        r"^!/results/([\w-]+)/$", (RESULTS.parent / ".gitignore").read_text(), re.MULTILINE
    )
    assert {run for runs in COMMITTED.values() for run in runs} == {*kept} - {"published"}
