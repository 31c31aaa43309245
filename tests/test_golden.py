"""Reports of known runs say what they said (see tests/golden): figures, words and the tables of report.md."""

import json
import re
from difflib import ndiff

import pytest

from tests.golden.cases import CASES, COMMITTED, RESULTS, runs_of
from tests.golden.figures import FOLDER, PUBLISHED, differences, figures, published, table_rows, write_report

SHOWN = 20
"""Of the differences; the first ones tell."""


@pytest.mark.parametrize("name", CASES)
def test_a_report_says_what_it_said(name, tmp_path):
    runs = runs_of(name, tmp_path)
    before = json.loads((FOLDER / name / "figures.json").read_text(encoding="utf-8"))
    changed = list(differences(before, figures(runs, tmp_path)))
    report = write_report(runs, tmp_path, "--figures", "none") / "report.md"
    rows = [table_rows(file.read_text(encoding="utf-8")) for file in (FOLDER / name / "report.md", report)]
    changed += [line for line in ndiff(*rows) if line[0] in "-+"]
    assert not changed, "\n".join([f"{len(changed)} differences from tests/golden/{name}:", *changed[:SHOWN]])


def test_published_ratios_are_what_they_were():
    changed = list(differences(json.loads(PUBLISHED.read_text(encoding="utf-8")), published()))
    assert not changed, "\n".join(changed[:SHOWN])


def test_every_golden_folder_is_of_a_case_and_every_committed_run_has_one():
    assert {path.parent.name for path in FOLDER.glob("*/figures.json")} == set(CASES)
    kept = re.findall(r"^!/results/([\w-]+)/$", (RESULTS.parent / ".gitignore").read_text(), re.MULTILINE)
    assert {run for runs in COMMITTED.values() for run in runs} == {*kept} - {"published"}


def test_a_difference_is_named_with_both_values():
    before = {"arms": {"mlp, amp-bf16": {"speedup": 2.0, "verdict": "FASTER", "marks": ["one seed"]}}}
    now = {"arms": {"mlp, amp-bf16": {"speedup": 2.000001, "verdict": "SAME", "marks": ["crowded"]}}}
    assert list(differences(before, before)) == []
    assert list(differences(before, now)) == [
        "arms · mlp, amp-bf16 · verdict: before 'FASTER', now 'SAME'",
        "arms · mlp, amp-bf16 · marks[0]: before 'one seed', now 'crowded'",
    ]
    assert len(list(differences({"speedup": 2.0}, {"speedup": 2.00001}))) == 1
    assert len(list(differences({"speedup": 2.0}, {}))) == 1
