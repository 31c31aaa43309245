"""A comparison as it is printed: what changed comes first, and every line fits."""

import sys
from collections import Counter
from functools import partial

import pytest

from bench.compare import page
from bench.compare.comparison import Comparison, compare
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
def compared(tmp_path_factory) -> Comparison:
    """Two folders of runs of two devices, of which the second is slower in the new one."""
    folder = tmp_path_factory.mktemp("sides")
    first = fleet.original(folder / "raw", suite=SUITE)
    for side, faster in (("old", (1.0, 1.0)), ("new", (1.0, 0.8))):
        for device, speed in zip(DEVICES, faster, strict=True):
            run = folder / side / device[-7:]
            fleet.copy(first, run, device=device, architecture="Test", faster=speed, jitter=0.002)
            fleet.edit_run(run, partial(dict.update, started=f"{side} {device}"))
    return compare(folder / "old", folder / "new")


def test_every_line_fits_a_terminal_and_every_change_is_whole(compared, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    show_comparison(compared)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    regressed = "\n".join(line for line in lines if "REGRESSED" in line)
    shown = [change for change in compared.changes if change.is_shown]
    assert len(shown) == 2
    for change in shown:
        assert str(change) in regressed


def test_of_many_figures_what_changed_is_shown_and_the_rest_is_counted(compared, monkeypatch):
    words = {row[3] for table in tables(compared) for row in table.rows}
    assert words == {"REGRESSED", "SAME", "INCONCLUSIVE"}
    monkeypatch.setattr(page, "FEW", len(compared.changes) - 1)
    (table,) = tables(compared)
    assert table.title == f"{SUITE} on {DEVICES[1]} (0)"
    verdicts = Counter(change.verdict for change in compared.changes)
    assert verdicts.keys() == {"REGRESSED", "SAME", "INCONCLUSIVE"}
    assert column(table, "verdict") == ["REGRESSED"] * verdicts["REGRESSED"]
    for word, count in verdicts.items():
        assert f"{count} {word}" in compared.summary


def test_regressions_come_before_improvements(tmp_path):
    old = RunBuilder(tmp_path / "old").memory("fp32", 100)
    old.alone("fp32", [13.0, 13.01]).alone("amp-bf16", [5.0, 5.01])
    new = RunBuilder(tmp_path / "new").memory("fp32", 200)
    new.alone("fp32", [10.0, 10.01]).alone("amp-bf16", [6.5, 6.51])
    (table,) = tables(compare(tmp_path / "old", tmp_path / "new"))
    assert [row[1:4] for row in table.rows] == [
        ["fp32", "peak memory", "REGRESSED"],
        ["amp-bf16", "step time", "REGRESSED"],
        ["fp32", "step time", "IMPROVED"],
    ]
