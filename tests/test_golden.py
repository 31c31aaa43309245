"""Reports of known runs say what they said (see tests/golden): figures, words and the tables of
report.md.
"""

import json
import re

import pytest

from tests.golden.cases import CASES, COMMITTED, RESULTS, runs_of
from tests.golden.figures import (
    FOLDER,
    PUBLISHED,
    figures,
    published,
    table_rows,
    write_report,
)


def assert_as_kept(shown, file):
    expected = json.loads(file.read_text(encoding="utf-8"))
    assert shown.keys() == expected.keys()
    for subject, row in expected.items():
        assert shown[subject] == pytest.approx(row), subject  # to 1e-6


@pytest.mark.parametrize("name", CASES)
def test_a_report_says_what_it_said(name, tmp_path):
    runs = runs_of(name, tmp_path)
    kept = FOLDER / name
    assert_as_kept(figures(runs, tmp_path), kept / "figures.json")
    report = write_report(runs, tmp_path)
    assert table_rows(report) == table_rows(kept / "report.md")


def test_published_ratios_are_what_they_were():
    assert_as_kept(published(), PUBLISHED)


def test_every_golden_folder_is_of_a_case_and_every_committed_run_has_one():
    folders = {file.parent.name for file in FOLDER.glob("*/figures.json")}
    assert folders == set(CASES)
    ignored = RESULTS.parent / ".gitignore"
    committed = re.findall(r"^!/results/([\w-]+)/$", ignored.read_text(), re.MULTILINE)
    reported = {"published"}
    reported.update(*COMMITTED.values())
    assert reported == set(committed)
