"""A comparison with earlier runs, as it is printed: what changed comes first, and every line fits."""

import sys
from pathlib import Path

import pytest

from bench.compare.comparison import Comparison, compare
from bench.compare.page import changes, comparison_page, show_comparison
from bench.report.page import compose
from bench.report.reading.load import load
from bench.report.render import answers
from tests.compare.test_comparison import slower
from tests.report import fleet
from tests.report.builders import RunBuilder

DEVICES = ("NVIDIA GeForce RTX 4090 Laptop GPU with a long name", "NVIDIA A100-SXM4-80GB MIG 3g.40gb")
SUITE = "a_suite_whose_name_is_longer_than_those_of_the_repository"


@pytest.fixture(scope="module")
def sides(tmp_path_factory) -> tuple[Path, Path]:
    """Two folders of runs of two devices, of which the second is slower in the new one."""
    folder = tmp_path_factory.mktemp("sides")
    first = fleet.original(folder / "raw", suite=SUITE)
    for side, speeds in (("old", (1.0, 1.0)), ("new", (1.0, 0.8))):
        for device, faster in zip(DEVICES, speeds, strict=True):
            run = folder / side / device[-7:]
            fleet.copy(first, run, device=device, architecture="Test", faster=faster, jitter=0.002)
            fleet.edit_run(run, lambda info, start=f"{side} {device}": info.update(started=start))
    return folder / "old", folder / "new"


@pytest.fixture(scope="module")
def compared(sides) -> Comparison:
    return compare(*sides)


@pytest.mark.parametrize("width", [80, 100])
def test_every_line_fits_a_terminal_and_every_change_is_whole(compared, width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    show_comparison(compared)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if len(line) > width] == []
    changed = [str(change) for _, change in compared.changes if change.is_shown]
    assert len(changed) == 2
    assert all(any("REGRESSED" in line and change in line for line in lines) for change in changed)


@pytest.mark.parametrize("width", [80, 100])
def test_the_answers_of_devices_with_long_names_fit_a_terminal(sides, width, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    (table,) = answers(compose(load([*sides[0].iterdir(), *sides[1].iterdir()]), tmp_path, figures="none").grid)
    assert len(table.rows) == 4
    assert max(map(len, table.text.splitlines())) <= width
    assert set(" ".join(sum(table.rows, table.headers)).split()) <= set(table.text.split())


def test_what_changed_comes_first_and_the_rest_is_counted_and_folded(compared):
    changed, rest = changes(compared)
    assert [table.title for table in changed] == [f"{SUITE} on {DEVICES[1]} (0)"]
    shown = {row[3] for table in changed for row in table.rows}
    folded = [row[3] for table in rest for row in table.rows]
    assert (shown, set(folded)) == ({"REGRESSED"}, {"SAME", "INCONCLUSIVE"})
    assert f" {len(folded)} of {len(compared.changes)} figures" in compared.unchanged


@pytest.mark.parametrize("kind", ["md", "html"])
def test_pages_fold_what_did_not_change(compared, kind):
    shown, _, folded = comparison_page(compared, kind).partition("<details>")
    cells = ("<bdi>REGRESSED</bdi>", "<bdi>SAME</bdi>") if kind == "html" else ("| REGRESSED |", "| SAME |")
    assert [(cell in shown, cell in folded) for cell in cells] == [(True, False), (False, True)]
    if kind == "md":
        rows = [line for line in f"{shown}{folded}".splitlines() if line.startswith("|")]
        assert max(map(len, rows)) <= 100


@pytest.mark.parametrize(("processes", "by_turns", "advice"), [(3, True, "two pairs of runs"), (1, False, "--quick")])
def test_rows_that_could_not_be_judged_have_the_cause(tmp_path, capsys, processes, by_turns, advice):
    for name in ("old", "new"):
        RunBuilder(tmp_path / name).alone("fp32", [10.0, 10.1, 10.2][:processes])
    show_comparison(compare(tmp_path / "old", tmp_path / "new", 0.03, by_turns=by_turns))
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "could not be judged" in line)
    assert advice in line


def test_regressions_come_before_improvements_and_the_largest_first(tmp_path):
    first = fleet.original(tmp_path / "raw")
    for name, times in (("old", {}), ("new", {"fp32": 1 / 1.3, "amp-bf16": 1 / 0.8})):
        run = fleet.copy(first, tmp_path / name, device="Card", architecture="Test", jitter=0.002)

        def grow(row: dict[str, str], times: dict[str, float] = times) -> None:
            if row["peak_allocated_bytes"] and times and row["precision"] == "fp32":
                row["peak_allocated_bytes"] = str(2 * int(row["peak_allocated_bytes"]))

        fleet.edit_rows(run, grow)
        fleet.edit_rows(run, slower(times), "blocks.csv")
    (table,), _ = changes(compare(tmp_path / "old", tmp_path / "new"))
    assert [(row[1], row[3]) for row in table.rows if row[1] != "all"] == [
        ("amp-bf16", "REGRESSED"),
        ("fp32", "REGRESSED"),
        ("fp32", "IMPROVED"),
    ]
