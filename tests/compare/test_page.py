"""A comparison as it is printed: what changed comes first, and every line fits."""

import sys
from collections import Counter

import pytest

from bench.compare.comparison import Comparison, compare
from bench.compare.page import changed, show_comparison
from tests.report import fleet
from tests.report.builders import RunBuilder

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
    for side, speeds in (("old", (1.0, 1.0)), ("new", (1.0, 0.8))):
        for device, faster in zip(DEVICES, speeds, strict=True):
            run = folder / side / device[-7:]
            fleet.copy(first, run, device=device, architecture="Test", faster=faster, jitter=0.002)
            fleet.edit_run(run, lambda info, start=f"{side} {device}": info.update(started=start))
    return compare(folder / "old", folder / "new")


@pytest.mark.parametrize("width", [80, 100])
def test_every_line_fits_a_terminal_and_every_change_is_whole(compared, width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    show_comparison(compared)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if len(line) > width] == []
    shown = [str(change) for change in compared.changes if change.is_shown]
    assert len(shown) == 2
    assert all(any("REGRESSED" in line and change in line for line in lines) for change in shown)


def test_what_changed_is_shown_and_the_rest_is_counted(compared):
    (table,) = changed(compared)
    assert table.title == f"{SUITE} on {DEVICES[1]} (0)"
    assert {row[3] for row in table.rows} == {"REGRESSED"}
    others = Counter(change.verdict for change in compared.changes if not change.is_shown)
    assert set(others) == {"SAME", "INCONCLUSIVE"}
    for word, count in others.items():
        assert f"{count} {word}" in compared.summary


def test_regressions_come_before_improvements(tmp_path):
    for name, fp32_ms, amp_ms, mib in (("old", 13.0, 5.0, 100), ("new", 10.0, 6.5, 200)):
        run = RunBuilder(tmp_path / name).memory("fp32", mib)
        run.alone("fp32", [fp32_ms, fp32_ms + 0.01]).alone("amp-bf16", [amp_ms, amp_ms + 0.01])
    (table,) = changed(compare(tmp_path / "old", tmp_path / "new"))
    assert [(row[1], row[2], row[3]) for row in table.rows] == [
        ("fp32", "peak memory", "REGRESSED"),
        ("amp-bf16", "step time", "REGRESSED"),
        ("fp32", "step time", "IMPROVED"),
    ]
