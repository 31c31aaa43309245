"""A comparison as it is printed: what changed comes first, and every line fits."""

import sys
from collections import Counter

import pytest

from bench.compare import page
from bench.compare.comparison import compare
from bench.compare.page import show_comparison, tables
from tests.report import fleet
from tests.report.builders import RunBuilder
from tests.report.tables.lines import column

DEVICES = (
    "NVIDIA GeForce RTX 4090 Laptop GPU with a long name",
    "NVIDIA A100-SXM4-80GB MIG 3g.40gb",
)
SUITE = "a_suite_whose_name_is_longer_than_those_of_the_repository"


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Two folders of runs of two devices, of which the second is slower in the new one."""
    folder = tmp_path_factory.mktemp("sides")
    first = fleet.original(folder / "raw", suite=SUITE)
    for run, device, faster, day in (
        ("old/1", DEVICES[0], 1.0, "2026-01-01"),
        ("old/2", DEVICES[1], 1.0, "2026-01-02"),
        ("new/1", DEVICES[0], 1.0, "2026-01-03"),
        ("new/2", DEVICES[1], 0.8, "2026-01-04"),
    ):
        copy = fleet.copy(
            first,
            folder / run,
            device=device,
            architecture="Test",
            faster=faster,
            jitter=0.002,
        )
        fleet.begin(copy, day)
    return compare(folder / "old", folder / "new")


def test_every_line_fits_a_terminal_and_every_change_is_whole(compared, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    show_comparison(compared)
    regressed = ""
    for line in capsys.readouterr().out.splitlines():
        assert len(line) <= 80
        if "REGRESSED" in line:
            regressed += line
    shown = [str(change) for change in compared.changes if change.is_shown]
    assert len(shown) == 2
    for change in shown:
        assert change in regressed


def test_of_many_figures_what_changed_is_shown_and_the_rest_is_counted(compared, monkeypatch):
    counts = Counter(change.verdict for change in compared.changes)
    assert counts.keys() == {"REGRESSED", "SAME", "INCONCLUSIVE"}
    for word, count in counts.items():
        assert f"{count} {word}" in compared.summary
    shown = Counter()
    for table in tables(compared):
        shown.update(column(table, "verdict"))
    assert shown == counts
    monkeypatch.setattr(page, "FEW", len(compared.changes) - 1)
    (table,) = tables(compared)
    assert table.title == f"{SUITE} on {DEVICES[1]} (0)"
    assert Counter(column(table, "verdict")) == {"REGRESSED": counts["REGRESSED"]}


def test_regressions_come_before_improvements(tmp_path):
    old = RunBuilder(tmp_path / "old")
    old.memory("fp32", 100)
    old.alone("fp32", [13.0, 13.01])
    old.alone("amp-bf16", [5.0, 5.01])
    new = RunBuilder(tmp_path / "new")
    new.memory("fp32", 200)
    new.alone("fp32", [10.0, 10.01])
    new.alone("amp-bf16", [6.5, 6.51])
    comparison = compare(old.folder, new.folder)
    (table,) = tables(comparison)
    assert [row[1:4] for row in table.rows] == [
        ["fp32", "peak memory", "REGRESSED"],
        ["amp-bf16", "step time", "REGRESSED"],
        ["fp32", "step time", "IMPROVED"],
    ]
