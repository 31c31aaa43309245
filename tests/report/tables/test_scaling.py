"""The scaling table: several devices over one of them, strong and weak, from throughputs that are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from bench.report.analysis.matrix import matrices
from bench.report.analysis.summary import summarise
from bench.report.reading.load import load
from bench.report.tables.comparisons import ON_A_CPU, scalings
from bench.report.tables.comparisons import scaling as scaling_table
from bench.report.tables.table import Table
from bench.results.records import Status, TrialResult
from bench.results.store import Store
from tests.report import fleet
from tests.report.builders import GPU, RunBuilder, environment, timed, write_report

CPU = replace(GPU, kind="cpu", name="Test CPU", architecture="CPU")


def measured(
    run: RunBuilder,
    placement: str,
    batch: int,
    paces: Sequence[float],
    *,
    techniques: tuple[str, ...] = (),
    status: Status = "ok",
    **figures: float | tuple[float, ...],
) -> None:
    on = CPU if placement.startswith("cpu") else GPU
    joined = "+" in placement and on is GPU
    run.device = replace(on, placement=placement, name=f"2 × {on.name}" if joined else on.name, names=(on.name,))
    for replicate, pace in enumerate(paces):
        each = {name: value[replicate] if isinstance(value, tuple) else value for name, value in figures.items()}
        speed = timed(1000 * batch / pace, batch, **each)
        trial = run.trial("speed", ["fp32"], batch, replicate=replicate)
        trial = replace(trial, cell=replace(trial.cell, techniques=techniques))
        run.add(trial, TrialResult(precision="fp32", status=status, speed=speed))


def alone_in(folder: Path, placement: str, batch: int, pace: float, *, host: str = "box", **changed: Any) -> RunBuilder:
    """A run of one placement, three processes of one pace; ``changed`` goes into its environment."""
    run = RunBuilder(folder)
    measured(run, placement, batch, (pace, pace, pace))
    claim(run, host=host, **changed)
    return run


def claim(run: RunBuilder, **changed: Any) -> None:
    found = asdict(replace(environment(run.device), **changed))
    with Store(run.folder) as store:
        store.write_run({"environment": found, "request": {"suites": [{"name": "mlp", "digest": "aaa"}]}})


def made(*folders: Path) -> tuple[Table | None, list[str]]:
    runs = load(list(folders))
    summary = summarise(runs.trials)
    tables, said = [], []
    for _, rows in summary.groupby("workload", sort=False):
        lines, sentences = scalings(rows, summary, runs)
        table = scaling_table(lines)
        tables += [table] if table else []
        said += sentences
    assert len(tables) < 2
    return (tables[0] if tables else None), said


def table_of(*folders: Path) -> Table:
    table, said = made(*folders)
    assert table is not None, said
    assert said == []
    return table


def test_speedup_and_efficiency_over_one_device_at_the_same_batch_and_at_the_same_part(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run")
    measured(run, "0", 64, (1000.0, 1000.0, 1000.0))
    measured(run, "0", 32, (800.0, 800.0, 800.0))
    measured(run, "0+1", 64, (1500.0, 1500.0, 1500.0), communication_pct=(10.0, 12.0, 14.0))
    table = table_of(run.folder)
    assert [row[1:] for row in table.rows] == [
        ["fp32", "64", "strong", "1,500", "GPU 0", "1,000", "1.500 [1.500, 1.500]", "75.0", "12 [6.9, 17]"],
        ["fp32", "64", "weak, 32 a device", "1,500", "GPU 0", "800.0", "1.875 [1.875, 1.875]", "93.8", "12 [6.9, 17]"],
    ]
    assert [column.header for column in table.columns if column.align == "left"] == [
        *("devices", "precision", "scaling", "one device")
    ]


def test_devices_of_several_nodes_are_all_counted(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run")
    measured(run, "0", 64, (1000.0, 1000.0, 1000.0))
    measured(run, "0", 16, (800.0, 800.0, 800.0))
    measured(run, "0+1@2", 64, (2400.0, 2400.0, 2400.0))
    measured(run, "0@2", 64, (1500.0, 1500.0, 1500.0))
    claim(run)
    assert [(row[3], row[7].partition(" ")[0], row[8]) for row in table_of(run.folder).rows] == [
        ("strong", "2.400", "60.0"),
        ("weak, 16 a device", "3.000", "75.0"),
        ("strong", "1.500", "75.0"),
    ]


def test_runs_of_one_placement_each_make_a_table_that_names_the_run(tmp_path: Path) -> None:
    folders = [tmp_path / f"job-{name}" for name in ("0", "1", "0+1")]
    alone_in(folders[0], "0", 64, 1000.0, host="n1")
    alone_in(folders[1], "0", 64, 800.0, host="n2")
    alone_in(folders[2], "0+1", 64, 1500.0, host="n2")
    fleet.edit_rows(folders[1], lambda row: fleet.place(row, "5"))  # its number there tells nothing here
    fleet.edit_run(folders[1], lambda info: info["environment"]["devices"][0].update(placement="5"))
    table = table_of(*folders)
    assert [row[5:8] for row in table.rows] == [["GPU 5, run job-1", "800.0", "1.875 [1.875, 1.875]"]]
    assert any("may be another board" in note for note in table.footnotes)


@pytest.mark.parametrize("other_first", [True, False])
def test_one_device_of_the_same_run_is_preferred_to_another_runs(tmp_path: Path, other_first: bool) -> None:
    other = alone_in(tmp_path / "other", "0", 64, 500.0)
    run = RunBuilder(tmp_path / "run")
    measured(run, "0", 64, (1000.0, 1000.0))
    measured(run, "0+1", 64, (1500.0, 1500.0))
    claim(run)
    folders = [other.folder, run.folder]
    (row,) = table_of(*(folders if other_first else folders[::-1])).rows
    assert row[5:7] == ["GPU 0", "1,000"]


@pytest.mark.parametrize(
    "change",
    [
        lambda info: info["environment"].update(torch="2.6.0"),
        lambda info: info["environment"].update(driver="1"),
        lambda info: info["environment"]["devices"][0].update(sm_clock_limit_mhz=1755),
        lambda info: info["request"]["suites"][0].update(digest="bbb"),
    ],
)
def test_a_run_in_other_circumstances_is_not_held_against_and_a_sentence_says_what_is_needed(tmp_path, change) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder, placement in zip(folders, ("0", "0+1"), strict=True):
        alone_in(folder, placement, 64, 1000.0)
        fleet.edit_run(folder, lambda info: info["environment"]["devices"][0].update(sm_clock_limit_mhz=1980))
    assert made(*folders)[0] is not None
    fleet.edit_run(folders[0], change)
    table, (said,) = made(*folders)
    assert table is None
    assert said.startswith("There is no scaling of 2 × NVIDIA Test 1: none of its devices was measured alone, at batch")


@pytest.mark.slow
def test_another_device_of_the_run_or_a_device_of_another_name_is_none_of_them(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run")
    measured(run, "0+1", 64, (1500.0,))
    measured(run, "2", 64, (1000.0,))
    table, said = made(run.folder)
    assert table is None
    assert said[0].startswith("There is no scaling of 2 × NVIDIA Test 1: none of its devices was measured alone, ")
    claim(run)
    other = alone_in(tmp_path / "other", "0", 64, 1000.0)
    assert made(run.folder, other.folder)[0] is not None
    fleet.edit_rows(other.folder, lambda row: row.update(device="Another Card", device_names='["Another Card"]'))
    assert made(run.folder, other.folder)[0] is None
    assert said[0] in write_report([run.folder], tmp_path / "out", figures="none").read_text()


def test_other_batch_sizes_are_no_scaling_and_those_that_are_needed_are_named(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run")
    measured(run, "0", 48, (1000.0,))
    measured(run, "0+1", 64, (1500.0,))
    table, (said,) = made(run.folder)
    assert table is None
    assert "at batch 64 (strong scaling) or 32 (weak scaling)" in said


def test_what_means_nothing_on_one_device_does_not_keep_it_from_being_compared(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run")
    measured(run, "0", 64, (1000.0,), techniques=("channels-last",))
    measured(run, "0", 64, (700.0,))
    measured(run, "0+1", 64, (1500.0,), techniques=("channels-last", "sync-bn", "bf16-allreduce"))
    (row,) = table_of(run.folder).rows
    assert row[5:7] == ["GPU 0", "1,000"]


def test_on_a_cpu_there_is_no_efficiency_and_a_note_says_why(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run")
    measured(run, "cpu", 64, (1000.0, 1000.0))
    measured(run, "cpu+cpu", 64, (900.0, 900.0), techniques=("bf16-allreduce",))
    table = table_of(run.folder)
    assert table.rows[0][0] == "Test CPU (cpu+cpu)"
    assert [row[5:9] for row in table.rows] == [["cpu", "1,000", "0.900 [0.900, 0.900]", "–"]]
    assert table.footnotes == [ON_A_CPU]


@pytest.mark.parametrize("which", ["0", "0+1"])
def test_what_did_not_converge_is_marked(tmp_path: Path, which: str) -> None:
    run = RunBuilder(tmp_path / "run", target_ci=0.01)
    for placement, pace in (("0", 1000.0), ("0+1", 1500.0)):
        measured(run, placement, 64, (pace, pace), status="unconverged" if placement == which else "ok")
    table = table_of(run.folder)
    assert table.rows[0][7] == "1.500 [1.500, 1.500]†"
    assert table.footnotes == ["† unconverged: the interval is wider than was asked for."]


def test_one_device_alone_needs_no_sentence(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run")
    measured(run, "0", 64, (1000.0,))
    assert made(run.folder) == (None, [])


def test_processes_of_a_cpu_are_named_where_nothing_else_was_measured(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run")
    measured(run, "cpu+cpu", 64, (1000.0,))
    other = RunBuilder(tmp_path / "other")
    measured(other, "cpu", 64, (1000.0,))
    runs = load([run.folder, other.folder])
    summary = summarise(runs.trials)
    assert sorted(summary["where"]) == ["Test CPU (cpu+cpu, run run)", "Test CPU (run other)"]
    (matrix, *_) = matrices(summary)
    assert {setup.name for setup in matrix.setups} == {
        "Test CPU (cpu+cpu, run run), fp32",
        "Test CPU (run other), fp32",
    }


def test_communication_in_one_process_has_no_interval(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run")
    measured(run, "0", 64, (1000.0,))
    measured(run, "0+1", 64, (1500.0,), communication_pct=-0.5)
    table = table_of(run.folder)
    assert [row[-1] for row in table.rows] == ["−0.50"]
    assert "slowest device" in table.about
